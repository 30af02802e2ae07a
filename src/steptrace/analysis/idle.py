"""Why a GPU was idle: per stream, comparable with Holistic Trace Analysis, and per device, by cause.

And what the host did while the GPU had nothing to do for want of a launch, and which calls it was in: in the gaps of
`idle_gaps` with the cause `host`, and in the time before the GPU's first work and after its last. With steps, that time
counts from the first step's start to the last one's end, as in `steptrace.analysis.overview`; without, from the
trace's first event to its last, and counts for nothing but to be named.
"""

from typing import Any, Final, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace import intervals, schema
from steptrace.analysis.common.analysis import Analysis, plain, rows
from steptrace.analysis.common.annotations import annotation_of_kernels
from steptrace.analysis.common.busy import activity
from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.common.launches import waits_for_event
from steptrace.documents.idle import HostCall, HostGap, HostGaps, Idle, IdleEnding, IdleGap, StreamIdle
from steptrace.documents.rows import table_of
from steptrace.intervals import Ints, Spans
from steptrace.trace import columns
from steptrace.trace.events import MISSING
from steptrace.trace.model import Trace, launched_at, launching_op, on_training, once
from steptrace.trace.names import LOADER_LABEL

#: Below this a gap before work that was already queued is the GPU's own start-up. HTA's documentation says 30 ns, its
#: code compares microseconds.
KERNEL_WAIT_BELOW_NS = 30_000

#: The causes of device idle time, in the order in which they are looked for.
CAUSES = ("sync", "loader", "host", "dependency", "unknown")

#: How many gaps, and what ended gaps, summary.json lists; the table `idle_gaps` has all.
MOST = 20

IDLE_GAPS = table_of("idle_gaps", IdleGap, "ts")
IDLE_ENDINGS = table_of("idle_endings", IdleEnding, "cause", "op", "label")
IDLE_BY_STREAM = table_of("idle_by_stream", StreamIdle, "device", "stream")


def idle_by_stream(trace: Trace) -> pd.DataFrame:
    """The gaps before each activity of a stream, by category, summed per device and stream.

    A gap is `host_wait` if the activity was launched after the previous one ended, else `kernel_wait` if it is shorter
    than 30 us, else `other`. An activity whose launch the trace lacks is never `host_wait`. Returns one row per stream:
    `device`, `stream`, `host_wait_ns`, `kernel_wait_ns`, `other_ns`.
    """
    stream = ["device", "stream"]
    previous = columns.ended_before(trace.kernels, stream)
    gap = np.where(previous < 0, 0, np.maximum(trace.kernels["ts"].to_numpy() - previous, 0))
    category = np.where(launched_at(trace) > previous, 0, np.where(gap < KERNEL_WAIT_BELOW_NS, 1, 2))
    names = ("host_wait_ns", "kernel_wait_ns", "other_ns")
    waits = {name: np.where(category == i, gap, 0) for i, name in enumerate(names)}
    sums = trace.kernels[stream].assign(**waits).groupby(stream, as_index=False).sum()
    return schema.validate(sums, IDLE_BY_STREAM)


def idle_by_cause(trace: Trace, device: int) -> dict[str, int]:
    """Idle ns of a GPU between its first and last activity, by cause; the causes add up to its idle time exactly."""
    gaps = idle_gaps(trace, device)
    return {cause: int(gaps.loc[gaps["cause"] == cause, "dur"].sum()) for cause in CAUSES}


