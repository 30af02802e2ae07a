"""Operators against the data sheet, where a trace has the sizes of their inputs."""

from typing import Any

import msgspec
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from builders import TraceBuilder
from figures import codes_in, figures_in
from recorded import needs_traces, trace_of
from steptrace.analysis import summarize_trace
from steptrace.documents.subject import subjects_of
from steptrace.documents.summary import TraceSummary
from steptrace.estimate.gpus import gpu_of_driver
from steptrace.estimate.traced_convolution import recorded_convolution
from steptrace.estimate.traced_operator import recorded_call
from steptrace.findings import find_in_trace
from steptrace.report.trace.sections import absence_of

BF16 = ["c10::BFloat16", "c10::BFloat16"]


def _summary(ns: int, *, gpu: str = "NVIDIA H100 80GB HBM3", **args: Any) -> TraceSummary:
    builder = TraceBuilder()
    builder.metadata["deviceProperties"] = [{"id": 0, "name": gpu, "computeMajor": 9}]
    lists = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": BF16, "Input Strides": [[4096, 1], [4096, 1]]}
    builder.op("aten::mm", 0, 10_000, **{**lists, **args})
    builder.kernel(1_000, 20_000, ns)
    return builder.summary()


def test_a_product_is_held_against_the_data_sheet() -> None:
    ideal_ns = 1e9 * 2 * 4096**3 / 989e12
    (row,) = _summary(278_000).roofline
    assert (row.name, row.count, row.ns, row.because) == ("aten::mm", 1, 278_000, None)
    assert row.inputs == "4096x4096 bfloat16, 4096x4096 bfloat16"
    assert row.ideal_ns == pytest.approx(ideal_ns, rel=1e-4)
    assert row.roofline_pct == pytest.approx(100 * ideal_ns / 278_000, rel=1e-4)


@pytest.mark.parametrize(
    ("gpu", "code"), [("NVIDIA H100 80GB HBM3", "no_input_sizes"), ("A GPU", "no_data_sheet"), ("", "no_gpu_name")]
)
def test_a_trace_says_why_there_is_no_roofline(gpu: str, code: str) -> None:
    builder = TraceBuilder()
    builder.metadata["deviceProperties"] = [{"id": 0, "name": gpu, "computeMajor": 9}]
    builder.op("aten::mm", 0, 10_000)
    builder.kernel(1_000, 20_000, 5_000)
    summary = builder.summary()
    assert summary.roofline == ()
    assert summary.absent["roofline"] == code


def test_a_trace_without_a_gpu_says_so_rather_than_that_sizes_are_missing() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10_000)
    summary = builder.summary()
    (roofline,) = (subject for subject in subjects_of(TraceSummary) if subject.name == "roofline")
    assert absence_of(summary, roofline) == "no_gpu_work"


def test_an_operator_far_from_the_roofline_is_a_finding_with_its_cause() -> None:
    assert not [item for item in find_in_trace(_summary(190_000)) if item.rule == "slow_kernels"]
    odd = {"Input Dims": [[4096, 4099], [4099, 4096]], "Input Strides": [[4099, 1], [4096, 1]]}
    (finding,) = [item for item in find_in_trace(_summary(10_000_000, **odd)) if item.rule == "slow_kernels"]
    assert figures_in(finding.claim) == [10, 1.55]
    assert codes_in(finding.claim) == ["aten::mm"]
    assert finding.figures["operators"][0]["ideal_share"] == pytest.approx(0.014, abs=5e-4)
    assert "no multiple of 8" in " ".join(finding.evidence)


def _products(*, second: dict[str, Any] | None = None, outside: bool = False) -> TraceSummary:
    """A step of 1 ms with one product of 4096^3, and a second one that has these arguments."""
    builder = TraceBuilder()
    builder.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9}]
    lists = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": BF16}
    builder.step(0, 0, 1_000_000)
    builder.op("aten::mm", 100_000, 10_000, **lists)
    builder.kernel(101_000, 120_000, 200_000, "gemm")
    if second is not None:
        start = 2_000_000 if outside else 400_000
        builder.op("aten::mm", start, 10_000, **second)
        builder.kernel(start + 1_000, start + 20_000, 200_000, "gemm")
    return builder.summary()


def test_flop_per_second_and_mfu_are_of_the_steps_time() -> None:
    lists = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": BF16}
    summary = _products()
    assert summary.tflop_per_s == pytest.approx(2 * 4096**3 / 1e-3 / 1e12)
    assert summary.mfu_pct == pytest.approx(100 * 2 * 4096**3 / 1e-3 / 989e12, rel=1e-3)
    assert summary.roofline[0].tflop_per_s == pytest.approx(2 * 4096**3 / 200e-6 / 1e12)
    twice = _products(second=lists)
    assert twice.tflop_per_s == pytest.approx(2 * summary.tflop_per_s)
    assert _products(second=lists, outside=True).tflop_per_s == pytest.approx(summary.tflop_per_s)


