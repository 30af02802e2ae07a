"""How fast kernels of each class are: derives src/steptrace/estimate/constants.toml from published measurements.

    python bench/estimate_constants.py PUBLISHED [--timm FOLDER] [--write | --check]

PUBLISHED holds `kernels.csv` (NeuSight, MIT licence: float32 kernels of V100, P100, T4 and A100-40, PyTorch 2.1),
`published/gemm.parquet` and `published/attention.parquet` (aiconfigurator, Apache-2.0: 16-bit kernels of seven GPUs),
and `published/timm/*.csv` (pytorch-image-models, Apache-2.0: steps of vision models on RTX 3090 and 4090). FOLDER holds
those models' operators, as bench/estimate_timm.py follows them. Without it the classes that come from steps keep what
constants.toml says of them. `kernels_of_traces.csv` beside this file holds kernels of an H100 (AMD-AGI/TraceLens, MIT).

Three kinds of fits, all in logarithms and robust against single kernels:

1. Kernels of a class that were measured one by one: the shares of arithmetic and bandwidth, the floor, and how the
   share of arithmetic grows with size, for each GPU. What is left is the deviation of single shapes.
2. Steps of models: the shares of all classes at once, each held near what (1) says of it, or near a wide guess where
   nothing was measured (`GUESSES`). Models that the evaluation draws (bench/estimate.py) are left out.
3. For a GPU that was not measured: the middle of those that were, of its architecture if there are any, and their
   spread from GPU to GPU. For few GPUs the spread is drawn towards `PRIOR_SPREAD`.
"""

import argparse
import csv
import itertools
import math
import re
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares, lsq_linear

import kernels_of_traces
from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.documents.prediction import PredictedStep
from steptrace.estimate.collectives import FILE as COLLECTIVES
from steptrace.estimate.constants import FILE, PRODUCTS, AttentionLosses, Constants, parse
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import Gpu, gpu_named
from steptrace.estimate.kernel_classes import (
    ATTENTION,
    CONVOLUTION,
    DEPTHWISE,
    ELEMENTWISE,
    HOST_COPY,
    IMPLICIT,
    NEVER_MEASURED,
    STRIDED,
)
from steptrace.estimate.tiles import attention_effort, effort
from steptrace.estimate.times import GROWS_S, ideal_seconds, kernel_seconds
from steptrace.estimate.traced_convolution import convolution_flop
from steptrace.estimate.traced_operator import dense, flop
from steptrace.estimate.work import Kernel, kernels_of, on_gpu

Array = NDArray[np.float64]
#: What attention loses, by family of GPUs.
Losses = Mapping[str, AttentionLosses]
#: The family whose kernels stand for those of older GPUs.
OLDER: Final = "fed by warps"

P100: Final = Gpu(
    name="P100",
    fp32_tflops=9.52,
    half_tflops=19.05,
    bandwidth_gbs=732,
    memory_gb=16,
    pcie_gbs=16,
    architecture="Pascal",
)
#: The GPUs of aiconfigurator's tables. Its A100 is of 80 GB with more bandwidth than the PCIe card of that name.
AICONFIGURATOR: Final = {
    "a100_sxm": "A100-80", "h100_sxm": "H100", "h200_sxm": "H200", "l40s": "L40S", "b200_sxm": "B200", "gb200": "GB200",
    "rtx_pro_6000_server": "RTX-PRO-6000",
}  # fmt: skip
A100_SXM_GBS: Final = 2039.0
#: Bytes of an element of 16 bit.
ITEM_16: Final = 2
#: Threads of a block that writes a token's keys and values into a cache, at most, and of a multiprocessor.
MOST_THREADS: Final = 512
THREADS_OF_SM: Final = 2048
#: PyTorch's operator for the attention that is fastest on a GPU.
FASTEST: Final = "_scaled_dot_product_cudnn_attention"
#: The power of `steptrace.estimate.times`: a kernel near both limits.
POWER: Final = 2.3
#: Measuring one call takes 0.03 to 0.06 ms itself in NeuSight's data, which is too large a part of shorter kernels.
SHORTEST_MS: Final = 0.2
#: Kernels that take less are mostly launch and measuring.
LONG_S: Final = 50e-6
#: No GPU that can be named runs products by kernels of that generation, which are all that the library has for a P100.
OLD: Final = "maxwell"
#: So many kernels are needed to say how their share grows with size.
GROWTH_NEEDS: Final = 40
#: Traced programs that are needed to say how far they are from each other.
LEAST_PROGRAMS: Final = 3
#: Groups of kernels by what they do in vain.
GROUPS: Final = 8
#: Kernels of each GPU and class that are fitted, drawn at random.
MOST_KERNELS: Final = 4000
#: Spread from GPU to GPU that few GPUs are drawn towards, within an architecture and between any two; it counts as so
#: many GPUs.
PRIOR_SPREAD: Final = {"within": 0.07, "between": 0.15}
PRIOR_GPUS: Final = 2
#: By how much a share that falls with the length of kernels is unsure on other GPUs: nine of ten draws hold what it is
#: of short kernels and of long ones.
FALLS: Final = math.log(GROWS_S[1] / GROWS_S[0]) / 2 / 1.645
#: Where fits of how a cache is written begin.
WRITES: Final = (0.7, 3.0)
#: Standard deviation of the logarithm of a step's time that the classes' shares do not explain, as the fit begins.
STEP_NOISE: Final = 0.12
#: The part of it that differs between the two layouts of a model.
LAYOUT_NOISE: Final = 0.05


class CacheWrites(NamedTuple):
    """How fast a GPU writes keys and values into a cache, a block of up to 512 threads for each token.

    Attributes:
        share: of the bandwidth.
        block_us: microseconds of a block, which waits for memory twice; the blocks that fit on a multiprocessor wait
            together.
        launch_us: microseconds of its launch, as many as of attention's.
    """

    share: float
    block_us: float
    launch_us: float = 0.0


class Measured(NamedTuple):
    """A kernel that was measured alone, or together with one that writes keys and values into a cache.

    `tokens`, `row`: what that other kernel writes: so many rows of keys and of values, of so many elements.
    """

    gpu: Gpu
    kernel: Kernel
    seconds: float
    tokens: float = 0.0
    row: float = 0.0

    @property
    def cached_s(self) -> float:
        """Seconds of what is read and written for the cache, at the bandwidth."""
        return 4 * ITEM_16 * self.tokens * self.row / self.gpu.bandwidth

    @property
    def blocks_s(self) -> float:
        """Seconds of writing the cache if a block took 1 us."""
        threads = self.tokens * min(self.row, MOST_THREADS)
        return 1e-6 * threads / (THREADS_OF_SM * driver_facts(self.gpu).sms)

    @property
    def is_in_l2(self) -> bool:
        """Whether its tensors, and the rows of the cache, fit into the L2 cache together."""
        moved = self.kernel.bytes + 2 * ITEM_16 * self.tokens * self.row
        return moved < driver_facts(gpu_named(self.gpu.name)).l2_bytes


def cache_seconds(cached: Array, blocks: Array, writes: CacheWrites) -> Array:
    """Seconds of writing a cache, from `Measured.cached_s` and `Measured.blocks_s` of each kernel."""
    both = (cached / writes.share) ** POWER + (blocks * writes.block_us) ** POWER
    return np.asarray(both ** (1 / POWER) + 1e-6 * writes.launch_us)


@dataclass(frozen=True)
class Fit:
    """What kernels of a class reach on one GPU; `residual`: standard deviation of the log of single kernels.

    `in_vain`: by how much it grows with the root of the logarithm of their effort. `writes`: of the cache beside it.
    """

    arithmetic: float | None
    growth: float
    memory: float
    floor_us: float
    residual: float
    in_vain: float
    count: int
    writes: CacheWrites


def operator(name: str, inputs: Sequence[tuple[int, ...]], output: tuple[int, ...], dtype: str) -> OperatorCalls:
    """An operator on dense tensors."""
    return OperatorCalls(
        name=f"aten.{name}.default",
        inputs=tuple(TensorSpec(shape=one, strides=dense(one), dtype=dtype) for one in inputs),
        outputs=(TensorSpec(shape=output, strides=dense(output), dtype=dtype),),
        is_view=False,
        flop=convolution_flop(output, inputs[1]) if name == "convolution" else flop(name, inputs),
        calls=1,
        phase="forward",
        file=None,
        line=None,
    )


