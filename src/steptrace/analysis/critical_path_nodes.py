"""The nodes of critical paths: the instants of a trace's steps at which something can begin or end.

Nodes are starts and ends of GPU activities, on each host thread its launches and both ends of its syncs and loader
waits, and the ends of steps. They stand in one table: instants of hosts first, then starts of work, ends of work, ends
of steps.
"""

from dataclasses import dataclass

import numpy as np

from steptrace import format as fmt
from steptrace import intervals
from steptrace.analysis.common.gaps import loader_spans
from steptrace.analysis.critical_path_steps import Steps, bursts_of
from steptrace.analysis.critical_path_waits import GpuWork
from steptrace.errors import TraceError
from steptrace.intervals import Ints, Spans
from steptrace.limits import KERNEL_WAIT_BELOW_NS
from steptrace.trace.columns import Mask, start_end, take
from steptrace.trace.decode import LATEST_NS
from steptrace.trace.model import Trace

#: The order of nodes at one instant: ends, the host, starts (and ends of empty work), ends of steps.
_ENDS, _HOST_NODE, _STARTS, _STEPS = range(4)


@dataclass(frozen=True)
class Selection:
    """The work, syncs and bursts of a trace that can be on a path.

    Attributes:
        work: rows of `kernels` that end within the steps.
        starting: those of them that also start there.
        placed: those of `starting` without a launch that do not follow other work: they are assumed to be launched at
            their start.
        placed_thread: the thread that each of them is assumed to be launched by.
        placed_at: when that is assumed.
        syncs: rows of `syncs` on threads that matter.
        sync_thread: the thread of each.
        sync_begin: the start of each.
        sync_end: the end of each, no later than its thread's last instant.
        returns: whether each returns by then.
        bursts: `(thread, begin, end)` of spans in which another training thread worked for the steps' own.
        host_done: when the thread of each step is done with it.
        loader: spans of waiting for the data loader.
    """

    work: Ints
    starting: Ints
    placed: Ints
    placed_thread: Ints
    placed_at: Ints
    syncs: Ints
    sync_thread: Ints
    sync_begin: Ints
    sync_end: Ints
    returns: Mask
    bursts: Ints
    host_done: Ints
    loader: Spans


def select(trace: Trace, work: GpuWork, steps: Steps) -> Selection:
    """The work, syncs and bursts that can be on a path of these steps."""
    ended = (work.end > steps.first) & (work.end <= int(steps.end.max()))
    rows = np.flatnonzero(ended & (work.launched_ns < steps.last_on_host))
    starting = rows[work.start[rows] >= steps.first]
    # Work assumed to be launched at its start: without a launch, and not right after other work.
    before = work.stream[starting]
    end = take(work.end, before)
    follows = (before >= 0) & (work.start[starting] - end < KERNEL_WAIT_BELOW_NS)
    follows &= (end <= steps.first) | np.isin(before, rows)
    placed = starting[(work.launched_ns[starting] < 0) & ~follows]
    placed_thread = np.where(work.thread[placed] >= 0, work.thread[placed], steps.thread)
    training = trace.threads["training"].to_numpy(dtype=bool)
    begin, back = start_end(trace.syncs)
    thread = trace.syncs["thread"].to_numpy()
    used = training[thread] | (thread == steps.thread)
    used |= np.isin(thread, np.append(work.thread[rows], placed_thread))
    syncs = np.flatnonzero(used & (back > steps.first) & (begin < steps.limit(thread)))
    sync_end = np.minimum(back[syncs], steps.limit(thread[syncs]))
    return Selection(
        work=rows,
        starting=starting,
        placed=placed,
        placed_thread=placed_thread,
        placed_at=np.minimum(work.start[placed], steps.limit(placed_thread)),
        syncs=syncs,
        sync_thread=thread[syncs],
        sync_begin=begin[syncs],
        sync_end=sync_end,
        returns=back[syncs] <= sync_end,
        bursts=bursts_of(trace, steps, [int(t) for t in np.flatnonzero(training) if t != steps.thread]),
        host_done=np.minimum(steps.host_end, steps.limit(steps.threads)),
        loader=loader_spans(trace),
    )


