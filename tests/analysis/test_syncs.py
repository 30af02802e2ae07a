"""What syncs cost, by place, and the upper bound of what removing them saves."""

import cProfile
import pstats

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import PAGEABLE_D2H, TraceBuilder, training_step
from recorded import needs_traces, trace_of
from simulated import simulate, time_of, without
from steptrace.analysis.syncs import ceiling_ns, exposed_idle, sync_costs, sync_sites
from steptrace.trace.model import Trace


@pytest.mark.parametrize(
    ("kernels", "waits", "exposed", "in_all"),
    [
        # to the next work that is launched
        ([(10, 100, 200), (400, 450, 100), (500, 700, 100)], [("Stream", 150, 160)], [(150, 450)], 150),
        # a long block while the GPU works exposes nothing
        ([(10, 100, 800), (700, 900, 100)], [("Event", 150, 500)], [(0, 900)], 0),
        # without later work the GPU's end is the end
        ([(10, 100, 100), (20, 300, 100)], [("Device", 150, 300), ("Device", 500, 5)], [(100, 400), (0, 500)], 100),
        # in a row: their idle time counts once
        ([(10, 100, 100), (300, 400, 100)], [("Stream", 120, 90), ("Event", 220, 30)], [(200, 400), (180, 400)], 200),
        # with the 10 ns between two that were queued before it
        ([(10, 100, 100), (20, 210, 90), (400, 450, 100)], [("Stream", 150, 160)], [(160, 450)], 160),
    ],
)
def test_exposed_idle_runs_from_a_sync_to_the_next_launched_work(
    kernels: list[tuple[int, int, int]],
    waits: list[tuple[str, int, int]],
    exposed: list[tuple[int, int]],
    in_all: int,
) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.op("aten::mm", 0, 900)
    for launch, start, length in kernels:
        builder.kernel(launch, start, length)
    for what, start, length in waits:
        builder.call(f"cuda{what}Synchronize", start, length)
    trace = builder.trace()
    costs = sync_costs(trace)
    assert costs["blocked_ns"].tolist() == [length for *_, length in waits]
    assert list(zip(costs["exposed_idle_ns"], costs["exposed_until"], strict=True)) == exposed
    assert exposed_idle(trace, costs) == in_all


def test_without_a_gpu_there_is_no_exposed_idle() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 900)
    builder.call("cudaDeviceSynchronize", 150, 300)
    trace = builder.trace()
    costs = sync_costs(trace)
    assert costs["exposed_idle_ns"].isna().all()
    assert exposed_idle(trace, costs) is None
    assert sync_sites(trace)["exposed_idle_ns"].isna().all()


def test_a_site_says_in_how_many_steps_it_happens() -> None:
    builder = TraceBuilder()
    for index in range(4):
        training_step(builder, index, index * 1_100_000, sync=index == 2)
    (site,) = sync_sites(builder.trace()).to_dict("records")
    assert (site["count"], site["count_per_step"], site["in_steps"], site["of_steps"]) == (1, 0.25, 1, 4)
    assert pd.isna(site["every"])


def test_a_site_that_comes_back_says_after_how_many_steps() -> None:
    builder = TraceBuilder()
    for index in range(6):
        training_step(builder, index, index * 1_100_000, sync=index % 3 == 1)
    (site,) = sync_sites(builder.trace()).to_dict("records")
    assert (site["in_steps"], site["of_steps"], site["every"]) == (2, 6, 3)


def reading_under(labels: list[str]) -> TraceBuilder:
    """A step in which one line reads a value under each of these labels."""
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    builder.frame("train.py(1): <module>", 0, 990_000)
    for number, label in enumerate(labels):
        ts = 10_000 + 100_000 * number
        builder.label(label, ts, 90_000)
        builder.frame("train.py(9): read", ts + 1_000, 80_000)
        builder.op("aten::_local_scalar_dense", ts + 2_000, 70_000)
        builder.kernel(ts + 3_000, ts + 5_000, 10_000)
        builder.item(ts + 20_000, 20_000, ts + 22_000)
    return builder


def test_a_line_that_runs_in_several_parts_of_a_step_is_one_site() -> None:
    (site,) = sync_sites(reading_under(["forward", "loss", "loss"]).trace()).to_dict("records")
    assert (site["count"], site["phase"], site["label"]) == (3, "loss", "loss")


def test_labels_of_the_program_stay_apart() -> None:
    sites = sync_sites(reading_under(["generator", "discriminator"]).trace())
    assert set(sites["label"]) == {"generator", "discriminator"}


