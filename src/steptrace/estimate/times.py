"""How long kernels take on a GPU, in each of some thousand draws.

A GPU that nobody measured is a draw: the efficiency of each class of kernels, the host's time per launch, the deviation
of each shape. Each of these is a stream of random numbers with a name of its own, so that two programs that share a
class or a shape have the same numbers for it, and what they share cancels in their difference.
"""

import zlib
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steptrace.estimate.constants import Constants
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.work import NO_FORMAT, Kernel

Draws = NDArray[np.float64]
#: How many GPUs are drawn, and the seed of all streams.
COUNT: Final = 1000
_SEED: Final = 48
#: A kernel near both limits takes longer than at either: the sum of both times to this power, and the root of it.
_POWER: Final = 2.3
#: The share of arithmetic grows with a kernel's size between so many seconds at the data sheet's rate.
GROWS_S: Final = (1e-4, 3e-3)
_REFERENCE_S: Final = 1e-3
#: Ends of a band, as shares of the draws.
BAND: Final = (0.05, 0.95)
#: Share of PCIe's data sheet rate that a copy reaches, and the spread of its logarithm.
_PCIE: Final = (0.45, 0.44)
#: No draw is by more above a share that was measured, where that is above the data sheet: caches and clocks.
_MOST: Final = 1.15
_FLOOR_SPREAD: Final = 0.25

_QUANTILES: Final = np.array([NormalDist().inv_cdf((place + 0.5) / COUNT) for place in range(COUNT)])


@lru_cache(maxsize=65536)
def normal(name: str) -> Draws:
    """Standard normal numbers, one for each draw, the same for the same name at any time."""
    generator = np.random.default_rng((_SEED, zlib.crc32(name.encode())))
    return generator.permutation(_QUANTILES)


def kernel_seconds(kernels: Sequence[Kernel], gpu: Gpu, constants: Constants, *, alone: bool = False) -> Draws:
    """Seconds of each kernel (one call of its operator) in each draw: an array [kernels, draws].

    `alone`: they are single kernels, and not together a program, of which classes leave more open.
    """
    result = np.empty((len(kernels), COUNT))
    common = (0.0 if alone else constants.common_spread) * normal("all kernels")
    floor = np.exp(_FLOOR_SPREAD * normal("shortest kernel"))
    for row, kernel in enumerate(kernels):
        if kernel.over_bus:
            share = _PCIE[0] * np.exp(_PCIE[1] * normal("PCIe"))
            result[row] = 2.5e-6 * floor + kernel.bytes / (gpu.pcie_gbs * 1e9 * np.minimum(share, 1.0))
            continue
        efficiency = constants.of(kernel.kind, kernel.format, gpu)
        by_flop, by_bytes = ideal_seconds(kernel, gpu)
        stream = f"{kernel.kind} {kernel.format}"
        seconds = np.zeros(COUNT)
        if by_flop:
            grown = (
                efficiency.arithmetic * (min(max(by_flop, GROWS_S[0]), GROWS_S[1]) / _REFERENCE_S) ** efficiency.growth
            )
            share = _share(grown, efficiency.spread_arithmetic, f"{stream} arithmetic")
            seconds = by_flop * kernel.effort / share
        if by_bytes:
            of_bytes = by_bytes / _share(efficiency.memory, efficiency.spread_memory, f"{stream} memory")
            seconds = _both(seconds, of_bytes) if by_flop else of_bytes
        if kernel.turns:
            waits = (
                kernel.turns
                * 1e-6
                * efficiency.turn_us
                * np.exp(efficiency.spread_turn * normal(f"{kernel.kind} turns"))
            )
            seconds = np.maximum(seconds, waits)
        deviation = efficiency.shape * normal(kernel.shape)
        seconds = seconds * np.exp(deviation + common)
        result[row] = seconds + kernel.launches * 1e-6 * efficiency.floor_us * floor
    return result


def _share(middle: float, spread: float, stream: str) -> Draws:
    """A share of the data sheet in each draw: at most all of it, or a little more than what was measured."""
    return np.minimum(middle * np.exp(spread * normal(stream)), max(1.0, _MOST * middle))


def _both(a: Draws, b: Draws) -> Draws:
    """The time of a kernel with two limits."""
    longer = np.maximum(a, b)
    return np.asarray(longer * (1 + (np.minimum(a, b) / longer) ** _POWER) ** (1 / _POWER))


def ideal_seconds(kernel: Kernel, gpu: Gpu) -> tuple[float, float]:
    """Seconds of a kernel's FLOP and of its bytes at the full figures of the data sheet."""
    rate = gpu.flops(kernel.arithmetic) or gpu.flops("float32") or 1.0
    bandwidth = gpu.pcie_gbs * 1e9 if kernel.over_bus else gpu.bandwidth
    return (kernel.flop / rate if kernel.format != NO_FORMAT else 0.0), kernel.bytes / bandwidth


def band(values: Any) -> tuple[float, float]:
    """The 5 to 95 % range of a figure over the draws."""
    low, high = np.quantile(values, BAND)
    return float(low), float(high)