@dataclass(frozen=True)
class Nodes:
    """The table of nodes.

    Attributes:
        time: the instant of each node.
        rank: its place in the order of time; of nodes at one instant, in the order in which one can wait for another.
        host_thread: the thread of each node of a host, which are the first ones.
        step_ends: the nodes of the steps' ends.
    """

    time: Ints
    rank: Ints
    host_thread: Ints
    step_ends: Ints
    _host_keys: Ints
    _length: int
    _steps: Steps
    _selection: Selection
    _work_end: Ints

    def of_host(self, thread: Ints | int, time: Ints) -> Ints:
        """The node of an instant on a host thread, or the start of the first step for an earlier instant."""
        early = time < self._steps.first
        steps = self._steps
        key = _key(steps, self._length, np.where(early, steps.thread, thread), np.where(early, steps.first, time))
        return np.searchsorted(self._host_keys, key).astype(np.int64)

    def of_first_step(self, count: int) -> Ints:
        """The node of the first step's start, `count` times."""
        return self.of_host(0, np.full(count, self._steps.first - 1))

    def of_start(self, rows: Ints) -> Ints:
        """The node of each activity's start, for activities of `Selection.starting`."""
        return (len(self._host_keys) + np.searchsorted(self._selection.starting, rows)).astype(np.int64)

    def of_end(self, rows: Ints) -> Ints:
        """The node of each activity's end, or the start of the first step for an earlier end."""
        selection = self._selection
        node = len(self._host_keys) + len(selection.starting) + np.searchsorted(selection.work, rows)
        return np.where(self._work_end[rows] <= self._steps.first, self.of_first_step(len(rows)), node)


def nodes_of(trace: Trace, work: GpuWork, steps: Steps, selection: Selection) -> Nodes:
    """All nodes of these steps.

    Raises:
        TraceError: the steps of all threads are longer than a number can hold.
    """
    length = int(steps.end.max()) - steps.first + 1
    if len(trace.threads) * length >= LATEST_NS:
        raise TraceError(
            f"{fmt.count(len(trace.threads))} threads over {fmt.duration(length)}",
            where=trace.path,
            expected="a recording of one process",
        )
    points = _instants_of_hosts(work, steps, selection)
    host_keys = intervals.distinct(np.concatenate([_key(steps, length, thread, time) for thread, time in points]))
    host_thread, host_time = np.divmod(host_keys, length)
    starting = selection.starting
    ending = selection.work
    counts = (len(host_keys), len(starting), len(ending), len(steps.begin))
    time = np.concatenate([host_time + steps.first, work.start[starting], work.end[ending], steps.end])
    phase = np.repeat([_HOST_NODE, _STARTS, _ENDS, _STEPS], counts)
    phase[counts[0] + counts[1] : -counts[3]][work.start[ending] == work.end[ending]] = _STARTS
    # The steps' own thread comes first; an activity's start comes before its end.
    threads = np.where(host_thread == steps.thread, -1, host_thread)
    within = np.concatenate([2 * threads, 2 * starting, 2 * ending + 1, np.arange(counts[3])])
    rank = np.empty(len(time), dtype=np.int64)
    rank[np.lexsort((within, phase, time))] = np.arange(len(time))
    return Nodes(
        time=time,
        rank=rank,
        host_thread=host_thread,
        step_ends=len(time) - counts[3] + np.arange(counts[3]),
        _host_keys=host_keys,
        _length=length,
        _steps=steps,
        _selection=selection,
        _work_end=work.end,
    )


def _instants_of_hosts(work: GpuWork, steps: Steps, selection: Selection) -> list[tuple[Ints, Ints]]:
    """The threads and times of all instants on hosts; some come more than once."""
    starting = selection.starting
    bursts = selection.bursts
    launched = starting[work.launched_ns[starting] >= steps.first]
    waits_for_data = intervals.clip(selection.loader, steps.first, steps.last_on_host).reshape(-1)
    of_steps = np.concatenate([[steps.first, steps.last_on_host], waits_for_data, bursts[:, 1]])
    return [
        (np.full(len(of_steps), steps.thread), of_steps),
        (work.thread[launched], work.launched_ns[launched]),
        (selection.placed_thread, selection.placed_at),
        (selection.sync_thread, np.maximum(selection.sync_begin, steps.first)),
        (selection.sync_thread, selection.sync_end),
        (bursts[:, 0], bursts[:, 1]),
        (bursts[:, 0], bursts[:, 2]),
        (steps.threads, steps.begin),
        (steps.threads, selection.host_done),
    ]


def _key(steps: Steps, length: int, thread: Ints, time: Ints) -> Ints:
    """One number for a thread and a time."""
    key: Ints = thread * length + (time - steps.first)
    return key
