"""Which rule gives the time of an operator on a GPU, and how far measured times were from it.

The time of a kernel is a floor + max(FLOP / (share * the data sheet's arithmetic), bytes / (share * its bandwidth)).
`bench/estimate.py --kernels` prints the shares that published kernels of V100, P100, T4 and A100-40 reach; the bands of
elementwise operators, normalisation, products in float32 and convolutions are those. No such data exists for the
others, whose bands are judged from traces and articles (`_judged`). No measurement of another GPU, and none of a whole
model, went into any of them.
"""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from steptrace.documents.operators import OperatorCalls, TensorSpec

#: Seconds that any kernel takes, lowest and highest: the shortest ones in traces.
KERNEL_FLOOR: Final = (1.5e-6, 4e-6)
_FLASH_FLOOR: Final = (6e-6, 12e-6)


@dataclass(frozen=True)
class Shares:
    """Shares of a figure of the data sheet, lowest and highest.

    Attributes:
        kernel: between which nine of ten kernels of the class lie; of convolutions, which vary most, eight of ten.
        typical: of a sum of many kernels: that of the middle half of the kernels, and of every GPU's median kernel.
    """

    kernel: tuple[float, float]
    typical: tuple[float, float]


def _judged(low: float, high: float) -> Shares:
    return Shares((low, high), (low, high))


@dataclass(frozen=True)
class Rule:
    """A class of operators; `arithmetic` and `memory` are the shares of the data sheet that it sustains."""

    name: str
    arithmetic: Shares
    memory: Shares
    floor: tuple[float, float] = KERNEL_FLOOR
    #: Why it does not count as covered; None where its error was measured.
    not_covered: str | None = None


_OF_BYTES: Final = Shares((0.69, 0.91), (0.73, 0.88))
_OF_PRODUCTS: Final = Shares((0.15, 0.6), (0.15, 0.54))

ELEMENTWISE: Final = Rule("elementwise", _judged(0.5, 0.9), _OF_BYTES)
NORMALISATION: Final = Rule("normalisation and reduction", _judged(0.3, 0.9), Shares((0.3, 0.66), (0.38, 0.58)))
PRODUCT: Final = Rule("matrix product", Shares((0.31, 0.89), (0.54, 0.82)), _OF_PRODUCTS)
BATCHED_PRODUCT: Final = Rule(
    "batched matrix product", Shares((0.22, 0.81), (0.46, 0.65)), Shares((0.12, 0.61), (0.15, 0.46))
)
CONVOLUTION: Final = Rule("convolution", Shares((0.25, 1.17), (0.46, 0.93)), _judged(0.36, 0.9))
NARROW_CONVOLUTION: Final = Rule(
    "convolution, under 32 channels", Shares((0.13, 0.77), (0.24, 0.6)), Shares((0.12, 0.51), (0.14, 0.32))
)
#: Bands without kernels to derive them from.
STRIDED: Final = Rule("strided elementwise", _judged(0.5, 0.9), _judged(0.35, 0.85))
PRODUCT_16: Final = Rule("matrix product, 16 bit or TF32", _judged(0.45, 0.95), _judged(0.45, 0.9))
ATTENTION: Final = Rule("flash attention", _judged(0.14, 0.45), _judged(0.35, 0.9), _FLASH_FLOOR)
#: Cards limited by their power sustain this share, or more, of what others typically do.
POWER_LIMITED: Final = 0.45

_OTHERS: Final = (_judged(0.1, 0.9), _judged(0.15, 0.9))


def _not_covered(reason: str) -> Rule:
    return Rule("not covered", *_OTHERS, not_covered=reason)


COLLECTIVE: Final = _not_covered("a collective")
CUSTOM: Final = _not_covered("a custom operator")
IRREGULAR: Final = _not_covered("no measurements of such operators")
NO_ARITHMETIC: Final = _not_covered("the data sheet has no figure for its type")
#: Copies between host and device: `memory` is an assumed share of PCIe's data sheet. A copy of pageable memory is
#: slower, and a sync.
HOST_COPY: Final = Rule("copy from or to the host", _judged(1.0, 1.0), _judged(0.2, 0.85))

