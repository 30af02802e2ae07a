"""Number formats of GPU kernels, and the share of matrix work on tensor cores, from kernels' names.

There are three tables of patterns with their meanings. The first pattern that matches decides; without a match the
value is unknown. A kernel counts with the narrowest floating-point format in its name, which is that of its operands;
sums are often kept in a wider format. A conversion counts with its narrower side. TF32 counts as 32-bit, since operands
and results have 32 bits and only the product is rounded. AMD's matrix cores count as tensor cores.

If the name does not give the format, the recorded input types of the launching operator may; otherwise it is `unknown`,
as for Triton kernels, whose names hold no types.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pandas as pd

from steptrace.analysis.common.activity import outside_steps
from steptrace.analysis.common.kernel_names import short_names
from steptrace.analysis.common.registry import part, table, without_rows_of
from steptrace.documents.kernels import KernelFormat, Precision
from steptrace.documents.table import frame_of, rows
from steptrace.trace.columns import take
from steptrace.trace.model import Trace, launching_op, once

#: The formats by width; `bits8` holds narrower ones too. `integer` kernels compute with integers alone.
FORMATS: Final = ("bits8", "bits16", "bits32", "bits64", "integer", "unknown")


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of a kernel, by its name.

    `tensor_core`: `yes`, `no` or `unknown`. `matrix` kernels multiply matrices, convolve or attend; `helper` kernels
    prepare or finish their work (layout, split-K sums), without tensor cores.
    """

    bits: str
    tensor_core: str
    matrix: bool
    helper: bool
    tf32: bool


# The source of each rule stands beside it:
# - cuBLAS: its kernels' names in public profiles, read with the operand types recorded beside them
# - CUTLASS: media/docs/functionality.md and profiler.md, instruction shape and operand types in the name
# - Tensile: kernel naming, the data type stands behind the index letters, MI is the matrix instruction
# - PyTorch: its CUDA kernels, element types are template arguments or those of the inner lambda
# - attention: flash-attention, CUTLASS's and TensorRT-LLM's FMHA and cuDNN's attention, types in the name
# - triton_kernels: output, left and right operand in the name; formats of OCP's microscaling (MX) and NVFP4


def _before(first: str, then: str, *, within: str = r"\w") -> str:
    """A pattern of two texts with any characters (`within`) between them.

    Between them the first one does not come again: else a name that repeats it would be searched to its end each time.
    """
    return f"{first}(?:(?!{first}){within})*?{then}"


