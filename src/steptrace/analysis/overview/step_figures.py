"""How each figure of `documents.step_figures` comes from a trace: its value in each step, and over all steps."""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from steptrace.analysis.common.busy import activity, sm_weighted_ns
from steptrace.analysis.common.steps import is_own_operator
from steptrace.analysis.overview.measure import gpu_window
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.intervals import Ints, measure_within
from steptrace.trace.columns import has_ancestor, judge_names, row_numbers, start_end
from steptrace.trace.model import Trace

#: One value a step, in the order of the steps.
Values = NDArray[np.float64]


def step_figures(trace: Trace, device: int | None) -> dict[str, float | None]:
    """Every figure of a trace by its key; None where nothing in the trace could measure it."""
    return {figure.key: over_all_steps(figure.key, trace, device) for figure in STEP_FIGURES}


def over_all_steps(key: str, trace: Trace, device: int | None) -> float | None:
    """A figure over all steps of a trace: of a share that of their window's time, else the median of the steps."""
    if key in SHARES:
        start, end = (0, 0) if device is None else gpu_window(trace, device)
        values = np.empty(0)
        if device is not None and end > start:
            values = SHARES[key](trace, device, np.array([start]), np.array([end]))
    else:
        values = in_each_step(key, trace, device)
    return float(np.median(values)) if len(values) else None


def in_each_step(key: str, trace: Trace, device: int | None) -> Values:
    """A figure in each step of a trace; empty where nothing in the trace could measure it."""
    if device is None and key in _NEED_GPU:
        return np.empty(0)
    if key in COUNTS:
        return COUNTS[key](trace, device or 0)
    # Without steps the GPU's span is one.
    start, end = start_end(trace.steps) if len(trace.steps) else np.array([gpu_window(trace, device or 0)]).T
    return SHARES[key](trace, device or 0, start, end)


def operators_per_step(trace: Trace, _: int) -> Values:
    """How many operators each step called; empty for a trace without operators.

    An operator counts if the program or a backward node called it: its name has a namespace (`aten::add`), it is not
    the autograd engine's own wrapper, and no other such operator is around it. `aten::linear` counts once, not once
    more for the `aten::addmm` inside.
    """
    ops = trace.ops
    if len(ops) == 0:
        return np.empty(0)
    counts = judge_names(ops["name"], is_own_operator)
    inside = has_ancestor(row_numbers(ops["parent"]), counts)
    return _count(row_numbers(ops["step"])[counts & ~inside], trace)


def kernels_per_step(trace: Trace, device: int) -> Values:
    """How many kernels each step launched on the GPU, copies and sets left out."""
    kernels = trace.kernels
    chosen = ((kernels["device"] == device) & (kernels["category"] == "kernel")).to_numpy()
    return _count(row_numbers(kernels["step"])[chosen], trace)


def streams_per_step(trace: Trace, device: int) -> Values:
    """How many distinct streams of the GPU each step's kernels, copies and sets ran on."""
    used = trace.kernels.loc[trace.kernels["device"] == device, ["step", "stream"]].drop_duplicates()
    return _count(row_numbers(used["step"]), trace)


def _count(step: Ints, trace: Trace) -> Values:
    return np.bincount(step[step >= 0], minlength=len(trace.steps)).astype(np.float64)


def busy_pct(trace: Trace, device: int, start: Ints, end: Ints) -> Values:
    """Percent of each window's time in which the GPU was busy; windows may overlap."""
    share: Values = measure_within(activity(trace, device).busy, start, end) / np.maximum(end - start, 1)
    return 100.0 * share


def sm_weighted_pct(trace: Trace, device: int, start: Ints, end: Ints) -> Values:
    """Percent of each window's time in which multiprocessors had a block; empty if some kernel's are unknown."""
    ns = sm_weighted_ns(trace, device, start, end)
    return np.empty(0) if ns is None else 100.0 * ns / np.maximum(end - start, 1)


#: By the keys of the figures: shares of the time of windows, and counts in each step.
SHARES: Final[Mapping[str, Callable[[Trace, int, Ints, Ints], Values]]] = {
    "gpu_busy_pct": busy_pct,
    "sm_weighted_pct": sm_weighted_pct,
}
COUNTS: Final[Mapping[str, Callable[[Trace, int], Values]]] = {
    "operators_per_step": operators_per_step,
    "kernels_per_step": kernels_per_step,
    "streams_per_step": streams_per_step,
}
_NEED_GPU: Final = frozenset(figure.key for figure in STEP_FIGURES if figure.needs_gpu)
