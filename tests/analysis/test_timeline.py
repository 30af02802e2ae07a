"""The picture of a step as data: its lanes, and in each what ran, when and for how long."""

from hypothesis import given
from hypothesis import strategies as st

from builders import TraceBuilder, training_step
from steptrace.analysis.timeline import MOST_BOXES, MOST_STREAMS, PIECES, shown_timeline
from steptrace.documents.timeline import Box, Timeline
from steptrace.trace.model import Trace

#: One piece of a step of this length is 1 us.
STEP = PIECES * 1_000


def shown(trace: Trace) -> Timeline:
    timeline = shown_timeline(trace)
    assert timeline is not None
    return timeline


def lanes(trace: Trace) -> dict[str, tuple[Box, ...]]:
    return {lane.name: lane.boxes for lane in shown(trace).lanes}


def test_a_step_with_a_sync_shows_host_operators_sync_gpu_and_stream() -> None:
    builder = TraceBuilder()
    for index in range(3):
        training_step(builder, index, index * 1_000_000, sync=True)
    trace = builder.trace()
    assert (shown(trace).step, shown(trace).span_ns) == (1, 1_000_000)
    parts = {lane.kind: {box.part for box in lane.boxes} for lane in shown(trace).lanes}
    assert parts == {
        "host": {"forward"},
        "operators": {"operator"},
        "syncs": {"sync"},
        "gpu": {"compute", "exposed_memory", "idle_between_kernels", "idle_host", "idle_sync"},
        "stream": {"compute", "copies"},
    }


def test_work_is_cut_off_at_the_ends_of_the_step() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, STEP)
    builder.kernel(0, 2_000, 1_500)
    builder.kernel(1_000, STEP - 10_000, 50_000)  # the step ends with its work
    trace = builder.trace()
    assert shown(trace).span_ns == STEP + 40_000
    assert [(box.start_ns, box.dur_ns) for box in lanes(trace)["Stream 7"]] == [(2_000, 1_500), (STEP - 10_000, 50_000)]


def test_short_work_that_begins_in_one_piece_is_one_box_as_long_as_all_of_it() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, STEP)
    for number in range(4):
        builder.kernel(number * 100, 10_000 + number * 200, 50 + number, name=f"k{number}")
    builder.kernel(900, 10_900, 20, name="next piece ends")
    builder.kernel(1_000, 20_000, 50, name="far")
    together, alone = lanes(builder.trace())["Stream 7"]
    assert (together.start_ns, together.dur_ns, together.count, together.name) == (10_000, 226, 5, "k3")
    assert (alone.start_ns, alone.dur_ns, alone.count) == (20_000, 50, 1)


def test_an_operator_has_its_name_and_a_kernel_the_line_that_launched_it() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, STEP)
    builder.frame("train.py(3): step", 0, 100_000)
    builder.op("aten::mm", 5_000, 20_000)
    builder.kernel(6_000, 30_000, 60_000, name="gemm")
    trace = builder.trace()
    (operator,) = lanes(trace)["Operators"]
    (kernel,) = lanes(trace)["Stream 7"]
    assert (operator.name, operator.file, operator.line) == ("aten::mm", "train.py", 3)
    assert (kernel.name, kernel.file, kernel.line) == ("gemm", "train.py", 3)


@given(st.lists(st.tuples(st.integers(0, 230), st.integers(1, 9_000), st.sampled_from([7, 9])), max_size=12))
def test_the_parts_of_the_gpu_fill_the_step_exactly(work: list[tuple[int, int, int]]) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, STEP)
    builder.kernel(0, 1_000, 500)
    for at, length, stream in work:
        builder.kernel(at * 1_000, at * 1_000 + 2_000, length, stream=stream)
    timeline = shown(builder.trace())
    gpu = next(lane for lane in timeline.lanes if lane.kind == "gpu")
    assert sum(box.dur_ns for box in gpu.boxes) == timeline.span_ns
    starts = [box.start_ns for box in gpu.boxes]
    assert starts == sorted(starts)


def test_a_step_of_very_many_kernels_has_a_picture_of_bounded_size_that_loses_no_time() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 4_000_000)
    for number in range(4_000):
        builder.op(f"op{number}", number * 1_000, 600)
        builder.kernel(number * 1_000, number * 1_000 + 300, 500, stream=7 + number % 4)
    timeline = shown(builder.trace())
    assert sum(len(lane.boxes) for lane in timeline.lanes) <= MOST_BOXES
    streams = [box for lane in timeline.lanes if lane.kind == "stream" for box in lane.boxes]
    assert (sum(box.dur_ns for box in streams), sum(box.count for box in streams)) == (4_000 * 500, 4_000)


def test_without_steps_the_whole_trace_is_shown() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10_000)
    builder.kernel(2_000, 20_000, 60_000)
    trace = builder.trace()
    assert (shown(trace).step, shown(trace).span_ns) == (None, 80_000)
    assert list(lanes(trace)) == ["Operators", "GPU", "Stream 7"]


def test_a_host_without_labels_shows_its_operators() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100_000)
    builder.op("aten::mm", 0, 10_000)
    assert list(lanes(builder.trace())) == ["Operators"]


def test_a_trace_in_whose_step_nothing_ran_has_no_picture() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100_000)
    assert shown_timeline(builder.trace()) is None


def test_of_many_streams_the_busiest_have_lanes() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    for stream in range(10):
        builder.kernel(stream * 2_000, 50_000, 1_000 * (stream + 1), stream=stream)
    streams = [name for name in lanes(builder.trace()) if name.startswith("Stream")]
    assert streams == [f"Stream {number}" for number in range(10 - MOST_STREAMS, 10)]
