"""The first look at a trace: how long a step takes, where that time goes, and what takes it.

A step's time is divided into parts that exclude each other and add up to it, to the nanosecond.
With a GPU, all steps are one window: from the first one's start on the host, or the end of what was launched before
it, to the end of the last one's work. Steps overlap where the host runs ahead of the GPU; a window holds every instant
once, and divided by the number of steps it is what a step takes. At each instant the GPU computes, or runs
communication or copies that no computation hides, or is idle, with one cause. Without a GPU, the window is the host's
steps one after the other, in the parts as the training loop labels them, of labels inside each other the outer one; of
somebody else's loop as PyTorch's own labels and the operators of the backward pass tell, and what cannot be told is no
part.

The first page has these parts under other names. A trace without steps is one window, its GPU's span, and has no step
time.

And how each figure of `documents.step_figures` comes from a trace: its value in each step, and over all steps.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
from msgspec.structs import asdict
from numpy.typing import NDArray

from steptrace import intervals, schema
from steptrace.analysis.common.busy import activity, gpu_time, sm_weighted_ns
from steptrace.analysis.common.steps import HOST_PARTS, apart, is_own_operator, labelled_parts, unlabelled_parts
from steptrace.analysis.idle import CAUSES, idle_gaps, loader_spans
from steptrace.documents.gpu_time import DeviceTime, GpuTime
from steptrace.documents.overview import Overview, StepParts, TopOperator
from steptrace.documents.rows import table_of
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.intervals import Ints, Spans, measure_within
from steptrace.trace.columns import has_ancestor, judge_names, row_numbers, spans_of, start_end
from steptrace.trace.model import Trace, once

#: The parts with a GPU, and what the first page calls them.
PART_NAMES: Final = {
    "compute": "compute",
    "exposed_memory": "memory",
    "exposed_comm": "comm",
    "idle_loader": "input",
    "idle_sync": "sync",
    "idle_host": "host",
    "idle_dependency": "dependency",
    "idle_unknown": "unknown",
}

TOP_OPERATORS = table_of("top_operators", TopOperator, "name")


def overview(trace: Trace, device: int | None, operators: tuple[TopOperator, ...] = ()) -> Overview | None:
    """Where the time of a trace's steps went; None for a trace with neither steps nor GPU work."""
    divided = parts_of_window(trace, device)
    if divided is None:
        return None
    parts, window = divided.parts_ns, divided.window_ns
    if divided.kind == "gpu":
        parts = {new: parts[old] for old, new in PART_NAMES.items()}
    return Overview(
        kind=divided.kind,
        steps=divided.steps,
        window_ns=window,
        step_ns=window / divided.steps if divided.steps else None,
        parts_ns=parts,
        device_compute_share=parts["compute"] / window if divided.kind == "gpu" and window else None,
        operators=operators,
    )


def gpu(trace: Trace, device: int | None) -> GpuTime:
    """Where the time of a GPU went; without one 0 activities and null."""
    if device is not None:
        return gpu_time(trace, device)
    unmeasured: dict[str, Any] = dict.fromkeys(GpuTime.__struct_fields__)
    return GpuTime(**(unmeasured | {"activities": 0}))


def devices(trace: Trace) -> tuple[DeviceTime, ...]:
    """The same of each GPU."""
    return tuple(DeviceTime(device=device, **asdict(gpu_time(trace, device))) for device in trace.devices)


def top_operators(call_names: pd.DataFrame, by_operator: pd.DataFrame | None) -> pd.DataFrame:
    """The operators by their own time (table `top_operators`): the GPU's, or without a GPU the host's.

    Args:
        call_names: the table `call_names`.
        by_operator: the GPU time by innermost operator (`call_tree.device_time_by` on `op`), None without a GPU. All of
            it gets a row, communication under the operator that launched it, work without one under null: so shares
            are of all GPU time. Operators without GPU work follow. Wrappers of the autograd engine are none of these.
    """
    ops = call_names[(call_names["kind"] == "op").to_numpy(dtype=bool)].astype({"name": object}).set_index("name")
    own = [name for name in ops.index if is_own_operator(name)]
    names: list[str | None] = own
    device: list[int] | None = None
    if by_operator is not None:
        launching = [None if pd.isna(name) else str(name) for name in by_operator["op"]]
        names = list(dict.fromkeys([*launching, *own]))
        device = [*by_operator["device_ns"], *([0] * (len(names) - len(launching)))]
    table = ops.reindex(names)[["calls", "host_self_ns"]].astype("Int64").reset_index(drop=True)
    by = table["host_self_ns"].fillna(0) if device is None or not sum(device) else pd.Series(device, dtype="Int64")
    share = by.astype("float64") / max(int(by.sum()), 1)
    table = table.assign(name=pd.Series(names, dtype=object), device_self_ns=device, share=share)
    order = ["share", "host_self_ns", "name"]
    table = table.sort_values(order, ascending=[False, False, True], kind="stable", ignore_index=True)
    return schema.frame_of(TOP_OPERATORS, table)


