"""How many streams of the analysed GPU work at once, how much of each one's work others hide, and the streams' queues.

The time that counts is `division.gpu_window`. The rows of `streams_at_once` add up to it, and all rows with at least
one stream add up to the overview's busy time. Work that overlaps on one stream, as in traces of clocks that jump,
counts once. If only one stream has work in that time, `streams_at_once` and `streams` are empty.

The queue length of each stream is a series in time. An activity enters the queue of its stream when the call that
launches it begins, and leaves it when it starts to run. This is Holistic Trace Analysis's definition, applied to every
kind of launch: all kernels of a graph enter with the graph's one launch. Work without a known launch is left out of the
queue, and counted. While the queue is empty, the GPU depends on the host's next launch. While it is full, the next
launch blocks, unless it is a CUDA graph launch.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.activity import launches_measured, left_over
from steptrace.analysis.common.division import gpu_window
from steptrace.analysis.common.registry import reads, table, table_part, without_rows_of
from steptrace.analysis.common.series import quantiles, running_sum, time_held
from steptrace.documents.streams import Queue, QueueLength, StreamRow, StreamsAtOnce
from steptrace.documents.table import frame_of
from steptrace.intervals import Ints, Spans
from steptrace.limits import QUEUE_CAPACITY
from steptrace.trace.columns import start_end
from steptrace.trace.model import Trace, launched_at, once


@dataclass(frozen=True)
class _Streams:
    """The streams with work in the window, and how many of them work at once.

    Attributes:
        number: the number of each stream.
        work: what takes most of its time.
        spans: when streams work.
        stream_index: the index of the stream that each span belongs to.
        instants: when the number of working streams changes.
        running: how many streams work from each of these instants on.
    """

    number: Ints
    work: list[str]
    spans: Spans
    stream_index: Ints
    instants: Ints
    running: Ints


@table_part("streams_at_once")
@once
@without_rows_of("kernels", StreamsAtOnce)
def streams_at_once(trace: Trace) -> pd.DataFrame:
    """The time with work on exactly 0, 1, 2, ... streams (table `streams_at_once`)."""
    working = _streams(trace)
    if len(working.number) < 2:
        return frame_of(StreamsAtOnce)
    ns = _sums(working.running, time_held(working.instants), int(working.running.max()) + 1)
    return frame_of(StreamsAtOnce, {"streams": np.arange(len(ns)), "ns": ns, "share": ns / ns.sum()})


@table_part("streams")
@once
@without_rows_of("kernels", StreamRow)
def streams(trace: Trace) -> pd.DataFrame:
    """Each stream's time alone and with others, the busiest first (table `streams`)."""
    working = _streams(trace)
    count = len(working.number)
    if count < 2:
        return frame_of(StreamRow)
    spans_of_running = intervals.spans(working.instants, working.instants + time_held(working.instants))
    single = intervals.union(spans_of_running[working.running == 1])
    start, end = working.spans.T
    busy = _sums(working.stream_index, end - start, count)
    alone = _sums(working.stream_index, intervals.measure_within(single, start, end), count)
    columns = {
        "stream": working.number,
        "work": working.work,
        "busy_ns": busy,
        "alone_ns": alone,
        "hidden": 1 - alone / busy,
    }
    return frame_of(StreamRow, columns).sort_values("busy_ns", ascending=False, kind="stable", ignore_index=True)


def _streams(trace: Trace) -> _Streams:
    """The streams with work in the window."""
    low, high = gpu_window(trace)
    start, end = (np.clip(instants, low, high) for instants in start_end(trace.kernels))
    inside = (trace.kernels["device"] == trace.device).to_numpy() & (end > start)
    start, end = start[inside], end[inside]
    number, stream = np.unique(trace.kernels["stream"].to_numpy()[inside], return_inverse=True)
    by_work = pd.Series(end - start).groupby([stream, trace.kernels["kind"].to_numpy(dtype=object)[inside]]).sum()
    work = by_work.sort_values(ascending=False, kind="stable").reset_index().drop_duplicates("level_0")
    spans, stream = intervals.union_by_group(stream, start, end)
    times = np.concatenate([[low, high], spans.T.ravel()])
    instants, running = running_sum(times, np.repeat(np.array([0, 1, -1]), [2, len(spans), len(spans)]))
    return _Streams(number, work.sort_values("level_0")["level_1"].tolist(), spans, stream, instants, running)


