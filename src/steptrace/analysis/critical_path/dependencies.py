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
records, which few traces hold.

Work whose launch is missing from the trace, or is recorded as later than its start (clocks of host and GPU that
disagree), follows the work before it on its stream if that ended less than 30 us earlier. Else the host is taken to
have launched it at its start. If it starts while a training thread is blocked in a synchronisation, it is taken to have
been launched before.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.idle.measure import KERNEL_WAIT_BELOW_NS
from steptrace.intervals import Ints
from steptrace.trace import names as naming
from steptrace.trace.columns import Mask, row_numbers, take
from steptrace.trace.model import Trace

_NONE = -1


@dataclass(frozen=True)
class Dependencies:
    """Of each GPU activity (row of `kernels`) what it follows; rows of `kernels` and `launches`, -1 for none.

    `launch` is given only where it began by the activity's start, and `launched_ns` is when, -1 without. `waits` holds
    a row `(sync, kernel)` for each activity that a synchronisation waits for. `launch_ns` and `queue_ns` are what a
    launch and a change from one activity of a stream to the next typically take: the medians over all that nothing
    else delayed, 0 where there are none.
    """

    launch: Ints
    launched_ns: Ints
    late_launch: Ints
    stream: Ints
    graph: Ints
    event: Ints
    waits: Ints
    launch_ns: int
    queue_ns: int


def dependencies(trace: Trace) -> Dependencies:
    """Find what every GPU activity and every synchronisation of a trace depends on."""
    kernels = trace.kernels
    start = kernels["ts"].to_numpy()
    end = start + kernels["dur"].to_numpy()
    launch = row_numbers(kernels["launch"])
    called = take(trace.launches["ts"].to_numpy(), launch)
    known = (launch >= 0) & (called <= start)
    queue = _number(kernels["device"], kernels["stream"])
    stream = _latest_before(queue, end, start)
    launched = np.where(known, called, _before_waits(trace, start))
    event = _events_waited_for(trace, np.where(known, launch, _NONE), launched, queue)
    stream_end = take(end, stream)
    launch_bound = known & (called > stream_end) & (event < 0) & (start - called < KERNEL_WAIT_BELOW_NS)
    queued = (stream >= 0) & ~launch_bound & (start - stream_end < KERNEL_WAIT_BELOW_NS)
    return Dependencies(
        launch=np.where(known, launch, _NONE),
        launched_ns=np.where(known, called, _NONE),
        late_launch=np.where(known, _NONE, launch),
        stream=stream,
        graph=np.where(launch >= 0, _latest_before(launch, end, start), _NONE),
        event=event,
        waits=_waits(trace, launched, queue),
        launch_ns=_median((start - called)[launch_bound]),
        queue_ns=_median((start - stream_end)[queued]),
    )


def _median(values: Ints) -> int:
    return int(np.median(values)) if len(values) else 0


def _before_waits(trace: Trace, times: Ints) -> Ints:
    """The times, those within a wait of a training thread moved to just before it."""
    rows = trace.syncs[trace.threads["training"].to_numpy(dtype=bool)[trace.syncs["thread"].to_numpy()]]
    blocked = intervals.union(intervals.spans(rows["ts"], rows["ts"] + rows["dur"]))
    if len(blocked) == 0:
        return times
    place = np.searchsorted(blocked[:, 0], times, side="right") - 1
    inside = (place >= 0) & (times < blocked[place, 1])
    return np.where(inside, blocked[place, 0] - 1, times)


def _number(*columns: "pd.Series[int]") -> Ints:
    """A number for each distinct row of these columns."""
    keys = np.stack([column.to_numpy(dtype=np.int64) for column in columns], axis=1).reshape(-1, len(columns))
    numbers: Ints = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return numbers


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
    asked = _wait_calls(trace, launch)
    start = trace.kernels["ts"].to_numpy()
    end = start + trace.kernels["dur"].to_numpy()
    by_end = np.lexsort((np.arange(len(end)), end))
    for row in np.flatnonzero(asked >= 0):
        place = int(np.searchsorted(end[by_end], start[row], side="right"))
        for other in by_end[:place][::-1]:
            earlier = end[other] < start[row] or other < row
            if earlier and launched[other] < asked[row] and queue[other] != queue[row]:
                found[row] = other
                break
    return found


def _wait_calls(trace: Trace, launch: Ints) -> Ints:
    """When the last call before each activity's launch asked a stream to wait for an event; -1 if none did.

    Only calls on the launching thread count that follow its launch before this one.
    """
    calls = trace.launches
    is_wait = np.array([name in naming.STREAM_WAIT_EVENTS for name in calls["name"].cat.categories], dtype=bool)
    none = np.full(len(launch), _NONE, dtype=np.int64)
    if len(calls) == 0 or not is_wait.any():
        return none
    rows = np.arange(len(calls))
    wait = np.maximum.accumulate(np.where(is_wait[calls["name"].cat.codes.to_numpy()], rows, _NONE))
    owners = row_numbers(trace.kernels["launch"])
    owns: Mask = np.zeros(len(calls), dtype=bool)
    owns[owners[owners >= 0]] = True
    work = np.maximum.accumulate(np.where(owns, rows, _NONE))
    before = np.maximum(launch - 1, 0)
    thread = calls["thread"].to_numpy()
    asked = (launch > 0) & (wait[before] > work[before])
    asked &= thread[np.maximum(wait[before], 0)] == thread[np.maximum(launch, 0)]
    return np.where(asked, calls["ts"].to_numpy()[wait[before]], none)


def _waits(trace: Trace, launched: Ints, queue: Ints) -> Ints:
    """The rows `(sync, kernel)` of what each synchronisation waits for."""
    syncs, kernels = trace.syncs, trace.kernels
    if len(syncs) == 0 or len(kernels) == 0:
        return np.empty((0, 2), dtype=np.int64)
    begin = syncs["ts"].to_numpy()
    back = begin + syncs["dur"].to_numpy()
    end = (kernels["ts"] + kernels["dur"]).to_numpy()
    last = _last_of_streams(begin, launched, queue, end)
    drained = (last >= 0) & (end[np.maximum(last, 0)] <= back[:, None])
    kinds = syncs["kind"].to_numpy(dtype=object)
    own = _own_work(row_numbers(syncs["launch"]), row_numbers(kernels["launch"]), end)
    by_end = np.argsort(end, kind="stable")
    pairs: list[tuple[int, int]] = []
    for row, kind in enumerate(kinds):
        if own[row] >= 0:
            waited = [own[row]]
        elif "Event" in kind:
            queued = by_end[: np.searchsorted(end[by_end], back[row], side="right")]
            queued = queued[launched[queued] < begin[row]]
            waited = queued[-1:].tolist()
        else:
            waited = last[row, drained[row]].tolist()
            if "Stream" in kind:
                waited = sorted(waited, key=lambda k: (end[k], k))[-1:]
        pairs.extend((row, int(kernel)) for kernel in waited if end[kernel] <= back[row])
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
