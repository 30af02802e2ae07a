"""When a GPU was busy, and the division of a trace's time: one part at each instant, so parts add up to any window.

A GPU's busy time is over all its streams, by class of work (compute, comm, memory): each is the union of its
activities, so concurrent work on several streams counts once.

With a GPU, at each instant the GPU computes, or runs communication or copies that no computation hides, or is idle,
with one cause. Without one, the host's steps are divided by the labels of our training loop, of nested labels by the
outer one; in other loops by PyTorch's own labels and the operators of the backward pass, and the rest is no part. The
overview, the GPU's span, step times, idle causes and shares of the step are sums over it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from steptrace import intervals
from steptrace.analysis.common.labels import labelled_parts, unlabelled_parts
from steptrace.intervals import Ints, Spans
from steptrace.limits import KERNEL_WAIT_BELOW_NS
from steptrace.trace import names as naming
from steptrace.trace.columns import Mask, map_names, row_numbers, spans_of, start_end, take
from steptrace.trace.model import Trace, launched_at, on_training, once
from steptrace.trace.names import HOST_PARTS, LOADER_LABEL


@dataclass(frozen=True)
class Activity:
    """The busy spans of one GPU, in normal form: of all its work, and by class. `count`: number of activities."""

    count: int
    busy: Spans
    compute: Spans
    comm: Spans
    memory: Spans

    @property
    def span(self) -> tuple[int, int]:
        """First start to last end of the GPU's work; (0, 0) without any."""
        return (int(self.busy[0, 0]), int(self.busy[-1, 1])) if len(self.busy) else (0, 0)


@once
def activity(trace: Trace) -> Activity:
    """The busy spans of the analysed GPU by class; none without one."""
    kernels = trace.kernels[["ts", "dur", "kind"]][(trace.kernels["device"] == trace.device).to_numpy()]
    every = spans_of(kernels)
    kind = kernels["kind"].to_numpy(dtype=object)
    compute, comm, memory = (intervals.union(every[kind == name]) for name in ("compute", "comm", "memory"))
    return Activity(len(kernels), intervals.union(every), compute, comm, memory)


@once
def left_over(trace: Trace) -> NDArray[np.bool_]:
    """Which of `kernels` the analysed GPU did for steps before the recorded ones: no launch, before all that has one.

    A host that runs ahead leaves such work. It is no work of the recorded steps, so no figure per step counts it; a
    trace without steps has none.
    """
    work = trace.kernels
    here = (work["device"] == trace.device).to_numpy()
    linked = here & work["launch"].notna().to_numpy()
    if not len(trace.steps) or not linked.any():
        return np.zeros(len(work), dtype=bool)
    start = work["ts"].to_numpy()
    earlier: NDArray[np.bool_] = here & ~linked & (start < start[linked].min())
    return earlier


def sm_weighted_ns(trace: Trace, start: int, end: int) -> float | None:
    """How much of a window's time the GPU's multiprocessors had a block to run, in ns.

    Weighted by the share of them that had. None if the blocks of some kernel are unknown.
    """
    blocks = _blocks_in_time(trace)
    if blocks is None:
        return None
    edges, load = blocks
    until = np.append(0.0, np.cumsum(load * np.diff(edges)))
    return float(np.interp(end, edges, until) - np.interp(start, edges, until))


def _blocks_in_time(trace: Trace) -> tuple[Ints, NDArray[np.float64]] | None:
    """Blocks per multiprocessor of all running kernels, capped at 1, between each two neighbouring instants.

    Copies and sets run on none. None without kernels, or if the blocks of one are unknown.
    """
    kernels = trace.kernels
    chosen = ((kernels["device"] == trace.device) & (kernels["category"] == "kernel")).to_numpy()
    blocks = kernels["blocks_per_sm"].to_numpy(dtype=np.float64)[chosen]
    if len(blocks) == 0 or np.isnan(blocks).any():
        return None
    start, end = start_end(kernels)
    times = np.concatenate([start[chosen], end[chosen]])
    change = np.concatenate([blocks, -blocks])
    edges, place = np.unique(times, return_inverse=True)
    # Rounded: floats added and subtracted again must leave exactly 0.
    return edges, np.minimum(np.round(np.cumsum(np.bincount(place, weights=change)), 9), 1.0)[:-1]


def waits_for_event(trace: Trace, launch: Ints) -> Mask:
    """Whether the thread made a stream wait for an event between its previous launch of GPU work and this one."""
    return event_waits(trace, launch) >= 0