def _sums(group: Ints, ns: Ints, count: int) -> Ints:
    """The sum of the times of each of `count` groups."""
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, group, ns)
    return sums


@table("queue_lengths", QueueLength)
@once
@without_rows_of("kernels", QueueLength)
def queue_lengths(trace: Trace) -> pd.DataFrame:
    """The queue of every stream of every GPU as a series (table `queue_lengths`)."""
    # A separate call, so that its arrays are freed before the columns are checked.
    return frame_of(QueueLength, _length_columns(trace))


def _length_columns(trace: Trace) -> dict[str, Ints] | tuple[()]:
    """The columns of `queue_lengths`. The series of a stream ends at 0, since all work leaves the queue."""
    linked = trace.kernels["launch"].notna().to_numpy()
    rows = trace.kernels.loc[linked, ["device", "stream", "ts"]]
    if not len(rows):
        return ()
    by_stream = rows.groupby(["device", "stream"], sort=True)
    start = rows["ts"].to_numpy()
    streams = by_stream[["device", "stream"]].first()
    # Work that starts before its launch (clocks that disagree) was never in the queue.
    ts = np.concatenate([np.minimum(launched_at(trace)[linked], start), start])
    group = np.tile(by_stream.ngroup().to_numpy(dtype=np.int64), 2)
    order = np.lexsort((ts, group))
    group = group[order]
    ts = ts[order]
    change = np.repeat(np.array([1, -1], dtype=np.int64), len(rows))[order]
    first = np.flatnonzero(np.append(True, (group[1:] != group[:-1]) | (ts[1:] != ts[:-1])))
    return {
        "device": streams["device"].to_numpy()[group[first]],
        "stream": streams["stream"].to_numpy()[group[first]],
        "ts": ts[first],
        "length": np.cumsum(np.add.reduceat(change, first)),
    }


@table_part("queues")
@reads("queue_lengths")
@once
@without_rows_of("kernels", Queue)
def queues(trace: Trace) -> pd.DataFrame:
    """Means and quantiles over time of `queue_lengths`, the busiest stream first (table `queues`)."""
    if not launches_measured(trace):
        return frame_of(Queue)
    lengths = queue_lengths(trace)
    kernels = trace.kernels[~left_over(trace)]
    linked = kernels["launch"].notna().to_numpy()
    grouped = kernels.assign(linked=linked).groupby(["device", "stream"])["linked"]
    sizes = grouped.size().to_dict()
    entered = grouped.sum().to_dict()
    if not len(lengths):
        return frame_of(Queue)
    # All streams at once: a group's rows stand together, `first` is where each group begins.
    device, stream, ts, length = (lengths[name].to_numpy() for name in ("device", "stream", "ts", "length"))
    first = np.flatnonzero(np.append(True, (device[1:] != device[:-1]) | (stream[1:] != stream[:-1])))
    group = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(ts))))
    held = time_held(ts)
    held[np.append(first[1:] - 1, len(ts) - 1)] = 0
    span = np.add.reduceat(held, first)
    keys = [*zip(device[first].tolist(), stream[first].tolist(), strict=True)]
    activities = np.array([entered[key] for key in keys], dtype=np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(span > 0, np.add.reduceat(length * held, first) / span, np.nan)
    table = frame_of(
        Queue,
        {
            "device": device[first],
            "stream": stream[first],
            "activities": activities,
            "unlinked": np.array([sizes[key] for key in keys], dtype=np.int64) - activities,
            "span_ns": span,
            "mean": mean,
            "median": pd.arrays.IntegerArray(quantiles(length, held, group, 0.5), span == 0),
            "p95": pd.arrays.IntegerArray(quantiles(length, held, group, 0.95), span == 0),
            "max": np.maximum.reduceat(length, first),
            "empty_ns": np.add.reduceat(np.where(length == 0, held, 0), first),
            "full_ns": np.add.reduceat(np.where(length >= QUEUE_CAPACITY, held, 0), first),
        },
    )
    return table.sort_values("activities", ascending=False, kind="stable", ignore_index=True)
