"""The timed steps of one run: which of them count, how many are outliers, and whether they drift."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

_WARMUP_MADS: Final = 5.0
_MIN_STEPS_FOR_WARMUP: Final = 8
_COMES_BACK: Final = 0.05
_OUTLIER_Z: Final = 3.5
_DRIFT_STEPS: Final = 400
#: Timers have a resolution: a spread below this share of the median is taken for this share.
_LEAST_MAD: Final = 0.001

Nanoseconds = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RunTimes:
    """The timed steps of one run: `counted` without the warm-up steps left out at their beginning.

    `outliers` is the number of counted steps with a modified z-score above 3.5 (Iglewicz and Hoaglin 1993); they
    count. `drift` is the change of step time from the first to the last counted step, as a share of the median.
    """

    counted: Nanoseconds
    warmup_left_out: int
    outliers: int
    drift: float

    @property
    def median_ns(self) -> float:
        """Median of the counted steps."""
        return float(np.median(self.counted))

    @property
    def mean_ns(self) -> float:
        """Mean of the counted steps."""
        return float(np.mean(self.counted))


def run_times(step_ns: Nanoseconds) -> RunTimes:
    """Describe a run by its timed steps, in the order they ran (at least one, each above 0 ns)."""
    left_out = leading_warmup(step_ns)
    counted = step_ns[left_out:]
    return RunTimes(counted, left_out, int(outlier_mask(counted).sum()), drift(counted))


def leading_warmup(step_ns: Nanoseconds) -> int:
    """Number of leading steps above median + 5 MAD of all steps: at most half, and none among fewer than 8.

    None either where over 5 % of the later steps, and more than one, are at least about as long: what comes back, as at
    the beginning of each epoch, is no warm-up.
    """
    if len(step_ns) < _MIN_STEPS_FOR_WARMUP:
        return 0
    median, mad = _median_and_mad(step_ns)
    is_long = step_ns > median + _WARMUP_MADS * mad
    leading = min(int(np.flatnonzero(~is_long)[0]), len(step_ns) // 2)
    if not leading:
        return 0
    later = step_ns[leading:]
    halfway = (median + float(np.median(step_ns[:leading]))) / 2
    return 0 if (later > halfway).sum() > max(_COMES_BACK * len(later), 1) else leading


def outlier_mask(step_ns: Nanoseconds) -> npt.NDArray[np.bool_]:
    """Which steps lie more than 3.5 modified z-scores from the median, either way."""
    median, mad = _median_and_mad(step_ns)
    return np.asarray(0.6745 * np.abs(step_ns - median) > _OUTLIER_Z * mad)


def drift(step_ns: Nanoseconds) -> float:
    """Change of step time over the run as a share of its median: Theil-Sen slope times the run's length.

    More than 400 steps are downsampled evenly to 400, since the slope's cost is quadratic.
    """
    if len(step_ns) < 2:
        return 0.0
    index = np.unique(np.linspace(0, len(step_ns) - 1, min(len(step_ns), _DRIFT_STEPS)).astype(np.int64))
    first, second = np.triu_indices(len(index), k=1)
    slopes = (step_ns[index[second]] - step_ns[index[first]]) / (index[second] - index[first])
    return float(np.median(slopes)) * (len(step_ns) - 1) / float(np.median(step_ns))


def iqr_over_median(runs: Sequence[Nanoseconds]) -> float:
    """Interquartile range of the steps as a share of their median, within runs (at least one).

    Each step is taken relative to its run's median: what lies between runs is in the interval already.
    """
    low, high = np.quantile(np.concatenate([steps / np.median(steps) for steps in runs]), [0.25, 0.75])
    return float(high - low)


def _median_and_mad(values: Nanoseconds) -> tuple[float, float]:
    median = float(np.median(values))
    return median, max(float(np.median(np.abs(values - median))), _LEAST_MAD * median)
