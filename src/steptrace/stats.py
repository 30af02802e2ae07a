"""Ratios of step times with their intervals, verdicts, and how noisy a run was.

The unit of comparison is the run: steps of one run share its luck (placement, clocks, neighbours), so each run gives
one number, the logarithm of its step time (median or mean), and the variance between runs carries that within them.
Resampling is no way out: a percentile bootstrap over three runs covers the truth in about 89 % of cases. What is used
instead was chosen by its coverage in bench/stats_coverage.py:

- **Interval**: two-sample t interval for the difference of mean logs, each variant with its own variance,
  degrees of freedom by Welch (Biometrika 34, 1947; Satterthwaite's formula with unbiased fourth moments), at most
  those of the equal-variance test. Equal-variance pooling over a study is narrower, but covers 90 % where one variant
  is twice as noisy as the rest; Satterthwaite's plain formula covers up to 98 % at three runs.
- **Rounds**: repeats are interleaved, so round k of all variants shares slow drift. Where an F test of the two-way
  layout finds the rounds different (p < 0.01) they are taken out: paired t interval over rounds. To pair always would
  cost half of the degrees of freedom where there is no drift; never to pair makes the interval too wide where there is.
- **Decision**: p-values of the same difference with each variance drawn towards the mean variance of the study's
  variants (which counts `PRIOR_DF` degrees of freedom), corrected by Holm (Scandinavian Journal of Statistics 6, 1979)
  over the study's candidates. A claim needs both: the displayed interval excludes 1 and the corrected p-value is below
  0.05. Where the interval alone excludes 1 the verdict is `undecided`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

CONFIDENCE: Final = 0.95
#: No variants are called the same where the noise floor is above this (our own limit: that of the warning below).
LARGEST_SAME: Final = 0.10
#: IQR/median of a variant's steps: above the first a warning, above the second no verdict (torch.utils.benchmark).
IQR_WARNING: Final = 0.10
IQR_REFUSED: Final = 0.25
#: Change of step time over a run, by Theil-Sen slope, above which the run counts as drifting.
DRIFT_WARNING: Final = 0.05
#: Degrees of freedom that the study's mean variance counts in a decision.
PRIOR_DF: Final = 12.0

_ROUNDS_P: Final = 0.01
#: A variant counts as noisier than the rest of its study if chance alone makes one so in a smaller share of studies.
_NOISIER_P: Final = 0.01

RatioVerdict = Literal["faster", "slower", "same", "undecided"]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ValueWithInterval:
    """A figure with its 95 % interval; without an interval (None) if there was only one run."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Ratio(ValueWithInterval):
    """Step time of the baseline over that of a variant: above 1 is faster.

    `p_value` is that of the decision, not corrected for the number of candidates; None with one run. `paired` says
    whether the rounds were taken out.
    """

    p_value: float | None
    paired: bool

    @property
    def excludes_one(self) -> bool:
        """Whether the whole interval lies on one side of 1."""
        return self.low is not None and self.high is not None and (self.low > 1 or self.high < 1)

    def within(self, floor: float) -> bool:
        """Whether the whole interval lies within a factor of `1 + floor` of 1, either way."""
        return self.low is not None and self.high is not None and 1 / (1 + floor) <= self.low <= self.high <= 1 + floor

    def exceeds(self, floor: float) -> bool:
        """Whether the effect itself is larger than a factor of `1 + floor`, either way."""
        return not 1 / (1 + floor) <= self.value <= 1 + floor


def typical(times: Sequence[float]) -> ValueWithInterval:
    """A variant's step time from its runs', any unit: their geometric mean, with a t interval on the logs.

    The geometric mean makes the ratio of two such figures the centre of the ratio's interval.
    """
    logs = np.log(times)
    centre = float(logs.mean())
    if len(logs) < 2:
        return ValueWithInterval(float(np.exp(centre)), None, None)
    low, high = _interval(centre, float(logs.var(ddof=1)) / len(logs), len(logs) - 1)
    return ValueWithInterval(float(np.exp(centre)), low, high)