def event_waits(trace: Trace, launch: Ints) -> Ints:
    """Row of `launches` of the last call that made a stream wait for an event, where `waits_for_event`; else -1.

    Traces record neither the stream nor the event: the next launch of the thread is assumed to wait.
    """
    calls = trace.launches
    if len(calls) == 0:
        return np.full(len(launch), -1, dtype=np.int64)
    rows = np.arange(len(calls))
    is_wait = map_names(calls["name"], naming.is_stream_wait_event)
    owners = row_numbers(trace.kernels["launch"])
    owns_work = np.zeros(len(calls), dtype=bool)
    owns_work[owners[owners >= 0]] = True
    before = np.maximum(launch - 1, 0)
    wait = np.maximum.accumulate(np.where(is_wait, rows, -1))[before]
    work = np.maximum.accumulate(np.where(owns_work, rows, -1))[before]
    thread = calls["thread"].to_numpy()
    waits = (launch > 0) & (wait > work) & (thread[wait] == thread[launch])
    return np.where(waits, wait, -1)


#: The causes of a GPU's idle time, in order of precedence.
CAUSES: Final = ("sync", "loader", "host", "dependency", "between_kernels", "unknown")
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
    left, own = window, list[tuple[str, Spans]]()
    for name, spans in sets:
        own.append((name, intervals.intersect(spans, left)))
        left = intervals.subtract(left, own[-1][1])
    own.append((rest, left))
    spans = np.concatenate([claimed for _, claimed in own])
    part = np.repeat([parts.index(name) for name, _ in own], [len(claimed) for _, claimed in own]).astype(np.int8)
    order = np.argsort(spans[:, 0], kind="stable")
    return Division(parts, spans[order], part[order])


@once
def gpu_division(trace: Trace) -> Division:
    """A GPU's time over its span and the steps; before its first work and after its last its idle cause is `host`."""
    gpu = activity(trace)
    first, last = gpu.span
    low, high = trace.steps_span if len(trace.steps) else gpu.span
    if len(gpu.busy):
        low, high = min(low, first), max(high, last)
    gaps, cause = gap_causes(trace)
    outside = intervals.complement(intervals.union(intervals.spans([first], [last])), low, high)
    idle = {name: gaps[cause == name] for name in CAUSES if name != "host"}
    idle["loader"] = intervals.union(idle["loader"], intervals.intersect(loader_spans(trace), outside))
    busy = (("compute", gpu.compute), ("exposed_comm", gpu.comm), ("exposed_memory", gpu.memory))
    return divide(
        intervals.union(intervals.spans([low], [high])),
        [*busy, *((f"idle_{name}", spans) for name, spans in idle.items())],
        "idle_host",
        GPU_PARTS,
    )


def gpu_window(trace: Trace) -> tuple[int, int]:
    """Start and end of the window for a GPU's shares: all steps, or without any the GPU's span.

    Steps overlap where the host runs ahead of the GPU; the window holds every instant once, so its length over the
    number of steps is the step time. Work left over from earlier steps is excluded.
    """
    if len(trace.steps) == 0:
        return activity(trace).span
    first, end = trace.steps_span
    earlier = trace.kernels[left_over(trace)]
    return min(max(first, int((earlier["ts"] + earlier["dur"]).max()) if len(earlier) else 0), end), end


@once
def gap_causes(trace: Trace) -> tuple[Spans, NDArray[np.object_]]:
    """The gaps between a GPU's work, and the one cause of each.

    The causes, in order of precedence:

    - `sync`: a training thread was blocked in a sync when the GPU ran dry, or for at least half of the gap.
      The host could not queue anything meanwhile, so the launching until the gap ends is the sync's cost too. A gap
      that ends with work launched before the wait began does not count: the host delayed nothing.
    - `loader`: a training thread was waiting in the data loader's `__next__` for at least half of the gap. It takes
      precedence over a sync that only came before it: the GPU would have waited for the data without the sync, too.
    - `host`: the work after the gap was not launched when the gap began: the host was launching, or in Python.
    - `dependency`: that work was queued, and waited for another stream: its thread had made a stream wait for an event
      just before the launch, or it began within 30 us of the end of another stream's work. On a GPU with work on one
      stream alone there is nothing to wait for.
    - `between_kernels`: that work was queued on the stream whose work had just ended, and began within 30 us. This is
      the time that the GPU itself takes between two kernels.
    - `unknown`: none of these, or the trace has neither the launch of the work nor a sign that it was queued.
    """
    busy = activity(trace).busy
    gaps = intervals.spans(busy[:-1, 1], busy[1:, 0])
    start, end = gaps[:, 0], gaps[:, 1]
    loader_ns = intervals.measure_within(loader_spans(trace), start, end)
    in_loader = 2 * loader_ns >= end - start
    row = first_work(trace, end)
    launch = row_numbers(trace.kernels["launch"])[row] if len(row) else row
    begun, returned = start_end(trace.launches)
    in_sync, waited_through = _held_by_sync(trace, gaps, take(begun, launch))
    late = take(returned, launch) > start
    # Work without a launch that begins while the host is blocked must have been queued before.
    queued = np.where(launch >= 0, ~late, waited_through)
    soon, same_stream = queued & (end - start < KERNEL_WAIT_BELOW_NS), _follows_its_stream(trace, start, row)
    dependent = (soon & ~same_stream) | (queued & waits_for_event(trace, launch) & _has_several_streams(trace))
    conditions = [in_sync & ~in_loader, in_loader, (launch >= 0) & late, dependent, soon]
    return gaps, np.select(conditions, CAUSES[:-1], default=CAUSES[-1]).astype(object)


