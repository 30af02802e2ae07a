"""Kernel time by number format, and what of the matrix work ran on tensor cores."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import D2D, TraceBuilder
from steptrace.analysis.precision import FORMATS, kernel_format, kernel_formats, precision_of, type_format

BF16_GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN"
SGEMM = "ampere_sgemm_128x64_nn"
TF32_GEMM = "cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half> >(int)"
INTEGERS = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<long> >(int)"
TRITON = "triton_poi_fused_add_0"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def _under(builder: TraceBuilder, op: str, kernel: str, ns: int, *types: Any) -> None:
    start = 1_000 * len(builder.events)
    builder.op(op, start, 500, **({"Input type": list(types)} if types else {}))
    builder.gpu(kernel, start + 600, ns, builder.call("cudaLaunchKernel", start + 10, 5))


def test_names_decide_and_input_types_help_where_names_are_silent() -> None:
    builder = TraceBuilder()
    _under(builder, "aten::mm", BF16_GEMM, 40, "float", "float")  # autocast: the name knows better
    _under(builder, "aten::mm", SGEMM, 30, "float")
    _under(builder, "aten::mm", TF32_GEMM, 20, "float")
    _under(builder, "triton_poi_fused_add_0", TRITON, 7, "c10::BFloat16", "float", "long int")
    _under(builder, "triton_poi_fused_add_1", TRITON, 3, "long int", "Scalar")
    _under(builder, "aten::add", ADD, 5)
    builder.gpu(NCCL, 900_000, 50, None)
    builder.gpu(D2D, 900_100, 50, None)
    figures = precision_of(kernel_formats(builder.trace()))
    assert figures.kernel_ns == {"bits8": 0, "bits16": 52, "bits32": 50, "bits64": 0, "integer": 0, "unknown": 3}
    assert figures.tf32_ns == 20
    assert (figures.tensor_core_eligible_ns, figures.tensor_core_ns) == (90, 60)
    assert figures.tensor_core_unknown_ns == 0


def test_an_unknown_kernel_of_a_matrix_operator_may_have_run_on_tensor_cores() -> None:
    builder = TraceBuilder()
    _under(builder, "aten::mm", "some_vendor_kernel", 10, "c10::BFloat16")
    _under(builder, "aten::mm", ADD, 5)  # its bias: no matrix work
    _under(builder, "aten::relu", "some_vendor_kernel", 7)
    _under(builder, "fbgemm::permute", "permute_kernel<float>", 4)
    figures = precision_of(kernel_formats(builder.trace()))
    assert (figures.tensor_core_eligible_ns, figures.tensor_core_unknown_ns, figures.tensor_core_ns) == (10, 10, 0)


def test_a_graphs_kernels_are_judged_by_their_names_alone() -> None:
    builder = TraceBuilder()
    graph = builder.call("cudaGraphLaunch", 0, 10)
    builder.gpu(BF16_GEMM, 20, 10, graph)
    builder.gpu("flash_fwd_splitkv_combine_kernel<cutlass::half_t>", 40, 10, graph)
    figures = precision_of(kernel_formats(builder.trace()))
    assert (figures.tensor_core_eligible_ns, figures.tensor_core_ns) == (10, 10)


@pytest.mark.parametrize(
    ("types", "bits"),
    [
        ("float", "bits32"),
        ("c10::BFloat16,float,Scalar", "bits16"),
        ("c10::Half,double", "bits16"),
        ("c10::Float8_e4m3fn,c10::BFloat16", "bits8"),
        ("c10::complex<float>", "bits32"),
        ("double,long int", "bits64"),
        ("long int,Scalar,bool", "unknown"),
        ("", "unknown"),
        (",c10::Half", "bits16"),
        ("float,,c10::Half", "bits16"),
    ],
)
def test_the_narrowest_type_of_an_operators_inputs_counts(types: str, bits: str) -> None:
    assert type_format(json.dumps(types.split(","))) == bits


def test_types_of_lists_are_read_too() -> None:
    builder = TraceBuilder()
    builder.op("aten::cat", 0, 10, **{"Input type": [["c10::Half", "c10::Half"], "Scalar", ""]})
    builder.op("aten::odd", 20, 10, **{"Input type": "no list"})
    builder.kernel(30, 40, 5)
    assert list(map(type_format, builder.trace().ops["types"])) == ["bits16", "unknown"]


_WORK = st.lists(
    st.tuples(
        st.sampled_from([BF16_GEMM, SGEMM, TF32_GEMM, ADD, INTEGERS, TRITON, NCCL, D2D]),
        st.sampled_from(["aten::mm", "aten::add", None]),
        st.sampled_from([[], ["c10::BFloat16"], ["double", "Scalar"]]),
        st.integers(0, 50),
        st.integers(0, 1),
    ),
    max_size=10,
)


@given(_WORK)
def test_every_kernels_time_counts_once(work: list[Any]) -> None:
    builder = TraceBuilder()
    builder.op("aten::first", 0, 1)
    for i, (name, op, types, ns, device) in enumerate(work):
        start = 1_000 * (i + 1)
        correlation = None
        if op:
            builder.op(op, start, 500, **{"Input type": types})
            correlation = builder.call("cudaLaunchKernel", start + 10, 5)
        builder.gpu(name, start + 600, ns, correlation, device=device)
    trace = builder.trace()
    figures = precision_of(kernel_formats(trace))
    expected, eligible, core, unknown = dict.fromkeys(FORMATS, 0), 0, 0, 0
    for name, op, types, ns, device in work:
        if device != trace.device or name in (NCCL, D2D):
            continue
        parsed = kernel_format(name)
        bits = parsed.bits if parsed.bits != "unknown" else type_format(json.dumps(types)) if op else "unknown"
        expected[bits] += ns
        suits = parsed.matrix or (op == "aten::mm" and not parsed.helper and bits != "integer")
        eligible += ns if suits else 0
        core += ns if suits and parsed.tensor_core == "yes" else 0
        unknown += ns if suits and parsed.tensor_core == "unknown" else 0
    assert figures.kernel_ns == expected
    assert (figures.tensor_core_eligible_ns, figures.tensor_core_ns) == (eligible, core)
    assert figures.tensor_core_unknown_ns == unknown
