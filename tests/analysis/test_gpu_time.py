"""Busy, idle and exposed time, steps and kernels, on traces small enough to add up by hand."""

import math
import re
from dataclasses import replace

import pytest

from builders import AUTOGRAD, D2D, TraceBuilder, training_step
from steptrace.analysis.common.kernel_names import short_name, short_names
from steptrace.analysis.common.labels import label_times
from steptrace.analysis.copies import copies
from steptrace.analysis.idle import idle
from steptrace.analysis.kernels import kernel_table, recorded_kernels
from steptrace.analysis.launches import launches
from steptrace.analysis.overview import (
    busy_pct,
    kernels_per_step,
    operators_per_step,
    sm_weighted_pct,
    streams_per_step,
)
from steptrace.analysis.quality import quality, quality_checks
from steptrace.analysis.steps import gpu_time, step_times
from steptrace.analysis.streams import queues


def _overlapping() -> TraceBuilder:
    """compute 0-40; comm 20-60 on another stream; memory 50-70 and 90-100; compute 80-95."""
    builder = TraceBuilder()
    builder.gpu("gemm", 0, 40, None)
    builder.gpu("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 20, 40, None, stream=20)
    builder.gpu(D2D, 50, 20, None, stream=21)
    builder.gpu("gemm", 80, 15, None)
    builder.gpu("Memset (Device)", 90, 10, None, stream=21)
    return builder


def test_classes_exposed_and_overlap() -> None:
    gpu = gpu_time(_overlapping().trace())
    assert (gpu.activities, gpu.span_ns, gpu.busy_ns, gpu.idle_ns) == (5, 100, 90, 10)
    assert (gpu.compute_ns, gpu.comm_ns, gpu.memory_ns) == (55, 40, 30)
    assert (gpu.exposed_comm_ns, gpu.exposed_memory_ns, gpu.comm_compute_overlap_ns) == (20, 15, 20)
    assert gpu.overlap_pct == 50.0


def test_each_device_has_its_own_figures_and_the_busiest_comes_first() -> None:
    builder = TraceBuilder()
    builder.gpu("gemm", 0, 10, None, device=0)
    builder.gpu("gemm", 100, 50, None, device=3)
    trace = builder.trace()
    assert trace.devices == [3, 0]
    assert (gpu_time(trace).span_ns, gpu_time(trace).overlap_pct) == (50, None)  # without communication no overlap
    for stream in range(6):  # at once: more time added up, still no more busy time
        builder.gpu("gemm", 0, 10, None, device=0, stream=stream)
    assert builder.trace().devices == [3, 0]


def test_steps_add_up_and_see_what_ran_in_them() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    builder.step(1, 110, 100)
    builder.kernel(10, 20, 130)  # runs into the second step
    builder.kernel(150, 180, 10)
    builder.gpu(D2D, 185, 10, builder.call("cudaMemcpyAsync", 160, 1))
    table = step_times(builder.trace())
    columns = ["index", "start_ns", "dur_ns", "host_dur_ns", "busy_ns", "compute_ns", "exposed_memory_ns", "idle_ns"]
    assert table[columns].to_numpy().tolist() == [
        [0, 0, 150, 100, 130, 130, 0, 20],
        [1, 110, 100, 100, 40 + 15, 50, 5, 45],
    ]
    assert step_times(replace(builder.trace(), kernels=builder.trace().kernels.iloc[:0]))["idle_ns"].isna().all()


def test_counts_per_step() -> None:
    builder = TraceBuilder()
    training_step(builder, 0)
    training_step(builder, 1, 1_100_000, sync=False)
    builder.op("aten::linear", 1_600_000, 1_000)
    builder.op("aten::addmm", 1_600_100, 500)
    builder.op("autograd::engine::evaluate_function: MulBackward0", 1_700_000, 1_000)
    builder.op("MulBackward0", 1_700_100, 800)
    builder.op("aten::mul", 1_700_200, 100)
    builder.op("aten::mul", 1_700_400, 100)
    builder.op("aten::outside", 3_000_000, 1_000)
    trace = builder.trace()
    # aten::item holds aten::_local_scalar_dense; aten::linear holds aten::addmm; the backward node calls two.
    assert operators_per_step(trace).tolist() == [4, 3 + 1 + 2]
    assert kernels_per_step(trace).tolist() == [4, 4]  # the copy of .item() is no kernel


def test_streams_per_step_counts_each_stream_once() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    builder.step(1, 200, 100)
    for launch, stream in ((10, 7), (20, 7), (30, 9), (210, 7)):
        builder.kernel(launch, launch + 10, 5, stream=stream)
    builder.gpu(D2D, 60, 10, builder.call("cudaMemcpyAsync", 40, 1), stream=13)
    builder.kernel(250, 260, 10, stream=20, device=1)  # another GPU
    assert streams_per_step(builder.trace()).tolist() == [3, 1]


def test_kernel_table() -> None:
    builder = TraceBuilder()
    for k, dur in enumerate((10, 20, 60)):
        builder.gpu("gemm", 100 * k, dur, None)
    builder.gpu("Memset (Device)", 500, 10, None)
    builder.gpu("gemm", 0, 50, None, device=1)
    table = kernel_table(builder.trace())
    assert table["name"].tolist() == ["gemm", "Memset (Device)"]
    assert table["class"].tolist() == ["compute", "memory"]
    row = table.iloc[0]
    figures = row[["count", "sum_ns", "mean_ns", "median_ns", "min_ns", "max_ns"]]
    assert figures.tolist() == [3, 90, 30, 20, 10, 60]
    assert row["std_ns"] == pytest.approx(math.sqrt((400 + 100 + 900) / 2))
    assert row["share"] == 0.9
    assert math.isnan(table.iloc[1]["std_ns"])


def test_work_left_over_from_earlier_steps_is_in_no_sum_that_a_page_divides_by_the_steps() -> None:
    builder = TraceBuilder()
    for name, start in (("gemm", 0), ("Memset (Device)", 50)):  # launched before the recording
        builder.gpu(name, start, 40, correlation=9_999, bytes=64)
    for index in range(2):
        builder.step(index, 10 + index * 100, 100)
        builder.kernel(20 + index * 100, 300 + 200 * index, 100)
        builder.gpu("Memset (Device)", 450 + 200 * index, 10, builder.call("cudaMemsetAsync", 60 + index * 100, 5))
    trace = builder.trace()
    assert recorded_kernels(trace)[["name", "count", "sum_ns"]].to_numpy().tolist() == [
        ["gemm", 2, 200],
        ["Memset (Device)", 2, 20],
    ]
    assert copies(trace)[["count", "ns"]].to_numpy().tolist() == [[2, 20]]
    assert queues(trace)["unlinked"].tolist() == [0]
    of = launches(trace)
    assert of is not None
    assert (of.activities, of.unlinked) == (4, 0)
    assert sum(row.gaps for row in idle(trace).ended_by) == 4  # not the one between the first two


_LOOPS = "void at::native::vectorized_elementwise_kernel<4, "
_LOOPS_WITHOUT_CAST = "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("Memcpy DtoH (Device -> Pageable)", "Memcpy DtoH (Device -> Pageable)"),
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_nn>(cutlass_80_simt_sgemm_nn::Params)",
            "cutlass_80_simt_sgemm_nn",
        ),
        (
            _LOOPS + "at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3> >(int, x)",
            "vectorized_elementwise_kernel [CUDAFunctor_add]",
        ),
        (
            _LOOPS + "at::native::(anonymous namespace)::silu_kernel(at::X&)::{lambda()#1}, x>(int)",
            "vectorized_elementwise_kernel [silu_kernel]",
        ),
        (
            _LOOPS_WITHOUT_CAST + "at::native::direct_copy_kernel_cuda(at::X&)::{lambda()#3}> >(int)",
            "elementwise_kernel [direct_copy_kernel_cuda]",
        ),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Traits<64, 128>, false>(x::y)", "flash_fwd_kernel"),
        ("triton_poi_fused_add_cos_sin_0", "triton_poi_fused_add_cos_sin_0"),
        ("_ZN" + "a" * 100, "_ZN" + "a" * 56 + "…"),
        ("operator<(int)", "operator"),
        ("void epilogue::impl::globalKernel<float, float, true>(int, int)", "epilogue::globalKernel"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float, 7>(int)", "gemvx::kernel"),
    ],
)
def test_short_names(name: str, short: str) -> None:
    assert short_name(name) == short