#: The number format. Libraries come before PyTorch's templates, where the same letters have another meaning.
FORMAT_RULES: Final = (
    (r"nvjet_(?:sm\d+_)?(?:qq|oo)", "bits8"),  # cuBLAS; q is FP8, o is FP4
    (r"nvjet_(?:sm\d+_)?[th][a-z]*_", "bits16"),  # cuBLAS; t is bfloat16, h is float16
    (r"nvjet_(?:sm\d+_)?s[a-z]*_", "bits32"),  # cuBLAS; s is float32
    (r"nvjet_(?:sm\d+_)?d[a-z]*_", "bits64"),  # cuBLAS; d is float64
    (r"Cijk_\w{4}_\w{4}_(?:4xi8|I8|F8|B8)", "bits8"),  # Tensile
    (r"Cijk_\w{4}_\w{4}_[HB]", "bits16"),  # Tensile
    (r"Cijk_\w{4}_\w{4}_[SC]", "bits32"),  # Tensile
    (r"Cijk_\w{4}_\w{4}_[DZ]", "bits64"),  # Tensile
    (r"(?i)(?:mx|nv)fp[468](?![0-9])|fp4(?![0-9])", "bits8"),  # triton_kernels
    (_before("matmul_ogs_", _before("bf16x", "bf16x")), "bits16"),  # triton_kernels
    (r"block_scaled|bstensorop|[uv]e4m3xf4|e2m1", "bits8"),  # CUTLASS; block-scaled FP4 and FP8
    (
        _before(r"_[hsi]\d{3,7}(?:gemm|fprop|dgrad|wgrad)", r"_(?:s8|u8|s4|e4m3|e5m2)(?![a-z0-9])"),
        "bits8",
    ),  # CUTLASS
    (r"(?<![a-z])i(?:884|8816|8832|16832|16864)(?:gemm|fprop|cudnn)", "bits8"),  # CUTLASS; i: int8
    (r"(?<![a-z])h(?:884|1688|16816|161616)(?![0-9])", "bits16"),  # CUTLASS; h: float16 throughout
    (r"(?<![a-z])s(?:16816|161616|884)(?![0-9])(?!tf32)", "bits16"),  # CUTLASS; shapes of 16-bit operands
    (r"(?<![a-z])d(?:884|16816|1684|1688)(?:gemm|fprop|dgrad|wgrad)", "bits64"),  # CUTLASS; d: float64
    (r"(?<![a-zA-Z0-9])(?:bf16|fp16|f16)", "bits16"),  # CUTLASS
    (r"tf32|tfloat32|(?<![a-z])s(?:1684|1688)(?![0-9])", "bits32"),  # CUTLASS; s1688 without a type is TF32
    (
        _before("(?:volta|turing|maxwell|ampere|simt|hopper)", "_hgemm") + r"|(?<![a-z])hcudnn",
        "bits16",
    ),  # cuBLAS; hgemm
    (r"(?<![a-zA-Z])(?:s|gc)gemm|(?<![a-z])scudnn|simt_cf32", "bits32"),  # cuBLAS; sgemm, cgemm: float32
    (r"(?<![a-zA-Z])(?:d|gz)gemm(?!_fp)|(?<![a-z])dcudnn", "bits64"),  # cuBLAS; dgemm, zgemm: float64
    (_before("xmma_", "_(?:e4m3|e5m2|i8|u8)"), "bits8"),  # cuBLAS; xmma: type of each operand
    (_before("xmma_", "_f64"), "bits64"),  # cuBLAS; xmma: type of each operand
    (_before("xmma_", "_f32"), "bits32"),  # cuBLAS; xmma: type of each operand
    (r"_Qkv?(?:E4m3|E5m2|E2m1)", "bits8"),  # attention
    (r"_Qkv?(?:Bfloat16|Fp16|Float16|Half)|_Q(?:Bfloat16|Fp16)", "bits16"),  # attention
    (_before("fmha_", "_f32"), "bits32"),  # attention
    (r"OpaqueType|vectorized_gather_kernel", "unknown"),  # PyTorch; these move bytes of any type
    # PyTorch
    (r"Float8_|float_e[45]m[23]|__nv_fp8|__hip_fp8|(?<![A-Za-z])h?fp8(?![A-Za-z])|(?<![A-Za-z])FP8|e4m3|e5m2", "bits8"),
    (r"[Bb][Ff]loat16|bhalf|DF16b", "bits16"),  # PyTorch; DF16b: mangled __bf16
    (r"c10::Half|__half|(?<![a-z])half2?_t|(?<![A-Za-z_])half2?(?![A-Za-z_])|DF16_|6half_t", "bits16"),  # PyTorch
    (r"(?<![A-Za-z_])float[234]?(?![A-Za-z0-9_])|(?:\d|_)float(?![A-Za-z0-9])", "bits32"),  # PyTorch
    (r"(?<![A-Za-z_])double[2]?(?![A-Za-z0-9_])", "bits64"),  # PyTorch
    # PyTorch
    (
        (
            r"(?:[<,]\s*|lambda\()(?:unsigned |signed )?(?:long|int|bool|char|short|u?int\d+_t|unsigned)"
            r"(?: long| int| char| short)*[\s*&]*[,>)]"
        ),
        "integer",
    ),
)

#: Whether it runs on tensor cores.
TENSOR_CORE_RULES: Final = (
    (r"(?i)splitk_?reduce|reduce_?splitk|nchwToNhwc|nhwcToNchw|epilogue::impl", "no"),  # cuBLAS
    (r"computeOffsets|reduce_wgrad", "no"),  # cuDNN: they run around the product
    (r"simt|ffma|gemv|(?<![a-zA-Z])dot_kernel|depthwise|fft2d|flip_filter", "no"),  # cuBLAS; CUDA cores alone
    (r"nvjet_(?:sm\d+_)?s[a-z]*_(?!.*tf32)", "unknown"),  # cuBLAS; float32 without a word on TF32
    (r"nvjet_", "yes"),  # cuBLAS; Hopper's and Blackwell's warp-group instructions
    (r"tensorop|wmma|wgmma|gmma|hmma|imma|tcgen05|umma|mfma|xdl", "yes"),  # CUTLASS
    (r"(?<![a-z])[shdi](?:884|1684|1688|16816|161616|16832|16864|8816|8832)(?![0-9])", "yes"),  # CUTLASS
    (_before("xmma_", r"(?:tensor\d+x\d+x\d+|warpgroupsize)"), "yes"),  # cuBLAS; xmma with an instruction's shape
    (_before("Cijk_", r"_MI\d+x\d+"), "yes"),  # Tensile
    (r"Cijk_", "no"),  # Tensile; without MI it uses no matrix instruction
    (r"flash_(?:fwd|bwd)_(?:dot|convert|combine|clear|preprocess)|splitkv_combine", "no"),  # attention
    (r"flash_(?:fwd|bwd)|FlashAttn(?:Fwd|Bwd)|FlashAttention(?:Forward|Backward)", "yes"),  # attention
    (r"fmhaSm\d+|fmha_v2|sdpa_sm\d+_flash", "yes"),  # attention
    (_before("fmha_cutlass[FB]_(?:bf16|f16)", r"_sm(?:7[05]|[89]\d|1\d\d)"), "yes"),  # attention
    (_before("GemmUniversal", "cutlass::(?:half_t|bfloat16_t)", within=".") + "|deep_gemm::", "yes"),  # CUTLASS
    (_before("ImplicitGemm", "(?:tfloat32|half_t|bfloat16_t|OpMultiplyAddFast)", within="."), "yes"),  # CUTLASS
    (
        _before("(?:ampere|volta|turing|maxwell|pascal|kepler)(?=_)", "_(?:[sdhcz]|g?c|gz)gemm"),
        "no",
    ),  # cuBLAS
    (r"(?<![a-z])[shd]cudnn", "no"),  # cuDNN, names of the architecture's own FFMA kernels (scudnn)
    (r"(?<![a-zA-Z])[sd]gemm", "no"),  # cuBLAS; without an instruction's shape
)