def neusight_operator(op: str, dims: Mapping[str, int]) -> OperatorCalls:
    """A measured float32 kernel of NeuSight as an operator."""
    if op in ("linear", "bmm"):
        b, m, n, k = (dims[name] for name in "BMNK")
        if op == "linear":
            return operator("mm", [(b * m, k), (k, n)], (b * m, n), "float32")
        return operator("bmm", [(b, m, k), (b, k, n)], (b, m, n), "float32")
    if op == "conv":
        size = (dims["Input_Size"] + 2 * dims["Padding"] - dims["Kernel_Size"]) // dims["Stride"] + 1
        images = (dims["B"], dims["Input_Channel"])
        channels = dims["Output_Channel"]
        weight = (channels, dims["Input_Channel"], dims["Kernel_Size"], dims["Kernel_Size"])
        shape = (*images, dims["Input_Size"], dims["Input_Size"])
        return operator("convolution", [shape, weight], (dims["B"], channels, size, size), "float32")
    shape = (dims["B"], dims["H"])
    name = {"softmax": "_softmax", "ln": "native_layer_norm"}.get(op, op)
    return operator(name, [shape] * (2 if op in ("add", "mul") else 1), shape, "float32")


def neusight_kernels(path: Path) -> list[Measured]:
    """The float32 kernels that are long enough; without products of the old generation's kernels."""
    found = []
    with path.open() as file:
        for row in csv.DictReader(file):
            seconds = float(row["ms"]) / 1e3
            if seconds < SHORTEST_MS / 1e3 or (row["op"] in ("linear", "bmm") and OLD in row["kernel"]):
                continue
            dims = {name: int(value) for name, value in (pair.split("=") for pair in row["dims"].split())}
            (kernel, *_) = kernels_of(neusight_operator(row["op"], dims))
            gpu = P100 if row["gpu"] == "P100" else gpu_named(row["gpu"])
            found.append(Measured(gpu, kernel, seconds))
    return found


def aiconfigurator_gpu(name: str) -> Gpu:
    """The data sheet of a GPU of aiconfigurator's tables."""
    gpu = gpu_named(AICONFIGURATOR[name])
    return replace(gpu, bandwidth_gbs=A100_SXM_GBS) if name == "a100_sxm" else gpu


SHEETS: Final = {name: aiconfigurator_gpu(name) for name in AICONFIGURATOR}


def gemm_kernels(path: Path, format_: str = "16") -> list[Measured]:
    """Products of 16 or 8 bit, of 32 rows and 64 columns or more, without those whose tensors lie in the L2 cache.

    They were called in a loop on the same tensors, which a training step does not do.
    """
    table = pd.read_parquet(path)
    table = table[(table.m >= 32) & (table.n >= 64) & (table.k >= 64)]
    table = table[table.gemm_dtype == {"16": "bfloat16", "8": "fp8"}[format_]]
    return [one for one in gemm_rows(table) if not one.is_in_l2]


def gemm_rows(table: pd.DataFrame) -> list[Measured]:
    """Rows of gemm.parquet."""
    found = []
    for name, rows in table.groupby("gpu"):
        gpu = aiconfigurator_gpu(str(name))
        rows = rows.sample(min(MOST_KERNELS, len(rows)), random_state=0)
        for row in rows.itertuples():
            wide = row.gemm_dtype == "bfloat16"
            size = 2 if wide else 1
            moved = size * (row.m * row.k + row.k * row.n) + 2 * row.m * row.n
            kernel = Kernel(
                kind="product",
                arithmetic="bfloat16" if wide else "float8_e4m3fn",
                flop=2.0 * row.m * row.n * row.k,
                bytes=float(moved),
                sizes=(1, row.m, row.n, row.k),
                shape=f"{row.m} {row.n} {row.k}",
            )
            found.append(Measured(gpu, kernel, row.latency / 1e3))
    return found


def attention_kernels(path: Path) -> list[Measured]:
    """Causal forward passes of attention, of 64 tokens and heads of up to 256, by the usual kernels.

    Those whose tensors lie in the L2 cache are left out: they were called in a loop on the same tensors.

    The usual ones are flash attention 2 on GPUs whose tensor cores are fed by warps, flash attention 3 on Hopper and
    FlashInfer's on Blackwell: each the fastest there, as cuDNN's are.

    They were measured in vLLM (`impl.forward` in collector/vllm/collect_attn.py of ai-dynamo/aiconfigurator, commit
    15cb360f), which first writes keys and values into its cache. With as many heads of keys as of queries, that takes
    up to half of the time. PyTorch's attention has no cache, so it is taken apart.
    """
    table = pd.read_parquet(path)
    table = table[(table.isl >= 64) & (table.head_dim <= 256)]
    table = table[~table.kernel_source.str.contains("fa4|decode")]
    found = []
    for name, rows in table.groupby("gpu"):
        gpu = aiconfigurator_gpu(str(name))
        rows = rows.sample(min(MOST_KERNELS, len(rows)), random_state=0)
        for row in rows.itertuples():
            query = (row.batch_size, row.num_heads, row.isl, row.head_dim)
            keys = (row.batch_size, row.num_key_value_heads, row.isl, row.head_dim)
            call = operator(FASTEST, [query, keys, keys], query, "bfloat16")
            full = flop(FASTEST, [query, query, query])
            (kernel,) = kernels_of(replace(call, flop=full, arguments={"is_causal": True}))
            tokens = row.batch_size * row.isl
            written = row.num_key_value_heads * row.head_dim
            found.append(Measured(gpu, kernel, row.latency / 1e3, float(tokens), float(written)))
    return [one for one in found if not one.is_in_l2]


def traced_kernels() -> list[Measured]:
    """Kernels of an H100 in traces that others have published."""
    return [
        Measured(gpu_named(row.gpu), kernels_of(row.call)[0], row.seconds) for row in kernels_of_traces.read_calls()
    ]


def spreads_of_programs() -> dict[tuple[str, str, str], float]:
    """How far the time of a class in a traced program is from its share in the others, by class, format and GPU.

    It is the root of the mean square, in logarithms, and includes what the shapes of a program do. At least
    `LEAST_PROGRAMS` are needed.
    """
    sums: dict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for row in kernels_of_traces.read_calls():
        gpu = gpu_named(row.gpu)
        kernel = kernels_of(row.call)[0]
        of_program = sums[kernel.kind, kernel.format, row.gpu][row.trace]
        of_program[0] += row.calls * sum(ideal_seconds(kernel, gpu))
        of_program[1] += row.calls * row.seconds
    found = {}
    for of_class, of_programs in sums.items():
        shares = [math.log(ideal / seconds) for ideal, seconds in of_programs.values()]
        if len(shares) >= LEAST_PROGRAMS:
            others = [(sum(shares) - one) / (len(shares) - 1) for one in shares]
            found[of_class] = math.sqrt(statistics.mean((a - b) ** 2 for a, b in zip(shares, others, strict=True)))
    return found


