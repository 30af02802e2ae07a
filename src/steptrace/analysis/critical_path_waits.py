"""The work that each GPU activity, and each sync of the host, had to wait for.

GPU work can start once

- its launch has begun on the host,
- the work before it on its stream has ended,
- if its launch caused several activities (a graph): the last of them to end before it has ended,
- if its thread made a stream wait for an event just before the launch: the work on another stream that ended last, of
  that launched before this wait. Traces do not record the event; this work delayed it.

A host sync can return once the work that it waits for has ended: for a copy, the copy; for a wait for an
event, the work that ended last before the return; for a wait for a stream, the last work of the stream that was the
last to drain before the return; for a wait for the device, the last work of every stream. This needs no `cuda_sync`
records, which few traces hold. The clocks of host and GPU differ a little: a copy, the device's last work, and a
stream's last work if none had drained, count even if they ended up to 20 us after the call returned.

Work without a launch in the trace, or with a launch after its start (clocks that disagree), follows the work before it
on its stream if that ended less than 30 us earlier. Else it is assumed to be launched at its start, or, if a training
thread is blocked in a sync at that time, before the sync.

Also the steps that paths lead through, and the spans in which another training thread worked for the steps' own.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.division import event_waits
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import row_numbers, spans_of, start_end, take
from steptrace.trace.model import Trace
from steptrace.trace.names import is_stream_copy, wait_scope

#: Error of the alignment of host and GPU clocks: a call may have waited for work that ends this much after its return.
CLOCK_SKEW_NS: Final = 20_000


@dataclass(frozen=True)
class Work:
    """For each GPU activity (row of `kernels`) its times, and the activities that it follows: rows, -1 for none.

    `thread` is its launch's (-1 without one), and `launched_ns` the launch's start, -1 if missing or after the
    activity's start. `asked_ns` is the assumed time of the launch; `queue` numbers streams.
    """

    start: Ints
    end: Ints
    thread: Ints
    launched_ns: Ints
    stream: Ints
    graph: Ints
    event: Ints
    asked_ns: Ints
    queue: Ints

    def waits(self, trace: Trace) -> Ints:
        """The rows `(sync, kernel)`: each activity that a sync waits for."""
        syncs, pairs = trace.syncs, list[tuple[int, int]]()
        begin, back = start_end(syncs)
        own = take(_last_of_calls(trace, self.end), row_numbers(syncs["launch"]))
        lasts = _last_of_streams(begin, self.asked_ns, self.queue, self.end)
        ended = _Ended(self.end, self.asked_ns)
        for row, kind in enumerate(syncs["kind"].to_numpy(dtype=object)):
            scope = wait_scope(kind)
            if scope == "event" and own[row] < 0:
                pairs.extend((row, kernel) for kernel in islice(ended.by(back[row], begin[row]), 1))
                continue
            waited = lasts[row] if own[row] < 0 else own[row : row + 1]
            waited = waited[waited >= 0]
            done = (self.start[waited] <= back[row]) & (self.end[waited] <= back[row] + CLOCK_SKEW_NS)
            waited = waited[done][np.lexsort((waited[done], self.end[waited[done]]))]
            if scope == "stream" or is_stream_copy(kind):
                drained = int((self.end[waited] <= back[row]).sum())
                waited = waited[max(drained - 1, 0) :][:1]
            pairs.extend((row, int(kernel)) for kernel in waited)
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def work_of(trace: Trace) -> Work:
    """The waits of every GPU activity of a trace."""
    kernels = trace.kernels
    start, end = start_end(kernels)
    launch = row_numbers(kernels["launch"])
    called = take(trace.launches["ts"].to_numpy(), launch)
    linked = (launch >= 0) & (called <= start)
    queue = np.asarray(kernels.groupby(["device", "stream"]).ngroup(), dtype=np.int64)
    asked = np.where(linked, called, _before_waits(trace, start))
    return Work(
        start=start,
        end=end,
        thread=take(trace.launches["thread"].to_numpy(), launch),
        launched_ns=np.where(linked, called, -1),
        stream=_latest_before(queue, end, start),
        graph=np.where(launch >= 0, _latest_before(launch, end, start), -1),
        event=_events_waited_for(trace, np.where(linked, launch, -1), asked, queue),
        asked_ns=asked,
        queue=queue,
    )


def _before_waits(trace: Trace, times: Ints) -> Ints:
    """The times; those within a sync of a training thread are moved to just before it."""
    rows = trace.syncs[trace.threads["training"].to_numpy(dtype=bool)[trace.syncs["thread"].to_numpy()]]
    blocked = intervals.union(spans_of(rows))
    if len(blocked) == 0:
        return times
    place = np.searchsorted(blocked[:, 0], times, side="right") - 1
    inside = (place >= 0) & (times < blocked[place, 1])
    return np.where(inside, blocked[place, 0] - 1, times)


def _latest_before(group: Ints, end: Ints, start: Ints) -> Ints:
    """For each row the row of its group that ended last by its start, of several the last; -1 for none.

    Rows are in order of start. Empty rows at one instant follow each other in the table's order.
    """
    count = len(start)
    if count == 0:
        return np.empty(0, dtype=np.int64)
    times, code = np.unique(np.concatenate([end, start]), return_inverse=True)
    rows = np.arange(count)
    group = np.unique(group, return_inverse=True)[1]
    keys = (group * len(times) + code[:count]) * count + rows
    wanted = (group * len(times) + code[count:]) * count + rows
    order = np.argsort(keys)
    place = np.searchsorted(keys[order], wanted) - 1
    latest = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (group[latest] == group), latest, -1).astype(np.int64)


def _events_waited_for(trace: Trace, launch: Ints, asked: Ints, queue: Ints) -> Ints:
    """For each activity launched right after a stream's wait for an event, the activity that delayed it."""
    event = np.full(len(launch), -1, dtype=np.int64)
    calls = event_waits(trace, launch)
    start, end = start_end(trace.kernels)
    ended = _Ended(end, asked)
    for row in np.flatnonzero(calls >= 0):
        called = int(trace.launches["ts"].to_numpy()[calls[row]])
        others = (k for k in ended.by(int(start[row]), called) if queue[k] != queue[row])
        event[row] = next((k for k in others if end[k] < start[row] or k < row), -1)
    return event