def _has_several_streams(trace: Trace) -> bool:
    """Whether the analysed GPU did work on more than one stream."""
    return trace.kernels["stream"][(trace.kernels["device"] == trace.device).to_numpy()].nunique() > 1


def _follows_its_stream(trace: Trace, start: Ints, row: Ints) -> Mask:
    """Whether work of the stream of activity `row[i]` ended at `start[i]`, the beginning of the gap before it."""
    kernels = trace.kernels
    begun, ended = start_end(kernels)
    here = (kernels["device"] == trace.device).to_numpy() & (ended > begun)
    stream, streams = pd.factorize(kernels["stream"])
    # Gaps are in order, and each has a start of its own.
    gap = np.searchsorted(start, ended[here])
    at_gap = gap < len(start)
    at_gap[at_gap] = start[gap[at_gap]] == ended[here][at_gap]
    ending = gap[at_gap] * len(streams) + stream[here][at_gap]
    return np.isin(np.arange(len(start)) * len(streams) + stream[row], ending)


@once
def loader_spans(trace: Trace) -> Spans:
    """The spans in which a training thread was waiting in the data loader's `__next__`."""
    labels = trace.labels
    rows = labels[map_names(labels["name"], LOADER_LABEL.match) & on_training(trace, labels)]
    return intervals.union(spans_of(rows))


def first_work(trace: Trace, starts: Ints) -> Ints:
    """Row of the device's activity that begins at each of `starts`; of several, the one launched first."""
    kernels = trace.kernels
    rows = np.flatnonzero((kernels["device"] == trace.device).to_numpy() & (kernels["dur"] > 0).to_numpy())
    launched = launched_at(trace)[rows]
    launched = np.where(launched < 0, np.iinfo(np.int64).max, launched)
    rows = rows[np.lexsort((launched, kernels["ts"].to_numpy()[rows]))]
    return rows[np.searchsorted(kernels["ts"].to_numpy()[rows], starts, side="left")]


def _held_by_sync(trace: Trace, gaps: Spans, launched: Ints) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Two masks: gaps caused by a sync of a training thread, and gaps entirely within syncs of one such thread.

    `launched` is the launch time of the work after each gap, -1 if unknown.
    """
    start, end = gaps[:, 0], gaps[:, 1]
    held, through = np.zeros(len(gaps), dtype=bool), np.zeros(len(gaps), dtype=bool)
    for _, own in trace.syncs[on_training(trace, trace.syncs)].groupby("thread", sort=True):
        begin, over = start_end(own)
        # A thread's waits are in sequence: those that began after the launch do not count. An unknown launch can have
        # been made after a wait, but not within one.
        late = np.where(
            launched >= 0, np.searchsorted(begin, launched, side="right"), np.searchsorted(over, end, side="right")
        )
        until = np.append(begin, np.iinfo(np.int64).max)[late]
        waits = intervals.union(intervals.spans(begin, over))
        held |= (start < until) & (intervals.measure_within(waits, start, start + 1) > 0)
        stop = np.clip(until, start, end)
        held |= 2 * intervals.measure_within(waits, start, stop) >= end - start
        through |= intervals.measure_within(waits, start, end) == end - start
    return held, through


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
    return {name: intervals.union(spans_of(own)) for name, own in rows.items()}


def _unlabelled(trace: Trace, labelled: Mapping[str, Spans]) -> dict[str, Spans]:
    """The parts of another loop's steps: by its labels, else by PyTorch's own labels and operators.

    The forward pass, with the loss, reaches from the part before (or the step's start) to the backward pass.
    """
    own: dict[str, list[tuple[int, int]]] = {}
    for start, end, name in unlabelled_parts(trace):
        own.setdefault(name, []).append((start, end))
    parts = {name: intervals.union(np.array(spans, dtype=np.int64)) for name, spans in own.items()} | {**labelled}
    if "backward" not in parts:
        return parts
    edges = np.sort(np.concatenate([trace.steps["ts"].to_numpy(), *(spans[:, 1] for spans in parts.values())]))
    backward = parts["backward"]
    before = edges[np.maximum(np.searchsorted(edges, backward[:, 0], side="right") - 1, 0)]
    gaps = intervals.union(intervals.spans(np.minimum(before, backward[:, 0]), backward[:, 0]))
    for spans in parts.values():
        gaps = intervals.subtract(gaps, spans)
    return {**parts, "forward": gaps}
