"""Which rule gives the time of an operator on a GPU, and how far measured times were from it.

The time of a kernel is a floor + max(FLOP / (share * the data sheet's arithmetic), bytes / (share * its bandwidth)).
`bench/estimate_shares.py` writes shares.toml, the shares that kernels of a GPU not seen should reach, from published
kernels of V100, P100, T4 and A100-40. No such data exists for the other bands, which are judged from traces and
articles (`_judged`), and those of recurrent layers, narrow convolutions, the low end of others, and conversions from
what an H100 took.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from steptrace.documents.estimate import OperatorCalls
from steptrace.estimate.cudnn import groups, narrow_sides
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.layout import has_gaps

#: Seconds that any kernel takes, lowest and highest: the shortest ones in traces.
KERNEL_FLOOR: Final = (1.5e-6, 4e-6)
#: Seconds that a thread of a reduction waits for the values it asks for at once, from the GPU's cache or its memory.
READ_LATENCY: Final = (0.2e-6, 0.8e-6)
_FLASH_FLOOR: Final = (6e-6, 12e-6)


@dataclass(frozen=True)
class Shares:
    """Shares of a figure of the data sheet, lowest and highest.

    Attributes:
        kernel: between which nine of ten kernels of the class lie; of convolutions, which vary most, eight of ten.
        typical: between which nine of ten sums of twenty kernels lie.
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


_SHARES: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("shares.toml").read_text(encoding="utf-8"))


def _measured(name: str, bound: str) -> Shares:
    bands = _SHARES[name][bound]
    return Shares(tuple(bands["kernel"]), tuple(bands["typical"]))


def _rule(name: str, *, arithmetic: Shares | None = None, memory: Shares | None = None) -> Rule:
    """A rule with the shares of published kernels, where no other is given."""
    return Rule(name, arithmetic or _measured(name, "arithmetic"), memory or _measured(name, "memory"))


ELEMENTWISE: Final = _rule("elementwise", arithmetic=_judged(0.5, 0.9))
NORMALISATION: Final = _rule("normalisation", arithmetic=_judged(0.3, 0.9))
#: No kernels of it were published. At best it reads as an elementwise operator does, at worst as a normalisation does.
REDUCTION: Final = Rule(
    "reduction", _judged(0.3, 0.9), _judged(NORMALISATION.memory.kernel[0], ELEMENTWISE.memory.kernel[1])
)
PRODUCT: Final = _rule("matrix product")
BATCHED_PRODUCT: Final = _rule("batched matrix product")
_OF_CONVOLUTIONS: Final = _measured("convolution", "arithmetic")
#: The typical band reaches down to what an H100's ResNet-50 in float32 leaves for its convolutions (82 ms a step).
CONVOLUTION: Final = _rule(
    "convolution",
    arithmetic=Shares(_OF_CONVOLUTIONS.kernel, (0.36, _OF_CONVOLUTIONS.typical[1])),
    memory=_judged(0.36, 0.9),
)
#: One of the sides has fewer than 32 channels.
NARROW_CONVOLUTION: Final = _rule("convolution, one side under 32 channels", memory=_judged(0.36, 0.9))
#: Both have: of what is computed with the channels filled up to 32, an H100 reached 0.14 to 0.26 in the passes of
#: masked_loss (reports/reference/h100). The band is from the slowest one to four times as fast.
NARROWEST_CONVOLUTION: Final = Rule(
    "convolution, both sides under 32 channels", _judged(0.14, 0.56), _judged(0.36, 0.9)
)
#: In 16 bit an H100 reached from 0.015 of the memory bandwidth (1 channel to 4) to 0.36 (16 to 64); giou's six 0.05.
VARIED_CONVOLUTION: Final = Rule(
    "convolution under 32 channels, on tensor cores or in groups", _judged(0.04, 0.5), _judged(0.04, 0.5)
)
#: Share of the memory bandwidth at which cuDNN converts images to channels-last and back, as seen on an H100.
CONVERSION: Final = (0.5, 0.9)
#: Bands without kernels to derive them from.
STRIDED: Final = Rule("strided elementwise", _judged(0.5, 0.9), _judged(0.35, 0.85))
PRODUCT_16: Final = Rule("matrix product, 16 bit or TF32", _judged(0.45, 0.95), _judged(0.45, 0.9))
CONVOLUTION_16: Final = Rule("convolution, 16 bit or TF32", _judged(0.4, 1.0), _judged(0.36, 0.9))
ATTENTION: Final = Rule("flash attention", _judged(0.14, 0.45), _judged(0.35, 0.9), _FLASH_FLOOR)
#: Cards limited by their power sustain this share, or more, of what others typically do.
POWER_LIMITED: Final = 0.45

