"""The picture of a step as data: which events are boxes of which lane, and how short ones are put together."""

from pathlib import Path

import numpy as np
import pandas as pd
from hypothesis import example, given
from hypothesis import strategies as st

from builders import AUTOGRAD, MAIN, TraceBuilder, training_step
from steptrace.analysis.idle import idle_gaps
from steptrace.analysis.timeline import CELL, MOST_BOXES, RESOLUTION, lanes_of, merge, shown_time, shown_timeline
from steptrace.documents.base import write
from steptrace.trace.model import Trace

Event = tuple[int, int, str, int, int]

EVENTS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1), st.sampled_from("ab"), st.integers(0, 60), st.integers(0, 12)).map(
        lambda e: (e[0], e[1], e[2], e[3], e[3] + e[4])
    ),
    max_size=40,
)


Box = tuple[str, int, str, str, int, int, int, int]


def boxes(trace: Trace) -> list[Box]:
    """Of each box its lane, level, kind, name, start, length, events and their time."""
    shown = shown_timeline(trace)
    return [
        (lane.name, level, shown.kinds[what], shown.names[what], start, dur, events, time)
        for lane in (shown.lanes if shown is not None else ())
        for level, what, start, dur, events, time in zip(
            lane.level, lane.what, lane.start_ns, lane.dur_ns, lane.events, lane.time_ns, strict=True
        )
    ]


def boxes_of(trace: Trace, lane: str) -> list[tuple[object, ...]]:
    return [box[1:6] for box in boxes(trace) if box[0] == lane]


def slow_merge(events: list[Event], shorter_than: int) -> list[tuple[object, ...]]:
    """One event after the other: into the box of its cell, or into one of its own."""
    merged: list[list[Event]] = []
    for event in sorted(events, key=lambda e: (*e[:4], -e[4])):
        small = event[4] - event[3] < shorter_than
        for box in merged if small else []:
            same_cell = box[0][3] // (CELL * shorter_than) == event[3] // (CELL * shorter_than)
            if box[0][:3] == event[:3] and same_cell and box[0][4] - box[0][3] < shorter_than:
                box.append(event)
                break
        else:
            merged.append([event])
    return sorted(
        (*box[0][:4], max(e[4] for e in box) - box[0][3], len(box), sum(e[4] - e[3] for e in box)) for box in merged
    )


@given(EVENTS, st.integers(1, 14))
@example([(0, 0, "a", 0, 12), (0, 0, "a", 1, 2), (0, 0, "a", 9, 10)], 3)
def test_boxes_are_those_of_a_slow_merge(events: list[Event], shorter_than: int) -> None:
    table = pd.DataFrame(
        {
            "lane": np.array([e[0] for e in events], dtype=np.int64),
            "level": np.array([e[1] for e in events], dtype=np.int64),
            "kind": pd.Series([e[2] for e in events], dtype=object),
            "name": pd.Series([e[2] for e in events], dtype=object),
            "start": np.array([e[3] for e in events], dtype=np.int64),
            "end": np.array([e[4] for e in events], dtype=np.int64),
        }
    )
    table_of_boxes = merge(table, shorter_than)
    columns = ["lane", "level", "kind", "start_ns", "dur_ns", "events", "time_ns"]
    assert sorted(table_of_boxes[columns].itertuples(index=False, name=None)) == slow_merge(events, shorter_than)


@st.composite
def made_traces(draw: st.DrawFn) -> Trace:
    """A trace with or without steps: operators on two threads, nested or not, kernels on two streams."""
    builder = TraceBuilder()
    for index in range(draw(st.integers(0, 2))):
        builder.step(index, index * 50_000, 50_000)
    for tid in (MAIN, AUTOGRAD):
        for at, inner in draw(
            st.lists(st.tuples(st.integers(0, 90), st.booleans()), max_size=8, unique_by=lambda e: e[0])
        ):
            builder.op("aten::a", at * 1_000, 900, tid=tid)
            if inner:
                builder.op("aten::b", at * 1_000 + 100, 300, tid=tid)
    for at, length, stream in draw(
        st.lists(st.tuples(st.integers(0, 90), st.integers(0, 9_000), st.sampled_from([7, 9])), max_size=12)
    ):
        builder.kernel(at * 1_000, at * 1_000 + 2_000, length, stream=stream)
    builder.op("aten::last", 99_000, 1_000)
    return builder.trace()