def test_sites_gather_what_belongs_together() -> None:
    builder = TraceBuilder()
    for index in range(2):
        training_step(builder, index, index * 1_100_000)
    builder.gpu(PAGEABLE_D2H, 700_000, 500, builder.call("cudaMemcpyAsync", 650_000, 60_000))
    trace = builder.trace()
    sites = sync_sites(trace)
    assert sites["kind"].tolist() == ["d2h_copy", "d2h_copy"]
    assert sites[["file", "line", "op", "label"]].to_numpy(dtype=object, na_value=None).tolist() == [
        ["train.py", None, None, None],
        ["model.py", 10, "aten::_local_scalar_dense", "forward"],
    ]
    assert sites[["count", "blocked_ns", "count_per_step"]].to_numpy().tolist() == [[1, 60_000, 0.5], [2, 44_000, 1]]


US = 1_000
#: 2 ms of queued GPU work, a wait for it, 0.5 ms of Python, 1 ms of GPU work: the wait exposes the Python.
WAITING = [("kernel", 2_000 * US), ("item", 10), ("python", 500 * US), ("kernel", 1_000 * US)]
#: The same with the Python before the wait, hidden behind 2 ms of GPU work; little is left to run after it.
HIDDEN = [("kernel", 2_000 * US), ("python", 500 * US), ("item", 10), ("kernel", 1_000 * US), ("python", 500 * US)]


#: The simulated call of a copy that nobody waits for takes 1 ns instead of 2 us: no wait, so no part of the bound.
CALL_NS = 2 * US


def bound(trace: Trace, *lines: int) -> int:
    """Of the waits at these lines; of all without any."""
    costs = sync_costs(trace)
    return ceiling_ns(trace, set(costs.index[costs["line"].isin(lines)] if lines else costs.index))


@pytest.mark.parametrize("program", [WAITING, HIDDEN], ids=["exposed", "hidden"])
def test_the_bound_is_at_least_what_is_really_saved(program: list[tuple[str, int]]) -> None:
    really = time_of(program) - time_of(without(program, 10))
    site = sync_sites(simulate(program).trace()).iloc[0]
    assert site["ceiling_ns"] >= really - 3 * CALL_NS
    assert site["ceiling_ns"] <= site["blocked_ns"]


def test_where_the_gpu_is_busy_throughout_nothing_is_saved() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 3_010 * US)
    builder.op("aten::mm", 10, 100)
    for k in range(4):  # the host waits for the first while three more are queued
        builder.kernel((1 + k) * US, (10 + 1_000 * k) * US, 1_000 * US)
    builder.call("cudaEventSynchronize", 20 * US, 2_990 * US)
    builder.kernel(3_020 * US, 4_010 * US, 500 * US)
    assert sync_sites(builder.trace())[["blocked_ns", "ceiling_ns"]].to_numpy().tolist() == [[2_990 * US, 0]]


def test_gaps_in_work_from_before_the_recording_close_by_no_sync_of_theirs() -> None:
    builder = TraceBuilder()
    builder.step(0, 10 * US, 3_000 * US)
    builder.op("aten::mm", 20 * US, 100 * US)
    builder.gpu("gemm", 5 * US, 500 * US, None)
    builder.gpu("gemm", 1_000 * US, 1_000 * US, None)  # 495 us of idle time between the two
    builder.call("cudaDeviceSynchronize", 30 * US, 1_980 * US)
    builder.kernel(2_100 * US, 2_110 * US, 500 * US)
    assert sync_sites(builder.trace())["ceiling_ns"].tolist() == [510 * US]


def test_a_wait_that_moves_to_the_next_saves_little_alone_but_both_do() -> None:
    program = [("kernel", 2_000 * US), ("item", 10), ("item", 20), ("python", 800 * US), ("kernel", 1_000 * US)]
    trace = simulate(program).trace()
    really = time_of(program) - time_of(without(without(program, 10), 20))
    assert sync_sites(trace)["ceiling_ns"].max() < 0.05 * really
    assert bound(trace) >= really


def test_a_short_wait_before_long_python_saves_no_more_than_it_blocks() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 5_000 * US)
    builder.op("aten::mm", 10, 100)
    builder.kernel(1 * US, 10 * US, 100 * US)
    builder.call("cudaDeviceSynchronize", 105 * US, 10 * US)
    builder.kernel(4_000 * US, 4_010 * US, 100 * US)
    assert sync_sites(builder.trace())[["exposed_idle_ns", "ceiling_ns"]].to_numpy().tolist() == [[3_900 * US, 10 * US]]


@pytest.mark.parametrize(
    ("second", "ceiling"),
    [("cudaStreamSynchronize", 500), ("cudaDeviceSynchronize", 70)],
    ids=["a wait for one stream", "a wait for all"],
)
def test_only_a_wait_for_all_streams_bounds_what_an_earlier_one_can_save(second: str, ceiling: int) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 2_000 * US)
    builder.op("aten::mm", 10, 100)
    copy = builder.call("cudaMemcpyAsync", 100 * US, 500 * US)
    builder.gpu(PAGEABLE_D2H, 110 * US, 490 * US, copy, stream=20)
    builder.kernel(610 * US, 620 * US, 20 * US)
    builder.call(second, 630 * US, 30 * US)
    builder.kernel(1_900 * US, 1_910 * US, 50 * US)
    site = sync_sites(builder.trace()).set_index("kind").loc["d2h_copy"]
    # Without the copy's wait another stream's 20 us are soon over, and the host runs on while the copy is under way.
    assert site["ceiling_ns"] == ceiling * US


