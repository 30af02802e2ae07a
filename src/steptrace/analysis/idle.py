"""Idle time of a GPU: per stream, comparable with Holistic Trace Analysis, and its gaps, each with its cause.

Also the host's activity and calls while the GPU waited for a launch: in the gaps of `idle_gaps` with the cause `host`,
and before the GPU's first work and after its last. With steps, that time counts from the first step's start to the last
one's end, as in `steptrace.analysis.common.division`; without, it reaches from the trace's first event to its last, and
is listed but not counted as idle.
"""

from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.activity import activity, launches_measured, outside_steps
from steptrace.analysis.common.gaps import first_work, gap_causes, known_causes
from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.common.labels import label_of_kernels
from steptrace.analysis.common.registry import part, reads, table, without_rows_of
from steptrace.documents.idle import HostCall, HostGap, HostGaps, Idle, IdleEnding, IdleGap, StreamIdle
from steptrace.documents.table import frame_of, plain, rows, validate
from steptrace.intervals import Ints, Spans
from steptrace.limits import KERNEL_WAIT_BELOW_NS, LONG_CALL_NS
from steptrace.trace import columns
from steptrace.trace.decode import MISSING
from steptrace.trace.model import Trace, launched_at, launching_op, on_training, once

#: Most gaps, and most entries by the ending operator, in summary.json; the table `idle_gaps` has all.
MOST = 20


@table("idle_by_stream", StreamIdle)
@once
@without_rows_of("kernels", StreamIdle)
def idle_by_stream(trace: Trace) -> pd.DataFrame:
    """The gaps before each activity of a stream, by category, summed per device and stream.

    A gap is `host_wait` if the activity was launched after the previous one ended, else `kernel_wait` if it is shorter
    than 30 us, else `other`. An activity whose launch the trace lacks is never `host_wait`. Returns one row per stream:
    `device`, `stream`, `host_wait_ns`, `kernel_wait_ns`, `other_ns`; none where launches are unknown.
    """
    if not launches_measured(trace):
        return frame_of(StreamIdle)
    stream = ["device", "stream"]
    previous = columns.ended_before(trace.kernels, stream)
    gap = np.where(previous < 0, 0, np.maximum(trace.kernels["ts"].to_numpy() - previous, 0))
    category = np.where(launched_at(trace) > previous, 0, np.where(gap < KERNEL_WAIT_BELOW_NS, 1, 2))
    names = ("host_wait_ns", "kernel_wait_ns", "other_ns")
    waits = {name: np.where(category == i, gap, 0) for i, name in enumerate(names)}
    sums = trace.kernels[stream].assign(**waits).groupby(stream, as_index=False).sum()
    return validate(sums, StreamIdle)


@table("idle_gaps", IdleGap)
@once
@without_rows_of("kernels", IdleGap)
def idle_gaps(trace: Trace) -> pd.DataFrame:
    """Each gap in a GPU's work, with its cause (`gaps.gap_causes`) and the activity after it (`idle_gaps`)."""
    gaps, cause = gap_causes(trace)
    start, end = gaps[:, 0], gaps[:, 1]
    ended = _endings(trace, first_work(trace, end), start)
    return frame_of(IdleGap, {"ts": start, "dur": end - start, "cause": cause, **ended})


def gap_endings(gaps: pd.DataFrame) -> pd.DataFrame:
    """The gaps of `idle_gaps` by cause and by the operator of the work after them, the most idle time first."""
    groups = gaps.groupby(["cause", "op", "label"], dropna=False, sort=True)["dur"]
    table = groups.agg(gaps="size", idle_ns="sum", longest_ns="max").reset_index()
    table = table.sort_values(["idle_ns", "cause"], ascending=[False, True], kind="stable", ignore_index=True)
    return validate(table, IdleEnding)


@part("idle")
@reads("idle_gaps")
@once
def idle(trace: Trace) -> Idle:
    """Idle time by stream and by the work after the gap, and the longest gaps; `overview` has it by cause.

    Gaps before work that is left over from steps before the recorded ones are not counted by that work.
    """
    device = trace.device
    by_stream = rows(idle_by_stream(trace), StreamIdle)
    if device is None:
        return Idle(by_stream=by_stream, gaps=None, ended_by=(), longest=())
    gaps = idle_gaps(trace)
    in_steps = gaps[~outside_steps(trace)[gaps["kernel"].to_numpy()]]
    return Idle(
        by_stream=by_stream,
        # With a single activity there can be no gap.
        gaps=len(gaps) if (trace.kernels["device"] == device).sum() > 1 else None,
        ended_by=rows(gap_endings(in_steps).head(MOST), IdleEnding) if launches_measured(trace) else (),
        longest=rows(gaps.sort_values(["dur", "ts"], ascending=[False, True]).head(MOST), IdleGap),
    )


