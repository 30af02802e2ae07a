"""Rules on data on its way: a step that waits for it, and copies between host and device."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from steptrace.documents.copies import Copy
from steptrace.findings.rule import Match, Rule, Thresholds, Window, rule
from steptrace.format import bandwidth, count, duration
from steptrace.format import share as percent
from steptrace.limits import HIGH_SHARE, MODERATE_SHARE, NOISE_FLOOR


@dataclass(frozen=True)
class Waiting:
    """Waiting for data in a step, in ns: in the steps of a trace, or in a variant's unprofiled ones.

    `counted_ns` and `share` are of what counts: with a GPU the part in which it is idle. None stands for what was not
    measured; `advice` for that of the rule. `note` says how `step_ns` fits another length of the step on the page.
    """

    wait_ns: float | None
    counted_ns: float | None
    share: float | None
    step_ns: float | None
    on_gpu: bool
    per: str
    advice: str | None = None
    note: str | None = None


def input_bound(waits: Waiting) -> Iterator[Match]:
    """Whether a step waits for its data, profiled or not."""
    share, counted_ns = waits.share, waits.counted_ns
    if share is None or counted_ns is None or waits.wait_ns is None or waits.step_ns is None or share < MODERATE_SHARE:
        return
    idle = f", {duration(counted_ns)} of it with the GPU idle" if waits.on_gpu else ""
    yield Match(
        severity="high" if share >= HIGH_SHARE else "warning",
        claim=f"{percent(share)} of the step is waiting for the data loader"
        + (", the GPU idle meanwhile" if waits.on_gpu else ""),
        evidence=(
            f"{duration(waits.wait_ns)} of {duration(waits.step_ns)} {waits.per}{idle}",
            *([waits.note] if waits.note else []),
        ),
        cost_ns_per_step=counted_ns,
        cost_share=share,
        advice=waits.advice,
    )


def _waiting_in(window: Window) -> Waiting:
    waits = window.entry.input
    on_gpu = waits.gpu_idle_wait_ns is not None
    if waits.unprofiled_wait_ns is not None and waits.unprofiled_step_ns is not None and waits.share is not None:
        counted = waits.share * waits.unprofiled_step_ns
        per = "per unprofiled step, mean"
        return Waiting(waits.unprofiled_wait_ns, counted, waits.share, waits.unprofiled_step_ns, on_gpu=on_gpu, per=per)
    sums = (waits.wait_ns, waits.counted_ns)
    wait_ns, counted_ns = (None if ns is None else window.per_step(ns) for ns in sums)
    step_ns = window.per_step(waits.window_ns)
    return Waiting(wait_ns, counted_ns, waits.share, step_ns, on_gpu=on_gpu, per=window.per)


#: The thresholds that the rule's words name.
INPUT_BOUND: Final[Thresholds] = {"least": MODERATE_SHARE}
INPUT_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("input_bound", lambda window: input_bound(_waiting_in(window)), INPUT_BOUND),
)


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
