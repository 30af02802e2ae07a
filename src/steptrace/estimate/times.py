"""How long kernels take on a GPU, in each of a thousand draws.

What is uncertain about a GPU is drawn at random: the efficiency of each class of kernels, the host's time per launch,
the deviation of each shape. Each has a random stream of its own, which its name seeds. So two programs that share a
class or a shape get the same numbers for it, and the common error cancels in their difference.
"""

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steptrace.estimate.constants import Constants, Efficiency
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.tiles import effort
from steptrace.estimate.work import NO_FORMAT, Kernel

Draws = NDArray[np.float64]
#: Number of draws, and the seed of all streams.
COUNT: Final = 1000
_SEED: Final = 48
#: A kernel near both limits, arithmetic and memory, takes longer than each alone: times are combined by this p-norm.
_POWER: Final = 2.3
#: The share of arithmetic grows with a kernel's size between these times at the data sheet's rate, in seconds.
GROWS_S: Final = (1e-4, 3e-3)
_REFERENCE_S: Final = 1e-3
#: Ends of a band, as shares of the draws.
BAND: Final = (0.05, 0.95)
#: Share of PCIe's data sheet rate that a copy reaches, and the standard deviation of its logarithm.
_PCIE: Final = (0.45, 0.44)
#: GB/s at which one thread of the host copies between pageable memory and the driver's pinned buffer, and the standard
#: deviation of its logarithm. A copy of pageable memory is never faster. Chosen after two measurements: 4.3 to 11.2
#: GB/s in seven copies of 1 to 150 MB on an A100, in a public trace; 5.4 GB/s, with a pinned rate of 6.2, on a desktop
#: computer of 2012 (https://developer.nvidia.com/blog/how-optimize-data-transfers-cuda-cc/).
_STAGING: Final = (7.0, 0.4)
#: A measured share can exceed the data sheet, by caches and clocks. Draws exceed such a share by at most this factor.
_MOST: Final = 1.15
_FLOOR_SPREAD: Final = 0.25
#: How much shorter tuned products are, as the spread of a logarithm: in half of the draws tuning finds nothing better
#: than the library's kernel. Chosen; no tuned step was compared with a measured one.
_TUNED: Final = 0.2

_QUANTILES: Final = np.array([NormalDist().inv_cdf((place + 0.5) / COUNT) for place in range(COUNT)])


@lru_cache(maxsize=65536)
def normal(name: str) -> Draws:
    """Standard normal numbers, one for each draw; always the same for the same name."""
    generator = np.random.default_rng((_SEED, zlib.crc32(name.encode())))
    return generator.permutation(_QUANTILES)


def kernel_seconds(kernels: Sequence[Kernel], gpu: Gpu, constants: Constants, *, alone: bool = False) -> Draws:
    """Seconds of each kernel (one call of its operator) in each draw: an array [kernels, draws].

    `alone`: the kernels are estimated one by one, not as a program. A program has an additional common spread.
    """
    result = np.empty((len(kernels), COUNT))
    floor = np.exp(_FLOOR_SPREAD * normal("shortest kernel"))
    for row, kernel in enumerate(kernels):
        if kernel.over_bus:
            result[row] = 2.5e-6 * floor + kernel.bytes / (gpu.pcie_gbs * 1e9 * _pcie_share(kernel, gpu))
            continue
        efficiency = constants.efficiency_for(kernel, gpu)
        by_flop, by_bytes = ideal_seconds(kernel, gpu)
        stream = f"{kernel.kind} {kernel.format}"
        seconds = np.zeros(COUNT)
        in_vain = 1.0
        if by_flop:
            in_vain = effort(kernel, gpu, constants.attention)
            grown = (
                efficiency.arithmetic * (min(max(by_flop, GROWS_S[0]), GROWS_S[1]) / _REFERENCE_S) ** efficiency.growth
            )
            share = _share(grown, efficiency.spread_arithmetic, f"{stream} arithmetic")
            if efficiency.of_zeros and not alone:
                share = share * np.minimum(1.0, constants.data * np.exp(constants.data_spread * normal("data")))
            seconds = by_flop * in_vain / share
        if by_bytes:
            of_bytes = by_bytes / _share(efficiency.memory, efficiency.spread_memory, f"{stream} memory")
            seconds = _limited_by_both(seconds, of_bytes) if by_flop else of_bytes
        if kernel.turns:
            waits = (
                kernel.turns
                * 1e-6
                * efficiency.turn_us
                * np.exp(efficiency.spread_turn * normal(f"{kernel.kind} turns"))
            )
            seconds = np.maximum(seconds, waits)
        launching = kernel.launches * 1e-6 * efficiency.floor_us
        deviation = efficiency.shape
        if kernel.sizes and by_flop and efficiency.shape_in_vain:
            middle = _limited_by_both(by_flop * in_vain / grown, by_bytes / efficiency.memory) + launching
            deviation = spread_of_shape(efficiency, middle / (by_flop / grown))
        drawn = deviation * normal(kernel.shape)
        if not alone:
            # Shares were fitted to whole steps, so the mean over many shapes, not the median, must be unchanged.
            drawn += constants.common_of(kernel.kind, efficiency) * normal("all kernels") - deviation**2 / 2
        if kernel.tuned:
            drawn = drawn - _TUNED * np.maximum(normal("tuned products"), 0.0)
        seconds = seconds * np.exp(drawn)
        result[row] = seconds + launching * floor
    return result