def ratios(times: Mapping[str, Mapping[int, float]], baseline: str) -> dict[str, Ratio]:
    """The ratio of `baseline` to every other variant of its group.

    Args:
        times: variant -> repeat -> step time of that run, any unit, above 0. A variant has at least one run;
            runs of different variants with the same repeat belong to the same round.
        baseline: the variant that the others are compared with.
    """
    logs = {name: {repeat: float(np.log(value)) for repeat, value in runs.items()} for name, runs in times.items()}
    table = _round_table(logs)
    spread = _spread(logs)
    rows = {} if table is None or not _rounds_differ(table) else dict(zip(spread.names, table, strict=True))
    return {
        name: _unpaired(logs, spread, baseline, name)
        if table is None or not {baseline, name} <= rows.keys()
        else _paired(rows[baseline], rows[name], table)
        for name in logs
        if name != baseline
    }


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's adjusted p-values: comparing each with 0.05 keeps the chance of any false claim below 5 %."""
    adjusted: dict[str, float] = {}
    worst = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: (p_values[name], name))):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = worst
    return adjusted


def verdict(ratio: Ratio, adjusted_p: float | None, floor: float) -> RatioVerdict | None:
    """The verdict on a variant, given its p-value after correction; None if there is no interval.

    `faster` and `slower` need an interval that excludes 1, an effect above the noise floor and a corrected p-value
    below 0.05. `same` needs the whole interval within the floor, and a floor of at most `LARGEST_SAME`: on a machine
    where identical variants differ by more, two variants that look alike remain undecided.
    """
    if ratio.low is None or ratio.high is None:
        return None
    if ratio.within(floor) and floor <= LARGEST_SAME:
        return "same"
    significant = adjusted_p is not None and adjusted_p < 1 - CONFIDENCE
    if significant and ratio.excludes_one and ratio.exceeds(floor):
        return "faster" if ratio.value > 1 else "slower"
    return "undecided"


def noise_floor(identical: Sequence[Ratio]) -> float | None:
    """The noise floor that pairs of identical variants show: the far end of their intervals, None without any.

    The observed difference alone would be no floor: by luck it can be 0.
    """
    ends = ((ratio.low, ratio.high) for ratio in identical)
    return max((max(high, 1 / low) - 1 for low, high in ends if low is not None and high is not None), default=None)


def _repeated(logs: Mapping[str, Mapping[int, float]]) -> list[str]:
    return [name for name, runs in logs.items() if len(runs) > 1]


def _round_table(logs: Mapping[str, Mapping[int, float]]) -> _Floats | None:
    """The logs of the variants with repeats as an array (variants, rounds); None unless all have the same rounds."""
    names = _repeated(logs)
    if len(names) < 2 or len({frozenset(logs[name]) for name in names}) != 1:
        return None
    return np.array([[logs[name][repeat] for repeat in sorted(logs[name])] for name in names])


def _residual_mean_square(table: _Floats) -> float:
    """The variance that neither variants nor rounds explain."""
    residuals = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0) + table.mean()
    return float(np.sum(residuals**2)) / _residual_df(table)


def _residual_df(table: _Floats) -> int:
    return (len(table) - 1) * (len(table[0]) - 1)


def _rounds_differ(table: _Floats) -> bool:
    between = len(table) * float(table.mean(axis=0).var(ddof=1))
    within = _residual_mean_square(table)
    if within == 0:
        return between > 0
    return _f_tail(len(table[0]) - 1, _residual_df(table), between / within) < _ROUNDS_P


def _paired(baseline: _Floats, candidate: _Floats, table: _Floats) -> Ratio:
    differences = baseline - candidate
    rounds = len(baseline)
    centre = float(differences.mean())
    low, high = _interval(centre, float(differences.var(ddof=1)) / rounds, rounds - 1)
    p_value = _p_value(centre, 2 * _residual_mean_square(table) / rounds, _residual_df(table))
    return Ratio(float(np.exp(centre)), low, high, p_value, paired=True)


@dataclass(frozen=True)
class _Spread:
    """The variants with repeats: the variance of each one's logs, and which are not noisier than the rest."""

    names: list[str]
    variances: _Floats
    dfs: npt.NDArray[np.int64]
    alike: npt.NDArray[np.bool_]