def fit_kernels(kernels: Sequence[Measured], losses: Losses) -> Fit:
    """The shares that kernels of one class and GPU reach; `losses`: of attention, by family."""
    ideal = np.array([ideal_seconds(one.kernel, one.gpu) for one in kernels])
    seconds = np.array([one.seconds for one in kernels])
    efforts = np.array([effort(one.kernel, one.gpu, losses) if one.kernel.flop else 1.0 for one in kernels])
    by_flop = ideal[:, 0] * efforts
    by_bytes = ideal[:, 1]
    cached, blocks = (np.array([getattr(one, name) for one in kernels]) for name in ("cached_s", "blocks_s"))
    has_flop = bool((by_flop > 0.2 * by_bytes).mean() > 0.05)
    # Convolutions of a size are computed in too many ways for their share to follow from it; attention has its blocks.
    grows = (
        has_flop
        and len(kernels) >= GROWTH_NEEDS
        and not kernels[0].kernel.kind.startswith(("attention", "convolution"))
    )
    # No short kernel without FLOP was measured alone. Attention is two kernels.
    short = has_flop and (bool((seconds < 50e-6).mean() > 0.02) or bool(cached.any()))

    def of_cache(theta: Array) -> Array:
        return cache_seconds(cached, blocks, CacheWrites(math.exp(theta[4]), math.exp(theta[5])))

    def share_of(theta: Array) -> Array:
        return np.asarray(np.exp(theta[0]) * (np.clip(ideal[:, 0], *GROWS_S) / 1e-3) ** (theta[3] if grows else 0.0))

    def predicted(theta: Array) -> Array:
        memory = np.exp(theta[1])
        floor = np.exp(theta[2])
        share = share_of(theta)
        both = (by_flop / share) ** POWER + (by_bytes / memory) ** POWER if has_flop else (by_bytes / memory) ** POWER
        return np.asarray((floor if short else 2.5e-6) + both ** (1 / POWER) + of_cache(theta))

    # Matters only where kernels say nothing: few convolutions and passes of attention are limited by memory.
    by_arithmetic = bool((by_flop < by_bytes).mean() < 0.5) and has_flop
    sure = np.array([1.0, 0.02 if by_arithmetic and not grows else 0.3, 1.0, 0.1, 0.5, 5.0])

    def residuals(theta: Array) -> Array:
        held = (theta - start) / sure
        return np.concatenate([np.log(predicted(theta) / seconds) / 0.15, held])

    start = np.array([math.log(0.7), math.log(0.75), math.log(2.5e-6), 0.0, math.log(WRITES[0]), math.log(WRITES[1])])
    fitted = least_squares(residuals, start, loss="soft_l1", f_scale=2.0).x
    left = np.log(predicted(fitted) / seconds)
    without_cache = predicted(fitted) - of_cache(fitted)
    residual = float(_range_spread(left))
    in_vain = 0.0
    if has_flop and kernels[0].kernel.sizes and len(kernels) >= GROWTH_NEEDS:
        residual, in_vain = deviations(left, np.log(without_cache / (ideal[:, 0] / share_of(fitted))))
    return Fit(
        arithmetic=float(np.exp(fitted[0])) if has_flop else None,
        growth=float(fitted[3]) if grows else 0.0,
        memory=float(np.exp(fitted[1])),
        floor_us=float(1e6 * np.exp(fitted[2])) / (2 if cached.any() else 1) if short else 2.5,
        residual=residual,
        in_vain=in_vain,
        count=len(kernels),
        writes=CacheWrites(*(float(one) for one in np.exp(fitted[4:6])), float(1e6 * np.exp(fitted[2])) / 2),
    )


