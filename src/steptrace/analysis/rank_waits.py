"""Splits a rank's communication into waiting for other ranks and transfer, which takes the traces of all ranks.

On a rank a collective first waits until the last rank has begun it, and then transfers. Sending fewer bytes shortens
the transfer only, not the waiting. Where a rank of the group was not read, only a bound of the waiting is known.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from msgspec.structs import replace

from steptrace import intervals
from steptrace.analysis.common.activity import activity
from steptrace.analysis.common.division import gpu_window
from steptrace.analysis.communication import (
    ALL_REDUCE,
    collectives_by_name,
    gpu_collectives,
    host_collectives,
    host_compute,
    waiting_known,
)
from steptrace.documents.communication import CollectiveName
from steptrace.documents.summary import TraceSummary
from steptrace.documents.table import rows
from steptrace.intervals import Spans
from steptrace.limits import WAITING_UNKNOWN
from steptrace.trace.columns import row_numbers
from steptrace.trace.model import Trace


def with_waiting(
    summaries: tuple[TraceSummary, ...], traces: Mapping[int, Trace], matched: pd.DataFrame
) -> tuple[TraceSummary, ...]:
    """The summaries of a job's ranks, with the waiting in their collectives filled in.

    Args:
        summaries: one for each rank.
        traces: their traces by rank, in the same order.
        matched: the table `matched_collectives` of these traces.
    """
    ranks = zip(summaries, traces.items(), strict=True)
    return tuple(
        replace(_of_rank(summary, trace, matched[matched["rank"] == rank]), ranks_read=len(traces))
        for summary, (rank, trace) in ranks
    )


def _of_rank(summary: TraceSummary, trace: Trace, parts: pd.DataFrame) -> TraceSummary:
    times = _with_waits(trace, parts)
    if not times["least_wait_ns"].notna().any():
        return summary
    names = summary.collectives
    reduces = summary.all_reduce
    division = summary.overview
    if names is not None:
        names = replace(names, by_name=rows(collectives_by_name(times), CollectiveName))
    if reduces is not None and reduces.exposed_ns is not None and (reduces.source == "gpu") == bool(trace.devices):
        counted = (times["collective"] == ALL_REDUCE).to_numpy()
        if len(trace.steps):
            counted = counted & times["step"].notna().to_numpy()
        chosen = times[counted]
        if waiting_known(chosen["dur_ns"], chosen["wait_ns"].notna()):
            reduces = replace(reduces, exposed_wait_ns=_exposed_wait(trace, chosen))
    if division is not None and trace.devices:
        start, end = gpu_window(trace)
        within = intervals.spans([start], [end])
        waited = _exposed_wait(trace, times, within, activity(trace).comm)
        if _all_known(trace, times, within):
            division = replace(division, exposed_wait_ns=waited)
        else:
            division = replace(division, least_exposed_wait_ns=waited)
    return replace(summary, collectives=names, all_reduce=reduces, overview=division)


def _with_waits(trace: Trace, parts: pd.DataFrame) -> pd.DataFrame:
    """`collective_times` with the columns `wait_ns`, `exposed_wait_ns` and `least_wait_ns`.

    The first two are null for a collective that a rank of its group lacks, the last one for one that no other trace
    holds. A rank that is a group of its own waits for nobody.
    """
    row = "kernel" if trace.devices else "label"
    times = gpu_collectives(trace) if trace.devices else host_collectives(trace)
    of_matched = parts.set_index(row_numbers(parts[row]))[["wait_ns", "least_wait_ns"]].astype("Int64")
    waits = of_matched.reindex(row_numbers(times[row])).reset_index(drop=True)
    waits[(times["ranks"] == 1).fillna(False).to_numpy(dtype=bool)] = 0
    wait = waits["wait_ns"]
    known = wait.fillna(0).to_numpy(dtype=np.int64)
    start = times["ts"].to_numpy(dtype=np.int64)
    compute = _compute(trace)
    exposed = wait.copy()
    if compute is None:
        exposed[:] = pd.NA
    else:
        exposed -= intervals.measure_within(compute, start, start + known)
    return times.reset_index(drop=True).assign(
        wait_ns=wait, exposed_wait_ns=exposed, least_wait_ns=waits["least_wait_ns"]
    )


def _all_known(trace: Trace, times: pd.DataFrame, within: Spans) -> bool:
    """Whether the waiting of all but a negligible part of the exposed communication is known."""
    known = times[times["wait_ns"].notna()]
    start = known["ts"].to_numpy(dtype=np.int64)
    spans = intervals.union(intervals.spans(start, start + known["dur_ns"].to_numpy(dtype=np.int64)))
    exposed = intervals.intersect(intervals.subtract(activity(trace).comm, activity(trace).compute), within)
    unknown = intervals.measure(intervals.subtract(exposed, spans))
    return len(known) > 0 and unknown <= WAITING_UNKNOWN * intervals.measure(exposed)


def _exposed_wait(
    trace: Trace, times: pd.DataFrame, within: Spans | None = None, communication: Spans | None = None
) -> int | None:
    """The time in which no computation ran and every collective under way was waiting for a rank that was read.

    Args:
        trace: the trace.
        times: the collectives to count, with `least_wait_ns`.
        within: the spans to count; None for the whole trace.
        communication: the spans of all communication, if `times` is only a part of it; the rest counts as transfer.
    """
    compute = _compute(trace)
    if compute is None:
        return None
    start = times["ts"].to_numpy(dtype=np.int64)
    until = start + times["least_wait_ns"].fillna(0).to_numpy(dtype=np.int64)
    end = start + times["dur_ns"].to_numpy(dtype=np.int64)
    under_way = intervals.union(intervals.spans(start, end))
    waiting = intervals.union(intervals.spans(start, until))
    transfer = intervals.union(intervals.spans(until, end))
    if communication is not None:
        transfer = intervals.union(transfer, intervals.subtract(communication, under_way))
    waiting = intervals.subtract(intervals.subtract(waiting, transfer), compute)
    return intervals.measure(waiting if within is None else intervals.intersect(waiting, within))


def _compute(trace: Trace) -> Spans | None:
    """The computation that hides communication: the GPU's compute kernels, or without GPUs the host's operators.

    None if no operators were recorded.
    """
    return activity(trace).compute if trace.devices else host_compute(trace)
