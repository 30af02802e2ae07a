"""The promises of the interval and the verdicts, on simulated studies: a short form of bench/stats_coverage.py.

Seeds are fixed. The bench runs more regimes and more trials; what it shows in the long run stands beside each test.
"""

from typing import Any

import pytest

from benches import bench_module


@pytest.fixture(scope="module")
def bench() -> Any:
    return bench_module("stats_coverage")


@pytest.mark.parametrize("runs", [3, 10])
def test_coverage_and_false_claims(bench: Any, runs: int) -> None:
    """Long run: coverage 95.8 and 95.0 %; any false claim in 3.3 and 4.4 % of studies."""
    regime = bench.Regime("correlated steps, runs of 2 %", steps=40, rho=0.6)
    outcome = bench.simulate(regime, runs, 1000, seed=1, with_gains=False)
    assert 0.93 <= outcome.coverage <= 0.97
    assert 0.93 <= outcome.lowest_coverage <= 0.97
    assert outcome.any_claim <= 0.05


def test_a_true_gain_of_5_percent_is_found(bench: Any) -> None:
    """2 % between runs, 5 runs, one of three candidates is faster. Long run: 85.7 %."""
    assert bench.gain_share(candidates=3, runs=5, gain=1.05, trials=4000, seed=0) >= 0.85


@pytest.mark.parametrize(
    "changes",
    [{"round_sd": 0.06}, {"run_sd": (0.02, 0.04, 0.02, 0.02)}, {"run_tail": 3.0, "spikes": 0.05, "warmup": 3}],
    ids=["rounds drift", "one variant is noisier", "heavy tails and warm-up"],
)
def test_coverage_survives_less_tidy_noise(bench: Any, changes: dict[str, object]) -> None:
    outcome = bench.simulate(bench.Regime("untidy", steps=40, **changes), 3, 500, seed=2, with_gains=False)
    assert 0.93 <= outcome.coverage <= 0.97
