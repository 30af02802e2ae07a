"""How many streams of the analysed GPU work at once, and what of each stream's work runs while others work.

The time is `division.gpu_window`: all rows of `streams_at_once` but the first add up to the overview's busy time. What
overlaps on one stream, as in traces of clocks that jump, counts once. Where no second stream has work in that time,
there is nothing to say, and both tables are empty.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.division import gpu_window
from steptrace.analysis.common.series import steps_of, time_held
from steptrace.documents.streams import Stream, StreamsAtOnce
from steptrace.documents.table import frame_of
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import start_end
from steptrace.trace.model import Trace, once


@dataclass(frozen=True)
class _Streams:
    """The streams by number, what takes most of each one's time, when they work, and how many do from each instant."""

    number: Ints
    work: list[str]
    spans: Spans
    of: Ints
    instants: Ints
    running: Ints


@once
def streams_at_once(trace: Trace) -> pd.DataFrame:
    """The time with work on exactly so many streams, from none up (table `streams_at_once`)."""
    every = _streams(trace)
    if len(every.number) < 2:
        return frame_of(StreamsAtOnce)
    ns = _sums(every.running, time_held(every.instants), int(every.running.max()) + 1)
    return frame_of(StreamsAtOnce, {"streams": np.arange(len(ns)), "ns": ns, "share": ns / ns.sum()})


@once
def streams(trace: Trace) -> pd.DataFrame:
    """Each stream's time alone and with others, the busiest first (table `streams`)."""
    every = _streams(trace)
    count = len(every.number)
    if count < 2:
        return frame_of(Stream)
    one = every.running == 1
    single = intervals.union(intervals.spans(every.instants, every.instants + time_held(every.instants))[one])
    start, end = every.spans.T
    busy = _sums(every.of, end - start, count)
    alone = _sums(every.of, intervals.measure_within(single, start, end), count)
    columns = {
        "stream": every.number,
        "work": every.work,
        "busy_ns": busy,
        "alone_ns": alone,
        "hidden": 1 - alone / busy,
    }
    return frame_of(Stream, columns).sort_values("busy_ns", ascending=False, kind="stable", ignore_index=True)


@once
def _streams(trace: Trace) -> _Streams:
    """The streams with work in the window."""
    low, high = gpu_window(trace)
    start, end = (np.clip(instants, low, high) for instants in start_end(trace.kernels))
    inside = (trace.kernels["device"] == trace.device).to_numpy() & (end > start)
    start, end = start[inside], end[inside]
    number, of = np.unique(trace.kernels["stream"].to_numpy()[inside], return_inverse=True)
    by_work = pd.Series(end - start).groupby([of, trace.kernels["kind"].to_numpy(dtype=object)[inside]]).sum()
    work = by_work.sort_values(ascending=False, kind="stable").reset_index().drop_duplicates("level_0")
    # Each stream on a stretch of time of its own: then no two streams' spans touch.
    width = high - low + 1
    merged = intervals.union(intervals.spans(start + of * width, end + of * width))
    of = (merged[:, 0] - low) // width
    spans = merged - (of * width)[:, None]
    times = np.concatenate([[low, high], spans.T.ravel()])
    instants, running = steps_of(times, np.repeat(np.array([0, 1, -1]), [2, len(spans), len(spans)]))
    return _Streams(number, work.sort_values("level_0")["level_1"].tolist(), spans, of, instants, running)


def _sums(group: Ints, ns: Ints, count: int) -> Ints:
    sums = np.zeros(count, dtype=np.int64)
    np.add.at(sums, group, ns)
    return sums
