"""Rules on data on its way: a step that waits for it, and copies between host and device."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from steptrace.analysis.input.measure import HIGH_SHARE, MODERATE_SHARE
from steptrace.documents.rows import Copy
from steptrace.findings.model import Match, Rule
from steptrace.findings.step_time import MORE_WORKERS, STEP_TIME_RULES
from steptrace.findings.trace.window import Window
from steptrace.format import bandwidth, duration, number
from steptrace.format import whole_percent as percent


def _input_bound(window: Window) -> Iterator[Match]:
    found = window.entry.input
    share, wait_ns, cost_ns = found.share, found.wait_ns, found.counted_ns
    if share is None or wait_ns is None or cost_ns is None or share < MODERATE_SHARE:
        return
    with_gpu = found.gpu_idle_wait_ns is not None
    waited = f"{duration(window.each(wait_ns))} {window.per} waiting for the loader's next batch"
    yield Match(
        severity="high" if share >= HIGH_SHARE else "warning",
        claim=f"{percent(share)} of the step is waiting for the data loader" + (", the GPU idle meanwhile" * with_gpu),
        evidence=(
            waited + (f", {duration(window.each(cost_ns))} of it with the GPU idle" if with_gpu else ""),
            *([f"{found.waits} waits in {window.steps} steps"] if window.steps and found.waits else []),
        ),
        cost_ns_per_step=window.each(cost_ns),
        cost_share=share,
    )


_OF_STUDIES: Final[Rule[Any]] = next(rule for rule in STEP_TIME_RULES if rule.name == "input_bound")

#: As the rule on studies, in words for any program.
INPUT_RULES: Final[tuple[Rule[Window], ...]] = (
    replace(
        _OF_STUDIES,
        find=_input_bound,
        advice=MORE_WORKERS,
        counter_check="Train for some steps on a few batches kept in memory: such a step is what a perfect loader "
        "would give. Workers gain nothing where there are no processors for them.",
    ),
)


#: Copies out of or into pageable memory below this share of a step are left to the table (the default noise floor).
PAGEABLE_SHARE: Final = 0.01

_HOST: Final = re.compile(r"HtoD|DtoH|HtoH|Pinned|Pageable|Host")
_INSIDE_ADVICE: Final = (
    "Most of it stays on the GPU: write results where they are needed instead of copying them there (preallocate, "
    "views instead of cat and contiguous, set_to_none instead of zeros)."
)

_INSIDE_CHECK: Final = (
    "Kernels that read a view instead of its copy can get slower: look whether the step gets shorter."
)


def _copy_bound(window: Window) -> Iterator[Match]:
    exposed_ns = window.parts.get("exposed_memory")
    if exposed_ns is None or window.share(exposed_ns) < MODERATE_SHARE:
        return
    copies = _copies(window)
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
        advice=_INSIDE_ADVICE if mostly_inside else None,
        counter_check=_INSIDE_CHECK if mostly_inside else None,
    )


def _pageable(window: Window) -> Iterator[Match]:
    rows = [row for row in _copies(window) if "Pageable" in row.kind]
    ns = window.each(sum(row.ns for row in rows))
    if not rows or window.share(ns) < PAGEABLE_SHARE:
        return
    exposed_ns = window.parts.get("exposed_memory")
    yield Match(
        severity="warning" if window.share(ns) >= MODERATE_SHARE else "info",
        claim=f"copies go through pageable memory, which the driver stages on the host: {duration(ns)} {window.per}",
        evidence=tuple(_in_words(row, window) for row in rows[:3]),
        cost_ns_per_step=ns if exposed_ns is None else min(ns, exposed_ns),
    )


def _copies(window: Window) -> list[Copy]:
    """The kinds of copies on the analysed GPU, the one with the most time first."""
    rows = [row for row in window.entry.copies if row.device == window.entry.device]
    return sorted(rows, key=lambda row: -row.ns)


def _in_words(row: Copy, window: Window) -> str:
    rate = row.mean_bytes_per_second
    return f"{row.kind}: {number(window.each(row.count))} {window.per}, {duration(window.each(row.ns))}" + (
        f", {bandwidth(rate)}" if rate is not None else ""
    )


COPY_RULES: Final[tuple[Rule[Window], ...]] = (
    Rule(
        name="copy_bound",
        condition=f"copies and sets that no kernel hides take at least {percent(MODERATE_SHARE)} of the step",
        basis="the TensorFlow Profiler calls 5 % of copies to and from the device moderate and 20 % high",
        advice="Copy the next batch on a stream of its own while this one trains, in a smaller type, and leave values "
        "on the device.",
        counter_check="Train on one batch kept on the device: its step is what perfect copies would give.",
        find=_copy_bound,
        study="input_pipeline",
        explained_by=("pageable_copies",),
    ),
    Rule(
        name="pageable_copies",
        condition=f"copies out of or into pageable memory take at least {percent(PAGEABLE_SHARE)} of the step",
        basis="Nsight Systems (cuda_memcpy_async) names each of them; 1 % is ours, the default noise floor",
        advice="Pin the host's side: `DataLoader(pin_memory=True)`, and `.to(device, non_blocking=True)`.",
        counter_check="Pinning copies once more on the host and takes memory that cannot be swapped: for small batches "
        "look whether the loader's wait grows by more.",
        find=_pageable,
        study="input_pipeline",
    ),
)