def step_parts(trace: Trace, device: int | None) -> StepParts | None:
    """The parts of a trace's steps; None without steps."""
    return parts_of_window(trace, device) if len(trace.steps) else None


@once
def parts_of_window(trace: Trace, device: int | None) -> StepParts | None:
    """The same, of a trace without steps those of its GPU's span (0 steps); None without steps and GPU."""
    if device is None:
        return _host_parts(trace) if len(trace.steps) else None
    return _gpu_parts(trace, device)


def _gpu_parts(trace: Trace, device: int) -> StepParts:
    gpu = activity(trace, device)
    start, end = gpu_window(trace, device)
    busy = {name: getattr(gpu, name) for name in ("compute", "exposed_memory", "exposed_comm")}
    parts = {name: intervals.measure(intervals.clip(spans, start, end)) for name, spans in busy.items()}
    gaps = idle_gaps(trace, device)
    inside = intervals.measure_within(intervals.spans([start], [end]), *start_end(gaps))
    cause = gaps["cause"].to_numpy(dtype=object)
    idle = {name: int(inside[cause == name].sum()) for name in CAUSES}
    # Before the GPU's first work and after its last nothing but the host can be the cause.
    first, last = gpu.span
    edges = intervals.union(intervals.spans([start, max(last, start)], [min(first, end), end]))
    waiting = intervals.measure(intervals.intersect(loader_spans(trace), edges))
    idle["loader"] += waiting
    idle["host"] += intervals.measure(edges) - waiting
    parts |= {f"idle_{name}": idle[name] for name in CAUSES}
    return StepParts(kind="gpu", steps=len(trace.steps), window_ns=end - start, parts_ns=parts)


def gpu_window(trace: Trace, device: int) -> tuple[int, int]:
    """Start and end of the window that a GPU's shares are of: all steps, or without any the GPU's span.

    Work left over from earlier steps, which nothing is known of but that it ran, is no part of it.
    """
    if len(trace.steps) == 0:
        return activity(trace, device).span
    first, end = trace.steps_span
    return min(max(first, _left_over(trace, device)), end), end


def _left_over(trace: Trace, device: int) -> int:
    """When a GPU was through with work of steps before the recorded ones: that without a launch, before all other."""
    work = trace.kernels[trace.kernels["device"] == device]
    known = work["launch"].notna()
    earlier = work[~known & (work["ts"] < work["ts"][known].min())]
    return int((earlier["ts"] + earlier["dur"]).max()) if len(earlier) and known.any() else 0


def _host_parts(trace: Trace) -> StepParts:
    steps = trace.steps
    window = intervals.union(intervals.spans(steps["ts"], steps["ts"] + steps["host_dur"]))
    spans = _labelled(trace)
    if "forward" not in spans:
        spans = _unlabelled(trace, spans)
    taken, parts = intervals.empty(), dict[str, int]()
    for name in HOST_PARTS:
        if name not in spans:
            continue  # not known, which is not nothing
        own = intervals.intersect(spans[name], window)
        # Two threads may be in different parts at once.
        parts[name] = intervals.measure(intervals.subtract(own, taken))
        taken = intervals.union(taken, own)
    window_ns = intervals.measure(window)
    parts["other"] = window_ns - sum(parts.values())
    return StepParts(kind="host", steps=len(steps), window_ns=window_ns, parts_ns=parts)


def _labelled(trace: Trace) -> dict[str, Spans]:
    """The parts that the training loop labels."""
    chosen = labelled_parts(trace, in_steps=True)
    names = HOST_PARTS if "forward" in set(chosen["name"]) else sorted(set(chosen["name"].astype(str)))
    rows = {name: chosen[(chosen["name"] == name).to_numpy()] for name in names}
    return {name: intervals.union(spans_of(own)) for name, own in rows.items()}


def _unlabelled(trace: Trace, labelled: dict[str, Spans]) -> dict[str, Spans]:
    """The parts of somebody else's steps: what is labelled, else by PyTorch's own labels and operators.

    The forward pass, with the loss, is what lies between a backward pass and the part or the step's beginning before.
    """
    own: dict[str, list[tuple[int, int]]] = {}
    for start, end, name in unlabelled_parts(trace):
        own.setdefault(name, []).append((start, end))
    found = {name: intervals.union(np.array(spans, dtype=np.int64)) for name, spans in own.items()} | labelled
    if "backward" not in found:
        return found
    edges = np.sort(np.concatenate([trace.steps["ts"].to_numpy(), *(spans[:, 1] for spans in found.values())]))
    backward = found["backward"]
    before = edges[np.maximum(np.searchsorted(edges, backward[:, 0], side="right") - 1, 0)]
    gaps = intervals.union(intervals.spans(np.minimum(before, backward[:, 0]), backward[:, 0]))
    for spans in found.values():
        gaps = intervals.subtract(gaps, spans)
    return {**found, "forward": gaps}


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
    # No time counts for two steps. Without steps the GPU's span is one.
    start, end = apart(trace) if len(trace.steps) else np.array([gpu_window(trace, device or 0)]).T
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
