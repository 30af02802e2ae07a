"""What the host did while the GPU had nothing to do for want of a launch, and which calls it was in.

The gaps are those of `idle_gaps` with the cause `host`, and the time before the GPU's first work and after its last.
With steps, that time counts from the first step's start to the last one's end, as in
`steptrace.analysis.overview.parts`; without, from the trace's first event to its last, and counts for nothing but to be
named.
"""

from typing import Any, Final, Literal

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.busy import activity
from steptrace.documents.summary import HostCall, HostGap, HostGaps
from steptrace.intervals import Ints, Spans
from steptrace.trace.model import Trace, on_training

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
    calls = _of_training(trace, trace.launches[["ts", "dur", "name", "thread"]])
    long = calls[(calls["dur"] >= LONG_CALL_NS).to_numpy()]
    in_calls, ops = _spans(calls), _spans(_of_training(trace, trace.ops[["ts", "dur", "thread"]]))
    in_ops = intervals.subtract(ops, in_calls)
    counted = slice(None) if len(trace.steps) else slice(len(between))
    longest = [int(k) for k in np.argsort(-length, kind="stable")[:MOST_GAPS] if length[k]]
    return HostGaps(
        gap_ns=int(length[counted].sum()),
        long_call_ns=_filled(_spans(long), ts[counted], stop[counted]),
        gaps=tuple(_gap(between, k, int(ts[k]), int(stop[k]), calls) for k in longest),
        call_ns=_filled(in_calls, ts[counted], stop[counted]),
        op_ns=_filled(in_ops, ts[counted], stop[counted]),
    )


def _gap(between: pd.DataFrame, k: int, ts: int, stop: int, calls: pd.DataFrame) -> HostGap:
    """The k-th gap; behind those between the GPU's work come the one before it and the one after it."""
    if k >= len(between):
        where: Literal["before", "after"] = "before" if k == len(between) else "after"
        return HostGap(where=where, ts=ts, dur=stop - ts, op=None, label=None, calls=_by_name(calls, ts, stop))
    row = between.iloc[k]
    op, label = _text(row["op"]), _text(row["label"])
    return HostGap(where="between", ts=ts, dur=stop - ts, op=op, label=label, calls=_by_name(calls, ts, stop))


def _of_training(trace: Trace, rows: pd.DataFrame) -> pd.DataFrame:
    """What of these events training threads did, with its `end`."""
    return rows[on_training(trace, rows)].assign(end=lambda table: table["ts"] + table["dur"])


def _spans(rows: pd.DataFrame) -> Spans:
    return intervals.union(intervals.spans(rows["ts"], rows["end"]))


def _filled(spans: Spans, start: Ints, end: Ints) -> int:
    """How much of these gaps the spans fill."""
    return int(intervals.measure_within(spans, start, np.maximum(start, end)).sum())


def _by_name(calls: pd.DataFrame, start: int, end: int) -> tuple[HostCall, ...]:
    inside = np.minimum(calls["end"].to_numpy(), end) - np.maximum(calls["ts"].to_numpy(), start)
    rows, names = np.flatnonzero(inside > 0), calls["name"].cat
    of_name = names.codes.to_numpy()[rows]
    found = (
        HostCall(
            name=str(names.categories[k]), count=int((of_name == k).sum()), ns=int(inside[rows[of_name == k]].sum())
        )
        for k in np.unique(of_name)
    )
    return tuple(sorted(found, key=lambda call: (-call.ns, call.name))[:MOST_CALLS])


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
