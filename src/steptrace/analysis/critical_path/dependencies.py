"""What each piece of GPU work, and each wait of the host, had to wait for: the trace-wide part of the dependency model.

GPU work can start once

- its launch has begun on the host,
- the work before it on its stream has ended,
- if its launch caused several activities (a graph): the last of them to end before it has ended,
- if its stream had been told to wait for an event just before the launch: the work that ended last, on another stream,
  of that launched before the wait was asked for. Which event is not recorded; this is the one that held it up.

A host synchronisation can return once the work that it waits for has ended: a copy for itself; a wait for an event for
the work that ended last before it returned; a wait for a stream for the last work of the one stream, of those then
drained, that was last to drain; a wait for the device for the last work of every stream. This needs no `cuda_sync`
records, which few traces hold. The clocks of host and GPU differ a little: a copy, the device's last work, and a
stream's last work where none had drained, count even if they ended up to 20 us after the call returned.

Work whose launch is missing from the trace, or is recorded as later than its start (clocks of host and GPU that
disagree), follows the work before it on its stream if that ended less than 30 us earlier. Else the host is taken to
have launched it at its start. If it starts while a training thread is blocked in a synchronisation, it is taken to have
been launched before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.launches import wait_for_event
from steptrace.analysis.critical_path.graph import COMM, COMPUTE, MEMORY
from steptrace.analysis.idle import KERNEL_WAIT_BELOW_NS, loader_spans
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import Mask, judge_names, row_numbers, spans_of, start_end, take
from steptrace.trace.model import Trace

#: Host and GPU clocks agree to about this: work that ends so much after a call returned may still be what it awaited.
CLOCK_SKEW_NS = 20_000

_NONE = -1


@dataclass(frozen=True)
class Dependencies:
    """Of each GPU activity (row of `kernels`) what it follows; rows of `kernels` and `launches`, -1 for none.

    `launch` is given only where it began by the activity's start, and `launched_ns` is when, -1 without. `waits` holds
    a row `(sync, kernel)` for each activity that a synchronisation waits for. `launch_ns` and `queue_ns` are what a
    launch and a change from one activity of a stream to the next typically take: the medians over all that nothing
    else delayed, 0 where there are none. Of each activity there are besides its start, end, place in `CLASSES` and
    launching thread, and of the trace when its loader was waited for and which threads train.
    """

    trace: Trace
    start: Ints
    end: Ints
    kind: Ints
    thread: Ints
    loader: Spans
    training: Mask
    launch: Ints
    launched_ns: Ints
    stream: Ints
    graph: Ints
    event: Ints
    waits: Ints
    launch_ns: int
    queue_ns: int


def dependencies(trace: Trace) -> Dependencies:
    """Find what every GPU activity and every synchronisation of a trace depends on."""
    kernels = trace.kernels
    start, end = start_end(kernels)
    launch = row_numbers(kernels["launch"])
    called = take(trace.launches["ts"].to_numpy(), launch)
    known = (launch >= 0) & (called <= start)
    queue = stream_number(kernels)
    stream = _latest_before(queue, end, start)
    launched = np.where(known, called, _before_waits(trace, start))
    event = _events_waited_for(trace, np.where(known, launch, _NONE), launched, queue)
    stream_end = take(end, stream)
    launch_bound = known & (called > stream_end) & (event < 0) & (start - called < KERNEL_WAIT_BELOW_NS)
    queued = (stream >= 0) & ~launch_bound & (start - stream_end < KERNEL_WAIT_BELOW_NS)
    classes = {"compute": COMPUTE, "comm": COMM, "memory": MEMORY}
    return Dependencies(
        trace=trace,
        start=start,
        end=end,
        kind=judge_names(kernels["kind"], classes.__getitem__, np.int64),
        thread=take(trace.launches["thread"].to_numpy(), launch),
        loader=loader_spans(trace),
        training=trace.threads["training"].to_numpy(dtype=bool),
        launch=np.where(known, launch, _NONE),
        launched_ns=np.where(known, called, _NONE),
        stream=stream,
        graph=np.where(launch >= 0, _latest_before(launch, end, start), _NONE),
        event=event,
        waits=_waits(trace, launched, queue),
        launch_ns=_median((start - called)[launch_bound]),
        queue_ns=_median((start - stream_end)[queued]),
    )


def stream_number(kernels: pd.DataFrame) -> Ints:
    """A number from 0 for the stream of each GPU activity."""
    return np.asarray(kernels.groupby(["device", "stream"]).ngroup(), dtype=np.int64)


def _median(values: Ints) -> int:
    return int(np.median(values)) if len(values) else 0


def _before_waits(trace: Trace, times: Ints) -> Ints:
    """The times, those within a wait of a training thread moved to just before it."""
    rows = trace.syncs[trace.threads["training"].to_numpy(dtype=bool)[trace.syncs["thread"].to_numpy()]]
    blocked = intervals.union(spans_of(rows))
    if len(blocked) == 0:
        return times
    place = np.searchsorted(blocked[:, 0], times, side="right") - 1
    inside = (place >= 0) & (times < blocked[place, 1])
    return np.where(inside, blocked[place, 0] - 1, times)


def _latest_before(group: Ints, end: Ints, start: Ints) -> Ints:
    """For each row the one of its group that ended last by its start, of several the last; -1 for none.

    Rows are in order of start. Of rows without length at one instant each follows those before it in the table.
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
    found = order[np.maximum(place, 0)]
    return np.where((place >= 0) & (group[found] == group), found, _NONE).astype(np.int64)