def deviations(left: Array, in_vain: Array) -> tuple[float, float]:
    """The spread of single kernels about their class, and how it grows with what they do in vain.

    Kernels are taken by how much they do in vain, in groups of equal size; the squares of the groups' spreads lie on a
    line. Both are then such that nine of ten kernels lie inside.
    """
    groups = np.array_split(np.argsort(in_vain), max(2, min(GROUPS, len(left) // 20)))
    place = np.array([float(np.mean(in_vain[group])) for group in groups])
    squares = np.array([float(np.mean(left[group])) ** 2 + _range_spread(left[group]) ** 2 for group in groups])
    line = np.stack([np.ones_like(place), place], axis=1) / np.sqrt(squares)[:, None]
    fitted = lsq_linear(line, np.sqrt(squares), bounds=(0.0, np.inf)).x  # neither part is negative
    spread = np.sqrt(fitted[0] + fitted[1] * np.maximum(in_vain, 0.0))
    wider = float(np.quantile(np.abs(left) / spread, 0.9)) / 1.645
    return float(wider * math.sqrt(fitted[0])), float(wider * math.sqrt(fitted[1]))


def _range_spread(left: Array) -> float:
    """The standard deviation that the 5 to 95 % range of a normal distribution has."""
    low, high = np.quantile(left, (0.05, 0.95))
    return float((high - low) / (2 * 1.645))


def fit_losses(kernels: Sequence[Measured]) -> Array:
    """What attention loses on one GPU, `turns` and `tail` in logarithms, and the further unknowns of the fit."""
    gpu = kernels[0].gpu
    sms = driver_facts(kernels[0].gpu).sms
    ideal = np.array([ideal_seconds(one.kernel, gpu) for one in kernels])
    sizes = np.array([one.kernel.sizes for one in kernels], dtype=float).T
    cached, blocks = (np.array([getattr(one, name) for one in kernels]) for name in ("cached_s", "blocks_s"))
    measured = np.log([one.seconds for one in kernels])
    start = np.array([0.0, 0.4, 0.1, math.log(0.6), math.log(0.6), *np.log(WRITES), math.log(4e-6)])
    sure = np.array([20, 5, 5, 10, 10, 1, 8, 8])

    def residuals(theta: Array) -> Array:
        lost = attention_effort(sizes, _losses(theta), sms, is_causal=True)
        both = (ideal[:, 0] * lost / math.exp(theta[4])) ** POWER + (ideal[:, 1] / 0.8) ** POWER
        of_cache = cache_seconds(cached, blocks, CacheWrites(math.exp(theta[5]), math.exp(theta[6])))
        took = both ** (1 / POWER) + of_cache + math.exp(theta[7])
        return np.concatenate([np.log(took) - measured, (theta - start) / sure])

    return np.asarray(least_squares(residuals, start, loss="soft_l1", f_scale=0.15).x)


def _losses(theta: Array) -> AttentionLosses:
    turns, narrow, wide, tail = (float(one) for one in theta[:4])
    return AttentionLosses(math.exp(turns), narrow, wide, math.exp(tail))


def losses_of_gpus(kernels: Iterable[Measured]) -> dict[str, Array]:
    """Fits of what attention loses, by GPU; those of its longer kernels."""
    by_gpu: dict[str, list[Measured]] = defaultdict(list)
    for one in kernels:
        if one.kernel.kind == ATTENTION and one.seconds >= LONG_S:
            by_gpu[one.gpu.name].append(one)
    return {gpu: fit_losses(some) for gpu, some in by_gpu.items()}


def attention_losses(of_gpus: Mapping[str, Array], *, without: str | None = None) -> dict[str, AttentionLosses]:
    """How attention loses time in each family of GPUs: the middles of fits to each of its GPUs, `without` one.

    A fit has further unknowns: the share of arithmetic, how fast the cache is written, and the floor. What was
    measured on GPUs whose tensor cores are fed by warps stands for all without a family.
    """
    of_families: dict[str, list[Array]] = defaultdict(list)
    for gpu, fitted in of_gpus.items():
        if gpu != without:
            of_families[gpu_named(gpu).family].append(fitted)
    found = {family: _losses(np.median(some, axis=0)) for family, some in of_families.items()}
    return {"": found[OLDER], **found}


def fits_of(kernels: Iterable[Measured], losses: Losses) -> dict[tuple[str, str], dict[str, Fit]]:
    """Fits by class and format, and by GPU; `losses`: of attention, by family."""
    groups: dict[tuple[str, str, str], list[Measured]] = defaultdict(list)
    for one in kernels:
        groups[one.kernel.kind, one.kernel.format, one.gpu.name].append(one)
    fits: dict[tuple[str, str], dict[str, Fit]] = defaultdict(dict)
    for (kind, format_, gpu), some in groups.items():
        if len(some) >= 8:
            fits[kind, format_][gpu] = fit_kernels(some, losses)
    return fits


# ---- steps of models

#: Guesses for classes that were measured in steps alone: share of arithmetic, of the bandwidth, and how sure both are
#: (standard deviation of the logarithm). They matter where no step says more.
GUESSES: Final[Mapping[str, tuple[float, float, float, float]]] = {
    "product": (0.85, 0.12, 0.8, 0.1),
    "batched product": (0.6, 0.3, 0.6, 0.25),
    "product, rows not a multiple of 8": (0.35, 0.5, 0.5, 0.4),
    "attention": (0.5, 0.2, 0.75, 0.2),
    "convolution": (0.6, 0.3, 0.7, 0.25),
    "convolution, one side under 32 channels": (0.25, 0.5, 0.6, 0.3),
    "convolution, both sides under 32 channels": (0.25, 0.5, 0.6, 0.3),
    "convolution, channels not a multiple of 8": (0.35, 0.5, 0.6, 0.3),
    "grouped convolution": (0.2, 0.7, 0.5, 0.5),
    "depthwise convolution": (0.3, 0.6, 0.5, 0.5),
    "depthwise convolution, large kernels": (0.05, 1.0, 0.5, 0.5),
    "layout conversion": (0.5, 0.5, 0.7, 0.25),
    "elementwise": (0.5, 0.5, 0.82, 0.08),
    "strided elementwise": (0.5, 0.5, 0.55, 0.3),
}
_OF_NORMS: Final = (0.5, 0.5, 0.65, 0.3)
_OF_OTHERS: Final = (0.5, 0.5, 0.6, 0.4)
_FLOOR_US: Final = 2.5


def guess(kind: str) -> tuple[float, float, float, float]:
    """The guess for a class: its own, or that of its forward pass or its other layout."""
    plain = kind.replace(" backward", "").replace(", channels last", "")
    if plain in GUESSES:
        return GUESSES[plain]
    return _OF_NORMS if "norm" in plain or "softmax" in plain else _OF_OTHERS


@dataclass(frozen=True)
class Step:
    """A published step: for each kind of kernel its class, calls, launches, and ideal seconds of a call.

    `name`: its model. `mode`: what it does, at which batch and size; the same for both layouts of a model.
    """

    name: str
    mode: str
    seconds: float
    kernels: Sequence[Kernel]
    kinds: Sequence[tuple[str, str]]
    calls: Array
    launches: Array
    by_flop: Array
    by_bytes: Array


def step_of(name: str, mode: str, prediction: PredictedStep, gpu: Gpu, seconds: float, losses: Losses) -> Step:
    """The kernels of a followed step on a GPU; `losses`: of attention, by family."""
    counts: dict[Kernel, int] = defaultdict(int)
    for call in prediction.followed.operator_calls:
        for kernel in kernels_of(call):
            counts[on_gpu(kernel, gpu)] += call.calls
    kernels = list(counts)
    ideal = np.array([ideal_seconds(kernel, gpu) for kernel in kernels])
    efforts = np.array([effort(kernel, gpu, losses) for kernel in kernels])
    return Step(
        name,
        mode,
        seconds,
        kernels,
        [(kernel.kind, kernel.format) for kernel in kernels],
        np.array(list(counts.values()), dtype=float),
        np.array([kernel.launches for kernel in kernels], dtype=float),
        ideal[:, 0] * efforts,
        ideal[:, 1],
    )


@dataclass(frozen=True)
class ClassFit:
    """Shares of a class on one GPU from steps, with their standard errors; `residual` is that of whole steps."""

    arithmetic: float
    arithmetic_error: float
    memory: float
    memory_error: float
    weight: float


def fit_steps(
    steps: Sequence[Step], held: Mapping[tuple[str, str], tuple[float, float, float, float]]
) -> tuple[dict[tuple[str, str], ClassFit], Array]:
    """The shares of all classes of these steps, and the log of each step's estimate over its time.

    Args:
        steps: of one GPU.
        held: guesses by class and format; `guess` for others.
    """
    classes = sorted({kind for step in steps for kind in step.kinds})
    place = {kind: number for number, kind in enumerate(classes)}
    count = len(classes)
    guesses = np.array([held.get(kind, guess(kind[0])) for kind in classes])
    start = np.log(np.concatenate([guesses[:, 0], guesses[:, 2]]))
    sure = np.concatenate([guesses[:, 1], guesses[:, 3]])
    measured = np.log([step.seconds for step in steps])
    # All kernels of all steps, one after the other.
    rows = np.repeat(np.arange(len(steps)), [len(step.kinds) for step in steps])
    where = np.array([place[kind] for step in steps for kind in step.kinds])
    calls, launches, by_flop, by_bytes = (
        np.concatenate([getattr(step, name) for step in steps]) for name in ("calls", "launches", "by_flop", "by_bytes")
    )
    whiten = whitening(steps)

    def parts(theta: Array) -> tuple[Array, Array]:
        """The seconds of each kernel's calls, and by how much they change with the logarithms of its two shares."""
        share = np.exp(theta)
        powers = np.stack([(by_flop / share[where]) ** POWER, (by_bytes / share[count + where]) ** POWER])
        both = powers.sum(axis=0)
        changes = -calls * powers * np.where(both > 0, both, 1.0) ** (1 / POWER - 1)
        return calls * (launches * _FLOOR_US / 1e6 + both ** (1 / POWER)), changes

    def totals(seconds: Array) -> Array:
        return np.bincount(rows, weights=seconds, minlength=len(steps))

    def log_ratio(theta: Array) -> Array:
        return np.asarray(np.log(totals(parts(theta)[0])) - measured)

    def residuals(theta: Array) -> Array:
        return np.concatenate([whiten @ log_ratio(theta), (theta - start) / sure])

    def slopes(theta: Array) -> Array:
        seconds, changes = parts(theta)
        size = len(steps) * count
        of_shares = [np.bincount(rows * count + where, weights=change, minlength=size) for change in changes]
        jacobian = np.concatenate([one.reshape(len(steps), count) for one in of_shares], axis=1)
        return np.concatenate([whiten @ (jacobian / totals(seconds)[:, None]), np.diag(1 / sure)])

    fitted = least_squares(residuals, start, jac=slopes, loss="soft_l1", f_scale=1.5)
    error = np.sqrt(np.diag(np.linalg.inv(fitted.jac.T @ fitted.jac)))
    took = parts(fitted.x)[0]
    weights = np.bincount(where, weights=took / totals(took)[rows] / len(steps), minlength=count)
    shares = np.exp(fitted.x)
    found = {
        kind: ClassFit(shares[n], error[n], shares[count + n], error[count + n], weights[n])
        for kind, n in place.items()
    }
    return found, log_ratio(fitted.x)


def whitening(steps: Sequence[Step]) -> Array:
    """The matrix that turns errors of steps into independent ones of spread 1.

    Both layouts of a model have most of their error in common: what its shapes and its batch do. So their difference is
    known better than either, and says how fast the kernels are that differ.
    """
    of_models: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, step in enumerate(steps):
        of_models[step.name, step.mode].append(number)
    covariance = np.diag(np.full(len(steps), STEP_NOISE**2))
    for numbers in of_models.values():
        for a, b in itertools.permutations(numbers, 2):
            covariance[a, b] = STEP_NOISE**2 - LAYOUT_NOISE**2
    return np.asarray(np.linalg.inv(np.linalg.cholesky(covariance)))


# ---- from fits to constants

#: Classes that nothing was measured of alone or in many steps, from traces, articles and what an H100 took before this
#: file was derived (reports/reference/h100): arithmetic, its spread, memory, its spread, the spread of a shape.
JUDGED: Final[Mapping[tuple[str, str], Mapping[str, float]]] = {
    ("attention backward", "16"): {"arithmetic": 0.42, "spread_arithmetic": 0.25, "memory": 0.6, "spread_memory": 0.25,
                                   "floor_us": 6.0, "shape": 0.2},
    ("attention", "32"): {"arithmetic": 0.55, "spread_arithmetic": 0.25, "memory": 0.6, "spread_memory": 0.25,
                          "floor_us": 6.0, "shape": 0.2},
    ("attention backward", "32"): {"arithmetic": 0.5, "spread_arithmetic": 0.3, "memory": 0.6, "spread_memory": 0.25,
                                   "floor_us": 6.0, "shape": 0.2},
    ("recurrent layer", "32"): {"arithmetic": 0.4, "spread_arithmetic": 0.25, "memory": 0.4, "spread_memory": 0.4,
                                "turn_us": 4.2, "spread_turn": 0.62, "shape": 0.2},
    ("recurrent layer", "16"): {"arithmetic": 0.35, "spread_arithmetic": 0.3, "memory": 0.4, "spread_memory": 0.4,
                                "turn_us": 4.2, "spread_turn": 0.62, "shape": 0.2},
    ("product", "tf32"): {"arithmetic": 0.6, "spread_arithmetic": 0.25, "memory": 0.75, "spread_memory": 0.15,
                          "shape": 0.15},
    ("batched product", "tf32"): {"arithmetic": 0.45, "spread_arithmetic": 0.35, "memory": 0.6, "spread_memory": 0.25,
                                  "shape": 0.2},
    ("convolution", "tf32"): {"arithmetic": 0.4, "spread_arithmetic": 0.35, "memory": 0.6, "spread_memory": 0.25,
                              "shape": 0.35},
    ("convolution backward", "tf32"): {"arithmetic": 0.4, "spread_arithmetic": 0.35, "memory": 0.6,
                                       "spread_memory": 0.25, "shape": 0.35},
    ("lookup", "none"): {"memory": 0.4, "spread_memory": 0.45, "shape": 0.2},
    ("scatter", "none"): {"memory": 0.3, "spread_memory": 0.55, "shape": 0.3},
    ("resampling", "none"): {"memory": 0.5, "spread_memory": 0.4, "shape": 0.2},
    ("resampling backward", "none"): {"memory": 0.3, "spread_memory": 0.5, "shape": 0.2},
    ("convolution, both sides under 32 channels", "32"): {"arithmetic": 0.28, "spread_arithmetic": 0.42, "memory": 0.6,
                                                          "spread_memory": 0.25, "shape": 0.2},
    ("convolution, both sides under 32 channels backward", "32"): {"arithmetic": 0.28, "spread_arithmetic": 0.42,
                                                                   "memory": 0.6, "spread_memory": 0.25, "shape": 0.2},
    ("cross-entropy of rows", "none"): {"memory": 0.4, "spread_memory": 0.4, "turn_us": 0.8, "shape": 0.1},
    # Two kernels of an H100 in traces of TraceLens: 0.20 and 0.24.
    ("softmax, long rows not a multiple of 8", "none"): {"memory": 0.22, "spread_memory": 0.35, "gbs_per_sm": 25.4,
                                                         "shape": 0.15},
    ("sort", "none"): {"memory": 0.5, "spread_memory": 0.45, "shape": 0.2},
    ("irregular", "none"): {"memory": 0.25, "spread_memory": 0.7, "shape": 0.3},
    ("kernel of the program's own", "none"): {"memory": 0.25, "spread_memory": 0.9, "shape": 0.3},
    ("custom operator", "none"): {"arithmetic": 0.17, "spread_arithmetic": 1.1, "memory": 0.17, "spread_memory": 1.1,
                                  "shape": 0.3},
    # Plain loops in CUDA C++: from divisions and loads in turn, to what a library of products reaches.
    ("custom operator, declared cost", "none"): {"arithmetic": 0.25, "spread_arithmetic": 0.6, "memory": 0.4,
                                                 "spread_memory": 0.5, "shape": 0.3},
}  # fmt: skip
#: Without a GPU, in place of what is derived: GeForce cards have kernels for such rows that newer ones lack; on an H100
#: a product of 4097 columns reached 0.12 of the peak.
JUDGED_ELSEWHERE: Final[Mapping[tuple[str, str], Mapping[str, float]]] = {
    ("product, rows not a multiple of 8", "16"): {"arithmetic": 0.22, "spread_arithmetic": 0.5, "tested": False},
    # Of results 0.53, of images of 3 channels 0.15, in three traces of TraceLens.
    ("layout conversion", "none"): {"memory": 0.5, "spread_memory": 0.35, "gbs_per_sm": 25.4, "tested": False},
}
#: Attention by warps, where faster kernels exist. Forward passes: flash attention 2 reaches 35 % of an H100's peak
#: (arXiv 2407.08608). Backward passes are judged: there flash attention 3 is 1.5 to 1.75 times as fast. A
#: multiprocessor of Blackwell multiplies by warps no faster than Hopper's, but has more than twice the peak.
BY_WARPS: Final = [
    {"kind": f"attention by warps{passes}", "format": "16", "gpu": family, "arithmetic": share,
     "spread_arithmetic": spread, "memory": 0.6, "spread_memory": 0.25, "floor_us": 6.0, "shape": 0.1, "tested": False,
     "source": "judged"}
    for family, spread, shares in (("fed by warp groups", 0.15, (0.36, 0.31)), ("fed by threads", 0.35, (0.18, 0.15)))
    for passes, share in zip(("", " backward"), shares, strict=True)
]  # fmt: skip
#: Products were measured with weights that were never written (`torch.empty` in collector/vllm/collect_gemm.py of
#: ai-dynamo/aiconfigurator at commit 3f82c6b2), so most probably zeros. On an A100, products of 8192 x 8192 matrices
#: reach 295 TFLOP/s with zeros, as many as in the table, and 257 with random numbers, since they need more power
#: (https://www.thonking.ai/p/strangely-matrix-multiplications). Steps whose products are small or few need less power,
#: so that nine of ten steps are to lie between both.
WITH_ZEROS, WITH_NUMBERS = 295.0, 257.0
#: How many times as long kernels of a class may take under PyTorch 1.12, where they were measured, as under later
#: versions: the band is so wide, half of it on either side of what was measured. Judged, as no table has both. Groups
#: of 64 channels were as slow in 2020 (pytorch/pytorch#34977).
VERSIONS: Final[Mapping[tuple[str, str], float]] = {("grouped convolution, channels last backward", "16"): 3.3}
GEFORCE: Final = "GeForce"
#: How far the share of a convolution in float32 without Winograd's form may be from that of products, as a standard
#: deviation of the logarithm: on GPUs whose products were measured, and on others. Judged: all convolutions that were
#: measured alone have that form. The second was 0.15, too, until our H100's ResNet-50 in float32 had left its band.
AS_PRODUCT: Final = {True: 0.15, False: 0.25}
#: Convolutions that load few channels at once. On an H100 those of images of 3 channels reach 34 TFLOP/s (traces of
#: TraceLens), hardly more than on an RTX 3090. Many channels that are no multiple of 8 are padded by cuDNN.
OF_MULTIPROCESSORS: Final = ("under 32 channels", "grouped convolution")
#: Classes of single kernels whose shapes stand for those of a class that was measured in steps alone.
SHAPES_LIKE: Final = (("convolution", 0.35), ("product", 0.15), ("attention", 0.2), ("", 0.12))
#: An error of a share that is larger than this says that the steps do not tell; the guess then stands for itself.
LARGEST_ERROR: Final = 0.3
#: Shares of a class in the steps from which on it counts as held to measurements.
TESTED_WEIGHT: Final = 0.005
#: Beginnings of names of models that compute something else under the PyTorch that follows them than under the one that
#: they were measured with: attention of tensors with five dimensions, which is in float32 since PyTorch 2.5.
CHANGED: Final = ("nest_",)
#: Parts that the models of steps are divided into, to hold each part to constants of the others.
PARTS: Final = 5
#: Share of steps that a band is to hold.
COVERED: Final = 0.93
#: Steps of which products and attention take this share say what these leave open.
MOSTLY: Final = 0.4
#: What single kernels of a GPU leave open about its sums.
KERNEL_ERROR: Final = 0.05
#: Microseconds of the host for a launch, and the spread of the logarithm: 5 to 44 us, judged from traces and from steps
#: of published_steps.py that the host limits, which take 18 to 64 us for a launch.
HOST_US, HOST_SPREAD = 15.0, 0.65


#: The source of products with weights of zeros.
OF_ZEROS: Final = "kernels of aiconfigurator"
#: The source of what follows from steps of models.
OF_STEPS: Final = "steps of timm"


class Known(NamedTuple):
    """What is known of a class on one GPU; `common`: see `spreads_of_programs`, 0 where no programs were traced."""

    arithmetic: float | None
    growth: float
    memory: float
    floor_us: float
    error_arithmetic: float
    error_memory: float
    shape: float
    source: str
    tested: bool = True
    in_vain: float = 0.0
    watts: float = 0.0
    common: float = 0.0


Rows = dict[tuple[str, str], dict[str, Known]]
#: Where a class, format and GPU were measured.
Sources = Mapping[tuple[str, str, str], str]


def shape_like(kind: str) -> float:
    """The deviation of single shapes of a class that was measured in steps alone."""
    return next(shape for start, shape in SHAPES_LIKE if start in kind)


def known_of(
    fits: Mapping[tuple[str, str], Mapping[str, Fit]],
    steps: Mapping[str, Sequence[Step]],
    sources: Sources,
    error: float = KERNEL_ERROR,
) -> tuple[Rows, dict[str, Array]]:
    """Everything measured by class and GPU, and what whole steps leave open.

    Args:
        fits: of kernels that were measured alone.
        steps: of models.
        sources: of the fits.
        error: what single kernels leave open about sums of them; 0 where they are to be held to single ones.
    """
    rows: Rows = defaultdict(dict)
    of_programs = spreads_of_programs()
    for kind, of_gpus in fits.items():
        for gpu, fit in of_gpus.items():
            rows[kind][gpu] = Known(
                fit.arithmetic, fit.growth, fit.memory, fit.floor_us, error, error, fit.residual,
                f"{fit.count} {sources[*kind, gpu]}", in_vain=fit.in_vain, watts=watts_of(kind, gpu),
                common=of_programs.get((*kind, gpu), 0.0),
            )  # fmt: skip
    held = {}
    for kind, known in rows.items():
        if len(known) > 1 and kind[1] != "32":
            plain = [one for one in known.values() if one.arithmetic is not None]
            arithmetic = _middle([one.arithmetic or 0.5 for one in plain]) if plain else 0.5
            held[kind] = (arithmetic, 0.15, _middle([min(one.memory, 1.0) for one in known.values()]), 0.15)
    left = {}
    for gpu, of_gpu in steps.items():
        found, left[gpu] = fit_steps(of_gpu, held)
        for kind, fit in found.items():
            if gpu in rows[kind] or kind[0] in (HOST_COPY, *NEVER_MEASURED):
                continue
            rows[kind][gpu] = Known(
                fit.arithmetic if kind[1] != "none" else None, 0.0, fit.memory, _FLOOR_US,
                min(fit.arithmetic_error, LARGEST_ERROR), min(fit.memory_error, LARGEST_ERROR), shape_like(kind[0]),
                f"{len(of_gpu)} {OF_STEPS}",
                fit.weight >= TESTED_WEIGHT,
            )  # fmt: skip
    return rows, left


def watts_of(kind: tuple[str, str], gpu: str) -> float:
    """Watts of a GPU for each TFLOP/s of its tensor cores' data sheet, of products in their formats; 0 of all else."""
    figures = next((sheet for name, sheet in SHEETS.items() if AICONFIGURATOR[name] == gpu), None)
    peak = None if figures is None else figures.flops({"16": "float16", "8": "float8_e4m3fn"}.get(kind[1], ""))
    if kind[0] != "product" or figures is None or peak is None or figures.watts is None:
        return 0.0
    return figures.watts / (peak / 1e12)


def _middle(values: Sequence[float]) -> float:
    return math.exp(statistics.mean(math.log(value) for value in values))


def _spread(values: Sequence[float], prior: float) -> float:
    """The spread of the logarithm, drawn towards a prior that counts as `PRIOR_GPUS`."""
    logs = [math.log(value) for value in values]
    squares = sum((one - statistics.mean(logs)) ** 2 for one in logs)
    return math.sqrt((squares + PRIOR_GPUS * prior**2) / (max(0, len(logs) - 1) + PRIOR_GPUS))


def gbs_per_sm(gpu: str) -> float:
    """Bandwidth in GB/s for each multiprocessor of a GPU."""
    return gpu_named(gpu).bandwidth_gbs / driver_facts(gpu_named(gpu)).sms


def is_of_multiprocessors(kind: str, format_: str) -> bool:
    """Whether the share of the bandwidth of a class falls with the bandwidth for each multiprocessor.

    Kernels that compute or look up much for a byte do, as strided ones show, which were measured on three GPUs. Maps of
    elements do not, nor do norms and softmax of rows, which NeuSight measured on several architectures.
    """
    if kind == ELEMENTWISE or any(part in kind for part in ("layer norm", "softmax")):
        return False
    return format_ == "none" or (format_ == "32" and DEPTHWISE in kind)


def by_multiprocessor(known: Mapping[str, Known]) -> float:
    """By which power of the bandwidth for each multiprocessor the share falls from one measured GPU to the next."""
    if len(known) < 2:
        return 0.0
    places = [math.log(gbs_per_sm(name)) for name in known]
    shares = [math.log(one.memory) for one in known.values()]
    return max(0.0, -float(np.polyfit(places, shares, 1)[0]))


def merged(known: Mapping[str, Known], prior: float, power: float | None = None) -> dict[str, float | bool]:
    """What GPUs say together of one that is not among them.

    Args:
        known: what was measured, by GPU.
        prior: the spread from GPU to GPU that few GPUs are drawn towards; 0 where they say it of the one GPU itself.
        power: see `by_multiprocessor`.
    """
    with_flop = [one for one in known.values() if one.arithmetic is not None]
    memories = [one.memory for one in known.values()]
    place = 0.0
    if power is not None:
        place = _middle([gbs_per_sm(name) for name in known])
        memories = [one.memory * (gbs_per_sm(name) / place) ** power for name, one in known.items()]
    error_memory = statistics.mean(one.error_memory for one in known.values())
    figures: dict[str, float | bool] = {
        "memory": _middle(memories),
        "spread_memory": math.hypot(_spread(memories, prior), error_memory),
        "floor_us": _middle([one.floor_us for one in known.values()]),
        "shape": statistics.mean(one.shape for one in known.values()),
        **_if_any("gbs_per_sm", place),
        **_if_any("shape_in_vain", _in_vain(known.values())),
        "tested": any(one.tested for one in known.values()),
    }
    if with_flop:
        shares = [one.arithmetic or 1.0 for one in with_flop]
        error = statistics.mean(one.error_arithmetic for one in with_flop)
        figures |= {
            "arithmetic": _middle(shares),
            "growth": statistics.mean(one.growth for one in with_flop),
            # What power explains is no spread from GPU to GPU.
            "spread_arithmetic": math.hypot(
                _spread([share / (one.watts or 1.0) for share, one in zip(shares, with_flop, strict=True)], prior),
                error,
                # The clock of a GPU whose long kernels are slower falls under load. That of another GPU may not.
                FALLS * statistics.mean(max(0.0, -one.growth) for one in with_flop) if prior else 0.0,
            ),
            **_if_any("watts", _middle([one.watts or 1.0 for one in with_flop]) if with_flop[0].watts else 0.0),
        }
    return figures


def _in_vain(known: Iterable[Known]) -> float:
    """By how much shapes that lose much are less sure: the mean of GPUs whose kernels were measured one by one.

    Steps of models do not say it.
    """
    return statistics.mean([one.in_vain for one in known if OF_STEPS not in one.source] or [0.0])


def _if_any(name: str, value: float) -> dict[str, float]:
    return {name: value} if value else {}


def constants_of(rows: Rows, *, without: str | None = None) -> list[dict[str, object]]:
    """The rows of constants.toml; `without` a GPU, as if it had not been measured."""
    result: list[dict[str, object]] = []
    products = {gpu: one for gpu, one in rows["product", "16"].items() if gpu != without}
    power = by_multiprocessor(rows[STRIDED, "none"])
    for (kind, format_), of_all in sorted(rows.items()):
        of_gpus = {gpu: one for gpu, one in of_all.items() if gpu != without}
        if not of_gpus:
            continue
        head = {"kind": kind, "format": format_}
        usual = {gpu: one for gpu, one in of_gpus.items() if not _is_apart(gpu, format_)}
        falls = power if is_of_multiprocessors(kind, format_) else None
        figures = merged(usual or of_gpus, PRIOR_SPREAD["between"], falls)
        result.append({**head, **figures, "source": _sources(usual or of_gpus)})
        of_all_gpus = figures
        if not usual and format_ == "16":
            few = any(part in kind for part in OF_MULTIPROCESSORS)
            result[-1] |= (
                {"gflops_per_sm": _gflops_per_sm(of_gpus)} if few else _of_products(of_gpus, products, figures)
            )
        for group, prior in ((_family, "between"), (_architecture, "within")):
            by_group: dict[str, dict[str, Known]] = defaultdict(dict)
            for gpu, one in of_gpus.items():
                if group(gpu) and (group is _architecture or format_ in ("16", "8")):
                    by_group[group(gpu)][gpu] = one
            for name, some in by_group.items():
                figures = merged(some, PRIOR_SPREAD[prior], falls)
                # Few GPUs say little of how much less sure shapes are that lose much: as little as all GPUs do.
                if least := of_all_gpus.get("shape_in_vain"):
                    figures["shape_in_vain"] = max(least, figures.get("shape_in_vain", 0.0))
                result.append({**head, "gpu": name, **figures, "source": _sources(some)})
        for gpu, one in of_gpus.items():
            if gpu != "P100":
                figures = merged({gpu: one}, 0.0) | _if_any("common", one.common)
                result.append({**head, "gpu": gpu, **figures, "source": one.source})
    for row in result:
        key = (str(row["kind"]), str(row["format"]))
        if key in JUDGED_ELSEWHERE and row.get("gpu", "") not in (GEFORCE, *rows[key]):
            row |= JUDGED_ELSEWHERE[key]
            row.pop("of_products", None)
    for row in result:
        ratio = VERSIONS.get((str(row["kind"]), str(row["format"])))
        if ratio is not None:
            half = math.log(ratio) / 2 / 1.645
            row["spread_arithmetic"] = math.hypot(float(str(row["spread_arithmetic"])), half)
            row["varies"] = True
    for (kind, format_), figures in JUDGED.items():
        if not any(one.tested for one in rows.get((kind, format_), {}).values()):
            result = [row for row in result if (row["kind"], row["format"]) != (kind, format_)]
            result.append({"kind": kind, "format": format_, **figures, "tested": False, "source": "judged"})
    for row in result:
        if row["kind"] == "product" and OF_ZEROS in str(row["source"]):
            row["of_zeros"] = True
    result += map(dict, BY_WARPS)
    result += _as_products(result)
    return result


def _as_products(rows: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Rows of convolutions in float32 that are products. Changes the row of other GPUs with Winograd's form.

    Newer libraries may lack Winograd's form for newer GPUs, so that nine of ten draws hold both shares there.
    """
    of_products = [row for row in rows if (row["kind"], row["format"]) == ("product", "32")]
    for row in rows if of_products else ():
        if (row["kind"], row["format"]) == (CONVOLUTION, "32") and "gpu" not in row:
            share, spread = (float(str(of_products[0][name])) for name in ("arithmetic", "spread_arithmetic"))
            more = abs(math.log(float(str(row["arithmetic"])) / share)) / 1.645
            row |= {"arithmetic": share, "spread_arithmetic": math.hypot(spread, more), "tested": False}
    return [
        {
            **row,
            "kind": kind,
            "spread_arithmetic": math.hypot(float(str(row["spread_arithmetic"])), AS_PRODUCT["gpu" in row]),
            "tested": False,
            "source": f"products: {row['source']}",
        }
        for kind in (IMPLICIT, f"{IMPLICIT} backward")
        for row in of_products
    ]


def _gflops_per_sm(measured: Mapping[str, Known]) -> float:
    """GFLOP/s for each multiprocessor that a class reaches in 16 bit, the middle of the GPUs."""
    sheets = {name: gpu_named(name) for name in measured}
    return _middle(
        [
            (one.arithmetic or 1.0) * (sheets[name].flops("float16") or 1.0) / 1e9 / driver_facts(sheets[name]).sms
            for name, one in measured.items()
        ]
    )


def _is_apart(gpu: str, format_: str) -> bool:
    """Whether a GPU's arithmetic says little of others: a card limited by its power in float32, a GeForce's 16 bit."""
    if gpu == "P100" or format_ == "none":
        return False
    return gpu_named(gpu).power_limited if format_ == "32" else gpu_named(gpu).architecture == GEFORCE


def _of_products(
    measured: Mapping[str, Known], products: Mapping[str, Known], figures: Mapping[str, float | bool]
) -> dict[str, float | bool]:
    """The arithmetic of a class that GeForce cards alone were measured of: of what products reach, the same share."""
    both = [
        (one.arithmetic or 1.0) / (products[name].arithmetic or 1.0)
        for name, one in measured.items()
        if name in products
    ]
    spread = math.hypot(float(figures.get("spread_arithmetic", 0.3)), PRIOR_SPREAD["between"])
    return {"arithmetic": _middle(both), "spread_arithmetic": spread, "of_products": True} if both else {}


def _family(gpu: str) -> str:
    return "" if gpu == "P100" else gpu_named(gpu).family


def _architecture(gpu: str) -> str:
    return P100.architecture if gpu == "P100" else gpu_named(gpu).architecture


def _sources(known: Mapping[str, Known]) -> str:
    by_source: dict[str, list[str]] = defaultdict(list)
    for gpu, one in known.items():
        by_source[one.source.partition(" ")[2]].append(gpu)
    return "; ".join(f"{source}: {', '.join(gpus)}" for source, gpus in by_source.items())


def parsed(rows: Sequence[Mapping[str, object]], losses: Losses, general: Mapping[str, float]) -> Constants:
    """Constants of derived rows, as the package reads them; `losses`: of attention, by family."""
    return parse({"class": rows, "attention": rows_of_losses(losses), "general": general})


def rows_of_losses(losses: Losses) -> list[dict[str, object]]:
    """The rows of constants.toml of what attention loses."""
    return [{**({"gpu": family} if family else {}), **of_family._asdict()} for family, of_family in losses.items()]


def general_of(
    fits: Mapping[tuple[str, str], Mapping[str, Fit]],
    steps: Mapping[str, Sequence[Step]],
    sources: Sources,
    losses: Losses,
) -> dict[str, float]:
    """What is not of a class; `losses`: of attention, by family.

    The common spread is the smallest with which 93 % of the calibrating steps lie inside, a fifth of the models at a
    time held to constants of the others: first that of all classes but products and attention, from steps of which
    these take a smaller part; then theirs, from the other steps.
    """
    general = {"host_us": HOST_US, "host_spread": HOST_SPREAD, "common_spread": 0.0, "common_spread_products": 0.0}
    general |= data_of(WITH_NUMBERS / WITH_ZEROS)
    general["by_multiprocessor"] = round(by_multiprocessor(known_of(fits, steps, sources)[0][STRIDED, "none"]), 2)
    logs: list[tuple[float, float, float, float]] = []
    models = sorted({step.name for of_gpu in steps.values() for step in of_gpu})
    for part in range(PARTS):
        left_out = set(models[part::PARTS])
        fitted = {gpu: [step for step in of_gpu if step.name not in left_out] for gpu, of_gpu in steps.items()}
        constants = parsed(constants_of(known_of(fits, fitted, sources)[0]), losses, general)
        for gpu, of_gpu in steps.items():
            for step in (one for one in of_gpu if one.name in left_out):
                drawn, of_products = step_draws(step, gpu_named(gpu), constants)
                logs.append((math.log(step.seconds), float(np.mean(drawn)), float(np.std(drawn)), of_products))
    for name, mostly in (("common_spread", False), ("common_spread_products", True)):
        some = [one for one in logs if (one[3] >= MOSTLY) is mostly]
        for common in np.arange(0.02, 0.3, 0.01):
            general[name] = round(float(common), 3)
            inside = [
                abs(truth - middle) <= 1.645 * math.hypot(spread, _common(general, share if mostly else 0.0))
                for truth, middle, spread, share in some
            ]
            if inside and statistics.mean(inside) >= COVERED:
                break
    return general


def data_of(least: float) -> dict[str, float]:
    """The share of their arithmetic that products with numbers keep, between `least` and all of it in nine of ten."""
    return {"data": round(math.sqrt(least), 3), "data_spread": round(-math.log(least) / 2 / 1.645, 3)}


def _common(general: Mapping[str, float], of_products: float) -> float:
    return of_products * general["common_spread_products"] + (1 - of_products) * general["common_spread"]


def step_draws(step: Step, gpu: Gpu, constants: Constants) -> tuple[Array, float]:
    """The logarithm of a step's seconds in each draw, and the share that products and attention take of it."""
    seconds = step.calls[:, None] * kernel_seconds(step.kernels, gpu, constants)
    of_products = np.array([kernel.kind in PRODUCTS for kernel in step.kernels])
    return np.log(seconds.sum(axis=0)), float(seconds[of_products].sum() / seconds.sum())


HEAD: Final = """\
# How fast kernels of each class are, as bench/estimate_constants.py derives it from published measurements; not written
# by hand. Keys: see `Efficiency` in constants.py. `gpu` is a GPU or an architecture; without it a row is for any other.
# Sources: aiconfigurator (ai-dynamo, Apache-2.0): 16-bit and FP8 products, causal attention; NeuSight (sitar-lab, MIT):
# float32 kernels; timm (huggingface/pytorch-image-models, Apache-2.0): steps of vision models in AMP; TraceLens
# (AMD-AGI, MIT): elementwise kernels of an H100 in bfloat16.
"""


def toml(rows: Sequence[Mapping[str, object]], losses: Losses, general: Mapping[str, float]) -> str:
    """The content of constants.toml: a class, format and GPU on each line, what attention loses, and the rest."""
    lines = [HEAD, "class = [", *map(_row, rows), "]", "attention = [", *map(_row, rows_of_losses(losses)), "]"]
    lines += ["", "[general]", *(f"{name} = {value:g}" for name, value in general.items())]
    return "\n".join(lines) + "\n"


def _row(row: Mapping[str, object]) -> str:
    return "  {" + ", ".join(f"{name} = {_value(value)}" for name, value in row.items()) + "},"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3g}" if isinstance(value, int | float) else f'"{value}"'


#: Message sizes of collectives.toml.
SIZES: Final = (*(4**power for power in range(6, 15)), 2**29)
OPERATIONS: Final = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all"
}  # fmt: skip


def collectives_toml(path: Path) -> str:
    """The content of collectives.toml: NCCL's times in 16 bit, whose sizes count elements."""
    table = pd.read_parquet(path)
    table = table[table.nccl_dtype == "half"]
    lines = [
        "# Microseconds of NCCL's collectives on one machine by message size (of all ranks' parts together),",
        "# as aiconfigurator (ai-dynamo, Apache-2.0) publishes them. Written by bench/estimate_constants.py.",
        f"bytes = {list(SIZES)}",
    ]
    for (gpu, operation, count), rows in table.groupby(["gpu", "op_name", "num_gpus"]):
        rows = rows.sort_values("message_size")
        at = np.interp(np.log(SIZES), np.log(2.0 * rows.message_size), np.log(1e3 * rows.latency))
        times = ", ".join(f"{one:.4g}" for one in np.exp(at))
        lines += [
            "", "[[times]]", f'gpu = "{AICONFIGURATOR[gpu]}"', f'operation = "{OPERATIONS[operation]}"',
            f"gpus = {count}",
            f"microseconds = [{times}]",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def published_fits(
    folder: Path, attention: Iterable[Measured], losses: Losses
) -> tuple[dict[tuple[str, str], dict[str, Fit]], Sources]:
    """Fits of all kernels that were measured alone, and the names of their sources.

    Args:
        folder: with the tables.
        attention: its kernels, see `attention_kernels`.
        losses: what they lose, by family.
    """
    neusight = neusight_kernels(folder / "kernels.csv")
    gemm = folder / "published/gemm.parquet"
    others = [*gemm_kernels(gemm), *gemm_kernels(gemm, "8"), *attention]
    fits: dict[tuple[str, str], dict[str, Fit]] = defaultdict(dict)
    sources = {}
    for source, kernels in (
        ("kernels of NeuSight", neusight),
        (OF_ZEROS, others),
        ("kernels of traces of TraceLens", traced_kernels()),
    ):
        for kind, of_gpus in fits_of(kernels, losses).items():
            for gpu, fit in of_gpus.items():
                fits[kind][gpu] = fit
                sources[*kind, gpu] = source
    return dict(fits), sources


def timm_steps(published: Path, folder: Path, losses: Losses) -> dict[str, list[Step]]:
    """The calibrating steps that were followed, by GPU; `losses`: of attention, by family."""
    from estimate_timm import drawn, followed, known_models, read_rows

    rows = read_rows(published / "published/timm")
    draw = drawn(rows, known_models([row.program.model for row in rows]))
    steps: dict[str, list[Step]] = defaultdict(list)
    for row in draw.calibration:
        prediction = None if row.program.model.startswith(CHANGED) else followed(folder, row.program)
        if prediction is not None:
            mode = f"{row.program.mode} {row.program.batch} {row.program.size}"
            gpu = gpu_named(row.gpu)
            steps[row.gpu].append(step_of(row.program.model, mode, prediction, gpu, row.ms / 1e3, losses))
    return steps


def main() -> None:
    """Derive the constants and print or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("published", type=Path)
    parser.add_argument("--timm", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true", help="fail unless the shipped files are what is derived")
    options = parser.parse_args()
    attention = attention_kernels(options.published / "published/attention.parquet")
    losses = attention_losses(losses_of_gpus(attention))
    fits, sources = published_fits(options.published, attention, losses)
    steps = timm_steps(options.published, options.timm, losses) if options.timm else {}
    known, left = known_of(fits, steps, sources)
    for gpu, ratios in left.items():
        error = float(np.abs(np.expm1(ratios)).mean())
        print(f"{gpu}: {len(ratios)} calibrating steps, mean error {error:.1%}, spread {ratios.std():.3f}")
    rows = constants_of(known)
    shipped = tomllib.loads(FILE.read_text(encoding="utf-8"))
    as_shipped = shipped["general"] | data_of(WITH_NUMBERS / WITH_ZEROS)
    general = general_of(fits, steps, sources, losses) if steps else as_shipped
    derived = {
        FILE: toml(rows if steps else with_shipped(rows, shipped["class"]), losses, general),
        COLLECTIVES: collectives_toml(options.published / "published/nccl.parquet"),
    }
    if options.check:
        differing = [line for path, content in derived.items() for line in differences(path, content)]
        raise SystemExit("\n".join(differing) if differing else 0)
    for path, content in derived.items():
        if options.write:
            path.write_text(content, encoding="utf-8")
        else:
            print(content)


def with_shipped(
    derived: Sequence[Mapping[str, object]], shipped: Sequence[Mapping[str, object]]
) -> list[Mapping[str, object]]:
    """Derived rows without steps of models: shipped rows that came from steps stay, and so does the order."""

    def key(row: Mapping[str, object]) -> tuple[object, ...]:
        return row["kind"], row["format"], row.get("gpu", "")

    found = {key(row): row for row in derived}
    kept = [row if OF_STEPS in str(row["source"]) else found.pop(key(row), row) for row in shipped]
    old = {key(row) for row in shipped}
    return [*kept, *(row for where, row in found.items() if where not in old)]


def differences(path: Path, content: str) -> list[str]:
    """Lines in which a shipped file is not what is derived; figures within 1 % of each other count as the same."""
    shipped = path.read_text(encoding="utf-8").splitlines()
    derived = content.splitlines()
    return [
        f"{path.name}: shipped {a!r}, derived {b!r}"
        for a, b in itertools.zip_longest(shipped, derived, fillvalue="")
        if a != b and not _is_near(a, b)
    ]


_FIGURE: Final = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e-?\d+)?")


def _is_near(a: str, b: str) -> bool:
    """Whether two lines are the same but for figures that differ by 1 %: another build of scipy ends elsewhere."""
    if _FIGURE.sub("#", a) != _FIGURE.sub("#", b):
        return False
    pairs = zip(map(float, _FIGURE.findall(a)), map(float, _FIGURE.findall(b)), strict=True)
    return all(math.isclose(x, y, rel_tol=0.01, abs_tol=1e-3) for x, y in pairs)


if __name__ == "__main__":
    main()
