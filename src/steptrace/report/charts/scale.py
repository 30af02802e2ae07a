"""Axes: where a value lies between two ends, and the round values that are written at it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Values that lie further apart than this need a logarithmic axis.
LOG_FROM: Final = 6.0
#: Most round values on a logarithmic axis before only powers of ten are kept.
_MOST_TICKS: Final = 6


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values from `low` to `high`, at most one more than `most`: multiples of 1, 2 or 5 times a power of ten."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`; values beyond are drawn at its ends."""

    low: float
    high: float
    log: bool

    @classmethod
    def showing(cls, values: Sequence[float]) -> "Scale":
        """The scale that shows these positive values, logarithmic where they lie far apart."""
        low, high = min(values), max(values)
        if high > LOG_FROM * low:
            margin = (high / low) ** 0.05
            return cls(low / margin, high * margin, log=True)
        margin = 0.06 * (high - low) or 0.1 * high
        return cls(max(low - margin, 0.0), high + margin, log=False)

    @classmethod
    def with_zero(cls, values: Sequence[float]) -> "Scale":
        """The linear scale that shows these values, which may be negative, and 0."""
        low, high = min(0.0, *values), max(0.0, *values)
        margin = 0.06 * (high - low) or 1.0
        return cls(low - margin, high + margin, log=False)

    def share(self, value: float) -> float:
        """Where a value lies, as a share of the width: 0 to 1."""
        ends = (self.low, value, self.high)
        low, at, high = (math.log(max(end, 1e-300)) for end in ends) if self.log else ends
        return min(max((at - low) / (high - low), 0.0), 1.0)

    def place(self, value: float) -> str:
        """Where a value lies, as a share of the width in percent."""
        return f"{100 * self.share(value):.4g}"

    def ticks(self) -> list[float]:
        """Round values within it, some five."""
        if not self.log:
            return ticks(self.low, self.high, 5)
        powers = [10.0**n for n in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)]
        values = [power * factor for power in powers for factor in (1, 2, 5) if self.low <= power * factor <= self.high]
        if len(values) <= _MOST_TICKS:
            return values
        return [tick for tick in values if math.isclose(math.log10(tick) % 1, 0)]
