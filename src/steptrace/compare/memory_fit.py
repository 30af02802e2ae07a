"""The largest batch: a line through measured peaks at two or more batch sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Final

import numpy as np

#: With a larger residual the peaks are not linear in the batch size, and nothing is predicted.
MOST_RESIDUAL: Final = 0.10


@dataclass(frozen=True)
class MemoryFit:
    """peak = `fixed_bytes` + `per_sample_bytes` x batch size.

    `residual` is the largest distance of a measured peak from the line over that peak; None with two sizes, through
    which there is always a line.
    """

    peaks: tuple[tuple[int, int], ...]
    fixed_bytes: float
    per_sample_bytes: float
    residual: float | None

    @property
    def holds(self) -> bool:
        """Whether the peaks rise linearly with the batch size."""
        return self.per_sample_bytes > 0 and (self.residual is None or self.residual <= MOST_RESIDUAL)

    def largest(self, capacity_bytes: float) -> int | None:
        """The largest batch whose peak fits the capacity, 0 if not even one sample's does; None without a line."""
        if not self.holds:
            return None
        room = (capacity_bytes - self.fixed_bytes) / self.per_sample_bytes
        return max(floor(room + 1e-6), 0)  # a line through exact multiples comes out a hair below them


def fit_peaks(peaks: Mapping[int, int]) -> MemoryFit | None:
    """The least-squares line through peaks in bytes by batch size; None with fewer than two sizes."""
    if len(peaks) < 2:
        return None
    points = tuple(sorted(peaks.items()))
    size, peak = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
    slope, fixed = np.polyfit(size, peak, 1)
    residual = float((np.abs(fixed + slope * size - peak) / peak).max()) if len(points) > 2 else None
    return MemoryFit(points, float(fixed), float(slope), residual)
