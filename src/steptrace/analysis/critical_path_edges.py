"""The edges of critical paths: which nodes a node had to wait for, and the last of them.

`edges_of` yields all edges, in groups of one kind. `latest` keeps for each node the edge to the node that it waited for
last, which is the one that a path goes back to.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steptrace import intervals
from steptrace.analysis.critical_path_nodes import Nodes, Selection
from steptrace.analysis.critical_path_steps import Steps
from steptrace.analysis.critical_path_waits import GpuWork
from steptrace.intervals import Ints
from steptrace.trace.columns import Mask, Rows, map_names, row_numbers, take
from steptrace.trace.model import Trace

#: The classes of the time between a node and the one before it.
CLASSES: Final = ("host", "loader", "sync", "launch", "queue", "compute", "comm", "memory")
HOST, LOADER, SYNC, LAUNCH, QUEUE, COMPUTE, COMM, MEMORY = range(len(CLASSES))


@dataclass(frozen=True)
class Edges:
    """Nodes that had to wait for others, one edge each.

    Attributes:
        target: the node that waits.
        source: the node that it waits for.
        at: the source's own time, which may lie before the first step.
        kind: an index in `CLASSES`: of the time between the two.
        thread: a row of `threads`, -1 for none.
        kernel: a row of `kernels`, -1 for none.
    """

    target: Ints
    source: Ints
    at: Ints
    kind: Ints | int
    thread: Ints | int = -1
    kernel: Ints | int = -1


@dataclass(frozen=True)
class LastWaits:
    """For each node the one `before` it on a path, and `kind`, `thread` and `kernel` of the time between, -1 for none.

    The node `before` always has a lower rank.
    """

    before: Rows
    kind: NDArray[np.int8]
    thread: Rows
    kernel: Rows


def latest(nodes: Nodes, groups: Iterable[Edges]) -> LastWaits:
    """The edge of each node to the source that comes last.

    If several sources are at one instant, the one of the later group counts, so groups come in the order of precedence:
    the host, launches, GPU work. Sources without a lower rank are left out: the host does not wait for work that
    begins, or is empty and ends, at the instant when it continues.
    """
    # Small numbers: of all nodes, larger ones would be the peak of memory.
    before, thread, kernel = np.full((3, len(nodes.time)), -1, dtype=np.int32)
    kind = np.full(len(nodes.time), -1, dtype=np.int8)
    latest_at = np.full(len(nodes.time), np.iinfo(np.int64).min)
    for edges in groups:
        order = np.lexsort((nodes.rank[edges.source], edges.at))
        earlier = nodes.rank[edges.source] < nodes.rank[edges.target]
        order = order[earlier[order] & (edges.at >= latest_at[edges.target])[order]]
        target = edges.target[order]  # of several edges of one target the last one stays
        columns: tuple[tuple[NDArray[Any], Ints | int], ...] = (
            (before, edges.source),
            (latest_at, edges.at),
            (kind, edges.kind),
            (thread, edges.thread),
            (kernel, edges.kernel),
        )
        for column, values in columns:
            column[target] = np.broadcast_to(values, len(edges.at))[order]
    return LastWaits(before, kind, thread, kernel)


def edges_of(trace: Trace, work: GpuWork, steps: Steps, selection: Selection, nodes: Nodes) -> Iterator[Edges]:
    """All edges, in the order of precedence of `latest`."""
    yield from _within_hosts(trace, steps, selection, nodes)
    yield from _between_hosts(steps, selection, nodes)
    yield from _to_starts(work, steps, selection, nodes)
    yield _to_ends(trace, work, steps, selection, nodes)
    yield _to_returns(trace, work, selection, nodes)
    yield from _to_ends_of_steps(trace, work, steps, selection, nodes)


def _within_hosts(trace: Trace, steps: Steps, selection: Selection, nodes: Nodes) -> Iterator[Edges]:
    """Each host thread continues after its previous instant."""
    thread = nodes.host_thread
    time = nodes.time
    after = np.flatnonzero(thread[1:] == thread[:-1]) + 1
    kind = np.full(len(thread), HOST, dtype=np.int64)
    of_steps = after[thread[after] == steps.thread]
    kind[of_steps[intervals.measure_within(selection.loader, time[of_steps - 1], time[of_steps]) > 0]] = LOADER
    kind[after[_in_sync(trace, selection, thread[after - 1], time[after - 1])]] = SYNC
    yield Edges(after, after - 1, time[after - 1], kind[after], thread=thread[after])
    # A thread without a recorded cause runs independently from the first step's start.
    alone = np.flatnonzero(np.append(True, thread[1:] != thread[:-1]) & (thread != steps.thread))
    alone = np.setdiff1d(alone, nodes.of_host(selection.bursts[:, 0], selection.bursts[:, 1]))
    begun = np.full(len(alone), steps.first)
    yield Edges(alone, nodes.of_host(steps.thread, begun), begun, HOST, thread=thread[alone])


def _in_sync(trace: Trace, selection: Selection, thread: Ints, time: Ints) -> Mask:
    """Whether each host thread is in a sync at an instant."""
    begin = selection.sync_begin
    end = begin + trace.syncs["dur"].to_numpy()[selection.syncs]
    order = np.lexsort((-end, begin, selection.sync_thread))
    sync = intervals.enclosing(selection.sync_thread[order], begin[order], end[order], thread, time)
    inside: Mask = sync >= 0
    return inside


def _between_hosts(steps: Steps, selection: Selection, nodes: Nodes) -> Iterator[Edges]:
    """Threads that work for the steps' thread begin when it hands over, and it continues after them."""
    thread, begin, end = selection.bursts.T
    entry = nodes.of_host(thread, begin)
    yield Edges(entry, nodes.of_host(steps.thread, begin), begin, HOST, thread=thread)
    of_steps = np.flatnonzero(nodes.host_thread == steps.thread)
    place = np.searchsorted(nodes.time[of_steps], end, side="right")
    back = place < len(of_steps)
    source = nodes.of_host(thread, end)[back]
    yield Edges(of_steps[place[back]], source, end[back], HOST, thread=steps.thread)


