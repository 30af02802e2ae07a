"""How fast kernels of each class are: reads constants.toml, which bench/estimate_constants.py writes."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.kernel_classes import (
    DEPTHWISE,
    ELEMENTWISE,
    FUSED_REDUCTION,
    GROUPED,
    LARGE_DEPTHWISE,
    TILED_GROUPS,
    UNALIGNED_NORM,
)

if TYPE_CHECKING:
    from steptrace.estimate.work import Kernel

FILE: Final = Path(__file__).with_name("constants.toml")
#: By format: the formats whose figures are used for a class without figures in it. The spread then grows by `_WIDER`.
_INSTEAD: Final[Mapping[str, tuple[str, ...]]] = {
    "64": ("32",), "tf32": ("16", "32"), "8": ("16",), "int8": ("8", "16"), "16": ("32",), "32": ("16",),
}  # fmt: skip
_WIDER: Final = 0.25
#: Cards limited by their power sustain less of their peak arithmetic; a T4 sustains half in float32 products. This is
#: the middle between a half and all of it, with its spread.
_LIMITED: Final = 0.72
_LIMITED_SPREAD: Final = 0.2
#: Share of their peak that tensor cores reach where power does not limit them, as on an A100.
_UNLIMITED: Final = 0.9
#: Additional spread of the arithmetic of a card that was measured, if others with more or less power have its name. It
#: is the prior spread within an architecture in bench/estimate_constants.py. By as much others reach more in float32:
#: a V100 of the other form has 1.12 times the clock, an A100 1.6 times the power.
_FORMS: Final = 0.07
#: Additional spread for each unit by which power changes the logarithm of a share.
_BY_POWER: Final = 0.25
#: Additional spread for each unit by which the bandwidth per multiprocessor changes the logarithm of a share. It was
#: chosen and not fitted: only three GPUs were measured.
_BY_SM_SPREAD: Final = 0.5
#: A type of each format of tensor cores, see `Gpu.flops`.
_TYPES: Final[Mapping[str, str]] = {
    "tf32": "tf32", "16": "float16", "8": "float8_e4m3fn", "int8": "int8",
}  # fmt: skip
#: Classes that are measured kernel by kernel; a program's time for them is the sum of its kernels' times.
PRODUCTS: Final = frozenset(("product", "batched product", "attention", "attention by warps"))
#: Classes that exist in one layout and format only, and the class that stands in for them elsewhere.
_GENERAL: Final[Mapping[str, str]] = {TILED_GROUPS: GROUPED, LARGE_DEPTHWISE: DEPTHWISE, UNALIGNED_NORM: ""}
#: The class assumed for an operator without a rule, so that its share of the GPU work can be estimated.
_UNKNOWN: Final = "irregular"


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What kernels of a class reach on a GPU, as middles and spreads of the logarithm.

    Attributes:
        arithmetic: share of the data sheet's arithmetic that a kernel of 1 ms sustains.
        growth: exponent with which that share grows with the kernel's time at the data sheet's rate, up to 3 ms.
        memory: share of the bandwidth.
        floor_us: additional time of each launch.
        turn_us: time of each wait for memory, or of each time step of a recurrent layer; they add up.
        spread_turn: standard deviation of log(turn_us).
        spread_arithmetic: standard deviation of log(arithmetic) from GPU to GPU and from program to program.
        spread_memory: of log(memory).
        shape: standard deviation of the logarithm of the time, from one shape to another.
        shape_in_vain: what is added to `shape`, times the root of log(effort); see `steptrace.estimate.tiles`.
        gbs_per_sm: bandwidth in GB/s per multiprocessor of the GPUs that `memory` was measured on; 0 where `memory`
            holds for any GPU. Kernels that compute much per byte are limited by the multiprocessor instead.
        gflops_per_sm: GFLOP/s per multiprocessor of the GPUs that `arithmetic` was measured on; 0 where tensor cores
            set the pace. Kernels that load few channels at once have the same rate per multiprocessor on any GPU.
        of_products: whether `arithmetic` is a share of what products of the format reach on the GPU.
        watts: board power of the measured GPUs per TFLOP/s of the format's data sheet; 0 where power does not matter.
        tested: whether estimates of this class and format were compared with published measurements.
        of_zeros: whether `arithmetic` was measured with weights of zeros, which need less power, see `Constants.data`.
        common: spread of the class's time from program to program, where programs were traced on the GPU; it then
            stands for `Constants.common_spread`, unless that is smaller. 0 where none were.
        varies: whether the time depends strongly on the version of PyTorch and its libraries, so the spread is wide.
    """

    arithmetic: float = 0.5
    growth: float = 0.0
    memory: float = 0.5
    floor_us: float = 2.5
    turn_us: float = 0.4
    spread_turn: float = 0.4
    spread_arithmetic: float = 0.3
    spread_memory: float = 0.3
    shape: float = 0.15
    shape_in_vain: float = 0.0
    gbs_per_sm: float = 0.0
    gflops_per_sm: float = 0.0
    of_products: bool = False
    watts: float = 0.0
    tested: bool = False
    of_zeros: bool = False
    common: float = 0.0
    varies: bool = False


