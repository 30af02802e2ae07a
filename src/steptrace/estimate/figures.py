"""The figures of an estimate: bands of draws in ms and percent, in four digits."""

from steptrace.documents.estimate import Band
from steptrace.estimate.times import Draws, band
from steptrace.format import rounded


def band_ms(seconds: Draws) -> Band:
    """The band of some seconds, in ms."""
    return rounded_band(band(1e3 * seconds))


def band_percent(shares: Draws) -> Band:
    """The band of some shares, in percent; none is above 100."""
    low, high = band(100 * shares)
    return four_digits(min(low, 100.0)), four_digits(min(high, 100.0))


def rounded_band(values: Band) -> Band:
    """Both ends of a band, in four digits."""
    return four_digits(values[0]), four_digits(values[1])


def four_digits(value: float) -> float:
    """A figure in four significant digits."""
    return rounded(value, 4)