def test_flop_per_second_are_not_measured_where_a_product_has_no_sizes() -> None:
    summary = _products(second={})
    assert (summary.tflop_per_s, summary.mfu_pct) == (None, None)


def test_attention_counts_by_the_operator_that_launches_it() -> None:
    """`_flash_attention_forward` has its heads behind the sequence."""
    types = '["c10::Half", "c10::Half", "c10::Half"]'
    sizes = "[[2, 128, 8, 64], [2, 256, 8, 64], [2, 256, 8, 64]]"
    call = recorded_call("aten::_flash_attention_forward", types, sizes, "null")
    assert call is not None
    assert call.flop == 4 * 2 * 8 * 128 * 256 * 64


def _losses(sizes: list[int], *, blocks: float, ns: int) -> TraceSummary:
    """Steps of 10 ms, each with the backward pass of a cross-entropy over so many samples of 10 classes."""
    builder = TraceBuilder()
    builder.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9}]
    for step, size in enumerate(sizes):
        ts = step * 10_000_000
        builder.step(step, ts, 10_000_000)
        types = ["float", "float", "long int", "", "Scalar", "Scalar", "float"]
        shapes = [[], [size, 10], [size], [], [], [], []]
        strides = [[], [10, 1], [1], [], [], [], []]
        lists = {"Input Dims": shapes, "Input type": types, "Input Strides": strides}
        builder.op("aten::nll_loss_backward", ts, 10_000, **lists)
        builder.kernel(ts + 1_000, ts + 20_000, ns, "nll_loss_backward_kernel", **{"blocks per SM": blocks})
        builder.kernel(ts + 12_000, ts + 20_000 + ns, 9_970_000 - ns, **{"blocks per SM": 4.0})
    return builder.summary()


def test_a_losss_backward_pass_is_held_against_what_it_writes() -> None:
    (row,) = _losses([10_000_000], blocks=4.0, ns=400_000).roofline
    # It reads two numbers and the labels, and writes the inputs' gradient. It does not read the inputs.
    moved = 4 + 4 + 10_000_000 * (8 + 10 * 4)
    assert row.name == "aten::nll_loss_backward"
    assert row.ideal_ns == pytest.approx(1e9 * moved / 3.35e12, rel=0.01)
    assert row.because is None


def test_calls_of_all_sizes_are_one_operator_and_what_they_lose_decides() -> None:
    """Each size alone takes 4 % of the GPU's time; a quarter of it would be expected."""
    summary = _losses([1_000_000 + 10 * step for step in range(20)], blocks=1 / 132, ns=400_000)
    assert len(summary.roofline) == 20
    assert {row.because for row in summary.roofline} == {"few_blocks"}
    (finding,) = [item for item in find_in_trace(summary) if item.rule == "slow_kernels"]
    lost = sum(row.ns - row.slowest_ns for row in summary.roofline) / 20
    assert finding.cost_ns_per_step == round(lost)
    assert "blocks" in finding.advice
    # Less than 1 % of a step to save is no finding, however long the operator takes.
    quick = _losses([16_000_000] * 20, blocks=4.0, ns=520_000)
    assert not [item for item in find_in_trace(quick) if item.rule == "slow_kernels"]


@pytest.mark.parametrize(
    "changed",
    [
        {"gpu": "a GPU that nobody knows"},
        {"Input Dims": "no list"},
        {"Input Dims": [[4096, 4096]]},
        {"Input type": ["", ""]},
    ],
)
def test_without_sizes_or_a_data_sheet_there_is_no_row(changed: dict[str, Any]) -> None:
    assert _summary(278_000, **changed).roofline == ()


#: Settings of a convolution as a trace has them, and what PyTorch then returns and counts.
_CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((4, 6, 17, 20), (8, 6, 3, 5), {}),
    ((4, 6, 17, 20), (8, 6, 3, 5), {"stride": [2, 3], "padding": [1, 2], "dilation": [2, 1]}),
    ((4, 6, 17, 20), (9, 2, 3, 3), {"groups": 3, "padding": [1, 1]}),
    ((4, 6, 17), (8, 6, 3), {"stride": [2]}),
    ((2, 3, 9, 9, 9), (4, 3, 3, 3, 3), {"padding": [1, 0, 1]}),
    ((4, 6, 7, 8), (6, 5, 3, 3), {"stride": [2, 2], "transposed": True, "output_padding": [1, 0]}),
    ((4, 6, 7, 8), (6, 5, 3, 3), {"stride": [2, 1], "transposed": True, "groups": 2, "padding": [1, 1]}),
]