@given(made_traces())
def test_every_event_of_the_time_shown_is_in_one_box(trace: Trace) -> None:
    time, drawn = shown_time(trace), boxes(trace)
    kinds = {name: kind for kind, name, _ in lanes_of(trace, time)[0]}
    assert all(start >= 0 and start + dur <= time.end - time.start and own >= 0 for *_, start, dur, _, own in drawn)

    def count(kind: str) -> tuple[int, int]:
        of_kind = [box for box in drawn if kinds[box[0]] == kind]
        return sum(box[6] for box in of_kind), sum(box[7] for box in of_kind)

    def slowly(rows: pd.DataFrame) -> tuple[int, int]:
        events = total = 0
        for ts, dur in zip(rows["ts"].tolist(), rows["dur"].tolist(), strict=True):
            if ts < time.end and (ts + dur > time.start or ts >= time.start):
                events += 1
                total += min(ts + dur, time.end) - max(ts, time.start)
        return events, total

    trains = trace.threads["training"].to_numpy()[trace.ops["thread"]]
    shown = trace.ops[trains & (trace.ops["parent"].isna() | (len(trace.kernels) == 0))]
    assert count("host") == slowly(shown)
    assert count("stream") == slowly(trace.kernels)
    assert count("idle") == slowly(trace.kernels if trace.device is None else idle_gaps(trace))


def test_a_step_with_a_sync_shows_threads_the_wait_the_gaps_and_the_stream() -> None:
    builder = TraceBuilder()
    for index in range(3):
        training_step(builder, index, index * 1_000_000, sync=True)
    shown = shown_timeline(builder.trace())
    assert shown is not None
    assert [lane.kind for lane in shown.lanes] == ["host", "syncs", "idle", "stream"]
    assert (shown.lanes[0].name, shown.lanes[3].name) == ("host, training thread 100", "GPU 0, stream 7")
    time = shown_time(builder.trace())
    assert (time.step, time.start, time.end, time.host_end) == (1, 1_000_000, 2_000_000, 2_000_000)
    labels = [box for box in boxes_of(builder.trace(), "host, training thread 100") if box[0] == 0]
    assert labels == [
        (0, "loader", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5_000, 50_000),
        (0, "label", "forward", 100_000, 300_000),
    ]
    assert boxes_of(builder.trace(), "syncs") == [(0, "sync", "model.py:10 aten::_local_scalar_dense", 205_000, 22_000)]
    assert {"compute", "memory", "op", "idle_sync"} <= set(shown.kinds)
    stream = boxes_of(builder.trace(), "GPU 0, stream 7")
    assert stream[-1] == (0, "compute", "gemm", 520_000, 100_000)


def test_the_gpu_work_of_another_step_is_shown_in_the_time_it_runs_and_cut_off_at_its_edges() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100_000)
    builder.kernel(50_000, 90_000, 30_000, name="late")
    builder.step(1, 100_000, 100_000)
    builder.kernel(150_000, 160_000, 10_000, name="own")
    builder.op("aten::mm", 195_000, 20_000)
    trace = builder.trace()
    time = shown_time(trace)  # both steps work on the GPU; the shorter of the two is the second
    assert (time.start, time.end) == (100_000, 200_000)
    assert boxes_of(trace, "GPU 0, stream 7") == [
        (0, "compute", "late", 0, 20_000),
        (0, "compute", "own", 60_000, 10_000),
    ]
    assert boxes_of(trace, "host, training thread 100") == [(0, "op", "aten::mm", 95_000, 5_000)]


