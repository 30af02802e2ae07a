"""A step's time in parts that exclude each other and add up to it, to the nanosecond.

With a GPU, all steps are one window: from the first one's start on the host, or the end of what was launched before
it, to the end of the last one's work. Steps overlap where the host runs ahead of the GPU; a window holds every instant
once, and divided by the number of steps it is what a step takes. At each instant the GPU computes, or runs
communication or copies that no computation hides, or is idle, with one cause. Without a GPU, the window is the host's
steps one after the other, in the parts as the training loop labels them, of labels inside each other the outer one; of
somebody else's loop as PyTorch's own labels and the operators of the backward pass tell, and what cannot be told is no
part.
"""

from typing import Final

import numpy as np

from steptrace import intervals
from steptrace.analysis.common.busy import activity
from steptrace.analysis.common.unlabelled import unlabelled_parts
from steptrace.analysis.idle.measure import CAUSES, idle_gaps, loader_spans
from steptrace.documents.summary import StepParts
from steptrace.intervals import Spans
from steptrace.trace.columns import has_ancestor, row_numbers, spans_of, start_end
from steptrace.trace.model import Trace, on_training, once

#: The labels of the training loop, one after the other in a step.
HOST_PARTS: Final = ("data", "forward", "loss", "backward", "optimizer")
GPU_PARTS: Final = ("compute", "exposed_memory", "exposed_comm", *(f"idle_{cause}" for cause in CAUSES))


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
    steps, gpu = trace.steps, activity(trace, device)
    start, end = gpu.span
    if len(steps):
        first, end = trace.steps_span
        start = min(max(first, _left_over(trace, device)), end)
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
    return StepParts(kind="gpu", steps=len(steps), window_ns=end - start, parts_ns=parts)


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
    labels = trace.annotations
    wanted = labels["name"].isin(HOST_PARTS).to_numpy() & labels["step"].notna().to_numpy()
    wanted &= on_training(trace, labels)
    # Somebody else's loop may well compute its loss inside a part called forward: the outer one has that time.
    chosen = labels[wanted & ~has_ancestor(row_numbers(labels["parent"]), wanted)]
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