class AttentionLosses(NamedTuple):
    """How attention kernels of a family of GPUs lose time, relative to long sequences and heads of 128.

    Attributes:
        turns: a block begins and ends in the time that it needs for so many times 128 keys, of heads of 128.
        narrow: exponent of 128 / width, by which heads narrower than 128 take longer.
        wide: exponent of 128 / width, by which heads wider than 128 take less.
        tail: blocks per multiprocessor that are lost while some multiprocessors have no block left.
    """

    turns: float
    narrow: float
    wide: float
    tail: float


@dataclass(frozen=True)
class Constants:
    """Efficiencies by class, number format, and GPU or architecture (empty: any), and the host's time per launch.

    Attributes:
        efficiencies: what classes of kernels reach.
        attention: what attention loses by family of GPUs; the empty name stands for GPUs without a family and for
            kernels that are the same on any GPU.
    """

    efficiencies: Mapping[tuple[str, str, str], Efficiency]
    attention: Mapping[str, AttentionLosses]
    host_us: float
    host_spread: float
    #: Standard deviation, in log, that all kernels of a program share: what their classes do not explain of whole
    #: programs. It is smaller for products and attention.
    common_spread: float
    common_spread_products: float
    #: Exponent with which the share of the bandwidth falls with the bandwidth per multiprocessor, see `gbs_per_sm`.
    by_multiprocessor: float
    #: Share of the arithmetic that is left with weights that are not zeros, as tensor cores then need more power, and
    #: the standard deviation of its logarithm.
    data: float
    data_spread: float

    def common_of(self, kind: str, efficiency: Efficiency) -> float:
        """The spread that kernels of a class have in common with all others of a program."""
        common = self.common_spread_products if kind in PRODUCTS else self.common_spread
        return min(common, efficiency.common or common)

    def efficiency_for(self, kernel: "Kernel", gpu: Gpu) -> Efficiency:
        """The efficiency of a kernel's class, adjusted to the width of its elements.

        Norms and pooling compute much for each element, and were measured on elements of 2 bytes. With wider elements
        there are fewer for a byte, as on a GPU with less bandwidth per multiprocessor.
        """
        found = self.efficiency_of(kernel.kind, kernel.format, gpu)
        if not kernel.is_wide:
            return found
        most = self.efficiency_of(ELEMENTWISE, kernel.format, gpu).memory
        power = min(self.by_multiprocessor * math.log(2), max(0.0, math.log(most / found.memory)))
        return replace(
            found,
            memory=found.memory * math.exp(power),
            spread_memory=math.hypot(found.spread_memory, _BY_SM_SPREAD * power),
            tested=False,
        )

    def efficiency_of(self, kind: str, format_: str, gpu: Gpu) -> Efficiency:
        """The efficiency of a class: measured on this GPU, else on its architecture, its family, or any GPU.

        A class that was not measured in this format gets the figures of another format, or of a similar class.

        Raises:
            KeyError: constants.toml has no such class.
        """
        for name, instead in _instead(kind, format_):
            for where in dict.fromkeys((gpu.name, gpu.architecture, gpu.family, "")):
                found = self.efficiencies.get((name, instead, where))
                if found is not None:
                    if where != gpu.name:
                        found = self._powered(found, name, instead, gpu, where)
                    elif gpu.forms:
                        found = _of_forms(found, instead)
                    if gpu.power_limited and instead != "none":
                        found = _power_limited(found, is_own=where == gpu.name or instead != "32")
                    return found if (name, instead) == (kind, format_) else _wider(found)
        raise KeyError(f"constants.toml has no class {kind!r}")

    def _powered(self, found: Efficiency, kind: str, format_: str, gpu: Gpu, where: str) -> Efficiency:
        """Efficiency from other GPUs, `where`, adjusted to this GPU's power and to what products reach on it.

        A FLOP of a format takes about the same energy on all GPUs of a family. It is not known how the voltage changes
        with the clock, so the spread grows with the distance. No class sustains more than products do, unless it does
        on the GPUs that were measured.
        """
        found = self._by_multiprocessor(found, gpu)
        if found.gflops_per_sm:
            peak = gpu.flops(_TYPES.get(format_, ""))
            products = self.efficiency_of("product", format_, gpu)
            sustained = found.gflops_per_sm * 1e9 * driver_facts(gpu).sms / (peak or gpu.flops("float32") or 1.0)
            return replace(found, arithmetic=min(sustained, products.arithmetic), gflops_per_sm=0.0)
        if found.of_products:
            products = self.efficiency_of("product", format_, gpu)
            return replace(found, arithmetic=found.arithmetic * products.arithmetic, of_products=False)
        peak = gpu.flops(_TYPES.get(format_, ""))
        if not gpu.watts or peak is None:
            return found
        if found.watts:
            ratio = gpu.watts / (peak / 1e12) / found.watts
            share = min(found.arithmetic * ratio, max(found.arithmetic, _UNLIMITED))
            spread = math.hypot(found.spread_arithmetic, _BY_POWER * abs(math.log(share / found.arithmetic)))
            return replace(found, arithmetic=share, spread_arithmetic=spread)
        if kind == "product":
            return found
        products = self.efficiency_of("product", "16", gpu)
        there = self.efficiencies.get(("product", "16", where))
        if there is None:
            return replace(found, arithmetic=min(found.arithmetic, products.arithmetic))
        # How much of what power takes from products it takes from this class is not known.
        spread = math.hypot(found.spread_arithmetic, _BY_POWER * abs(math.log(products.arithmetic / there.arithmetic)))
        most = max(1.0, found.arithmetic / there.arithmetic) * products.arithmetic
        if most < found.arithmetic:
            return replace(found, arithmetic=most, spread_arithmetic=max(spread, products.spread_arithmetic))
        return replace(found, spread_arithmetic=spread)

    def _by_multiprocessor(self, found: Efficiency, gpu: Gpu) -> Efficiency:
        """Efficiency from other GPUs, adjusted to this GPU's bandwidth per multiprocessor."""
        if not found.gbs_per_sm:
            return found
        power = -self.by_multiprocessor * math.log(gpu.bandwidth / 1e9 / driver_facts(gpu).sms / found.gbs_per_sm)
        return replace(
            found,
            memory=found.memory * math.exp(power),
            spread_memory=math.hypot(found.spread_memory, _BY_SM_SPREAD * abs(power)),
        )


