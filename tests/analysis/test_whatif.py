"""What a step would take without a wait: known savings are found, a busy GPU saves nothing, a misfit says so."""

from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import PAGEABLE_D2H, TraceBuilder
from recorded import needs_traces, recorded
from simulated import simulate, time_of, without
from steptrace.analysis.critical_path.build import graph_of
from steptrace.analysis.critical_path.dependencies import dependencies
from steptrace.analysis.critical_path.graph import Graph
from steptrace.analysis.syncs import ceiling_ns, fit, saved_ns, sync_costs, sync_prices, sync_sites
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace

US = 1_000
#: 2 ms of queued GPU work, a wait for it, 0.5 ms of Python, 1 ms of GPU work: the wait exposes the Python.
WAITING = [("kernel", 2_000 * US), ("item", 10), ("python", 500 * US), ("kernel", 1_000 * US)]
#: The same with the Python before the wait, hidden behind 2 ms of GPU work; little is left to run after it.
HIDDEN = [("kernel", 2_000 * US), ("python", 500 * US), ("item", 10), ("kernel", 1_000 * US), ("python", 500 * US)]


def costs_of(trace: Trace) -> pd.DataFrame:
    return sync_costs(trace, 0)


def prices_of(trace: Trace) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The priced sites, and the row of `whatif`."""
    costs = costs_of(trace)
    sites, together = sync_prices(trace, 0, costs, sync_sites(trace, 0, costs))
    return sites, together["whatif"].iloc[0].to_dict()


def priced(trace: Trace) -> pd.DataFrame:
    return prices_of(trace)[0]


def made(trace: Trace) -> Graph:
    graph = graph_of(trace)
    assert graph is not None
    return graph


def test_the_graph_is_as_long_as_the_simulated_program() -> None:
    graph = made(simulate(WAITING).trace())
    assert graph.left_without(graph.kind < 0) == graph.span_ns == time_of(WAITING)


def test_the_saving_of_a_removed_wait_is_found_within_one_percent() -> None:
    trace = simulate(WAITING).trace()
    really = time_of(WAITING) - time_of(without(WAITING, 10))
    assert really > 1_400 * US  # 0.5 ms of Python in each of three steps
    site = priced(trace).iloc[0]
    assert site["saved_ns"] == pytest.approx(really, rel=0.01)
    assert site["saved_ns"] <= site["ceiling_ns"]


def test_where_the_gpu_is_busy_throughout_nothing_is_saved() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 3_010 * US)
    builder.op("aten::mm", 10, 100)
    for k in range(4):  # the host waits for the first while three more are queued
        builder.kernel((1 + k) * US, (10 + 1_000 * k) * US, 1_000 * US)
    builder.call("cudaEventSynchronize", 20 * US, 2_990 * US)
    builder.kernel(3_020 * US, 4_010 * US, 500 * US)
    trace = builder.trace()
    assert costs_of(trace)["blocked_ns"].tolist() == [2_990 * US]
    assert priced(trace)[["ceiling_ns", "saved_ns"]].to_numpy().tolist() == [[0, 0]]


def test_a_wait_that_moves_to_the_next_saves_nothing_alone_but_both_do() -> None:
    program = [("kernel", 2_000 * US), ("item", 10), ("item", 20), ("python", 800 * US), ("kernel", 1_000 * US)]
    trace = simulate(program).trace()
    sites, record = prices_of(trace)
    really = time_of(program) - time_of(without(without(program, 10), 20))
    assert sites["saved_ns"].max() < 0.05 * really
    assert record["all_saved_ns"] == pytest.approx(really, rel=0.01)
    assert record["all_saved_ns"] <= record["all_ceiling_ns"]


def test_hidden_host_time_is_no_saving_beyond_its_ceiling() -> None:
    trace = simulate(HIDDEN).trace()
    really = time_of(HIDDEN) - time_of(without(HIDDEN, 10))
    site = priced(trace).iloc[0]
    assert site["saved_ns"] == pytest.approx(really, rel=0.01, abs=40 * US)


def test_a_short_wait_before_long_python_saves_no_more_than_it_blocks() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 5_000 * US)
    builder.op("aten::mm", 10, 100)
    builder.kernel(1 * US, 10 * US, 100 * US)
    builder.call("cudaDeviceSynchronize", 105 * US, 10 * US)
    builder.kernel(4_000 * US, 4_010 * US, 100 * US)
    trace = builder.trace()
    assert costs_of(trace)["exposed_idle_ns"].tolist() == [3_900 * US]
    assert priced(trace)[["ceiling_ns", "saved_ns"]].to_numpy().tolist() == [[10 * US, 10 * US]]


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
    site = priced(builder.trace()).set_index("kind").loc["d2h_copy"]
    # Without the copy's wait another stream's 20 us are soon over, and the host runs on while the copy is under way.
    assert site["ceiling_ns"] == ceiling * US
    assert site["saved_ns"] <= site["ceiling_ns"]


def test_another_streams_work_is_waited_for() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 2_000 * US)
    builder.op("aten::mm", 10, 100)
    builder.kernel(1 * US, 10 * US, 1_000 * US)
    builder.call("cudaStreamWaitEvent", 5 * US, 1 * US)
    builder.kernel(7 * US, 1_012 * US, 300 * US, name="nccl", stream=20)
    builder.call("cudaStreamWaitEvent", 1_100 * US, 1 * US)
    builder.kernel(1_102 * US, 1_314 * US, 100 * US)
    trace = builder.trace()
    assert dependencies(trace).event.tolist() == [-1, 0, 1]
    assert made(trace).unexplained_ns == 0


def test_a_trace_that_breaks_causality_says_nothing() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000 * US)
    builder.op("aten::mm", 10, 100)
    for k in range(5):  # five kernels of one stream, all at once
        builder.kernel((1 + k) * US, 10 * US, 500 * US)
    builder.call("cudaDeviceSynchronize", 100 * US, 500 * US)
    builder.kernel(700 * US, 710 * US, 100 * US)
    trace = builder.trace()
    fitted = fit(graph_of(trace))
    assert fitted.error > 0.5
    assert fitted.reason is not None
    sites, record = prices_of(trace)
    assert sites["saved_ns"].isna().all()
    assert record["all_saved_ns"] is None
    assert record["reason"] == fitted.reason


def test_work_without_a_launch_and_traces_without_steps_fit() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 10, 100)
    builder.gpu("gemm", 5 * US, 100 * US, None)
    builder.kernel(50 * US, 106 * US, 100 * US)
    builder.gpu("gemm", 207 * US, 100 * US, None)
    builder.call("cudaDeviceSynchronize", 60 * US, 250 * US)
    builder.kernel(400 * US, 410 * US, 100 * US)
    fitted = fit(graph_of(builder.trace()))
    assert (fitted.steps, fitted.measured_ns, fitted.reason) == (0, 510 * US - 10, None)


def test_a_trace_without_host_events_says_nothing() -> None:
    builder = TraceBuilder()
    builder.gpu("gemm", 5 * US, 100 * US, None)
    assert fit(graph_of(builder.trace())).reason == "the trace holds no host event"


@needs_traces
@pytest.mark.parametrize("name", ["diff_control", "diff_test", "alexnet_cuda_sync", "nccl", "h100_qwen"])
def test_real_traces_fit_within_a_thousandth(name: str) -> None:
    trace = read_trace(recorded(name))
    graph = made(trace)
    assert abs(fit(graph).error) < 0.001
    everything = set(trace.syncs.index[trace.syncs["counted"]])
    assert saved_ns(graph, everything) <= ceiling_ns(trace, trace.syncs, everything)


PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.just("kernel"), st.integers(2, 900).map(lambda us: us * US)),
        st.tuples(st.just("python"), st.integers(1, 700).map(lambda us: us * US)),
        st.tuples(st.just("item"), st.integers(1, 4)),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(program=PROGRAMS, data=st.data())
def test_removing_waits_never_makes_a_step_slower_nor_saves_more_than_the_ceiling(
    program: list[tuple[str, int]], data: st.DataObject
) -> None:
    trace = simulate(program, 2).trace()
    graph = made(trace)
    assert fit(graph).error == 0
    rows = list(range(len(trace.syncs)))
    fewer = set(data.draw(st.lists(st.sampled_from(rows), unique=True))) if rows else set()
    more = fewer | (set(data.draw(st.lists(st.sampled_from(rows), unique=True))) if rows else set())
    assert saved_ns(graph, more) >= saved_ns(graph, fewer) >= 0
    costs = costs_of(trace)
    for gone in (fewer, more):
        assert saved_ns(graph, gone) <= ceiling_ns(trace, costs, gone)


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
def test_the_saving_is_exact_with_several_streams_events_and_graphs(program: list[tuple[str, int]]) -> None:
    program = [(what, number if what == "item" else number * US) for what, number in program]
    trace = simulate(program).trace()
    really = time_of(program) - time_of(without(without(program, 10), 20))
    # A copy that nobody waits for is launched at once: the simulated call takes 1 ns instead of 2 us.
    assert saved_ns(made(trace), set(trace.syncs.index)) == pytest.approx(really, abs=9 * US)


@settings(max_examples=15, deadline=None)
@given(program=PROGRAMS, line=st.integers(1, 4))
def test_the_simulated_saving_is_that_of_the_graph(program: list[tuple[str, int]], line: int) -> None:
    trace = simulate(program, 2).trace()
    graph = made(trace)
    costs = costs_of(trace)
    gone = set(costs.index[costs["line"] == line])
    really = time_of(program, 2) - time_of(without(program, line), 2)
    # What is usual in a short trace is known to some microseconds a launch only.
    allowed = 0.01 * graph.span_ns + 20 * US * len(program)
    assert saved_ns(graph, gone) == pytest.approx(really, abs=allowed)
