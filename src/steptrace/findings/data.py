"""Rules on data on its way: a step that waits for it, and copies between host and device."""

import re
from collections.abc import Iterator
from typing import Final

from steptrace.documents.copies import Copy
from steptrace.findings.model import Match, Rule, rule
from steptrace.findings.window import Window
from steptrace.format import bandwidth, count, duration, plural
from steptrace.format import share as percent
from steptrace.limits import HIGH_SHARE, MODERATE_SHARE, NOISE_FLOOR


def _input_bound(window: Window) -> Iterator[Match]:
    waits = window.entry.input
    share, wait_ns, cost_ns = waits.share, waits.wait_ns, waits.counted_ns
    if share is None or wait_ns is None or cost_ns is None or share < MODERATE_SHARE:
        return
    with_gpu = waits.gpu_idle_wait_ns is not None
    waited = f"{duration(window.per_step(wait_ns))} {window.per} waiting for the loader's next batch"
    yield Match(
        severity="high" if share >= HIGH_SHARE else "warning",
        claim=input_claim(share, on_gpu=with_gpu),
        evidence=(
            waited + (f", {duration(window.per_step(cost_ns))} of it with the GPU idle" if with_gpu else ""),
            *(
                [f"{plural(waits.waits, 'wait')} in {plural(window.steps, 'step')}"]
                if window.steps and waits.waits
                else []
            ),
        ),
        cost_ns_per_step=window.per_step(cost_ns),
        cost_share=share,
    )


def input_claim(share: float, *, on_gpu: bool) -> str:
    """What an input-bound step spends on waiting; of a GPU's step only the wait in which the GPU is idle counts."""
    return f"{percent(share)} of the step is waiting for the data loader" + (", the GPU idle meanwhile" * on_gpu)


INPUT_RULES: Final[tuple[Rule[Window], ...]] = (rule("input_bound", _input_bound, {"least": MODERATE_SHARE}),)


_INSIDE: Final = (
    "Most of it stays on the GPU: write results where they are needed instead of copying them there (preallocate, "
    "views instead of cat and contiguous, set_to_none instead of zeros)."
)
_HOST: Final = re.compile(r"HtoD|DtoH|HtoH|Pinned|Pageable|Host")


def _copy_bound(window: Window) -> Iterator[Match]:
    exposed_ns = window.parts.get("exposed_memory")
    copies = _copies(window)
    pageable_ns = window.per_step(sum(row.ns for row in copies if _is_pageable(row)))
    # Pageable copies are a finding of their own.
    if exposed_ns is None or window.share(exposed_ns) < MODERATE_SHARE or pageable_ns >= exposed_ns / 2:
        return
    inside = sum(row.ns for row in copies if not _HOST.search(row.kind))
    mostly_inside = inside > sum(row.ns for row in copies) / 2
    yield Match(
        severity="high" if window.share(exposed_ns) >= HIGH_SHARE else "warning",
        claim=f"for {percent(window.share(exposed_ns))} of the time the GPU does nothing but copy or set memory",
        evidence=(
            f"copies and sets that no kernel hides: {duration(exposed_ns)} of {duration(window.step_ns)} {window.per}",
            *(_in_words(row, window) for row in copies[:3]),
        ),
        cost_ns_per_step=exposed_ns,
        advice=_INSIDE if mostly_inside else None,
    )


def _pageable(window: Window) -> Iterator[Match]:
    rows = [row for row in _copies(window) if _is_pageable(row)]
    ns = window.per_step(sum(row.ns for row in rows))
    if not rows:
        return
    exposed_ns = window.parts.get("exposed_memory")
    yield Match(
        severity="warning" if window.share(ns) >= MODERATE_SHARE else "info",
        claim=f"copies go through pageable memory, which the driver stages on the host: {duration(ns)} {window.per}",
        evidence=tuple(_in_words(row, window) for row in rows[:3]),
        cost_ns_per_step=ns if exposed_ns is None else min(ns, exposed_ns),
    )


def _is_pageable(row: Copy) -> bool:
    return "Pageable" in row.kind


def _copies(window: Window) -> list[Copy]:
    """The kinds of copies on the analysed GPU, the one with the most time first."""
    rows = [row for row in window.entry.copies if row.device == window.entry.device]
    return sorted(rows, key=lambda row: -row.ns)


def _in_words(row: Copy, window: Window) -> str:
    rate = row.mean_bytes_per_second
    return f"{row.kind}: {count(window.per_step(row.count))} {window.per}, {duration(window.per_step(row.ns))}" + (
        f", {bandwidth(rate)}" if rate is not None else ""
    )


COPY_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("copy_bound", _copy_bound, {"least": MODERATE_SHARE}),
    rule("pageable_copies", _pageable, {"least": NOISE_FLOOR}),
)
