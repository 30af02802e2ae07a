"""The gaps between a GPU's work, each with its one cause."""

from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace import intervals
from steptrace.analysis.common.activity import activity, launches_known, syncs_known
from steptrace.intervals import Ints, Spans
from steptrace.limits import KERNEL_WAIT_BELOW_NS
from steptrace.trace import names as naming
from steptrace.trace.columns import Mask, map_names, row_numbers, spans_of, start_end, take
from steptrace.trace.model import Trace, launched_at, on_training, once
from steptrace.trace.names import LOADER_LABEL

#: The causes of a GPU's idle time, in order of precedence.
CAUSES: Final = ("sync", "loader", "host", "dependency", "between_kernels", "unknown")


def known_causes(trace: Trace) -> frozenset[str]:
    """The causes that can be told from what the trace holds; a gap with any other one has the cause `unknown`.

    Where the host's calls are missing, or nobody knows which of them wait, a gap may be a sync's. The host, other
    streams and the GPU itself are causes only where it is known when work was launched.
    """
    known = {"loader", "unknown"}
    if syncs_known(trace):
        known.add("sync")
        if launches_known(trace):
            known |= {"host", "dependency", "between_kernels"}
    return frozenset(known)


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
    - `unknown`: none of these, or the trace has neither the launch of the work nor a sign that it was queued, or it
      lacks what tells the cause (`known_causes`).
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
    soon = queued & (end - start < KERNEL_WAIT_BELOW_NS)
    same_stream = _follows_its_stream(trace, start, row)
    dependent = (soon & ~same_stream) | (queued & waits_for_event(trace, launch) & _has_several_streams(trace))
    conditions = [in_sync & ~in_loader, in_loader, (launch >= 0) & late, dependent, soon]
    known = [condition & (cause in known_causes(trace)) for cause, condition in zip(CAUSES, conditions, strict=False)]
    return gaps, np.select(known, CAUSES[:-1], default=CAUSES[-1]).astype(object)


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
    held = np.zeros(len(gaps), dtype=bool)
    through = np.zeros(len(gaps), dtype=bool)
    for _, of_thread in trace.syncs[on_training(trace, trace.syncs)].groupby("thread", sort=True):
        begin, over = start_end(of_thread)
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