@cache
def _instead(kind: str, format_: str) -> tuple[tuple[str, str], ...]:
    """Classes and formats whose figures stand for a class in a format, best first.

    A similar class in the same format is nearer than the same class in another one: float32 does not use the tensor
    cores that the shares of 16 bit are of.
    """
    names = _alike(kind)
    substitutes = ((name, other) for name in names for other in (*_INSTEAD.get(format_, ()), "none"))
    return tuple(dict.fromkeys((*((name, format_) for name in names), *substitutes)))


def _alike(kind: str) -> tuple[str, ...]:
    """The class and its substitutes, best first.

    These are the class without its layout, the more general class, its forward pass, and the unknown class.
    """
    if kind == FUSED_REDUCTION:
        # It reads each element once, like an elementwise kernel. On the compiled models of timm that calibrate it, it
        # is as fast; the reductions of uncompiled code are half as fast.
        return kind, ELEMENTWISE
    layout = kind.replace(", channels last", "")
    names = [kind, layout]
    for special, general in _GENERAL.items():
        if special in kind:
            names += [kind.replace(special, general), layout.replace(special, general)]
    return tuple(dict.fromkeys((*names, names[-1].replace(" backward", ""), _UNKNOWN)))


def _power_limited(efficiency: Efficiency, *, is_own: bool) -> Efficiency:
    """The efficiency on a card whose clock falls under load.

    Even kernels measured on that card, one at a time, are less certain for a whole program. `is_own`: measured there.
    """
    return replace(
        efficiency,
        arithmetic=efficiency.arithmetic * (1.0 if is_own else _LIMITED),
        spread_arithmetic=math.hypot(efficiency.spread_arithmetic, _LIMITED_SPREAD),
    )


def _of_forms(efficiency: Efficiency, format_: str) -> Efficiency:
    """The efficiency of a card that was measured, where other cards of its name have another power and clock.

    In float32 the card of the least power was measured, so the others reach more; in 16 bit one of the most.
    """
    more = math.exp(_FORMS) if format_ == "32" else 1.0
    return replace(
        efficiency,
        arithmetic=efficiency.arithmetic * more,
        spread_arithmetic=math.hypot(efficiency.spread_arithmetic, _FORMS),
    )


def _wider(efficiency: Efficiency) -> Efficiency:
    """The figures of another class or format: with a wider spread, and not tested."""
    return replace(
        efficiency,
        spread_arithmetic=math.hypot(efficiency.spread_arithmetic, _WIDER),
        spread_memory=math.hypot(efficiency.spread_memory, _WIDER / 2),
        tested=False,
    )


@cache
def shipped() -> Constants:
    """The constants that come with steptrace."""
    return parse(tomllib.loads(FILE.read_text(encoding="utf-8")))


def parse(content: Mapping[str, Any]) -> Constants:
    """The constants of a file's content."""
    efficiencies = {}
    for row in content["class"]:
        figures = {name: value for name, value in row.items() if name not in ("kind", "format", "gpu", "source")}
        efficiencies[row["kind"], row["format"], row.get("gpu", "")] = Efficiency(**figures)
    losses = {}
    for row in content["attention"]:
        losses[row.get("gpu", "")] = AttentionLosses(**{name: row[name] for name in AttentionLosses._fields})
    return Constants(efficiencies, losses, **content["general"])
