"""Whether a step's memory fits on a GPU, and the largest batch that does."""

import math
from collections.abc import Mapping
from typing import Final

from steptrace.estimate.gpus import Gpu

#: Bytes left to the CUDA context and to libraries' workspaces, which no prediction sees. Fragmentation is not in it.
CONTEXT_BYTES: Final = 10**9
#: What grows by less is mostly rounding, and a line through it says nothing far away.
_LEAST_GROWTH: Final = 0.01


def fits(peak_bytes: int, gpu: Gpu) -> bool:
    """Whether a step with this peak of live storages fits."""
    return peak_bytes <= _usable(gpu)


def largest_batch(peak_bytes: Mapping[int, int], gpu: Gpu) -> int | None:
    """The largest batch that fits, on the line through the peaks of the smallest and the largest batch followed.

    Args:
        peak_bytes: by batch.
        gpu: where it has to fit.

    Returns:
        None where fewer than two batches were followed, or the peak hardly grows with them; 0 where none fits.
    """
    if len(peak_bytes) < 2:
        return None
    low, high = min(peak_bytes), max(peak_bytes)
    per_sample = (peak_bytes[high] - peak_bytes[low]) / (high - low)
    if peak_bytes[high] < (1 + _LEAST_GROWTH) * peak_bytes[low]:
        return None
    return max(0, math.floor(low + (_usable(gpu) - peak_bytes[low]) / per_sample))


def _usable(gpu: Gpu) -> float:
    return gpu.memory_gb * 1e9 - CONTEXT_BYTES