def _to_starts(work: GpuWork, steps: Steps, selection: Selection, nodes: Nodes) -> Iterator[Edges]:
    """GPU work starts after its launch and after the work before it."""
    starting = selection.starting
    launched = starting[work.launched_ns[starting] >= 0]
    for kernel, thread, at in (
        (launched, work.thread[launched], work.launched_ns[launched]),
        (selection.placed, selection.placed_thread, selection.placed_at),
    ):
        yield Edges(nodes.of_start(kernel), nodes.of_host(thread, at), at, LAUNCH, thread=thread, kernel=kernel)
    for before in (work.event, work.graph, work.stream):
        source = before[starting]
        usable = (source >= 0) & (np.isin(source, selection.work) | (take(work.end, source) <= steps.first))
        target = starting[usable]
        source = source[usable]
        yield Edges(nodes.of_start(target), nodes.of_end(source), work.end[source], QUEUE, kernel=target)


def _to_ends(trace: Trace, work: GpuWork, steps: Steps, selection: Selection, nodes: Nodes) -> Edges:
    """GPU work ends after its length; what began before the first step, after that step's start."""
    rows = selection.work
    began_before = work.start[rows] < steps.first
    start = np.where(began_before, nodes.of_first_step(len(rows)), nodes.of_start(rows))
    return Edges(nodes.of_end(rows), start, work.start[rows], _kinds(trace, rows), kernel=rows)


def _kinds(trace: Trace, rows: Ints) -> Ints:
    """The class of each activity, as an index in `CLASSES`."""
    classes = {"compute": COMPUTE, "comm": COMM, "memory": MEMORY}
    kind: Ints = map_names(trace.kernels["kind"], classes.__getitem__, np.int64)[rows]
    return kind


def _to_returns(trace: Trace, work: GpuWork, selection: Selection, nodes: Nodes) -> Edges:
    """A sync returns after the work it waits for, or with it if the clocks show a later end of work."""
    usable = np.zeros(len(work.end), dtype=bool)
    usable[selection.work] = True
    sync, kernel = work.waits(trace, usable).T
    both = np.isin(sync, selection.syncs[selection.returns]) & usable[kernel]
    sync = np.searchsorted(selection.syncs, sync[both])
    kernel = kernel[both]
    thread = selection.sync_thread[sync]
    back = selection.sync_end[sync]
    source = nodes.of_end(kernel)
    at = work.end[kernel]
    kind = np.full(len(sync), SYNC)
    running = (at > back) & np.isin(kernel, selection.starting)
    source[running] = nodes.of_start(kernel[running])
    at[running] = back[running]
    kind[running] = _kinds(trace, kernel[running])
    return Edges(nodes.of_host(thread, back), source, at, kind, thread=thread, kernel=kernel)


def _to_ends_of_steps(trace: Trace, work: GpuWork, steps: Steps, selection: Selection, nodes: Nodes) -> Iterator[Edges]:
    """A step ends when both its thread and the work launched in it have finished."""
    done = selection.host_done
    yield Edges(nodes.step_ends, nodes.of_host(steps.threads, done), done, HOST, thread=steps.threads)
    # Work without a known launch belongs to the step in which it ran.
    rows = selection.work
    launched = work.launched_ns[rows] >= 0
    of_launch = row_numbers(trace.kernels["step"])[rows] if len(trace.steps) else np.zeros_like(rows)
    around = np.searchsorted(steps.begin, work.start[rows], side="right") - 1
    step = np.where(launched, of_launch, around)
    inside = (step >= 0) & (work.end[rows] <= steps.end[step])
    rows = rows[inside]
    step = step[inside]
    yield Edges(nodes.step_ends[step], nodes.of_end(rows), work.end[rows], QUEUE, kernel=rows)
