"""Streams at once, against a walk over the activities of real traces, event by event, and when a queue is full."""

from collections import Counter

import pytest

from builders import TraceBuilder
from recorded import needs_traces, trace_of
from steptrace.analysis.common.division import gpu_window
from steptrace.analysis.overview import overview
from steptrace.analysis.streams import queues, streams, streams_at_once
from steptrace.limits import QUEUE_CAPACITY
from steptrace.trace.model import Trace

US = 1000


def _walk(trace: Trace) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """The time by number of streams with work, and each stream's time with work and alone."""
    low, high = gpu_window(trace)
    work = trace.kernels[trace.kernels["device"] == trace.device]
    changes = [(low, 0, None), (high, 0, None)]
    for stream, ts, dur in zip(work["stream"], work["ts"], work["dur"], strict=True):
        if min(ts + dur, high) > max(ts, low):
            changes += [(max(ts, low), 1, stream), (min(ts + dur, high), -1, stream)]
    by_number = Counter[int]()
    busy = Counter[int]()
    alone = Counter[int]()
    running = Counter[int]()
    before = low
    for at, change, stream in sorted(changes, key=lambda change: change[0]):
        now = [number for number, depth in running.items() if depth]
        by_number[len(now)] += at - before
        for number in now:
            busy[number] += at - before
            alone[number] += (at - before) * (len(now) == 1)
        if stream is not None:
            running[stream] += change
        before = at
    return +by_number, busy, +alone


@needs_traces
@pytest.mark.parametrize(
    "name", ["alexnet_cuda_sync", "diff_control", "diff_test", "event_sync_multi_stream", "nccl", "two_ranks_1"]
)
def test_streams_at_once_are_those_of_a_walk_over_the_events(name: str) -> None:
    trace = trace_of(name)
    by_number, busy, alone = _walk(trace)
    at_once = streams_at_once(trace)
    by_stream = streams(trace)
    assert {row.streams: row.ns for row in at_once.itertuples() if row.ns} == by_number
    assert {row.stream: row.busy_ns for row in by_stream.itertuples()} == busy
    assert {row.stream: row.alone_ns for row in by_stream.itertuples() if row.alone_ns} == alone
    assert by_stream["hidden"].tolist() == [1 - alone[row.stream] / row.busy_ns for row in by_stream.itertuples()]
    shown = overview(trace)
    assert shown is not None
    parts = shown.parts_ns.items()
    assert at_once["ns"][0] == sum(ns for part, ns in parts if part.startswith("idle"))
    assert at_once["ns"].sum() == shown.window_ns


def test_overlapping_work_of_a_stream_counts_once_and_one_stream_alone_has_no_rows() -> None:
    builder = TraceBuilder()
    builder.kernel(0, 10 * US, 10 * US, stream=7)
    builder.kernel(US, 15 * US, 10 * US, stream=7)
    assert streams_at_once(builder.trace()).empty
    assert streams(builder.trace()).empty
    builder.kernel(2 * US, 18 * US, 4 * US, stream=8)
    trace = builder.trace()
    assert streams_at_once(trace)["ns"].tolist() == [0, 11 * US, 4 * US]
    assert streams(trace)[["stream", "busy_ns", "alone_ns"]].to_numpy().tolist() == [
        [7, 15 * US, 11 * US],
        [8, 4 * US, 0],
    ]


@pytest.mark.parametrize("missing", [0, 1])
def test_a_queue_is_full_while_it_holds_as_many_launches_as_a_stream_takes(missing: int) -> None:
    builder = TraceBuilder()
    launches = QUEUE_CAPACITY - missing
    first_start = launches * US + 500
    for k in range(launches):
        builder.kernel(k * US, first_start + k * US, US)
    last_launch = (launches - 1) * US
    (full_ns,) = queues(builder.trace())["full_ns"]
    assert full_ns == (0 if missing else first_start - last_launch)
