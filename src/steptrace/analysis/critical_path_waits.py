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
on its stream if that ended less than 30 us earlier. Otherwise it is assumed to be launched at its start. If a training
thread is blocked in a sync at that time, it is assumed to be launched before the sync.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from steptrace import intervals
from steptrace.analysis.common.gaps import event_waits
from steptrace.compiled import compiled
from steptrace.intervals import Ints
from steptrace.trace.columns import Mask, row_numbers, spans_of, start_end, take
from steptrace.trace.model import Trace
from steptrace.trace.names import is_stream_copy, wait_scope

#: Error of the alignment of host and GPU clocks: a call may have waited for work that ends this much after its return.
CLOCK_SKEW_NS: Final = 20_000


@dataclass(frozen=True)
class GpuWork:
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

    def waits(self, trace: Trace, usable: Mask) -> Ints:
        """The rows `(sync, kernel)`: the usable activities that each sync waits for.

        If a sync waits for a device, only the streams that ended last count: the sync returned after them.
        """
        syncs = trace.syncs
        pairs = list[tuple[int, int]]()
        begin, back = start_end(syncs)
        copy_of_call = take(_last_of_calls(trace, self.end), row_numbers(syncs["launch"]))
        kinds = syncs["kind"].to_numpy(dtype=object)
        of_event = np.array([wait_scope(kind) == "event" for kind in kinds], dtype=bool) & (copy_of_call < 0)
        last = np.full(len(syncs), -1, dtype=np.int64)
        rows = np.flatnonzero(of_event)
        ended = _Ended(self.end, self.asked_ns, self.queue)
        last[rows] = ended.last(ended.before(back[rows]), begin[rows])
        pairs.extend((row, int(last[row])) for row in rows.tolist() if last[row] >= 0)
        for row, lasts in _last_of_streams(begin, self.asked_ns, self.queue, self.end, np.flatnonzero(~of_event)):
            kind = kinds[row]
            scope = wait_scope(kind)
            waited = lasts if copy_of_call[row] < 0 else copy_of_call[row : row + 1]
            waited = waited[waited >= 0]
            done = (self.start[waited] <= back[row]) & (self.end[waited] <= back[row] + CLOCK_SKEW_NS)
            waited = waited[done][np.lexsort((waited[done], self.end[waited[done]]))]
            if scope == "stream" or is_stream_copy(kind):
                drained = int((self.end[waited] <= back[row]).sum())
                waited = waited[max(drained - 1, 0) :][:1]
            elif len(waited):
                waited = waited[usable[waited]]
                done_ns = self.end[waited][self.end[waited] <= back[row]].max(initial=0)
                waited = waited[self.end[waited] >= done_ns]
            pairs.extend((row, int(kernel)) for kernel in waited)
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def work_of(trace: Trace) -> GpuWork:
    """The waits of every GPU activity of a trace."""
    kernels = trace.kernels
    start, end = start_end(kernels)
    launch = row_numbers(kernels["launch"])
    called = take(trace.launches["ts"].to_numpy(), launch)
    linked = (launch >= 0) & (called <= start)
    queue = np.asarray(kernels.groupby(["device", "stream"]).ngroup(), dtype=np.int64)
    asked = np.where(linked, called, _before_waits(trace, start))
    return GpuWork(
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
    # Ends and starts in one order of group, time and row; before each start the last end, if it is of its group.
    is_end = np.repeat([True, False], count)
    order = np.lexsort((is_end, np.tile(np.arange(count), 2), np.concatenate([end, start]), np.tile(group, 2)))
    is_end = is_end[order]
    last_end = np.maximum.accumulate(np.where(is_end, np.arange(2 * count), -1))[~is_end]
    row = order[~is_end] - count
    before = np.where(last_end >= 0, order[np.maximum(last_end, 0)], -1)
    latest = np.empty(count, dtype=np.int64)
    latest[row] = np.where((before >= 0) & (group[before] == group[row]), before, -1)
    return latest


def _events_waited_for(trace: Trace, launch: Ints, asked: Ints, queue: Ints) -> Ints:
    """For each activity launched right after a stream's wait for an event, the activity that delayed it."""
    event = np.full(len(launch), -1, dtype=np.int64)
    calls = event_waits(trace, launch)
    start, end = start_end(trace.kernels)
    rows = np.flatnonzero(calls >= 0)
    called = trace.launches["ts"].to_numpy()[calls[rows]]
    ended = _Ended(end, asked, queue)
    event[rows] = ended.last(ended.before(start[rows], rows), called, queue[rows])
    return event


class _Ended:
    """Activities in the order of their ends; activities that end together, in the order of their rows."""

    def __init__(self, end: Ints, asked: Ints, queue: Ints) -> None:
        self._end = end
        self._asked = np.sort(asked)
        self._rows = np.argsort(end, kind="stable")
        rank = np.empty(len(end), dtype=np.int64)
        rank[np.argsort(asked, kind="stable")] = np.arange(len(end))
        self._rank = rank[self._rows]
        self._queue = queue[self._rows]

    def before(self, time: Ints, row: Ints | None = None) -> Ints:
        """How many ended by each time. With `row`, one that ended just then counts only if it comes before it."""
        if row is None:
            return np.searchsorted(self._end[self._rows], time, side="right").astype(np.int64)
        count = len(self._end)
        code = np.unique(np.concatenate([self._end, time]), return_inverse=True)[1]
        keys = (code[:count] * count + np.arange(count))[self._rows]
        return np.searchsorted(keys, code[count:] * count + row).astype(np.int64)

    def last(self, first: Ints, called: Ints, not_of: Ints | None = None) -> Ints:
        """The last one of the first `first` that was launched before a time, -1 for none.

        Waits of the queue `not_of` do not count.
        """
        limit = np.searchsorted(self._asked, called, side="left")
        excluded = np.full(len(first), -1, dtype=np.int64) if not_of is None else not_of
        order = np.argsort(first, kind="stable")
        found = np.empty(len(first), dtype=np.int64)
        arrays = (self._rank, self._queue, first[order], limit[order], excluded[order])
        compiled.latest(*(np.ascontiguousarray(a, dtype=np.int64) for a in arrays), found)
        rows = np.empty(len(first), dtype=np.int64)
        rows[order] = take(self._rows, found)
        return rows


def _last_of_streams(begin: Ints, asked: Ints, queue: Ints, end: Ints, wanted: Ints) -> Iterator[tuple[int, Ints]]:
    """Each wanted sync in order of its begin, with the activity of each stream that ends last of those launched before.

    The array has one entry for each stream, -1 for none. It is the same array each time.
    """
    last = np.full(int(queue.max(initial=-1)) + 1, -1, dtype=np.int64)
    order = np.argsort(asked, kind="stable")
    until = np.searchsorted(asked[order], begin[wanted], side="left")
    done = 0
    for place in np.argsort(until, kind="stable").tolist():
        for kernel in order[done : until[place]].tolist():
            known = last[queue[kernel]]
            if known < 0 or end[kernel] >= end[known]:
                last[queue[kernel]] = kernel
        done = max(done, int(until[place]))
        yield int(wanted[place]), last


def _last_of_calls(trace: Trace, end: Ints) -> Ints:
    """The activity that each call launched, of several the last to end; -1 for none."""
    launch = row_numbers(trace.kernels["launch"])
    rows = np.argsort(end, kind="stable")
    rows = rows[launch[rows] >= 0]
    last = np.full(len(trace.launches), -1, dtype=np.int64)
    last[launch[rows]] = rows  # the last one of each launch
    return last