def _endings(trace: Trace, row: Ints, start: Ints) -> dict[str, Any]:
    """The activity `row` after each gap, the call that launched it, and the call's place in the program."""
    kernels = trace.kernels.iloc[row]
    launch = columns.row_numbers(kernels["launch"])
    return {
        "kernel": row,
        "name": [short_name(name) for name in kernels["name"]],
        "stream": kernels["stream"].to_numpy(),
        "launch": columns.references(launch),
        "launched_after_ns": columns.optional(np.where(launch < 0, MISSING, launched_at(trace)[row] - start)),
        "op": columns.texts(trace.ops["name"], launching_op(trace)[row]),
        "label": columns.texts(trace.labels["name"], label_of_kernels(trace)[row]),
        "step": columns.references(columns.row_numbers(kernels["step"])),
    }


#: Most gaps listed, and most calls of each.
MOST_GAPS, MOST_CALLS = 5, 3


@part("host_gaps")
@reads("idle_gaps")
@once
def host_gaps(trace: Trace) -> HostGaps | None:
    """The gaps of `idle_gaps` with the cause `host`; None where that cause cannot be told."""
    if trace.device is None or "host" not in known_causes(trace):
        return None
    start, end = trace.steps_span
    first, last = activity(trace).span
    gaps = idle_gaps(trace)
    between = np.flatnonzero((gaps["cause"] == "host").to_numpy())
    begun, ended = (edge[between] for edge in columns.start_end(gaps))
    ts = np.concatenate([begun, [start, max(last, start)]]).astype(np.int64).clip(min=start)
    stop = np.concatenate([ended, [min(first, end), end]]).astype(np.int64).clip(max=end)
    length = np.maximum(stop - ts, 0)
    # A copy of the other columns would be the summary's peak of memory.
    called = on_training(trace, trace.launches)
    calls = trace.launches[["ts", "dur", "name"]]
    in_long = columns.union_of(calls, called & (calls["dur"] >= LONG_CALL_NS).to_numpy())
    in_calls = columns.union_of(calls, called)
    in_ops = columns.union_of(trace.ops, on_training(trace, trace.ops))
    calls = calls[called]
    counted = slice(None) if len(trace.steps) else slice(len(between))
    longest = [int(k) for k in np.argsort(-length, kind="stable")[:MOST_GAPS] if length[k]]
    return HostGaps(
        gap_ns=int(length[counted].sum()),
        long_call_ns=_filled(in_long, ts[counted], stop[counted]),
        gaps=tuple(_gap(gaps, between, k, int(ts[k]), int(stop[k]), calls) for k in longest),
        call_ns=_filled(in_calls, ts[counted], stop[counted]),
        op_ns=_filled_beside(in_ops, in_calls, ts[counted], stop[counted]),
    )


def _gap(gaps: pd.DataFrame, between: Ints, k: int, ts: int, stop: int, calls: pd.DataFrame) -> HostGap:
    """The k-th gap of the rows `between`; the time before the GPU's first work and after its last come at the end."""
    where: Literal["between", "before", "after"] = "before" if k == len(between) else "after"
    op = label = None
    if k < len(between):
        where = "between"
        op = plain(gaps["op"].iloc[between[k]])
        label = plain(gaps["label"].iloc[between[k]])
    return HostGap(where=where, ts=ts, dur=stop - ts, op=op, label=label, calls=_by_name(calls, ts, stop))


def _filled(spans: Spans, start: Ints, end: Ints) -> int:
    """The time that the spans take of these gaps, in ns."""
    return int(intervals.measure_within(spans, start, np.maximum(start, end)).sum())


#: How many gaps are processed at a time.
_AT_ONCE: Final = 1 << 14


def _filled_beside(spans: Spans, without: Spans, start: Ints, end: Ints) -> int:
    """The time that the spans take of these gaps outside of the spans `without`, in ns.

    It is computed in portions: the difference of the two sets would be several times the size of both.
    """
    order = np.argsort(start, kind="stable")
    total = 0
    for portion in np.array_split(order, len(order) // _AT_ONCE + 1):
        if len(portion):
            begin = start[portion]
            stop = np.maximum(start[portion], end[portion])
            near, beside = (_between(spans_near, int(begin[0]), int(stop.max())) for spans_near in (spans, without))
            total += _filled(intervals.subtract(near, beside), begin, stop)
    return total


def _between(spans: Spans, start: int, end: int) -> Spans:
    """The intervals of a normal-form set that overlap `[start, end)`."""
    first, stop = np.searchsorted(spans[:, 1], start, side="right"), np.searchsorted(spans[:, 0], end, side="left")
    return spans[first : max(stop, first)]


def _by_name(calls: pd.DataFrame, start: int, end: int) -> tuple[HostCall, ...]:
    begun, returned = columns.start_end(calls)
    inside = np.minimum(returned, end) - np.maximum(begun, start)
    rows = np.flatnonzero(inside > 0)
    names = calls["name"].cat
    of_name = names.codes.to_numpy()[rows]
    by_name = (
        HostCall(
            name=str(names.categories[k]), count=int((of_name == k).sum()), ns=int(inside[rows[of_name == k]].sum())
        )
        for k in np.unique(of_name)
    )
    return tuple(sorted(by_name, key=lambda call: (-call.ns, call.name))[:MOST_CALLS])
