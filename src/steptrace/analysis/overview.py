"""The overview of a trace: the step time, its parts, and the operators that take it.

The parts are those of `steptrace.analysis.common.division` over all steps as one window: from the first one's start on
the host, or the end of work launched before it, to the end of the last one's work. A trace without steps is one window,
its GPU's span, and has no step time.

Also the figures of `documents.steps.StepFigures`: their values in each step, and over all steps.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.analysis.common.activity import activity, launches_measured, sm_weighted_ns
from steptrace.analysis.common.call_tree import call_tree, device_time_by
from steptrace.analysis.common.division import gpu_division, gpu_window, host_division, unknown_parts
from steptrace.analysis.common.registry import part, reads, table
from steptrace.analysis.steps import lengths_ns
from steptrace.documents.overview import Overview, StepParts, TopOperator
from steptrace.documents.table import frame_of, rows
from steptrace.intervals import Ints, measure_within
from steptrace.trace.columns import has_ancestor, map_names, row_numbers
from steptrace.trace.model import Trace, once
from steptrace.trace.names import is_own_operator

#: How many operators summary.json lists.
MOST_OPERATORS: Final = 10


@part("overview")
def overview(trace: Trace) -> Overview | None:
    """The parts of a trace's step time; None for a trace with neither steps nor GPU work.

    They are the GPU's, or without one the loop's labels; of a trace without steps those of the GPU's span.
    """
    device = trace.device
    steps = len(trace.steps)
    if device is not None:
        start, end = gpu_window(trace)
        parts = gpu_division(trace).total(start, end)
        window = end - start
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
        parts_ns=_known(trace, parts),
        by_step=_by_step(trace),
        operators=rows(top_operators(trace).head(MOST_OPERATORS), TopOperator),
    )


def _by_step(trace: Trace) -> tuple[StepParts, ...]:
    """The parts of each step: of a GPU's from the end of the work before to the end of its own, see `lengths_ns`."""
    if not len(trace.steps):
        return ()
    if trace.device is None:
        starts = trace.steps["ts"].to_numpy()
        division = host_division(trace)
        ends = starts + trace.steps["host_dur"].to_numpy()
    else:
        lengths = np.array(lengths_ns(trace), dtype=np.int64)
        ends = gpu_window(trace)[0] + np.cumsum(lengths)
        division = gpu_division(trace)
        starts = ends - lengths
    parts = division.within(starts, ends)
    return tuple(
        StepParts(index=int(index), parts_ns=_known(trace, {name: int(ns[row]) for name, ns in parts.items()}))
        for row, index in enumerate(trace.steps["index"])
    )


def _known(trace: Trace, parts: Mapping[str, int]) -> dict[str, int | None]:
    """The parts of some time, None for those that cannot be told."""
    unknown = unknown_parts(trace)
    return {name: None if name in unknown else ns for name, ns in parts.items()}


@once
def operator_times(trace: Trace) -> pd.DataFrame:
    """The `calls` of each operator by its name, and `host_self_ns`: their own time on the host, summed."""
    tree = call_tree(trace)
    operators = tree[["name", "host_self_ns"]][(tree["kind"] == "op").to_numpy()]
    by_name = operators.groupby("name", observed=True)["host_self_ns"]
    return pd.DataFrame({"calls": by_name.size(), "host_self_ns": by_name.sum()}).rename(index=str)


@table("top_operators", TopOperator)
@reads("kernel_origins")
@once
def top_operators(trace: Trace) -> pd.DataFrame:
    """The operators by their own time (table `top_operators`): the GPU's, or where launches are unknown the host's.

    All GPU time of the steps has a row, so that shares are shares of all of it. Communication counts for the operator
    that launched it; work without an operator is the row null. Operators without GPU work follow; wrappers of the
    autograd engine are left out.
    """
    ops = operator_times(trace)
    operators = [name for name in map(str, ops.index) if is_own_operator(name)]
    names: list[str | None] = [*operators]
    device_ns: list[int] | None = None
    if launches_measured(trace):
        by_operator = device_time_by(trace, ["op"])
        launching = [None if pd.isna(name) else str(name) for name in by_operator["op"]]
        names = list(dict.fromkeys([*launching, *operators]))
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


#: One value for each step, in the order of the steps.
Values = NDArray[np.float64]


def step_figures(trace: Trace) -> dict[str, float | None]:
    """Every figure of a trace by its key: shares of the window's time, and medians over the steps.

    None if the trace lacks the events for it.
    """
    counts = {
        "operators_per_step": operators_per_step(trace),
        "kernels_per_step": kernels_per_step(trace),
        "streams_per_step": streams_per_step(trace),
    }
    medians = {key: float(np.median(values)) if len(values) else None for key, values in counts.items()}
    return {"gpu_busy_pct": busy_pct(trace), "sm_weighted_pct": sm_weighted_pct(trace), **medians}


def operators_per_step(trace: Trace) -> Values:
    """The number of operators that each step called; empty for a trace without operators.

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


def kernels_per_step(trace: Trace) -> Values:
    """How many kernels each step launched on the GPU, copies and sets left out; empty without a GPU."""
    kernels = trace.kernels
    chosen = ((kernels["device"] == trace.device) & (kernels["category"] == "kernel")).to_numpy()
    return np.empty(0) if trace.device is None else _count(row_numbers(kernels["step"])[chosen], trace)


def streams_per_step(trace: Trace) -> Values:
    """How many distinct streams of the GPU each step's kernels, copies and sets ran on; empty without a GPU."""
    used = trace.kernels.loc[trace.kernels["device"] == trace.device, ["step", "stream"]].drop_duplicates()
    return np.empty(0) if trace.device is None else _count(row_numbers(used["step"]), trace)


def _count(step: Ints, trace: Trace) -> Values:
    return np.bincount(step[step >= 0], minlength=len(trace.steps)).astype(np.float64)


def busy_pct(trace: Trace) -> float | None:
    """Percent of the window's time in which the GPU was busy; None without a GPU."""
    start, end = gpu_window(trace)
    if trace.device is None or end <= start:
        return None
    return 100.0 * float(measure_within(activity(trace).busy, [start], [end])[0] / (end - start))


def sm_weighted_pct(trace: Trace) -> float | None:
    """Percent of the window's time in which multiprocessors had a block; None if some kernel's are unknown."""
    start, end = gpu_window(trace)
    ns = sm_weighted_ns(trace, start, end)
    return None if ns is None or end <= start else 100.0 * ns / (end - start)
