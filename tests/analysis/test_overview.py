"""The overview of a trace, and where its operators run: hand-made cases, and a brute-force check of the sums."""

from typing import Any

import pytest

from builders import AUTOGRAD, PINNED_D2H, TraceBuilder, training_step
from steptrace.analysis import summarize
from steptrace.analysis.common.division import GPU_PARTS
from steptrace.analysis.overview import overview, top_operators
from steptrace.analysis.precision import kernel_formats


def test_the_parts_of_two_steps_have_names_of_their_own_and_add_up() -> None:
    builder = TraceBuilder()
    for index in range(2):
        training_step(builder, index, index * 1_000_000)
    figures = overview(builder.trace())
    assert figures is not None
    assert (figures.kind, figures.steps, figures.step_ns) == ("gpu", 2, 1_000_000)
    assert list(figures.parts_ns) == [*GPU_PARTS]
    assert sum(figures.parts_ns.values()) == figures.window_ns == 2_000_000
    assert figures.parts_ns["compute"] == 2 * (3 * 25_000 + 100_000)


def test_without_a_gpu_the_parts_are_the_loops() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.label("forward", 100, 300)
    builder.op("aten::mm", 150, 100)
    figures = overview(builder.trace())
    assert figures is not None
    assert figures.parts_ns == {"data": 0, "forward": 300, "loss": 0, "backward": 0, "optimizer": 0, "other": 700}


def test_without_steps_the_whole_trace_is_the_window_and_there_is_no_step_time() -> None:
    builder = TraceBuilder()
    builder.kernel(0, 2_000, 3_000)
    builder.kernel(4_000, 9_000, 1_000)
    figures = overview(builder.trace())
    assert figures is not None
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
def test_summary_json_holds_both_and_null_where_nothing_was_measured(tmp_path: Any, stepped: Any) -> None:
    builder = TraceBuilder()
    if stepped:
        training_step(builder)
    else:
        builder.op("aten::mm", 0, 100)
    summary, _ = summarize([builder.write(tmp_path / "made.json")])
    entry = summary.traces[0]
    assert (entry.overview is None) == (not stepped)
    assert (entry.precision is None) == (not stepped)
    if stepped:
        assert sum(entry.precision.kernel_ns.values()) == 175_000
        assert [row.name for row in entry.overview.operators[:2]] == [None, "aten::mm"]


def test_copies_alone_have_no_number_format() -> None:
    builder = TraceBuilder()
    builder.gpu(PINNED_D2H, 0, 100, builder.call("cudaMemcpyAsync", 0, 1))
    assert len(kernel_formats(builder.trace())) == 0
