# ruff: noqa: E501  (names as they are recorded)
"""Kernel time by number format, what of the matrix work ran on tensor cores, and what real names of kernels say."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import D2D, TraceBuilder
from steptrace.analysis.precision import (
    FORMAT_RULES,
    FORMATS,
    MATRIX_RULES,
    TENSOR_CORE_RULES,
    kernel_format,
    kernel_formats,
    precision_of,
    type_format,
)

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
    expected = dict.fromkeys(FORMATS, 0)
    eligible = 0
    core = 0
    unknown = 0
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


ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, {}, std::array<char*, 3ul> >(int, {}, std::array<char*>)"
)

#: Name, format, tensor cores, whether it is matrix work.
KERNELS = [
    # cuBLAS on Hopper and Blackwell: first letter of the operands' type.
    ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNN", "bits16", "yes", True),
    ("nvjet_hsh_64x8_64x16_1x2_h_bz_NNT", "bits16", "yes", True),
    ("nvjet_sm90_hss_320x128", "bits16", "yes", True),
    ("nvjet_sm100_tst_24x64_64x16_4x1_v_bz_TNN", "bits16", "yes", True),
    ("nvjet_sm103_tst_176x128", "bits16", "yes", True),
    ("nvjet_qqtst_128x256_128x6_2x2_2cta_h_bz_Avec32UE8M0_Bvec32UE8M0_TNT", "bits8", "yes", True),
    ("nvjet_sm100_ootst_128x128_256x7_4x1_2cta_v_bx_Avec16UE4M3_Bvec16UE4M3_TNT", "bits8", "yes", True),
    ("nvjet_sss_tf32_128x256_64x4_TNT", "bits32", "yes", True),
    ("nvjet_sss_128x256_64x4_TNT", "bits32", "unknown", True),
    # xmma and CUTLASS by instruction shape and type.
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x_cublas", "bits16", "yes", True),
    ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_stage4_warpsize2x2x1_g1_tensor16x8x8_alignc4_execute_kernel_cudnn", "bits32", "yes", True),
    ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8>(Params)", "bits16", "yes", True),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64_64x6_tn_align8>(Params)", "bits16", "yes", True),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1>(Params)", "bits32", "yes", True),
    ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_256x64_32x4_nhwc_align8>(P)", "bits16", "yes", True),
    ("void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x128_32x3_nhwc_align4>(P)", "bits32", "yes", True),
    ("cutlass3x_sm100_tensorop_s128x256x16gemm_f16_f16_f32_f16_f16_128x256x64_0_tnn_align8", "bits16", "yes", True),
    ("cutlass3x_sm100_simt_sgemm_f32_f32_f32_f32_f32_128x64x16_1x1x1_3_tnn_align1_bias_f32_relu", "bits32", "no", True),
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(Params)", "bits32", "no", True),
    ("ampere_fp16_s16816gemm_fp16_64x64_sliced1x2_ldg8_f2f_stages_64x6_tn", "bits16", "yes", True),
    ("volta_h884gemm_64x128_ldg8_nn", "bits16", "yes", True),
    ("volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_small_nhwc2nchw_tn_v1", "bits16", "yes", False),
    ("ampere_sgemm_128x64_nn", "bits32", "no", True),
    ("volta_sgemm_32x32_sliced1x4_tn", "bits32", "no", True),
    ("volta_dgemm_64x64_nn", "bits64", "no", True),
    ("ampere_gcgemm_64x64_nt", "bits32", "no", True),
    ("cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1", "bits32", "no", True),
    ("void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4>(P)", "bits16", "no", True),
    # Attention.
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t> >(P)", "bits16", "yes", True),
    ("void pytorch_flash::flash_bwd_dot_do_o_kernel<true, pytorch_flash::Flash_bwd_kernel_traits<64, cutlass::bfloat16_t> >(P)", "bits16", "no", False),
    ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<cutlass::bfloat16_t>::Params)", "bits16", "yes", True),
    ("fmha_cutlassF_f32_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel<float>::Params)", "bits32", "unknown", True),
    ("fmhaSm100fKernel_QkvBfloat16OBfloat16H64PagedKvCausalP64VarSeqQ128Kv128PersistentContext", "bits16", "yes", True),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H128PagedKvCausal", "bits8", "yes", True),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0", "bits16", "yes", True),
    # AMD.
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1", "bits16", "yes", True),
    ("Cijk_Ailk_Bljk_HHS_BH_MT64x64x16_MI32x32x8x1_SN", "bits16", "yes", True),
    ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN", "bits32", "yes", True),
    ("Cijk_Ailk_Bljk_SB_MT64x64x8_SE_K1", "bits32", "no", True),
    ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePassINS_7ProblemIDF16bDF16bfDF16b", "bits16", "unknown", False),
    ("void vllm::reshape_and_cache_flash_kernel<__hip_bfloat16, __hip_bfloat16, (vllm::Fp8KVCacheDataType)0>(P)", "bits16", "unknown", False),
    # PyTorch's own: the narrowest type of the template or the lambda; integers alone are no number format.
    (ELEMENTWISE.format("at::native::CUDAFunctor_add<c10::BFloat16>", "P"), "bits16", "unknown", False),
    (ELEMENTWISE.format("at::native::CUDAFunctor_add<float>", "P"), "bits32", "unknown", False),
    (ELEMENTWISE.format("at::native::CUDAFunctor_add<double>", "P"), "bits64", "unknown", False),
    (ELEMENTWISE.format("at::native::BinaryFunctor<c10::Half, c10::Half, c10::Half, MulFunctor<float> >", "P"), "bits16", "unknown", False),
    (ELEMENTWISE.format("at::native::AUnaryFunctor<long, long, bool, CompareEqFunctor<long> >", "P"), "integer", "no", False),
    ("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}>(int)", "bits32", "unknown", False),
    ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int, 4, 64, 64>(P)", "unknown", "unknown", False),
    ("void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long, int, int>::Policy800, false, long>(P)", "integer", "no", False),
    ("void fbgemm_gpu::(anonymous namespace)::_compute_FP8_quantize_cuda_kernel<float>(float const*, int)", "bits8", "unknown", False),
    ("void split_embedding_codegen_forward_unweighted_kernel<c10::Half, c10::Half, float, false, long, 2ul>(fbgemm_gpu::P)", "bits16", "unknown", False),
    ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(P)", "bits32", "no", False),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16>(P)", "bits16", "no", False),
    # Triton's names hold no types, unless their authors put them there.
    ("triton_poi_fused_add_cos_sin_0", "unknown", "unknown", False),
    ("triton_tem_fused_mm_0", "unknown", "unknown", True),
    ("_matmul_ogs_NNT_bf16xbf16xbf16_128x128x128x1", "bits16", "unknown", True),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1_swiglu", "bits8", "unknown", True),
    ("_matmul_ogs_NNT_bf16xmxfp8xmxfp4_128x128x128x1", "bits8", "unknown", True),
    ("void vllm::cvt_fp16_to_fp4<__nv_bfloat16, false>(int, int, __nv_bfloat16 const*)", "bits8", "unknown", False),
    ("triton_red_fused_nvfp4_quantize_2", "bits8", "unknown", False),
    ("at::cuda::(anonymous namespace)::spin_kernel(long)", "unknown", "unknown", False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "bits", "tensor_core", "matrix"), KERNELS, ids=lambda value: str(value)[:40])
def test_a_real_name_is_understood(name: str, bits: str, tensor_core: str, matrix: Any) -> None:
    parsed = kernel_format(name)
    assert (parsed.bits, parsed.tensor_core, parsed.matrix) == (bits, tensor_core, matrix)


def test_tf32_is_distinguished_from_full_float32() -> None:
    assert kernel_format("cutlass_80_tensorop_s1688gemm_64x64_32x4_nn_align1").tf32
    assert not kernel_format("ampere_sgemm_128x64_nn").tf32
    assert not kernel_format("cutlass_75_tensorop_f16_s1688gemm_f16_256x128_nn_align8").tf32


def test_rules_search_a_long_name_once() -> None:
    """No rule has an unbounded repeat between two texts, but for one in which the first does not come again.

    A name that repeats the first would be searched to its end from each.
    """
    for pattern, _ in (*FORMAT_RULES, *TENSOR_CORE_RULES, *MATRIX_RULES):
        bare = re.sub(r"\(\?:\(\?!.*?\)(?:\\w|\.)\)\*\?|\(\?!\.\*tf32\)", "", pattern)
        assert not re.search(r"(?:\\w|\.)[*+]", bare), pattern