@once
def idle_gaps(trace: Trace, device: int) -> pd.DataFrame:
    """Each gap in a GPU's work, with its one cause and what ended it (table `idle_gaps`).

    The causes, in the order in which they are looked for:

    - `sync`: a training thread was blocked in a synchronisation when the GPU ran dry, or for at least half of the gap.
      The host could not queue anything meanwhile, so the launching until the gap ends is the sync's cost too. A gap
      that ends with work launched before the wait began is not its: the host held nothing up.
    - `loader`: a training thread was waiting in the data loader's `__next__` for at least half of the gap. This also
      wins over a sync that only came before it: without that sync the GPU would have waited for the data all the same.
    - `host`: the work that ends the gap was not launched when the gap began: the host was launching, or in Python.
    - `dependency`: that work was queued, and either began within 30 us, as work behind other work does, or a stream had
      been told to wait for an event just before it was launched.
    - `unknown`: none of these, or the launch of the work is not in the trace, nor any sign that it was queued.
    """
    busy = activity(trace, device).busy
    gaps = intervals.spans(busy[:-1, 1], busy[1:, 0])
    start, end = gaps[:, 0], gaps[:, 1]
    loader_ns = intervals.measure_within(loader_spans(trace), start, end)
    in_loader = 2 * loader_ns >= end - start
    row = _first_work(trace, device, end)
    launch = columns.row_numbers(trace.kernels["launch"])[row] if len(row) else row
    begun, returned = columns.start_end(trace.launches)
    launched = columns.take(returned, launch)
    in_sync, waited_through = _held_by_sync(trace, gaps, columns.take(begun, launch))
    late = launched > start
    # What begins while the host waits all along was queued before, though the trace lacks its launch.
    queued = np.where(launch >= 0, ~late, waited_through)
    dependent = queued & ((end - start < KERNEL_WAIT_BELOW_NS) | waits_for_event(trace, launch))
    conditions = [in_sync & ~in_loader, in_loader, (launch >= 0) & late, dependent]
    cause = np.select(conditions, CAUSES[:4], default="unknown").astype(object)
    ended = _endings(trace, row, start)
    return schema.frame_of(IDLE_GAPS, {"ts": start, "dur": end - start, "cause": cause, **ended})


def gap_endings(gaps: pd.DataFrame) -> pd.DataFrame:
    """The gaps of `idle_gaps` by cause and by the operator whose work ended them, the most idle time first."""
    groups = gaps.groupby(["cause", "op", "label"], dropna=False, sort=True)["dur"]
    table = groups.agg(gaps="size", idle_ns="sum", longest_ns="max").reset_index()
    table = table.sort_values(["idle_ns", "cause"], ascending=[False, True], kind="stable", ignore_index=True)
    return schema.validate(table, IDLE_ENDINGS)


def idle(analysis: Analysis) -> Idle:
    """Idle time by stream, by cause, by what ended the gaps, and the longest gaps."""
    by_stream = analysis.rows("idle_by_stream", StreamIdle)
    if analysis.device is None:
        return Idle(by_stream=by_stream, by_cause=None, gaps=None, ended_by=(), longest=())
    gaps = analysis.tables["idle_gaps"]
    return Idle(
        by_stream=by_stream,
        by_cause=idle_by_cause(analysis.trace, analysis.device),
        # One activity has nothing between it and another: no gap was there to be found.
        gaps=len(gaps) if (analysis.trace.kernels["device"] == analysis.device).sum() > 1 else None,
        ended_by=rows(gap_endings(gaps).head(MOST), IdleEnding),
        longest=rows(gaps.sort_values(["dur", "ts"], ascending=[False, True]).head(MOST), IdleGap),
    )


def _endings(trace: Trace, row: Ints, start: Ints) -> dict[str, Any]:
    """What ended each gap: the activity `row`, the call that launched it, and where in the program that stands."""
    kernels = trace.kernels.iloc[row]
    launch = columns.row_numbers(kernels["launch"])
    return {
        "kernel": row,
        "name": [short_name(name) for name in kernels["name"]],
        "stream": kernels["stream"].to_numpy(),
        "launch": columns.references(launch),
        "launched_after_ns": columns.optional(np.where(launch < 0, MISSING, launched_at(trace)[row] - start)),
        "op": columns.texts(trace.ops["name"], launching_op(trace)[row]),
        "label": columns.texts(trace.annotations["name"], annotation_of_kernels(trace)[row]),
        "step": columns.references(columns.row_numbers(kernels["step"])),
    }


@once
def loader_spans(trace: Trace) -> Spans:
    """When a training thread was waiting in the data loader's `__next__`."""
    labels = trace.annotations
    rows = labels[columns.judge_names(labels["name"], LOADER_LABEL.match) & on_training(trace, labels)]
    return intervals.union(columns.spans_of(rows))