@pytest.mark.parametrize(("images", "weight", "given"), _CONVOLUTIONS)
def test_a_convolutions_result_and_flop_are_those_of_pytorch(
    images: tuple[int, ...], weight: tuple[int, ...], given: dict[str, Any]
) -> None:
    spatial = len(images) - 2
    of_each: dict[str, Any] = {
        "stride": [1] * spatial, "padding": [0] * spatial, "dilation": [1] * spatial, "transposed": False,
        "output_padding": [0] * spatial, "groups": 1, **given,
    }  # fmt: skip
    x, w = (
        torch.empty(images, device="meta", requires_grad=True),
        torch.empty(weight, device="meta", requires_grad=True),
    )
    with FlopCounterMode(display=False) as counted:
        result = torch.ops.aten.convolution(x, w, None, *of_each.values())
    settings = msgspec.json.encode(["", "", "", *map(str, of_each.values())]).decode()
    forward = recorded_convolution("convolution", [images, weight, [], *[[]] * 6], settings)
    assert forward is not None
    assert forward.outputs == (tuple(result.shape),)
    assert forward.flop == counted.get_total_flops()

    sizes = [tuple(result.shape), images, weight, *[[]] * 8]
    for wanted, outputs in (
        ([True, True, True], [images, weight, (result.shape[1],)]),
        ([False, True, False], [weight]),
    ):
        texts = ["", "", "", "[8]", *map(str, of_each.values()), str(wanted)]
        backward = recorded_convolution("convolution_backward", sizes, msgspec.json.encode(texts).decode())
        assert backward is not None
        assert backward.outputs == tuple(outputs)
        # Each gradient takes as many as the forward pass. PyTorch's count of a grouped weight's gradient does not.
        assert backward.flop == sum(len(output) > 1 for output in outputs) * forward.flop


def test_a_trace_has_the_flop_of_its_convolutions() -> None:
    """The settings come from the trace's file, and from convolutions alone."""
    builder = TraceBuilder()
    builder.metadata["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9}]
    builder.step(0, 0, 1_000_000)
    lists = {
        "Input Dims": [[8, 64, 56, 56], [64, 64, 3, 3], [], [], [], []],
        "Input type": ["float", "float", *[""] * 4],
    }
    concrete = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
    builder.op("aten::cudnn_convolution", 0, 10_000, **lists, **{"Concrete Inputs": concrete})
    builder.kernel(1_000, 20_000, 500_000, "implicit_convolve_sgemm")
    builder.op("aten::add_", 12_000, 10_000, **lists, **{"Concrete Inputs": concrete})
    builder.kernel(13_000, 530_000, 10_000, "elementwise_kernel")
    assert builder.trace().ops["settings"].astype(str).tolist() == [msgspec.json.encode(concrete).decode(), "null"]
    row = next(row for row in builder.summary().roofline if row.name == "aten::cudnn_convolution")
    flop = 2 * 8 * 56 * 56 * 64 * 64 * 9
    assert row.tflop_per_s == pytest.approx(flop / 500_000 / 1e3)
    assert builder.summary().tflop_per_s == pytest.approx(flop / 1_000_000 / 1e3, rel=0.5)


@pytest.mark.parametrize(
    "settings",
    ["null", "[]", '["", "", "[1, 1]"]', '["", "", "[1, 1]", "none", "[1, 1]", "1"]', '["", "", "x", "1", "1", "1"]'],
)
def test_a_convolution_without_its_settings_has_no_flop(settings: str) -> None:
    sizes = "[[8, 3, 64, 64], [16, 3, 3, 3], [], [], [], []]"
    types = '["float", "float", "", "", "", ""]'
    assert recorded_call("aten::cudnn_convolution", types, sizes, "null", settings) is None


def test_operators_whose_output_does_not_follow_have_no_ideal() -> None:
    sizes = "[[8, 3, 64, 64], [16, 3, 3, 3]]"
    types = '["float", "float"]'
    assert recorded_call("aten::cudnn_convolution", types, sizes, "null") is None
    assert recorded_call("mylib::kernel", types, sizes, "null") is None
    call = recorded_call("aten::mul", types, "[[8, 3], []]", "null")
    assert call is not None
    assert call.outputs[0].shape == (8, 3)


@pytest.mark.parametrize(
    ("name", "sheet"),
    [
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32"),
        ("Tesla V100-PCIE-16GB", "V100"),
        (None, None),
        # Cards with other figures than those of a similar name.
        ("NVIDIA L40", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
    ],
)
def test_gpus_by_their_drivers_names(name: str | None, sheet: str | None) -> None:
    gpu = gpu_of_driver(name)
    assert (gpu and gpu.name) == sheet


@needs_traces
@pytest.mark.parametrize(("name", "least"), [("h100_qwen", 0.5), ("h100_vit", 0.7), ("h100_bert_small", 0.7)])
def test_recorded_operators_lie_below_the_data_sheet(name: str, least: float) -> None:
    summary = summarize_trace(trace_of(name))
    assert sum(row.ns for row in summary.roofline) >= least * (summary.gpu.compute_ns or 0)
    assert all(row.roofline_pct <= 100 for row in summary.roofline)