_OTHERS: Final = (_judged(0.1, 0.9), _judged(0.15, 0.9))


def _not_covered(reason: str) -> Rule:
    return Rule("not covered", *_OTHERS, not_covered=reason)


COLLECTIVE: Final = _not_covered("a collective")
#: By cuDNN; as LSTM, GRU and RNN of 64 to 512 units took on an H100, in 16 and 32 bit. `floor` is of one time step of a
#: layer, in either pass.
RECURRENT: Final = Rule("recurrent layer", _judged(0.25, 0.6), _judged(0.15, 0.9), (KERNEL_FLOOR[0], 17e-6))
CUSTOM: Final = _not_covered("a custom operator")
IRREGULAR: Final = _not_covered("no measurements of such operators")
#: One that moves so little that even a tenth of the bandwidth would not make it longer than the shortest kernel.
SHORT: Final = Rule("too short for a rule", *_OTHERS)
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
_REDUCTIONS: Final = frozenset(OPERATORS["reduction"]["names"])
_REDUCTION_PARTS: Final = tuple(OPERATORS["reduction"]["parts"])
_IRREGULAR: Final = frozenset(OPERATORS["irregular"]["names"])
_IRREGULAR_STARTS: Final = tuple(OPERATORS["irregular"]["starts"])
#: Operators that read a part of their first tensor, as much as they return.
LOOKED_UP: Final = frozenset(OPERATORS["looked_up"]["names"])
#: Types of arithmetic, see `arithmetic_of`, that tensor cores compute.
TENSOR_CORES: Final = frozenset(("tf32", "float16", "bfloat16"))
_MULTIPLE: Final = 8


def base_name(operator: str) -> str:
    """`addmm` of `aten.addmm.default`."""
    parts = operator.split(".")
    return parts[1] if len(parts) > 1 else operator


def rule_of(call: OperatorCalls, arithmetic: str) -> Rule:
    """The rule of an operator that launches something and computes in a type, see `arithmetic_of`."""
    name = base_name(call.name)
    if call.name.startswith(("c10d", "_c10d_functional", "symm_mem")):
        return COLLECTIVE
    if not call.name.startswith(("aten.", "prims.")):
        return CUSTOM
    if call.host is not None or name == "_local_scalar_dense":
        return HOST_COPY
    on_tensor_cores = arithmetic in TENSOR_CORES
    if is_convolution(call):
        return _of_convolution(call, on_tensor_cores=on_tensor_cores)
    if name.startswith(_ATTENTION):
        return ATTENTION
    if name in _PRODUCTS:
        if on_tensor_cores:
            return PRODUCT_16
        return BATCHED_PRODUCT if name in _BATCHED else PRODUCT
    if name.startswith("_cudnn_rnn"):
        return RECURRENT
    if name in _IRREGULAR or name.startswith(_IRREGULAR_STARTS):
        return IRREGULAR
    if any(part in name for part in _NORMALISATIONS):
        return NORMALISATION
    if name in _REDUCTIONS or any(part in name for part in _REDUCTION_PARTS):
        return REDUCTION
    return STRIDED if any(map(has_gaps, call.inputs)) else ELEMENTWISE


def arithmetic_of(call: OperatorCalls, gpu: Gpu, *, tf32: bool) -> str:
    """The type in which an operator computes, as `Gpu.flops` names it; `tf32`: the program allows it there."""
    floating = [one.dtype for one in (*call.inputs, *call.outputs) if "float" in one.dtype]
    dtype = floating[0] if floating else "float32"
    return "tf32" if dtype == "float32" and gpu.tf32_tflops and tf32 else dtype


def is_convolution(call: OperatorCalls) -> bool:
    """Whether an operator is a convolution or its backward pass."""
    return base_name(call.name) in _CONVOLUTIONS


def misaligned(call: OperatorCalls) -> bool:
    """Whether rows of a 16-bit product's matrices are no multiple of 8 long: tensor cores may then be unused."""
    matrices = [one for one in (*call.inputs, *call.outputs) if len(one.shape) >= 2]
    return base_name(call.name) in _PRODUCTS and any(
        "16" in one.dtype and any(stride % _MULTIPLE for stride in one.strides[-2:] if stride != 1) for one in matrices
    )


def _of_convolution(call: OperatorCalls, *, on_tensor_cores: bool) -> Rule:
    narrow = narrow_sides(call)
    if on_tensor_cores or groups(call) > 1:
        return VARIED_CONVOLUTION if narrow else CONVOLUTION_16 if on_tensor_cores else CONVOLUTION
    return (CONVOLUTION, NARROW_CONVOLUTION, NARROWEST_CONVOLUTION)[narrow]