_FLOATS = "at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
_UNARY = "at::native::AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
_CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, {}, {}>(float*, int)"
_CUDNN = "sm80_xmma_dgrad_implicit_gemm_indexed_tf32f32_nhwckrsc_nchw_tilesize{}_stage4_execute_kernel_cudnn_infer"


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (
            [f"{_LOOPS}{kind}, at::detail::Array<char*, 3> >(int)" for kind in (_FLOATS, _UNARY)],
            ["vectorized_elementwise_kernel [MulFunctor] <BinaryFunctor>",
             "vectorized_elementwise_kernel [MulFunctor] <AUnaryFunctor>"],
        ),
        (
            [_FLOATS, _FLOATS.replace("float", "double")],
            ["BinaryFunctor <float>", "BinaryFunctor <double>"],
        ),
        (
            [_CAT.format(128, 1), _CAT.format(64, 64)],
            ["CatArrayBatchedCopy <128, 1>", "CatArrayBatchedCopy <64>"],
        ),
        (
            [f"void cudnn::bn_bw_1C11_kernel_new<float, float2, {n}, true>(float)" for n in (32, 128, 512)],
            [f"bn_bw_1C11_kernel_new <{n}>" for n in (32, 128, 512)],
        ),
        (
            [_CUDNN.format("128x128x16"), _CUDNN.format("256x64x16")],
            ["sm80_xmma_dgrad…el_cudnn_infer <tilesize128x128x16>",
             "sm80_xmma_dgrad…el_cudnn_infer <tilesize256x64x16>"],
        ),
        (["x::gemm<1>(int)", "y::gemm<1>(int)"], ["gemm <x>", "gemm <y>"]),
        (["gemm<1, 2>(int)", "gemm<2, 1>(int)"], ["gemm #1", "gemm #2"]),
        (["x::gemm<1>(int)", "mm"], ["gemm", "mm"]),
    ],
)  # fmt: skip
def test_different_kernels_of_a_table_have_different_short_names(names: list[str], short: list[str]) -> None:
    short_of = short_names(names)
    assert [short_of[name] for name in names] == short