def test_a_long_wait_at_the_end_closes_no_gap_before_it() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 10_000 * US)
    builder.op("aten::mm", 10, 100)
    builder.kernel(1 * US, 10 * US, 90 * US)
    builder.call("cudaDeviceSynchronize", 90 * US, 20 * US)
    builder.kernel(2_000 * US, 2_010 * US, 7_000 * US)  # 1.91 ms of Python before it
    builder.call("cudaStreamSynchronize", 2_020 * US, 6_995 * US)
    trace = builder.trace()
    # The first wait gets the host ahead by 20 us; the second waits while the GPU works, and 990 us are left after it.
    assert sync_sites(trace)["ceiling_ns"].tolist() == [990 * US, 20 * US]
    assert bound(trace) == (20 + 990) * US


def test_without_steps_nothing_is_saved_beyond_the_span_of_the_gpu() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 10, 100)
    builder.call("cudaDeviceSynchronize", 1 * US, 9_000 * US)  # waits for work from before the recording
    builder.kernel(9_500 * US, 9_510 * US, 100 * US)
    builder.call("cudaStreamSynchronize", 9_520 * US, 95 * US)
    builder.kernel(9_700 * US, 9_710 * US, 100 * US)
    assert sync_sites(builder.trace())["ceiling_ns"].tolist() == [0, 95 * US]


@needs_traces
@pytest.mark.parametrize("name", ["diff_control", "diff_test", "alexnet_cuda_sync", "nccl", "h100_qwen"])
def test_all_syncs_of_a_real_trace_save_no_more_than_they_block(name: str) -> None:
    trace = trace_of(name)
    sites = sync_sites(trace)
    assert (sites["ceiling_ns"] <= sites["blocked_ns"]).all()


PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.just("kernel"), st.integers(2, 900).map(lambda us: us * US)),
        st.tuples(st.just("python"), st.integers(1, 700).map(lambda us: us * US)),
        st.tuples(st.just("item"), st.integers(1, 4)),
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.parametrize(
    "program",
    [
        [("python", 266), ("graph", 300), ("kernel", 200), ("item", 10)],
        [("side", 500), ("python", 100), ("graph", 40), ("item", 10)],
        [("graph", 90), ("side", 400), ("event", 0), ("kernel", 300), ("item", 10), ("python", 300), ("kernel", 200)],
        [("kernel", 400), ("event", 0), ("side", 300), ("item", 10), ("python", 200), ("event", 0), ("kernel", 100)],
        [("side", 700), ("item", 10), ("item", 20), ("python", 500), ("graph", 100), ("item", 10)],
    ],
)
def test_the_bound_holds_with_several_streams_events_and_graphs(program: list[tuple[str, int]]) -> None:
    program = [(what, number if what == "item" else number * US) for what, number in program]
    really = time_of(program) - time_of(without(without(program, 10), 20))
    assert bound(simulate(program).trace()) >= really - 9 * CALL_NS


@given(program=PROGRAMS, lines=st.sets(st.integers(1, 4), min_size=1))
def test_no_simulated_saving_is_above_the_bound(program: list[tuple[str, int]], lines: set[int]) -> None:
    faster = program
    for line in lines:
        faster = without(faster, line)
    gone = sum(what == "item" and number in lines for what, number in program)
    really = time_of(program, 2) - time_of(faster, 2)
    assert bound(simulate(program, 2).trace(), *lines) >= really - 2 * gone * CALL_NS


def _at_lines(lines: int) -> Trace:
    """A step with a kernel and a wait for it at each of so many lines."""
    builder = TraceBuilder()
    builder.step(0, 0, 20 * US * lines)
    for line in range(lines):
        at = 20 * US * line
        builder.frame(f"train.py({line + 1}): step{line}", at, 19 * US)
        builder.kernel(at + US, at + 3 * US, 5 * US)
        builder.call("cudaStreamSynchronize", at + 4 * US, 5 * US)
    return builder.trace()


def test_the_cost_of_sites_needs_calls_by_their_number() -> None:
    """Whichever waits are left and when the streams were busy is the same for all sites."""
    calls = []
    for lines in (50, 100, 200):
        trace = _at_lines(lines)
        profile = cProfile.Profile()
        profile.enable()
        sites = sync_sites(trace)
        profile.disable()
        assert len(sites) == lines
        calls.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
    small, middle, large = calls
    assert large - middle < 2.5 * (middle - small)