def test_without_a_gpu_operators_are_nested_two_levels_below_the_labels() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    builder.label("forward", 0, 500_000)
    builder.label("block", 10_000, 400_000)
    builder.label("deeper", 20_000, 300_000)
    builder.op("aten::linear", 100_000, 90_000)
    builder.op("aten::addmm", 110_000, 70_000)
    builder.op("aten::copy_", 120_000, 10_000)
    builder.op("autograd::engine::evaluate_function: AddmmBackward0", 600_000, 100_000)
    builder.op("AddmmBackward0", 610_000, 80_000)
    assert boxes_of(builder.trace(), "host, training thread 100") == [
        (0, "label", "forward", 0, 500_000),
        (1, "label", "block", 10_000, 400_000),
        (2, "op", "aten::linear", 100_000, 90_000),
        (2, "op", "AddmmBackward0", 610_000, 80_000),
        (3, "op", "aten::addmm", 110_000, 70_000),
    ]


def test_collectives_are_communication_on_the_host_too() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    builder.label("gloo:all_reduce", 0, 500_000, tid=AUTOGRAD)
    builder.op("c10d::allreduce_", 100_000, 90_000)
    assert boxes_of(builder.trace(), "host, training thread 100") == [(0, "comm", "c10d::allreduce_", 100_000, 90_000)]
    assert [box[2] for box in boxes(builder.trace())] == ["comm", "comm"]  # on a thread that trains nothing, too


def test_without_steps_the_whole_trace_is_shown() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10_000)
    builder.kernel(2_000, 20_000, 60_000)
    trace = builder.trace()
    time = shown_time(trace)
    assert (time.step, time.start, time.end, time.host_end) == (None, 0, 80_000, None)
    shown = shown_timeline(trace)
    assert shown is not None
    assert shown.step is None
    assert shown.host_ns is None


def test_a_trace_of_steps_alone_has_no_picture() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100_000)
    trace = builder.trace()
    assert shown_timeline(trace) is None


def test_of_many_streams_the_busiest_have_boxes_and_the_others_are_counted() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    for stream in range(10):
        builder.kernel(stream * 2_000, 50_000, 1_000 * (10 - stream), stream=stream)
    trace = builder.trace()
    shown = shown_timeline(trace)
    assert shown is not None
    assert shown.left_out == ("2 streams",)


def dense_trace(events: int = 3_000) -> Trace:
    """One step with this many operators on each of two threads, launches, and kernels on eight streams."""
    builder = TraceBuilder()
    builder.step(0, 0, events * 10_000)
    for row in range(events):
        ts = row * 10_000
        builder.op(f"aten::a_rather_long_name_of_an_operator_{row % 300}", ts, 5_000 + row % 7 * 500)
        builder.op("AddmmBackward0", ts, 4_000 + row % 5 * 1_000, tid=AUTOGRAD)
        builder.kernel(
            ts + 1_000, ts + 2_000 + row % 3 * 100, 3_000 + row % 11 * 400, stream=row % 8, name=f"k{row % 99}"
        )
    return builder.trace()


def test_a_dense_step_keeps_its_numbers_of_boxes_and_bytes(tmp_path: Path) -> None:
    trace = dense_trace()
    drawn = boxes(trace)
    assert MOST_BOXES / 4 < len(drawn) <= MOST_BOXES
    assert sum(box[6] for box in drawn) == sum(len(events) for *_, events in lanes_of(trace, shown_time(trace))[0])
    shown = shown_timeline(trace)
    assert shown is not None
    assert write(tmp_path / "timeline.json", shown).stat().st_size < 60_000


def test_an_event_that_can_be_seen_is_never_merged() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, RESOLUTION * 1_000)
    for row in range(40):
        builder.op("aten::mm", row * 2_000, 1_500)  # longer than a thousandth of the step, close together
    for row in range(40):
        builder.op("aten::add", 500_000 + row * 500, 300)
    drawn, cells = boxes(builder.trace()), CELL * 1_000 // 500
    assert [box[6] for box in drawn] == [*[1] * 40, *[cells] * (40 // cells)]
    assert drawn[-1][5:] == ((cells - 1) * 500 + 300, cells, cells * 300)
