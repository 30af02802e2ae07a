"""The division of a trace's time: one part at each instant, so parts add up to any window.

With a GPU, at each instant the GPU computes, or runs communication or copies that no computation hides, or is idle,
with one cause. Without one, the host's steps are divided by the labels of our training loop, of nested labels by the
outer one; in other loops by PyTorch's own labels and the operators of the backward pass, and the rest is no part. The
overview, the GPU's span, step times, idle causes and shares of the step are sums over it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steptrace import intervals
from steptrace.analysis.common.activity import activity, left_over
from steptrace.analysis.common.gaps import CAUSES, gap_causes, known_causes, loader_spans
from steptrace.analysis.common.labels import labelled_parts, unlabelled_parts
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import spans_of
from steptrace.trace.model import Trace, launched_at, once
from steptrace.trace.names import HOST_PARTS

BUSY: Final = ("compute", "exposed_memory", "exposed_comm")
#: The parts with a GPU, in display order.
GPU_PARTS: Final = (*BUSY, *(f"idle_{cause}" for cause in CAUSES))


@dataclass(frozen=True)
class Division:
    """Time in segments that do not overlap, in order: `spans` (int64, ns), and of each its place in `parts`."""

    parts: tuple[str, ...]
    spans: Spans = field(repr=False)
    part: NDArray[np.int8] = field(repr=False)

    def within(self, starts: ArrayLike, ends: ArrayLike) -> dict[str, Ints]:
        """The time of each part in each window `[starts[i], ends[i])`, in ns; windows may overlap."""
        of_part = {name: self.spans[self.part == place] for place, name in enumerate(self.parts)}
        return {name: intervals.measure_within(spans, starts, ends) for name, spans in of_part.items()}

    def total(self, start: int, end: int) -> dict[str, int]:
        """The time of each part in one window."""
        return {name: int(ns[0]) for name, ns in self.within([start], [end]).items()}


def divide(window: Spans, sets: Iterable[tuple[str, Spans]], rest: str, parts: tuple[str, ...]) -> Division:
    """Divide spans among sets of spans, all in normal form: time in several sets goes to the first, other to `rest`.

    Args:
        window: the spans to divide.
        sets: the spans of each part, by name; only `rest` may appear more than once.
        rest: the part for time in none of the sets.
        parts: all parts, in display order.
    """
    left = window
    spans_of_parts = list[tuple[str, Spans]]()
    for name, spans in sets:
        spans_of_parts.append((name, intervals.intersect(spans, left)))
        left = intervals.subtract(left, spans_of_parts[-1][1])
    spans_of_parts.append((rest, left))
    spans = np.concatenate([claimed for _, claimed in spans_of_parts])
    part = np.repeat(
        [parts.index(name) for name, _ in spans_of_parts], [len(claimed) for _, claimed in spans_of_parts]
    ).astype(np.int8)
    order = np.argsort(spans[:, 0], kind="stable")
    return Division(parts, spans[order], part[order])


@once
def gpu_division(trace: Trace) -> Division:
    """A GPU's time over its span and the steps; before its first work and after its last its idle cause is `host`.

    Where that cause cannot be told, it is `unknown`.
    """
    rest = "host" if "host" in known_causes(trace) else "unknown"
    gpu = activity(trace)
    first, last = gpu.span
    low, high = trace.steps_span if len(trace.steps) else gpu.span
    if len(gpu.busy):
        low, high = min(low, first), max(high, last)
    gaps, cause = gap_causes(trace)
    outside = intervals.complement(intervals.union(intervals.spans([first], [last])), low, high)
    idle = {name: gaps[cause == name] for name in CAUSES if name != rest}
    idle["loader"] = intervals.union(idle["loader"], intervals.intersect(loader_spans(trace), outside))
    busy = (("compute", gpu.compute), ("exposed_comm", gpu.comm), ("exposed_memory", gpu.memory))
    return divide(
        intervals.union(intervals.spans([low], [high])),
        [*busy, *((f"idle_{name}", spans) for name, spans in idle.items())],
        f"idle_{rest}",
        GPU_PARTS,
    )


def unknown_parts(trace: Trace) -> frozenset[str]:
    """The parts of a GPU's time that cannot be told from what the trace holds: they are not 0."""
    return frozenset(f"idle_{cause}" for cause in CAUSES if cause not in known_causes(trace))


@once
def gpu_window(trace: Trace) -> tuple[int, int]:
    """Start and end of the window for a GPU's shares: all steps, or without any the GPU's span.

    Steps overlap where the host runs ahead of the GPU; the window holds every instant once, so its length over the
    number of steps is the step time. Work left over from earlier steps is excluded, and what was launched before the
    first step.
    """
    if len(trace.steps) == 0:
        return activity(trace).span
    first, end = trace.steps_span
    launched = launched_at(trace)
    earlier = trace.kernels[left_over(trace) | ((launched >= 0) & (launched < first))]
    return min(max(first, int((earlier["ts"] + earlier["dur"]).max()) if len(earlier) else 0), end), end


@once
def host_division(trace: Trace) -> Division:
    """The host's time in steps by the parts with labels; two threads may be in different parts at once."""
    window = intervals.union(intervals.spans(trace.steps["ts"], trace.steps["ts"] + trace.steps["host_dur"]))
    spans = _labelled(trace)
    if "forward" not in spans:
        spans = _unlabelled(trace, spans)
    names = tuple(name for name in HOST_PARTS if name in spans)  # others are unknown, not 0
    return divide(window, [(name, spans[name]) for name in names], "other", (*names, "other"))


def _labelled(trace: Trace) -> dict[str, Spans]:
    """The parts that the training loop labels."""
    chosen = labelled_parts(trace, in_steps=True)
    names = HOST_PARTS if "forward" in set(chosen["name"]) else sorted(set(chosen["name"].astype(str)))
    rows = {name: chosen[(chosen["name"] == name).to_numpy()] for name in names}
    return {name: intervals.union(spans_of(labels_of_part)) for name, labels_of_part in rows.items()}


def _unlabelled(trace: Trace, labelled: Mapping[str, Spans]) -> dict[str, Spans]:
    """The parts of another loop's steps: by its labels, or without labels by PyTorch's own labels and operators.

    The forward pass, with the loss, reaches from the part before (or the step's start) to the backward pass.
    """
    spans_of_parts: dict[str, list[tuple[int, int]]] = {}
    for start, end, name in unlabelled_parts(trace):
        spans_of_parts.setdefault(name, []).append((start, end))
    parts = {name: intervals.union(np.array(spans, dtype=np.int64)) for name, spans in spans_of_parts.items()} | {
        **labelled
    }
    if "backward" not in parts:
        return parts
    edges = np.sort(np.concatenate([trace.steps["ts"].to_numpy(), *(spans[:, 1] for spans in parts.values())]))
    backward = parts["backward"]
    before = edges[np.maximum(np.searchsorted(edges, backward[:, 0], side="right") - 1, 0)]
    gaps = intervals.union(intervals.spans(np.minimum(before, backward[:, 0]), backward[:, 0]))
    for spans in parts.values():
        gaps = intervals.subtract(gaps, spans)
    return {**parts, "forward": gaps}