#: Kernels that multiply matrices, convolve or attend, and their helpers.
MATRIX_RULES: Final = (
    # cuBLAS; they run around the product
    (
        (
            r"(?i)splitk_?reduce|reduce_?splitk|nchwToNhwc|nhwcToNchw|epilogue::impl|computeOffsets|reduce_wgrad|flip_filter|"
            r"elementwise|flash_(?:fwd|bwd)_(?:dot|convert|combine|clear|preprocess)|splitkv_combine|"
            r"reduce_kernel|fill|finalize_matmul|cublasLt::(?:(?!cublasLt::).)*?reduce|PostGSU|fft2d_[rc]2[rc]"
        ),
        "helper",
    ),
    # CUTLASS
    (
        (
            r"(?i)(?<!fb)gemm|nvjet_|gemv|cijk_|matmul|triton_(?:tem|mm)|implicit_?convolve|scudnn|fprop|dgrad|wgrad|winograd|"
            r"convolve|ImplicitGemm|conv_depthwise|conv2d_grouped|flash_(?:fwd|bwd)|flashattn|flashattention|fmha|"
            r"sdpa_sm\d+|unified_attention|paged_attention"
        ),
        "matrix",
    ),
)

_TF32: Final = re.compile(r"tf32|tfloat32|(?<![a-z])s(?:1684|1688)(?![0-9])")


@lru_cache(maxsize=4096)
def kernel_format(name: str) -> Arithmetic:
    """The arithmetic of a kernel by its recorded name."""
    bits = _first(FORMAT_RULES, name) or "unknown"
    role = _first(MATRIX_RULES, name)
    core = "no" if bits == "integer" else _first(TENSOR_CORE_RULES, name) or "unknown"
    return Arithmetic(
        bits=bits,
        tensor_core=core,
        matrix=role == "matrix",
        helper=role == "helper",
        tf32=bits == "bits32" and core == "yes" and bool(_TF32.search(name)),
    )


def _first(rules: tuple[tuple[str, str], ...], name: str) -> str | None:
    # Compiled by `re` where they are first looked for: few of them are, in a small trace.
    return next((means for pattern, means in rules if re.search(pattern, name)), None)


#: Operators whose arithmetic is that of tensor cores: matrix products, convolutions, attention, recurrent layers.
_MATRIX_OPS: Final = re.compile(
    r"^aten::(?:mm|mv|addmm|addmv|bmm|baddbmm|addbmm|matmul|linear|einsum|_?scaled_mm|_int_mm|_addmm_activation|"
    r"_?grouped_mm|_scaled_grouped_mm|_cudnn_rnn\w*|_thnn_fused_\w*|"
    r"_?convolution(?:_backward|_overrideable)?|conv\w*|cudnn_convolution\w*|miopen_convolution\w*|"
    r"_conv_depthwise2d\w*|_slow_conv\w*|_?scaled_dot_product\w*|_(?:flash|efficient|cudnn)_attention\w*)\Z"
    r"|attention|flash_attn|fmha|(?<!fb)gemm|matmul",
    re.IGNORECASE,
)

#: An operator's input types as the trace writes them -> width. Integers and scalars are ignored.
_TYPES: Final = {
    "c10::BFloat16": "bits16",
    "c10::Half": "bits16",
    "float": "bits32",
    "c10::complex<float>": "bits32",
    "double": "bits64",
    "c10::complex<double>": "bits64",
}
#: Most kernels in summary.json.
MOST: Final = 10
#: The key of a row of `kernel_formats`.
_KEYS: Final = ("name", "bits", "by", "tensor_core", "eligible", "tf32")
_NARROW: Final = re.compile(r"^c10::(?:Float8|Float4|Byte|Char)", re.IGNORECASE)