def _spread(logs: Mapping[str, Mapping[int, float]]) -> _Spread:
    names = _repeated(logs)
    dfs = np.array([len(logs[name]) - 1 for name in names], dtype=np.int64)
    variances = np.array([np.var(list(logs[name].values()), ddof=1) for name in names], dtype=np.float64)
    return _Spread(names, variances, dfs, _alike(variances, dfs))


def _unpaired(logs: Mapping[str, Mapping[int, float]], spread: _Spread, baseline: str, candidate: str) -> Ratio:
    """The difference of two variants' mean logs; the other variants lend their variance to the decision.

    A variant that is far noisier than the rest does not lend its variance, which would hide what the others show. It
    does not borrow theirs either, which would turn its noise into claims.
    """
    centre = float(np.mean(list(logs[baseline].values())) - np.mean(list(logs[candidate].values())))
    if baseline not in spread.names or candidate not in spread.names:
        return Ratio(float(np.exp(centre)), None, None, None, paired=False)
    variances = spread.variances
    dfs = spread.dfs
    is_compared = np.array([name in (baseline, candidate) for name in spread.names])
    weights = is_compared / (dfs + 1)
    low, high = _interval(centre, float(weights @ variances), _welch_df(weights, variances, dfs))
    lent = spread.alike * PRIOR_DF / (PRIOR_DF + dfs)
    lenders = spread.alike * dfs
    shares = weights * (1 - lent) + float(weights @ lent) * lenders / lenders.sum()
    p_value = _p_value(centre, float(shares @ variances), _welch_df(shares, variances, dfs))
    return Ratio(float(np.exp(centre)), low, high, p_value, paired=False)


def _alike(variances: _Floats, dfs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which variants are not noisier than the rest. An F test leaves out the noisiest one, then the next, and so on."""
    kept = np.ones(len(variances), dtype=bool)
    while kept.sum() > 1:
        noisiest = int(np.argmax(np.where(kept, variances, -1.0)))
        rest = kept & (np.arange(len(variances)) != noisiest)
        pooled = float((dfs * variances)[rest].sum() / dfs[rest].sum())
        if pooled == 0 and variances[noisiest] == 0:
            break
        ratio = float(variances[noisiest]) / pooled if pooled else np.inf
        if _f_tail(int(dfs[noisiest]), int(dfs[rest].sum()), ratio) >= _NOISIER_P:
            break
        kept = rest
    return kept


def _welch_df(shares: _Floats, variances: _Floats, dfs: npt.NDArray[np.int64]) -> float:
    """Degrees of freedom of the sum of `shares * variances` (Welch 1947), at most those of the variances in it."""
    most = float(dfs[shares > 0].sum())
    parts = shares * variances
    fourth = float((parts**2 / (dfs + 2)).sum())
    return most if fourth == 0 else min(most, float(parts.sum()) ** 2 / fourth - 2)


def _interval(centre: float, variance: float, df: float) -> tuple[float, float]:
    """The t interval of a mean log, taken back from logs."""
    half = _t_quantile(df) * variance**0.5
    return float(np.exp(centre - half)), float(np.exp(centre + half))


def _p_value(centre: float, variance: float, df: float) -> float:
    """Two-sided p-value of a mean log against 0."""
    if variance == 0:
        return float(centre == 0)
    from scipy.special import stdtr

    return 2 * float(stdtr(df, -abs(centre) / variance**0.5))


def _t_quantile(df: float) -> float:
    """Half the width of a two-sided t interval of confidence `CONFIDENCE`, in standard errors."""
    # Imported here and below, since SciPy takes a fifth of a second, and reading one trace does not need it.
    from scipy.special import stdtrit

    return float(stdtrit(df, (1 + CONFIDENCE) / 2))


def _f_tail(df_above: int, df_below: int, ratio: float) -> float:
    """How often chance makes a ratio of two equal variances at least this large."""
    from scipy.special import fdtrc

    return float(fdtrc(df_above, df_below, ratio))
