"""The overview of a trace: a step's parts, which exclude each other and add up to it, and where its operators run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import AUTOGRAD, PINNED_D2H, TraceBuilder, training_step
from recorded import NAMES, needs_traces, trace_of
from steptrace import intervals
from steptrace.analysis.common.division import divide, gpu_division, gpu_window
from steptrace.analysis.common.gaps import CAUSES
from steptrace.analysis.overview import busy_pct, kernels_per_step, overview, top_operators
from steptrace.analysis.precision import kernel_formats, precision_of
from steptrace.analysis.quality import quality
from steptrace.documents.overview import Overview
from steptrace.trace.names import HOST_PARTS


def _shown(builder: TraceBuilder) -> Overview:
    figures = overview(builder.trace())
    assert figures is not None
    return figures


def _parts(figures: Overview) -> dict[str, int]:
    return {name: ns for name, ns in figures.parts_ns.items() if ns}


def test_a_window_of_overlapping_steps_holds_every_instant_once() -> None:
    builder = TraceBuilder()
    us = 1_000
    for index in range(2):  # the host runs ahead: both steps end with the GPU's last work
        builder.step(index, index * 100 * us, 100 * us)
        builder.op("aten::mm", index * 100 * us, 90 * us)
        builder.kernel((index * 100 + 10) * us, (50 + 490 * index) * us, 400 * us)
    builder.gpu(PINNED_D2H, 460 * us, 60 * us, builder.call("cudaMemcpyAsync", 150 * us, 10))
    builder.kernel(170 * us, 930 * us, 100 * us, name="ncclDevKernel_AllReduce", stream=20)
    shown = _shown(builder)
    assert (shown.kind, shown.steps, shown.window_ns) == ("gpu", 2, 1_030 * us)
    assert shown.step_ns == 515 * us
    expected = {"compute": 800, "exposed_memory": 60, "exposed_comm": 90, "idle_host": 50, "idle_between_kernels": 30}
    assert _parts(shown) == {name: number * us for name, number in expected.items()}


def test_the_window_begins_when_the_work_of_unrecorded_steps_has_ended() -> None:
    builder = TraceBuilder()
    for start, ns in ((0, 100), (100, 200)):  # launched before the recording, by a host that runs ahead
        builder.gpu("gemm", start, ns, correlation=9_999)
    for index in range(2):
        builder.step(index, 10 + index * 100, 100)
        builder.op("aten::mm", 10 + index * 100, 90)
        builder.kernel(20 + index * 100, 300 + 200 * index, 200)
    shown = _shown(builder)
    assert (shown.steps, shown.window_ns) == (2, 400)
    assert _parts(shown) == {"compute": 400}
    # Nor is that work the steps' own: neither among operators and number formats, nor missing its launch.
    assert [(row.name, row.device_self_ns, row.share) for row in shown.operators] == [("aten::mm", 400, 1.0)]
    assert sum(precision_of(kernel_formats(builder.trace())).kernel_ns.values()) == 400
    assert not quality(builder.trace()).warnings
    assert list(kernels_per_step(builder.trace())) == [1, 1]
    builder.gpu("sort", 600, 50, correlation=9_998)  # after work with a launch: lost, and not left over
    lacking = next(check for check in quality(builder.trace()).checks if check.check == "linked_to_launch")
    assert (lacking.wrong, lacking.of, lacking.warns) == (3, 5, True)
    builder.nothing(builder.kernel(250, 600, 1), 600)
    assert {row.name: row.device_self_ns for row in _shown(builder).operators} == {"aten::mm": 400, None: 50}


def test_one_step_is_in_the_singular_and_many_activities_have_their_thousands_apart() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 3_000_000)
    for number in range(1200):
        builder.kernel(2_000 * number, 2_000 * number + 500, 1_000)
    says = {check.check: check.says for check in quality(builder.trace()).checks}
    assert (says["steps_marked"], says["step_numbers"]) == ("1 step", "1 step")
    assert says["gpu_work"] == "1,200 GPU activities"
    assert says["linked_to_launch"].startswith("0 of 1,200 GPU activities")


def test_idle_has_its_cause_and_the_loader_its_share_before_the_first_work() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.op("aten::mm", 0, 90)
    builder.label("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10, 60)
    builder.kernel(90, 100, 100)
    builder.call("cudaDeviceSynchronize", 150, 100)
    builder.kernel(390, 400, 100)
    assert _parts(_shown(builder)) == {"compute": 200, "idle_loader": 60, "idle_sync": 200, "idle_host": 40 + 500}


def test_without_a_gpu_the_parts_are_the_loops_labels() -> None:
    builder = TraceBuilder()
    for index in range(2):
        at = index * 1_000
        builder.step(index, at, 900 + index)
        builder.op("aten::mm", at + 10, 10)
        for place, label in enumerate(HOST_PARTS):
            builder.label(label, at + 100 * place, 90)
        builder.label("unique", at + 210, 10)
    shown = _shown(builder)
    assert shown.parts_ns == {**dict.fromkeys(HOST_PARTS, 180), "other": 1_801 - 900}
    assert (shown.kind, shown.window_ns) == ("host", 1_801)


def test_a_part_inside_another_counts_once() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.op("aten::mm", 50, 900)
    builder.label("forward", 0, 800)
    builder.label("data", 10, 100)
    builder.label("loss", 500, 200)
    builder.label("backward", 850, 100)
    assert _parts(_shown(builder)) == {"forward": 800, "backward": 100, "other": 100}


@given(
    kernels=st.lists(
        st.tuples(st.integers(0, 3_000), st.integers(0, 500), st.integers(1, 600), st.sampled_from((7, 20)))
    ),
    syncs=st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 400)), max_size=3),
)
def test_the_parts_of_any_trace_add_up(kernels: list[Any], syncs: list[Any]) -> None:
    builder = TraceBuilder()
    builder.step(0, 500, 1_000)
    builder.step(1, 1_600, 900)
    builder.kernel(600, 700, 50)
    for launch, delay, dur, stream in kernels:
        builder.kernel(launch, launch + delay, dur, name="nccl" if stream == 20 else "gemm", stream=stream)
    for ts, dur in syncs:
        builder.call("cudaDeviceSynchronize", ts, dur)
    trace = builder.trace()
    shown = overview(trace)
    assert shown is not None
    assert tuple(shown.parts_ns) == ("compute", "exposed_memory", "exposed_comm", *(f"idle_{name}" for name in CAUSES))
    assert all(ns >= 0 for ns in shown.parts_ns.values())
    assert sum(shown.parts_ns.values()) == shown.window_ns
    # "GPU busy" is a share of the same window, which holds the pause between two steps.
    idle_ns = sum(ns for name, ns in shown.parts_ns.items() if name.startswith("idle"))
    assert busy_pct(trace) == pytest.approx(100 * (1 - idle_ns / shown.window_ns))


@pytest.mark.parametrize("loader", ["DataLoader)#_SingleProcessDataLoaderIter.__next__", "DataPipe)#Mapper"])
def test_the_parts_of_any_program_follow_from_pytorchs_own_labels(loader: str) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.label(f"enumerate({loader}", 10, 90)
    builder.op("aten::addmm", 150, 100)
    builder.op("autograd::engine::evaluate_function: AddmmBackward0", 400, 200, sequence=1)
    builder.label("Optimizer.step#AdamW.step", 700, 100)
    # The loss is not known apart from the forward pass, which is not 0.
    assert _shown(builder).parts_ns == {"data": 90, "forward": 300, "backward": 200, "optimizer": 100, "other": 310}


def test_without_any_label_parts_are_not_measured() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.op("aten::addmm", 150, 100)
    assert _shown(builder).parts_ns == {"other": 1_000}


_SET = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)).map(lambda span: (span[0], sum(span))), max_size=6)


@given(_SET, st.lists(_SET, max_size=3), st.tuples(st.integers(-5, 60), st.integers(0, 40)))
def test_each_instant_goes_to_the_first_that_claims_it(window: Any, claims: list[Any], within: tuple[int, int]) -> None:
    sets = [intervals.union(np.array(spans, dtype=np.int64).reshape(-1, 2)) for spans in [window, *claims]]
    names = "abc"[: len(claims)]
    division = divide(sets[0], list(zip(names, sets[1:], strict=True)), "rest", (*names, "rest"))
    start, end = within[0], sum(within)
    expected = dict.fromkeys([*names, "rest"], 0)
    for ns in range(start, end):
        if any(a <= ns < b for a, b in window):
            of = (name for name, spans in zip(names, claims, strict=True) if any(a <= ns < b for a, b in spans))
            expected[next(of, "rest")] += 1
    assert division.total(start, end) == expected
    assert (division.spans[1:, 0] >= division.spans[:-1, 1]).all()


@needs_traces
@pytest.mark.parametrize("name", NAMES)
def test_the_parts_of_a_real_trace_add_up_and_have_neither_gaps_nor_overlaps(name: str) -> None:
    trace = trace_of(name)
    shown = overview(trace)
    assert shown is None or min(shown.parts_ns.values()) >= 0
    assert shown is None or sum(shown.parts_ns.values()) == shown.window_ns
    if trace.devices:
        spans = gpu_division(trace).spans
        assert (spans[1:, 0] == spans[:-1, 1]).all()
        low, high = gpu_window(trace)
        assert (spans[0, 0] <= low, spans[-1, 1] >= high) == (True, True)


def test_without_steps_the_whole_trace_is_the_window_and_there_is_no_step_time() -> None:
    builder = TraceBuilder()
    builder.kernel(0, 2_000, 3_000)
    builder.kernel(4_000, 9_000, 1_000)
    figures = _shown(builder)
    assert (figures.steps, figures.step_ns, figures.window_ns) == (0, None, 8_000)
    assert sum(figures.parts_ns.values()) == 8_000
    assert figures.parts_ns["compute"] == 4_000


def test_a_trace_with_neither_steps_nor_gpu_has_no_overview() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 100)
    assert overview(builder.trace()) is None


def test_wrappers_of_the_autograd_engine_are_no_operators() -> None:
    builder = TraceBuilder()
    builder.op("autograd::engine::evaluate_function: MmBackward0", 0, 100, tid=AUTOGRAD)
    builder.op("MmBackward0", 10, 80, tid=AUTOGRAD)
    builder.op("aten::mm", 20, 60, tid=AUTOGRAD)
    trace = builder.trace()
    assert top_operators(trace)["name"].tolist() == ["aten::mm"]


def test_the_top_operators_are_those_with_the_most_time_of_their_own() -> None:
    builder = TraceBuilder()
    builder.op("aten::small", 0, 9_000)
    builder.kernel(100, 20_000, 1_000)
    builder.op("aten::big", 10_000, 2_000)
    builder.kernel(10_100, 30_000, 3_000)
    operators = top_operators(builder.trace())
    assert operators["name"].tolist() == ["aten::big", "aten::small"]
    assert operators["share"].tolist() == [0.75, 0.25]
    assert operators["device_self_ns"].tolist() == [3_000, 1_000]


def test_all_gpu_time_has_an_operator_or_a_row_of_its_own() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 2_000)
    builder.kernel(100, 20_000, 1_000)
    builder.op("vllm::attention", 3_000, 5_000)
    builder.frame("kernels.py(3): launch", 3_500, 4_000)  # between the operator and the launch
    builder.kernel(4_000, 22_000, 2_000)
    builder.op("record_param_comms", 9_000, 2_000)
    builder.kernel(9_100, 30_000, 3_000, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    builder.kernel(12_000, 40_000, 10_000)  # a launch under no operator
    builder.op("aten::view", 14_000, 1_000)
    operators = top_operators(builder.trace())
    assert [None if name is None else str(name) for name in operators["name"]] == [
        None, "record_param_comms", "vllm::attention", "aten::mm", "aten::view",
    ]  # fmt: skip
    assert operators["share"].tolist() == [10 / 16, 3 / 16, 2 / 16, 1 / 16, 0]
    assert operators["calls"].isna().tolist() == [True, False, False, False, False]


@pytest.mark.parametrize("stepped", [True, False])
def test_summary_json_holds_both_and_null_where_nothing_was_measured(stepped: Any) -> None:
    builder = TraceBuilder()
    if stepped:
        training_step(builder)
    else:
        builder.op("aten::mm", 0, 100)
    entry = builder.summary()
    assert (entry.overview is None) == (not stepped)
    assert (entry.precision is None) == (not stepped)
    if stepped:
        assert sum(entry.precision.kernel_ns.values()) == 175_000
        assert [row.name for row in entry.overview.operators[:2]] == [None, "aten::mm"]