def assumed_shares(kernel: Kernel, gpu: Gpu, constants: Constants) -> tuple[Draws, Draws]:
    """The shares of the peak arithmetic and of the bandwidth at which a kernel's time is taken, in each draw.

    Of a copy between host and GPU both are of PCIe's bandwidth.
    """
    if kernel.over_bus:
        share = _pcie_share(kernel, gpu)
        return share, share
    efficiency = constants.efficiency_for(kernel, gpu)
    stream = f"{kernel.kind} {kernel.format}"
    return (
        _share(efficiency.arithmetic, efficiency.spread_arithmetic, f"{stream} arithmetic"),
        _share(efficiency.memory, efficiency.spread_memory, f"{stream} memory"),
    )


def _pcie_share(kernel: Kernel, gpu: Gpu) -> Draws:
    """The share of PCIe's data sheet rate that a copy reaches, in each draw."""
    share = np.minimum(_PCIE[0] * np.exp(_PCIE[1] * normal("PCIe")), 1.0)
    if not kernel.pageable:
        return share
    staging = _STAGING[0] * np.exp(_STAGING[1] * normal("staging of pageable memory"))
    return np.minimum(share, staging / gpu.pcie_gbs)


def spread_of_shape(efficiency: Efficiency, in_vain: float) -> float:
    """The standard deviation of a shape from its class, in log: larger if more of its time is not spent on its FLOP.

    Args:
        efficiency: the efficiency of the class.
        in_vain: the shape's time divided by the time of its FLOP at the class's share.
    """
    return math.hypot(efficiency.shape, efficiency.shape_in_vain * math.sqrt(max(0.0, math.log(in_vain))))


def _share(middle: float, spread: float, stream: str) -> Draws:
    """A share of the data sheet's figure in each draw: at most 1, or at most `_MOST` times a larger measured share."""
    return np.minimum(middle * np.exp(spread * normal(stream)), max(1.0, _MOST * middle))


def _limited_by_both(a: Draws | float, b: Draws | float) -> Draws:
    """The time of a kernel that is limited by two times."""
    longer = np.maximum(a, b)
    return np.asarray(longer * (1 + (np.minimum(a, b) / longer) ** _POWER) ** (1 / _POWER))


def ideal_seconds(kernel: Kernel, gpu: Gpu) -> tuple[float, float]:
    """Seconds of a kernel's FLOP, and of its bytes, at the full figures of the data sheet."""
    rate = gpu.flops(kernel.arithmetic) or gpu.flops("float32") or 1.0
    bandwidth = gpu.pcie_gbs * 1e9 if kernel.over_bus else gpu.bandwidth
    return (kernel.flop / rate if kernel.format != NO_FORMAT else 0.0), kernel.bytes / bandwidth


def band(values: Any) -> tuple[float, float]:
    """The 5 % and 95 % quantiles of a figure over the draws."""
    low, high = np.quantile(values, BAND)
    return float(low), float(high)