class _Ended:
    """Activities in the order of their ends."""

    def __init__(self, end: Ints, asked: Ints) -> None:
        self._asked = asked
        self._rows = np.argsort(end, kind="stable")
        self._ends = end[self._rows]

    def by(self, time: int, called: int) -> Iterator[int]:
        """The activities that ended by one time and were launched before another, the last to end first."""
        place = int(np.searchsorted(self._ends, time, side="right"))
        return (int(k) for k in self._rows[:place][::-1] if self._asked[k] < called)


def _last_of_streams(begin: Ints, asked: Ints, queue: Ints, end: Ints) -> Ints:
    """For each sync and stream, of the activities launched before the sync, the last to end; -1 for none."""
    last = np.full((len(begin), int(queue.max(initial=-1)) + 1), -1, dtype=np.int64)
    for stream in range(last.shape[1]):
        rows = np.flatnonzero(queue == stream)
        rows = rows[np.argsort(asked[rows], kind="stable")]
        latest = np.maximum.accumulate(np.where(end[rows] == np.maximum.accumulate(end[rows]), np.arange(len(rows)), 0))
        count = np.searchsorted(asked[rows], begin, side="left")
        last[:, stream] = np.where(count > 0, rows[latest[np.maximum(count - 1, 0)]], -1)
    return last