def _events_waited_for(trace: Trace, launch: Ints, launched: Ints, queue: Ints) -> Ints:
    """The activity on another stream that held up each one launched right after its stream was told to wait."""
    found = np.full(len(launch), _NONE, dtype=np.int64)
    calls = wait_for_event(trace, launch)
    start, end = start_end(trace.kernels)
    ended = _Ended(end, launched)
    for row in np.flatnonzero(calls >= 0):
        asked = int(trace.launches["ts"].to_numpy()[calls[row]])
        others = (k for k in ended.by(int(start[row]), asked) if queue[k] != queue[row])
        found[row] = next((k for k in others if ended.end[k] < start[row] or k < row), _NONE)
    return found


class _Ended:
    """Activities in the order of their ends."""

    def __init__(self, end: Ints, launched: Ints) -> None:
        self.end, self._launched = end, launched
        self._rows = np.argsort(end, kind="stable")
        self._ends = end[self._rows]

    def by(self, time: int, asked: int) -> Iterator[int]:
        """Those that had ended by a time and were launched before another, the last to end first."""
        place = int(np.searchsorted(self._ends, time, side="right"))
        return (int(k) for k in self._rows[:place][::-1] if self._launched[k] < asked)


def _waits(trace: Trace, launched: Ints, queue: Ints) -> Ints:
    """The rows `(sync, kernel)` of what each synchronisation waits for."""
    syncs, kernels = trace.syncs, trace.kernels
    if len(syncs) == 0 or len(kernels) == 0:
        return np.empty((0, 2), dtype=np.int64)
    (begin, back), (start, end) = start_end(syncs), start_end(kernels)
    own = _own_work(row_numbers(syncs["launch"]), row_numbers(kernels["launch"]), end)
    last = _last_of_streams(begin, launched, queue, end)
    ended = _Ended(end, launched)
    pairs: list[tuple[int, int]] = []
    for row, kind in enumerate(syncs["kind"].to_numpy(dtype=object)):
        if "Event" in kind and own[row] < 0:
            pairs.extend((row, kernel) for kernel in islice(ended.by(back[row], begin[row]), 1))
            continue
        waited = last[row] if own[row] < 0 else own[row : row + 1]
        waited = waited[(waited >= 0) & (start[waited] <= back[row]) & (end[waited] <= back[row] + CLOCK_SKEW_NS)]
        waited = waited[np.lexsort((waited, end[waited]))]
        if "Stream" in kind:
            drained = int((end[waited] <= back[row]).sum())
            waited = waited[max(drained - 1, 0) :][:1]
        pairs.extend((row, int(kernel)) for kernel in waited)
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _last_of_streams(begin: Ints, launched: Ints, queue: Ints, end: Ints) -> Ints:
    """For each sync and stream the activity to end last of those launched before the sync; -1 for none."""
    streams = int(queue.max(initial=-1)) + 1
    last = np.full((len(begin), streams), _NONE, dtype=np.int64)
    for stream in range(streams):
        rows = np.flatnonzero(queue == stream)
        rows = rows[np.argsort(launched[rows], kind="stable")]
        reach = np.maximum.accumulate(end[rows])
        latest = np.maximum.accumulate(np.where(end[rows] == reach, np.arange(len(rows)), 0))
        count = np.searchsorted(launched[rows], begin, side="left")
        last[:, stream] = np.where(count > 0, rows[latest[np.maximum(count - 1, 0)]], _NONE)
    return last


def _own_work(sync_launch: Ints, launch: Ints, end: Ints) -> Ints:
    """The activity that a sync's own call caused, the last to end of several; -1 for none."""
    rows = np.flatnonzero(launch >= 0)
    rows = rows[np.lexsort((end[rows], launch[rows]))]
    place = np.searchsorted(launch[rows], sync_launch, side="right") - 1
    found = rows[np.maximum(place, 0)] if len(rows) else np.full(len(sync_launch), _NONE, dtype=np.int64)
    own = (place >= 0) & (take(launch, found) == sync_launch)
    return np.where(own, found, _NONE).astype(np.int64)