#: Names of operators by class, and how many kernels some launch.
OPERATORS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("operators.toml").read_text(encoding="utf-8"))
_PRODUCTS: Final = frozenset(OPERATORS["product"]["names"])
_BATCHED: Final = frozenset(("bmm", "baddbmm", "addbmm"))
_CONVOLUTIONS: Final = frozenset(OPERATORS["convolution"]["names"])
_ATTENTION: Final = tuple(OPERATORS["attention"]["starts"])
_NORMALISATIONS: Final = tuple(OPERATORS["normalisation"]["parts"])
_REDUCTIONS: Final = frozenset(OPERATORS["normalisation"]["names"])
_IRREGULAR: Final = frozenset(OPERATORS["irregular"]["names"])
_IRREGULAR_STARTS: Final = tuple(OPERATORS["irregular"]["starts"])
_COPIES: Final = frozenset(("_to_copy", "copy_", "_copy_from", "_pin_memory", "_local_scalar_dense"))
#: Tensors on the GPU that an operator of copies between GPU tensors has, where it is not one.
_INPUTS_ON_GPU: Final = {"copy_": 2}
_MULTIPLE: Final = 8


def base_name(operator: str) -> str:
    """`addmm` of `aten.addmm.default`."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else operator


def rule_of(call: OperatorCalls, *, tf32: bool) -> Rule:
    """The rule of an operator that launches something; `tf32`: float32 products may be computed in it."""
    name = base_name(call.name)
    if call.name.startswith(("c10d", "_c10d_functional", "symm_mem")):
        return COLLECTIVE
    if not call.name.startswith(("aten.", "prims.")):
        return CUSTOM
    if name in _COPIES and (len(call.inputs) < _INPUTS_ON_GPU.get(name, 1) or not call.outputs):
        return HOST_COPY
    if name in _CONVOLUTIONS:
        return NARROW_CONVOLUTION if narrow(call) else CONVOLUTION
    if name.startswith(_ATTENTION):
        return ATTENTION
    if name in _PRODUCTS:
        if arithmetic_of(call, tf32=tf32) in ("tf32", "float16", "bfloat16"):
            return PRODUCT_16
        return BATCHED_PRODUCT if name in _BATCHED else PRODUCT
    if name in _IRREGULAR or name.startswith(_IRREGULAR_STARTS):
        return IRREGULAR
    if name in _REDUCTIONS or any(part in name for part in _NORMALISATIONS):
        return NORMALISATION
    return STRIDED if any(map(_strided, call.inputs)) else ELEMENTWISE


def arithmetic_of(call: OperatorCalls, *, tf32: bool) -> str:
    """The type in which an operator computes, as `Gpu.flops` names it."""
    floating = [one.dtype for one in (*call.inputs, *call.outputs) if "float" in one.dtype]
    dtype = floating[0] if floating else "float32"
    # cuDNN takes TF32 unless a program switches it off.
    takes_tf32 = dtype == "float32" and (tf32 or base_name(call.name) in _CONVOLUTIONS)
    return "tf32" if takes_tf32 else dtype


def misaligned(call: OperatorCalls) -> bool:
    """Whether a 16-bit product has a dimension that is no multiple of 8, which may leave the tensor cores unused."""
    matrices = [one for one in (*call.inputs, *call.outputs) if len(one.shape) >= 2]
    return base_name(call.name) in _PRODUCTS and any(
        "16" in one.dtype and any(size % _MULTIPLE for size in one.shape[-2:]) for one in matrices
    )


def narrow(call: OperatorCalls) -> bool:
    """Whether a convolution has fewer than 32 channels on a side."""
    weights = [one.shape for one in (*call.inputs, *call.outputs) if len(one.shape) >= 3]
    return any(shape[1] < 32 for shape in weights) or any(shape[0] < 32 for shape in weights[1:2])


def _strided(tensor: TensorSpec) -> bool:
    """Whether it is large and not dense in any order of its dimensions: a broadcast, a transposed slice."""
    expected = 1
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=False)):
        if size != 1 and stride != expected:
            return math.prod(tensor.shape) > 1
        expected *= size
    return False