def _held_by_sync(trace: Trace, gaps: Spans, launched: Ints) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which gaps a sync of a training thread held open, and which lie within syncs of one such thread from end to end.

    `launched` is when the work that ends each gap was launched, -1 where that is not known.
    """
    start, end = gaps[:, 0], gaps[:, 1]
    held, through = np.zeros(len(gaps), dtype=bool), np.zeros(len(gaps), dtype=bool)
    for _, own in trace.syncs[on_training(trace, trace.syncs)].groupby("thread", sort=True):
        begin, over = columns.start_end(own)
        # The waits of a thread follow each other: from the first on that began after the launch, none counts. Where the
        # launch is not known, the host can have made it after a wait that was over, not within one.
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


def _first_work(trace: Trace, device: int, starts: Ints) -> Ints:
    """Row of the activity of the device that begins at each of `starts`; of several the one launched first."""
    kernels = trace.kernels
    rows = np.flatnonzero((kernels["device"] == device).to_numpy() & (kernels["dur"] > 0).to_numpy())
    launched = launched_at(trace)[rows]
    launched = np.where(launched < 0, np.iinfo(np.int64).max, launched)
    rows = rows[np.lexsort((launched, kernels["ts"].to_numpy()[rows]))]
    return rows[np.searchsorted(kernels["ts"].to_numpy()[rows], starts, side="left")]


#: A single call of at least this length is no launching: a launch with all that leads to it takes less.
LONG_CALL_NS: Final = 250_000
#: How many of the longest gaps are listed, and how many calls of each.
MOST_GAPS, MOST_CALLS = 5, 3


def host_gaps(trace: Trace, device: int, gaps: pd.DataFrame) -> HostGaps:
    """The gaps that only the host explains, from the table `idle_gaps`."""
    start, end = trace.steps_span
    first, last = activity(trace, device).span
    between = gaps[(gaps["cause"] == "host").to_numpy()]
    ts = np.concatenate([between["ts"], [start, max(last, start)]]).astype(np.int64).clip(min=start)
    stop = np.concatenate([between["ts"] + between["dur"], [min(first, end), end]]).astype(np.int64).clip(max=end)
    length = np.maximum(stop - ts, 0)
    # Without the other columns, of which a copy would be the most memory that a summary takes.
    calls = trace.launches[["ts", "dur", "name"]][on_training(trace, trace.launches)]
    ops = trace.ops[["ts", "dur"]][on_training(trace, trace.ops)]
    long = calls[(calls["dur"] >= LONG_CALL_NS).to_numpy()]
    in_long, in_calls, in_ops = (intervals.union(columns.spans_of(events)) for events in (long, calls, ops))
    counted = slice(None) if len(trace.steps) else slice(len(between))
    longest = [int(k) for k in np.argsort(-length, kind="stable")[:MOST_GAPS] if length[k]]
    return HostGaps(
        gap_ns=int(length[counted].sum()),
        long_call_ns=_filled(in_long, ts[counted], stop[counted]),
        gaps=tuple(_gap(between, k, int(ts[k]), int(stop[k]), calls) for k in longest),
        call_ns=_filled(in_calls, ts[counted], stop[counted]),
        op_ns=_filled(intervals.subtract(in_ops, in_calls), ts[counted], stop[counted]),
    )


def _gap(between: pd.DataFrame, k: int, ts: int, stop: int, calls: pd.DataFrame) -> HostGap:
    """The k-th gap; behind those between the GPU's work come the one before it and the one after it."""
    where: Literal["between", "before", "after"] = "before" if k == len(between) else "after"
    op = label = None
    if k < len(between):
        where, op, label = "between", *(plain(between[name].iloc[k]) for name in ("op", "label"))
    return HostGap(where=where, ts=ts, dur=stop - ts, op=op, label=label, calls=_by_name(calls, ts, stop))


def _filled(spans: Spans, start: Ints, end: Ints) -> int:
    """How much of these gaps the spans fill."""
    return int(intervals.measure_within(spans, start, np.maximum(start, end)).sum())


def _by_name(calls: pd.DataFrame, start: int, end: int) -> tuple[HostCall, ...]:
    begun, returned = columns.start_end(calls)
    inside = np.minimum(returned, end) - np.maximum(begun, start)
    rows, names = np.flatnonzero(inside > 0), calls["name"].cat
    of_name = names.codes.to_numpy()[rows]
    found = (
        HostCall(
            name=str(names.categories[k]), count=int((of_name == k).sum()), ns=int(inside[rows[of_name == k]].sum())
        )
        for k in np.unique(of_name)
    )
    return tuple(sorted(found, key=lambda call: (-call.ns, call.name))[:MOST_CALLS])