def test_labels_on_host_and_device() -> None:
    builder = TraceBuilder()
    for index, ts in enumerate((0, 1_000)):
        builder.step(index, ts, 900)
        builder.label("loss", ts + 100, 200)
        builder.label("loss", ts + 150, 50)  # nested in one of its name
        builder.label("mask", ts + 120, 30 + 10 * index)
        builder.kernel(ts + 130, ts + 400, 50)
        builder.kernel(ts + 160, ts + 420, 60)
        builder.kernel(ts + 350, ts + 500, 10)
    trace = builder.trace()
    table = label_times(trace)[["label", "count", "host_ns", "device_ns"]]
    assert table.to_numpy().tolist() == [["loss", 4, 400, 160], ["mask", 2, 70, 100]]
    host_only = replace(trace, kernels=trace.kernels.iloc[:0])
    assert label_times(host_only)["device_ns"].isna().tolist() == [True, True]


def test_labels_own_what_the_autograd_thread_launches_meanwhile_its_own_labels_aside() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 900)
    builder.label("## backward ##", 100, 300)
    builder.op("X", 110, 200, AUTOGRAD, **{"Sequence number": 1, "Fwd thread id": 1})
    builder.kernel(150, 200, 40, tid=AUTOGRAD)
    builder.kernel(155, 500, 90, tid=102)  # neither a step's nor a backward's thread
    builder.label("nccl:all_reduce", 160, 50, AUTOGRAD)
    builder.kernel(170, 300, 70, tid=AUTOGRAD)
    builder.kernel(180, 400, 5)  # of the step's own thread: the label on the other says nothing of it
    trace = builder.trace()
    times = label_times(trace).set_index("label")
    assert times["device_ns"].to_dict() == {"## backward ##": 115, "nccl:all_reduce": 70}
    assert times["kernels"].to_dict() == {"## backward ##": 3, "nccl:all_reduce": 1}
    assert times["device_self_ns"].to_dict() == {"## backward ##": 45, "nccl:all_reduce": 70}


def test_utilisation_weighted_by_multiprocessors() -> None:
    builder = TraceBuilder()
    for start, dur, blocks, stream in ((0, 100, 0.25, 7), (50, 100, 0.5, 8), (200, 100, 40.0, 7)):
        builder.gpu("gemm", start, dur, None, stream=stream, **{"blocks per SM": blocks})
    builder.gpu(D2D, 300, 100, None)
    trace = builder.trace()
    # 0-50: 0.25, 50-100: 0.75, 100-150: 0.5, 200-300: capped at 1; the copy runs on none
    expected = (50 * 0.25 + 50 * 0.75 + 50 * 0.5 + 100) / 400
    assert sm_weighted_pct(trace) == pytest.approx(100 * expected)
    assert busy_pct(trace) == 100 * (150 + 200) / 400
    builder.gpu("unknown", 350, 10, None)
    assert sm_weighted_pct(builder.trace()) is None


@pytest.mark.parametrize(("outside", "warns"), [(1, False), (2, True)])
def test_many_operators_outside_the_steps_are_a_warning(outside: int, *, warns: bool) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    for number in range(100 - outside):
        builder.op("aten::add", 1_000 * number, 500)
    for number in range(outside):
        builder.op("aten::add", 2_000_000 + 1_000 * number, 500)
    result = quality(builder.trace())
    row = next(check for check in result.checks if check.check == "operators_within_steps")
    assert (row.wrong, row.of, row.warns) == (outside, 100, warns)
    warning = (
        f"{outside} of 100 operators are called outside the steps; "
        "operators, labels, functions and collectives per step include those outside"
    )
    assert (warning in result.warnings) == warns


def test_steps_that_overlap_on_the_gpu_are_noted() -> None:
    builder = TraceBuilder()
    for index in range(3):
        builder.step(index, index * 1_000_000, 1_000_000)
        builder.kernel(index * 1_000_000 + 900_000, index * 1_000_000 + 950_000, 550_000)
    checks = quality_checks(builder.trace()).set_index("check")
    row = checks.loc["steps_in_turn"]
    assert (row["wrong"], row["of"], row["warns"]) == (2, 3, False)
    # The spans, what of them counts twice, and the step that the overview has.
    assert re.findall(r"[\d.]+ ms", row["says"]) == ["4.5 ms", "1 ms", "3.5 ms", "1.17 ms"]
    assert checks.loc["step_numbers", "wrong"] == 0
