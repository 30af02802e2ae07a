"""Which batches fit into a GPU's memory."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from steptrace.estimate.gpus import Gpu

if TYPE_CHECKING:  # a program that asks for its own estimate has no msgspec
    pass


#: Bytes reserved for the CUDA context and the workspaces of libraries, which no prediction sees. Fragmentation of the
#: allocator's memory is not included.
CONTEXT_BYTES: Final = 10**9
#: If the peak grows by less than this share, the growth is mostly rounding and cannot be extrapolated.
_LEAST_GROWTH: Final = 0.01


def fits(peak_bytes: int, gpu: Gpu) -> bool:
    """Whether a step with this peak of live storages fits into the GPU's memory."""
    return peak_bytes <= _usable(gpu)


def largest_batch(peak_bytes: Mapping[int, int], gpu: Gpu) -> int | None:
    """The largest batch that fits, extrapolated linearly from the smallest and the largest batch that were followed.

    Args:
        peak_bytes: peak memory by batch size.
        gpu: the GPU whose memory it has to fit into.

    Returns:
        The batch size; None if fewer than two batches were followed or the peak hardly grows with them; 0 if none fits.
    """
    if len(peak_bytes) < 2:
        return None
    low, high = min(peak_bytes), max(peak_bytes)
    per_sample = (peak_bytes[high] - peak_bytes[low]) / (high - low)
    if peak_bytes[high] < (1 + _LEAST_GROWTH) * peak_bytes[low]:
        return None
    return max(0, math.floor(low + (_usable(gpu) - peak_bytes[low]) / per_sample))


def _usable(gpu: Gpu) -> float:
    return gpu.memory_bytes - CONTEXT_BYTES