def _last_of_calls(trace: Trace, end: Ints) -> Ints:
    """The activity that each call launched, of several the last to end; -1 for none."""
    launch = row_numbers(trace.kernels["launch"])
    rows = np.argsort(end, kind="stable")
    rows = rows[launch[rows] >= 0]
    last = np.full(len(trace.launches), -1, dtype=np.int64)
    last[launch[rows]] = rows  # the last one of each launch
    return last


@dataclass(frozen=True)
class Steps:
    """Each step's start, end, end on the host and thread, and the thread of most steps.

    A trace without steps counts as one step of its busiest thread.
    """

    thread: int
    begin: Ints
    end: Ints
    host_end: Ints
    threads: Ints

    @property
    def first(self) -> int:
        """Start of the first step."""
        return int(self.begin.min())

    @property
    def last_on_host(self) -> int:
        """End of the last step on the host."""
        return int(self.host_end.max())

    def limit(self, thread: Ints) -> Ints:
        """The time up to which each thread counts."""
        return np.where(thread == self.thread, self.last_on_host, int(self.end.max()))


def steps_of(trace: Trace, work: Work) -> Steps | None:
    """The steps of a trace; None without host events."""
    if len(trace.steps):
        begin, dur, host_dur, thread = trace.steps[["ts", "dur", "host_dur", "thread"]].to_numpy().T
        return Steps(int(np.bincount(thread).argmax()), begin, begin + dur, begin + host_dur, thread)
    thread = np.concatenate([table["thread"].to_numpy() for table in _host_tables(trace)])
    if not len(thread):
        return None
    events = np.bincount(thread)
    launches = np.bincount(work.thread[work.thread >= 0], minlength=len(events))
    busiest = max(np.flatnonzero(events).tolist(), key=lambda thread: (launches[thread], events[thread]))
    ends = np.concatenate([start_end(table)[1] for table in _host_tables(trace)])
    host_end = int(ends[thread == busiest].max())
    end = max(host_end, int(work.end.max(initial=0)))
    return Steps(busiest, *(np.array([value]) for value in (0, end, host_end, busiest)))


def _host_tables(trace: Trace) -> list[pd.DataFrame]:
    return [trace.ops, trace.launches, trace.labels, trace.frames]


def bursts_of(trace: Trace, steps: Steps, threads: list[int]) -> Ints:
    """Rows `(thread, start, end)`: spans in which another training thread worked for the steps' own."""
    bursts: list[tuple[int, int, int]] = []
    events = _spans(trace, steps, [*threads, steps.thread]) if threads else {}
    busy = {thread: intervals.union(events[thread]) for thread in threads if thread in events}
    none = np.empty(0, dtype=np.int64)
    edges = intervals.distinct(events[steps.thread]) if busy and steps.thread in events else none
    for thread, spans in busy.items():
        gap = np.searchsorted(edges, spans[:, 0], side="right")
        inside = np.searchsorted(edges, spans[:, 1], side="left") <= gap
        _, first = np.unique(gap[inside], return_index=True)
        for burst in np.split(spans[inside], first[1:]):
            bursts.extend([(thread, burst[0, 0], burst[-1, 1])] if len(burst) else [])
    return np.array(bursts, dtype=np.int64).reshape(-1, 3)


def _spans(trace: Trace, steps: Steps, threads: list[int]) -> dict[int, Spans]:
    """The events of host threads between the start of the first step and the host's end of the last, by thread."""
    of_thread, parts = [], []
    for table in _host_tables(trace):
        (ts, end), thread = start_end(table), table["thread"].to_numpy()
        inside = np.isin(thread, threads) & (ts >= steps.first) & (end <= steps.last_on_host)
        inside &= ts < steps.last_on_host
        of_thread.append(thread[inside])
        parts.append(intervals.spans(ts[inside], end[inside]))
    thread = np.concatenate(of_thread)
    order = np.argsort(thread, kind="stable")
    used, first = np.unique(thread[order], return_index=True)
    return dict(zip(used.tolist(), np.split(np.concatenate(parts)[order], first[1:]), strict=False))
