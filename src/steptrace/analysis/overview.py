"""The overview of a trace: the step time, its parts, and the operators that take it.

The parts are those of `steptrace.analysis.common.division` over all steps as one window: from the first one's start on
the host, or the end of work launched before it, to the end of the last one's work. A trace without steps is one window,
its GPU's span, and has no step time.

Also the figures of `documents.step_figures`: their values in each step, and over all steps.
"""

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.analysis.common.busy import activity, sm_weighted_ns
from steptrace.analysis.common.call_tree import call_tree, device_time_by
from steptrace.analysis.common.division import gpu_division, gpu_window, host_division
from steptrace.analysis.common.rows import rows
from steptrace.analysis.common.steps import disjoint_steps, is_own_operator
from steptrace.documents.overview import Overview, TopOperator
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.documents.table import frame_of
from steptrace.intervals import Ints, measure_within
from steptrace.trace.columns import has_ancestor, map_names, row_numbers
from steptrace.trace.model import Trace, once

#: How many operators summary.json lists.
MOST_OPERATORS: Final = 10


def overview(trace: Trace, device: int | None) -> Overview | None:
    """The parts of a trace's step time; None for a trace with neither steps nor GPU work.

    They are the GPU's, or without one the loop's sections; of a trace without steps those of the GPU's span.
    """
    steps = len(trace.steps)
    if device is not None:
        start, end = gpu_window(trace, device)
        parts, window = gpu_division(trace, device).total(start, end), end - start
    elif steps:
        parts = host_division(trace).total(*trace.steps_span)
        window = sum(parts.values())
    else:
        return None
    return Overview(
        kind="host" if device is None else "gpu",
        steps=steps,
        window_ns=window,
        step_ns=window / steps if steps else None,
        parts_ns=parts,
        operators=rows(top_operators(trace, device).head(MOST_OPERATORS), TopOperator),
    )


@once
def top_operators(trace: Trace, device: int | None) -> pd.DataFrame:
    """The operators by their own time (table `top_operators`): the GPU's, or without a GPU the host's.

    All GPU time gets a row, communication under the operator that launched it, work without one under null, so shares
    are of all GPU time. Operators without GPU work follow; wrappers of the autograd engine are left out.
    """
    tree = call_tree(trace)
    by_name = tree[(tree["kind"] == "op").to_numpy()].groupby("name", observed=True)["host_self_ns"]
    ops = pd.DataFrame({"calls": by_name.size(), "host_self_ns": by_name.sum()}).rename(index=str)
    own = [name for name in map(str, ops.index) if is_own_operator(name)]
    names: list[str | None] = [*own]
    device_ns: list[int] | None = None
    if device is not None:
        by_operator = device_time_by(trace, ["op"])
        launching = [None if pd.isna(name) else str(name) for name in by_operator["op"]]
        names = list(dict.fromkeys([*launching, *own]))
        device_ns = [*by_operator["device_ns"], *([0] * (len(names) - len(launching)))]
    table = ops.reindex(names)[["calls", "host_self_ns"]].astype("Int64").reset_index(drop=True)
    by = (
        table["host_self_ns"].fillna(0)
        if device_ns is None or not sum(device_ns)
        else pd.Series(device_ns, dtype="Int64")
    )
    share = by.astype("float64") / max(int(by.sum()), 1)
    table = table.assign(name=pd.Series(names, dtype=object), device_self_ns=device_ns, share=share)
    order = ["share", "host_self_ns", "name"]
    table = table.sort_values(order, ascending=[False, False, True], kind="stable", ignore_index=True)
    return frame_of(TopOperator, table)


#: One value a step, in the order of the steps.
Values = NDArray[np.float64]


def step_figures(trace: Trace, device: int | None) -> dict[str, float | None]:
    """Every figure of a trace by its key; None if the trace lacks the events for it."""
    return {figure.name: over_all_steps(figure.name, trace, device) for figure in STEP_FIGURES}


def over_all_steps(key: str, trace: Trace, device: int | None) -> float | None:
    """A figure over all steps of a trace: for a share, that of the window's time, else the median of the steps."""
    if key in SHARES:
        start, end = (0, 0) if device is None else gpu_window(trace, device)
        values = np.empty(0)
        if device is not None and end > start:
            values = SHARES[key](trace, device, np.array([start]), np.array([end]))
    else:
        values = in_each_step(key, trace, device)
    return float(np.median(values)) if len(values) else None


def in_each_step(key: str, trace: Trace, device: int | None) -> Values:
    """A figure in each step of a trace; empty if the trace lacks the events for it."""
    if device is None and key != _ON_HOST:
        return np.empty(0)
    if key in COUNTS:
        return COUNTS[key](trace, device or 0)
    # Steps that overlap are cut, so that no time counts twice. Without steps the GPU's span is one.
    start, end = disjoint_steps(trace) if len(trace.steps) else np.array([gpu_window(trace, device or 0)]).T
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
    counts = map_names(ops["name"], is_own_operator)
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


#: Functions by the key of their figure: shares of windows' time, and counts in each step.
SHARES: Final[Mapping[str, Callable[[Trace, int, Ints, Ints], Values]]] = {
    "gpu_busy_pct": busy_pct,
    "sm_weighted_pct": sm_weighted_pct,
}
COUNTS: Final[Mapping[str, Callable[[Trace, int], Values]]] = {
    "operators_per_step": operators_per_step,
    "kernels_per_step": kernels_per_step,
    "streams_per_step": streams_per_step,
}
#: The only figure of a trace without a GPU.
_ON_HOST: Final = "operators_per_step"
