"""Ratios, intervals and verdicts against independent formulas; descriptions of runs against made ones."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import scipy  # its `stats` loads when it is first used: in one worker
from hypothesis import given
from hypothesis import strategies as st

from steptrace.run_times import drift, iqr_over_median, leading_warmup, outlier_mask, run_times
from steptrace.stats import (
    Ratio,
    holm,
    noise_floor,
    ratios,
    typical,
    verdict,
)

times = st.floats(min_value=0.1, max_value=10.0)
runs_of_two = st.integers(2, 6).flatmap(
    lambda n: st.tuples(st.lists(times, min_size=n, max_size=n), st.lists(times, min_size=n, max_size=n))
)


def by_repeat(*medians: float) -> dict[int, float]:
    return dict(enumerate(medians))


def exp(*logs: float) -> dict[int, float]:
    return by_repeat(*np.exp(logs))


def test_interval_is_students_where_variances_are_equal() -> None:
    baseline = [0.0, 0.01, 0.02]
    candidate = [-0.02, -0.03, -0.01]
    ratio = ratios({"b": exp(*baseline), "c": exp(*candidate)}, "b")["c"]
    expected = scipy.stats.ttest_ind(baseline, candidate).confidence_interval(0.95)
    assert ratio.value == pytest.approx(math.exp(0.03))
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert not ratio.paired


def test_interval_has_welchs_degrees_of_freedom_where_variances_differ() -> None:
    baseline = [0.0, 0.01, 0.02, 0.01]
    candidate = [0.1, -0.1, 0.0, 0.02]
    a, b = (float(np.var(logs, ddof=1)) / 4 for logs in (baseline, candidate))
    df = (a + b) ** 2 / (a**2 / 5 + b**2 / 5) - 2
    assert 3 < df < 6
    half = scipy.stats.t.ppf(0.975, df) * math.sqrt(a + b)
    ratio = ratios({"b": exp(*baseline), "c": exp(*candidate)}, "b")["c"]
    centre = np.mean(baseline) - np.mean(candidate)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(centre - half), math.exp(centre + half)))


def test_rounds_that_differ_are_taken_out() -> None:
    rounds = np.array([0.0, 0.5, 1.0, 0.2])
    baseline = rounds + np.array([0.001, 0.0, 0.002, 0.001])
    candidate = rounds - np.array([0.05, 0.053, 0.047, 0.05])
    ratio = ratios({"b": exp(*baseline), "c": exp(*candidate)}, "b")["c"]
    expected = scipy.stats.ttest_rel(baseline, candidate).confidence_interval(0.95)
    assert ratio.paired
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert ratio.p_value == pytest.approx(scipy.stats.ttest_rel(baseline, candidate).pvalue)


def test_runs_of_different_rounds_are_not_paired() -> None:
    rounds = np.array([0.0, 0.5, 1.0, 0.2])
    medians = {"b": exp(*rounds), "c": exp(*(rounds[:3] - 0.05))}
    assert not ratios(medians, "b")["c"].paired


def test_the_other_variants_variance_tempers_a_lucky_pair() -> None:
    lucky = {"b": exp(0.0, 0.001, 0.002), "c": exp(-0.009, -0.010, -0.008)}
    noisy = {"d": exp(0.0, 0.1, -0.1), "e": exp(-0.1, 0.0, 0.1)}
    alone = ratios(lucky, "b")["c"]
    among = ratios(lucky | noisy, "b")["c"]
    assert alone.p_value is not None
    assert among.p_value is not None
    assert alone.p_value < 0.05 < among.p_value
    assert (alone.low, alone.high) == (among.low, among.high)


@pytest.mark.parametrize("counts", [(1, 1), (1, 3), (3, 1)])
def test_one_run_gives_a_ratio_without_interval(counts: tuple[int, int]) -> None:
    medians = {name: by_repeat(*[value] * n) for name, value, n in zip("bc", (3.0, 2.0), counts, strict=True)}
    ratio = ratios(medians, "b")["c"]
    assert ratio.value == pytest.approx(1.5)
    assert (ratio.low, ratio.high, ratio.p_value) == (None, None, None)
    assert verdict(ratio, 0.0, 0.01) is None


@pytest.mark.parametrize("baseline", ["b", "c"])
def test_one_run_beside_others_whose_rounds_differ_gives_no_interval(baseline: str) -> None:
    rounds = np.array([0.0, 0.5, 1.0])
    medians = {"b": exp(0.0), "c": exp(*rounds), "d": exp(*(rounds - [0.05, 0.051, 0.049]))}
    by_name = ratios(medians, baseline)
    assert {name: ratio.low is None for name, ratio in by_name.items()} == (
        {"c": True, "d": True} if baseline == "b" else {"b": True, "d": False}
    )


def test_times_without_any_spread() -> None:
    medians = {"b": by_repeat(2.0, 2.0), "same": by_repeat(2.0, 2.0), "half": by_repeat(1.0, 1.0)}
    by_name = ratios(medians, "b")
    assert (by_name["same"].value, by_name["same"].p_value) == (1.0, 1.0)
    assert (by_name["half"].low, by_name["half"].value, by_name["half"].high) == pytest.approx((2.0, 2.0, 2.0))
    assert by_name["half"].p_value == 0.0


@given(runs_of_two)
def test_swapping_the_two_inverts_everything(pair: tuple[list[float], list[float]]) -> None:
    medians = {"a": by_repeat(*pair[0]), "b": by_repeat(*pair[1])}
    first = ratios(medians, "a")["b"]
    other = ratios(medians, "b")["a"]
    assert first.low is not None
    assert other.high is not None
    assert first.value == pytest.approx(1 / other.value)
    assert first.low == pytest.approx(1 / other.high, rel=1e-6)
    assert first.p_value == pytest.approx(other.p_value, abs=1e-9)


@given(runs_of_two, st.floats(min_value=1e-3, max_value=1e6))
def test_the_unit_does_not_matter(pair: tuple[list[float], list[float]], unit: float) -> None:
    medians = {"a": by_repeat(*pair[0]), "b": by_repeat(*pair[1])}
    scaled = {name: {k: unit * value for k, value in runs.items()} for name, runs in medians.items()}
    first = ratios(medians, "a")["b"]
    other = ratios(scaled, "a")["b"]
    assert first.value == pytest.approx(other.value)
    assert first.low is not None
    assert first.high is not None
    assert first.low <= first.value <= first.high


def test_typical_is_the_geometric_mean_with_a_t_interval() -> None:
    logs = [0.0, 0.02, 0.07]
    estimate = typical(list(np.exp(logs)))
    expected = scipy.stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert estimate.value == pytest.approx(math.exp(0.03))
    assert (estimate.low, estimate.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert typical([3.0]).low is None


def test_ratio_is_that_of_the_typical_times() -> None:
    medians = {"b": by_repeat(10.0, 11.0, 12.5), "c": by_repeat(7.0, 7.5, 9.0)}
    expected = typical(list(medians["b"].values())).value / typical(list(medians["c"].values())).value
    assert ratios(medians, "b")["c"].value == pytest.approx(expected)


def test_holm_against_a_worked_example() -> None:
    # The textbook's steps: 4 x 0.005, 3 x 0.01, 2 x 0.03, and 0.04 raised to the one before it.
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06}
    )
    assert holm({}) == {}


@given(st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0, 1), max_size=6))
def test_holm_only_raises_and_keeps_the_order(p_values: Mapping[str, float]) -> None:
    adjusted = holm(p_values)
    assert all(p_values[name] <= adjusted[name] <= 1 for name in p_values)
    ordered = sorted(p_values, key=lambda name: p_values[name])
    assert [adjusted[name] for name in ordered] == sorted(adjusted.values())


@pytest.mark.parametrize(
    ("value", "low", "high", "adjusted", "floor", "expected"),
    [
        (1.10, 1.05, 1.15, 0.001, 0.01, "faster"),
        (0.90, 0.85, 0.95, 0.001, 0.01, "slower"),
        (1.00, 0.995, 1.005, 0.9, 0.01, "same"),
        (1.005, 1.002, 1.008, 0.001, 0.01, "same"),  # surely faster, but by less than the floor
        (1.008, 1.002, 1.014, 0.001, 0.01, "undecided"),  # excludes 1, not the floor
        (1.05, 0.99, 1.11, 0.2, 0.01, "undecided"),
        (1.10, 1.01, 1.20, 0.06, 0.01, "undecided"),  # only before the correction
        (1.10, 1.01, 1.20, None, 0.01, "undecided"),
        (1.03, 1.02, 1.04, 0.001, 0.05, "same"),  # a floor measured by an A/A pair
        (1.03, 1.02, 1.04, 0.001, 0.25, "undecided"),  # one that tells nothing apart
    ],
)
def test_verdicts(value: float, low: float, high: float, adjusted: float | None, floor: float, expected: str) -> None:
    assert verdict(Ratio(value, low, high, 0.001, paired=False), adjusted, floor) == expected


def test_noise_floor_is_the_far_end_of_the_interval() -> None:
    narrow = Ratio(1.0, 0.99, 1.01, 1.0, paired=False)
    wide = Ratio(1.0, 0.8, 1.1, 1.0, paired=False)
    assert noise_floor([narrow]) == pytest.approx(1 / 0.99 - 1)
    assert noise_floor([narrow, wide]) == pytest.approx(0.25)
    assert noise_floor([Ratio(1.0, None, None, None, paired=False)]) is None
    assert noise_floor([]) is None


def steps(count: int, seed: int = 0) -> np.ndarray:
    return np.rint(1e8 * np.exp(0.01 * np.random.default_rng(seed).standard_normal(count))).astype(np.int64)


@pytest.mark.parametrize("slow", [0, 1, 3, 7])
def test_leading_slow_steps_are_warm_up(slow: int) -> None:
    run = steps(40)
    run[:slow] *= 2
    described = run_times(run)
    assert described.warmup_left_out == slow
    assert len(described.counted) == 40 - slow
    assert described.median_ns == np.median(run[slow:])


def test_a_slow_step_later_is_no_warm_up_but_an_outlier_that_counts() -> None:
    run = steps(40)
    run[5] *= 3
    described = run_times(run)
    assert (described.warmup_left_out, len(described.counted)) == (0, 40)
    assert outlier_mask(run)[5]
    assert described.outliers == outlier_mask(run).sum()


def test_warm_up_is_not_looked_for_in_a_handful_of_steps() -> None:
    assert leading_warmup(np.array([300, 100, 100, 100, 100, 100, 100])) == 0
    assert leading_warmup(np.array([300, 100, 100, 100, 100, 100, 100, 100])) == 1


def test_long_steps_that_come_back_are_no_warm_up() -> None:
    epochs = np.tile([300, 100, 101, 99, 100, 100, 101, 99], 3)
    assert leading_warmup(epochs) == 0
    assert leading_warmup(np.concatenate([epochs[:8], np.full(40, 100)])) == 1


@pytest.mark.parametrize("later", [[110, 110, 110], [290]])
def test_a_little_noise_or_one_long_step_keeps_no_warm_up(later: list[int]) -> None:
    """A short training on a busy machine: steps are steady but for some that a neighbour made longer."""
    steps = np.array([400, *np.tile([100, 101, 99], 6), *later])
    assert leading_warmup(steps) == 1


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=30))
def test_never_more_than_half_is_left_out(values: list[int]) -> None:
    assert 0 <= leading_warmup(np.array(values)) <= len(values) // 2


@pytest.mark.parametrize("count", [50, 1000])  # all steps, and thinned
def test_drift_is_the_relative_change_over_the_run(count: int) -> None:
    run = np.rint(1e8 * np.linspace(1.0, 1.2, count)).astype(np.int64)
    run[count // 3] *= 10  # Theil-Sen does not mind
    assert drift(run) == pytest.approx(0.2 / 1.1, rel=0.01)
    assert drift(run[:1]) == 0.0


def test_iqr_over_median_is_that_within_runs() -> None:
    even = np.array([80, 90, 100, 110, 120])
    assert iqr_over_median([even]) == pytest.approx(0.2)
    assert iqr_over_median([even, 10 * even]) == pytest.approx(0.2)


def test_a_variant_far_noisier_than_the_rest_does_not_hide_what_they_show() -> None:
    spread = {"base": [0, 0.01, -0.01], "fast": [-0.35, -0.36, -0.355], "wild": [0.3, -0.4, 0]}
    medians = {name: {k: float(np.exp(v)) for k, v in enumerate(values)} for name, values in spread.items()}
    by_name = ratios(medians, "base")
    assert by_name["fast"].p_value is not None
    assert by_name["fast"].p_value < 1e-4
    assert (by_name["wild"].p_value or 0) > 0.05


def test_variants_without_any_spread_are_compared() -> None:
    medians = {name: dict.fromkeys(range(3), value) for name, value in (("base", 10.0), ("a", 10.0), ("b", 9.0))}
    assert ratios(medians | {"c": {0: 5.0, 1: 10.0, 2: 7.0}}, "base")["b"].p_value == 0.0
