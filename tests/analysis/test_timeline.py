"""The picture of a step as data: its lanes, and of each piece of the step what runs in it."""

from hypothesis import given
from hypothesis import strategies as st

from builders import TraceBuilder, training_step
from steptrace.analysis.timeline import MOST_STREAMS, PIECES, shown_timeline
from steptrace.documents.timeline import Timeline
from steptrace.trace.model import Trace

#: One piece of a step of this length is 1 us.
STEP = PIECES * 1_000


def shown(trace: Trace) -> Timeline:
    timeline = shown_timeline(trace)
    assert timeline is not None
    return timeline


def lanes(trace: Trace) -> dict[str, dict[str, dict[int, int]]]:
    """By lane and part the percents of the pieces that have some."""
    return {
        lane.name: {part: {k: share for k, share in enumerate(of) if share} for part, of in lane.parts.items()}
        for lane in shown(trace).lanes
    }


def test_a_step_with_a_sync_shows_host_sync_gpu_and_stream() -> None:
    builder = TraceBuilder()
    for index in range(3):
        training_step(builder, index, index * 1_000_000, sync=True)
    trace = builder.trace()
    assert (shown(trace).step, shown(trace).span_ns) == (1, 1_000_000)
    assert {name: set(parts) for name, parts in lanes(trace).items()} == {
        "Host": {"forward", "other"},
        "Syncs": {"sync"},
        "GPU": {"compute", "exposed_memory", "idle_between_kernels", "idle_host", "idle_sync"},
        "Stream 7": {"compute", "copies"},
    }


def test_each_piece_has_the_share_of_its_time_in_which_a_part_ran() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, STEP)
    builder.label("forward", 0, 250_000)
    builder.kernel(0, 2_000, 1_500)
    builder.kernel(4_000, 399_750, 50_250)  # cut off at the end of the step, which ends with its work
    trace = builder.trace()
    assert shown(trace).span_ns == 450_000
    pieces = lanes(trace)["Stream 7"]["compute"]
    assert (pieces[1], pieces[2], pieces[3]) == (23, 100, 12)  # of 1,125 ns each: 250, 1,125 and 125
    assert min(set(pieces) - {1, 2, 3}) == 355


@given(st.lists(st.tuples(st.integers(0, 390), st.integers(0, 9_000), st.sampled_from([7, 9])), max_size=12))
def test_the_parts_of_the_gpu_fill_every_piece(work: list[tuple[int, int, int]]) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, STEP)
    builder.kernel(0, 1_000, 500)
    for at, length, stream in work:
        builder.kernel(at * 1_000, at * 1_000 + 2_000, length, stream=stream)
    gpu = next(lane for lane in shown(builder.trace()).lanes if lane.name == "GPU")
    for shares in zip(*gpu.parts.values(), strict=True):
        assert 100 <= sum(shares) < 100 + len(shares)  # each is rounded up


def test_without_steps_the_whole_trace_is_shown() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10_000)
    builder.kernel(2_000, 20_000, 60_000)
    trace = builder.trace()
    assert (shown(trace).step, shown(trace).span_ns) == (None, 80_000)
    assert list(lanes(trace)) == ["GPU", "Stream 7"]


def test_a_host_without_labels_has_no_picture() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100_000)
    builder.op("aten::mm", 0, 10_000)
    assert shown_timeline(builder.trace()) is None


def test_of_many_streams_the_busiest_have_lanes() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    for stream in range(10):
        builder.kernel(stream * 2_000, 50_000, 1_000 * (stream + 1), stream=stream)
    streams = [name for name in lanes(builder.trace()) if name.startswith("Stream")]
    assert streams == [f"Stream {number}" for number in range(10 - MOST_STREAMS, 10)]