@table("kernel_formats", KernelFormat)
@once
@without_rows_of("kernels", KernelFormat)
def kernel_formats(trace: Trace) -> pd.DataFrame:
    """The compute kernels of the analysed GPU by name, format and use of tensor cores (table `kernel_formats`).

    A kernel is eligible for tensor cores if its name is that of a matrix product, a convolution or attention, or if
    the operator that launched it is one and its name is not that of a helper (layout, split-K sums, elementwise).
    Work left over from steps before the recorded ones is left out.
    """
    kernels = trace.kernels
    in_steps = (kernels["device"] == trace.device).to_numpy() & ~outside_steps(trace)
    chosen = np.flatnonzero(in_steps & (kernels["kind"] == "compute").to_numpy())
    op = launching_op(trace)[chosen]
    codes = pd.DataFrame(
        {
            "name": kernels["name"].cat.codes.to_numpy()[chosen],
            "op": take(trace.ops["name"].cat.codes.to_numpy().astype(np.int64), op),
            "types": take(trace.ops["types"].cat.codes.to_numpy().astype(np.int64), op),
            "ns": kernels["dur"].to_numpy()[chosen],
        }
    )
    names, operators, types_of = (
        [str(name) for name in column.cat.categories]
        for column in (kernels["name"], trace.ops["name"], trace.ops["types"])
    )
    # Judged once for each pair of name and operator: a trace has millions of kernels, but hundreds of pairs.
    by_key = codes.groupby(["name", "op", "types"], sort=True)["ns"].agg(count="size", ns="sum").reset_index()
    rows = pd.DataFrame(
        [
            _judged(names[name], "" if operator < 0 else operators[operator], "" if types < 0 else types_of[types])
            for name, operator, types in zip(by_key["name"], by_key["op"], by_key["types"], strict=True)
        ],
        columns=[*_KEYS],
    ).assign(count=by_key["count"], ns=by_key["ns"])
    table = rows.groupby([*_KEYS], dropna=False, sort=True)[["count", "ns"]].sum().reset_index()
    table = table.sort_values(["ns", "name"], ascending=[False, True], kind="stable", ignore_index=True)
    short = short_names(table["name"])
    return frame_of(KernelFormat, table.assign(short_name=[short[name] for name in table["name"]]))


def _judged(name: str, op: str, types: str) -> tuple[str, str, str | None, str, bool, bool]:
    """The columns `_KEYS` of a kernel; `op` and `types` of its operator are empty if unknown."""
    by_name = kernel_format(name)
    bits, by = (by_name.bits, "name") if by_name.bits != "unknown" else (type_format(types), "types")
    eligible = by_name.matrix or (bool(_MATRIX_OPS.search(op)) and not by_name.helper and bits != "integer")
    return name, bits, None if bits == "unknown" else by, by_name.tensor_core, eligible, by_name.tf32


@part("precision")
def precision(trace: Trace) -> Precision | None:
    """The number formats that the analysed GPU's kernels compute in; None without a GPU."""
    return None if trace.device is None else precision_of(kernel_formats(trace))


def precision_of(formats: pd.DataFrame) -> Precision:
    """The sums of a table `kernel_formats`, with the kernels with the most time among the eligible."""
    ns = formats["ns"]
    core = formats["tensor_core"]
    eligible = formats["eligible"].to_numpy(dtype=bool)

    def total(rows: Any) -> int:
        return int(ns[np.asarray(rows, dtype=bool)].sum())

    return Precision(
        kernel_ns={name: total(formats["bits"] == name) for name in FORMATS},
        tf32_ns=total(formats["tf32"]),
        tensor_core_ns=total(eligible & (core == "yes")),
        tensor_core_eligible_ns=total(eligible),
        tensor_core_unknown_ns=total(eligible & (core == "unknown")),
        kernels=rows(formats[eligible].head(MOST), KernelFormat),
    )


def type_format(types: str) -> str:
    """The narrowest floating-point format among an operator's input types (`ops.types`), `unknown` without any.

    With integers alone it is unknown: a copy of bytes and an operator on indices look the same.
    """
    parts = re.findall(r'"([^"]*)"', types)  # an argument that is no tensor has an empty one
    if any(_NARROW.match(part) and "Float" in part for part in parts):
        return "bits8"
    formats = {_TYPES[part] for part in parts if part in _TYPES}
    return next((name for name in FORMATS if name in formats), "unknown")
