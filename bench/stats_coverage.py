"""How often the interval covers the truth, and how often a verdict is wrong: simulated studies, many regimes.

    python bench/stats_coverage.py [--trials 1000] [--seed 0] [--alternatives]

A simulated study has a baseline and three candidates. A step takes its variant's time, times the luck of its run and
of its round, times noise within the run that is correlated from step to step (AR(1)). Every figure comes out of the
package's own functions, from raw step times on. Per regime and number of runs the table shows

- coverage: share of 95 % intervals of the ratio that hold the true ratio (wanted: 93-97 %),
- any claim: share of studies of four equal variants in which any is called faster or slower (wanted: at most 5 %),
- found: share of studies in which a true gain of 5 % (a ratio of 1.05) of one candidate is called faster.

A second table shows how often such a gain is found at exactly 2 % between run medians (wanted at 5 runs: at least
85 %), by the number of candidates. One of them is faster. `--alternatives` shows, for three runs, what other methods
would have covered.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats as reference
from scipy.signal import lfilter

from steptrace.limits import NOISE_FLOOR
from steptrace.run_times import leading_warmup
from steptrace.stats import Ratio, holm, ratios, verdict

RUNS = (3, 5, 10)
NAMES = ("baseline", "a", "b", "c")
GAIN = 1.05
STEP_NS = 100_000_000

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Regime:
    """One kind of noise; all spreads are standard deviations of logarithms.

    Run medians spread by `run_sd` and by what is left of the noise within a run: with 100 steps of 3 % at rho 0.5,
    0.6 %, which makes 2.1 % of 2 %.
    """

    name: str
    run_sd: tuple[float, ...] = (0.02, 0.02, 0.02, 0.02)
    round_sd: float = 0.0
    step_sd: float = 0.03
    rho: float = 0.5
    steps: int = 100
    #: Share of steps that take up to several times as long (exponential excess of 50 % on average).
    spikes: float = 0.0
    #: Degrees of freedom of the runs' luck (Student t); None is normal.
    run_tail: float | None = None
    warmup: int = 0


REGIMES = (
    Regime("runs 2 %, quiet steps", step_sd=0.01),
    Regime("runs 2 %"),
    Regime("runs 0.5 %, 20 steps", run_sd=(0.005,) * 4, steps=20),
    Regime("runs 5 %", run_sd=(0.05,) * 4),
    Regime("20 steps of 10 %, rho 0.9", step_sd=0.10, rho=0.9, steps=20),
    Regime("300 steps, rho 0.9", rho=0.9, steps=300),
    Regime("independent steps", rho=0.0),
    Regime("no run effect, rho 0.9", run_sd=(0.0,) * 4, rho=0.9),
    Regime("5 % spikes", spikes=0.05),
    Regime("warm-up of 5 steps", warmup=5, steps=50),
    Regime("heavy-tailed runs (t3)", run_tail=3.0),
    Regime("a twice as noisy", run_sd=(0.02, 0.04, 0.02, 0.02)),
    Regime("baseline twice as noisy", run_sd=(0.04, 0.02, 0.02, 0.02)),
    Regime("a four times as noisy", run_sd=(0.01, 0.04, 0.01, 0.01)),
    Regime("b ten times as noisy", run_sd=(0.01, 0.01, 0.10, 0.01)),
    Regime("rounds 1 %", round_sd=0.01),
    Regime("rounds 2 %", round_sd=0.02),
    Regime("rounds 6 %", round_sd=0.06),
)


@dataclass(frozen=True)
class Outcome:
    """What happened over the trials of a regime: shares between 0 and 1."""

    coverage: float
    lowest_coverage: float
    any_claim: float
    gains: float


def study_medians(regime: Regime, runs: int, rng: np.random.Generator) -> dict[str, dict[int, float]]:
    """One simulated study of four equal variants: variant -> repeat -> median of the counted steps."""
    shape = (len(NAMES), runs)
    luck = rng.standard_normal(shape) if regime.run_tail is None else _student(regime.run_tail, shape, rng)
    luck = luck * np.array(regime.run_sd)[:, None] + regime.round_sd * rng.standard_normal(runs)
    steps = np.rint(STEP_NS * np.exp(luck[..., None] + _within(regime, (*shape, regime.steps), rng))).astype(np.int64)
    return {
        name: {repeat: float(np.median(run[leading_warmup(run) :])) for repeat, run in enumerate(variant)}
        for name, variant in zip(NAMES, steps, strict=True)
    }


def _student(df: float, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    return np.asarray(rng.standard_t(df, shape) / np.sqrt(df / (df - 2)))


def _within(regime: Regime, shape: tuple[int, ...], rng: np.random.Generator) -> Floats:
    """Logarithms of the noise within runs, shape (variants, runs, steps)."""
    noise = rng.standard_normal(shape) * np.sqrt(1 - regime.rho**2)
    noise[..., 0] /= np.sqrt(1 - regime.rho**2)
    noise = regime.step_sd * lfilter([1.0], [1.0, -regime.rho], noise, axis=-1)
    if regime.spikes:
        noise += np.log1p(rng.exponential(0.5, shape)) * (rng.random(shape) < regime.spikes)
    noise[..., : regime.warmup] += np.log(1.5)
    return np.asarray(noise)


def verdicts(compared: dict[str, Ratio]) -> dict[str, str | None]:
    """The verdicts of a study as compare.py reaches them."""
    adjusted = holm({name: ratio.p_value for name, ratio in compared.items() if ratio.p_value is not None})
    return {name: verdict(ratio, adjusted.get(name), NOISE_FLOOR) for name, ratio in compared.items()}


def simulate(regime: Regime, runs: int, trials: int, seed: int, *, with_gains: bool = True) -> Outcome:
    """Run `trials` simulated studies of `regime` at `runs` repeats; those `with_gains` once more with a faster one."""
    rng = np.random.default_rng(seed)
    covered = np.zeros(len(NAMES) - 1)
    claims = gains = 0
    for _ in range(trials):
        medians = study_medians(regime, runs, rng)
        equal = ratios(medians, "baseline")
        covered += [not ratio.excludes_one for ratio in equal.values()]
        claims += any(word in ("faster", "slower") for word in verdicts(equal).values())
        if with_gains:
            # A variant that is faster by a factor has all its medians divided by it.
            quicker = medians | {"a": {repeat: value / GAIN for repeat, value in medians["a"].items()}}
            gains += verdicts(ratios(quicker, "baseline"))["a"] == "faster"
    shares = covered / trials
    return Outcome(float(shares.mean()), float(shares.min()), claims / trials, gains / trials)


def gain_share(candidates: int, runs: int, gain: float, trials: int, seed: int) -> float:
    """Share of studies that find one of `candidates` to be faster by `gain`, with medians that spread by 2 %."""
    rng = np.random.default_rng(seed)
    gains = 0
    for _ in range(trials):
        medians = np.exp(0.02 * rng.standard_normal((candidates + 1, runs)))
        medians[1] /= gain
        study = {str(index): dict(enumerate(variant)) for index, variant in enumerate(medians.tolist())}
        gains += verdicts(ratios(study, "0"))["1"] == "faster"
    return gains / trials


def bootstrap_covers(baseline: Floats, candidate: Floats, rng: np.random.Generator) -> bool:
    """Whether a percentile bootstrap over runs covers equality."""
    draws = rng.integers(0, len(baseline), (2, 999, len(baseline)))
    differences = np.median(baseline[draws[0]], axis=1) - np.median(candidate[draws[1]], axis=1)
    low, high = np.quantile(differences, [0.025, 0.975])
    return bool(low <= 0 <= high)


def alternatives(regime: Regime, runs: int, trials: int, seed: int) -> Iterator[tuple[str, float]]:
    """Coverage of the ratio of candidate `a` by methods that were not chosen."""
    rng = np.random.default_rng(seed)
    studies = [
        np.log([list(runs_of.values()) for runs_of in study_medians(regime, runs, rng).values()]) for _ in range(trials)
    ]
    tests: dict[str, Callable[[Floats], bool]] = {
        "bootstrap over runs": lambda logs: bootstrap_covers(logs[0], logs[1], rng),
        "paired t": lambda logs: bool(reference.ttest_rel(logs[0], logs[1]).pvalue >= 0.05),
        "equal variances, two variants": lambda logs: bool(reference.ttest_ind(logs[0], logs[1]).pvalue >= 0.05),
        "equal variances, whole study": _pooled_covers,
        "Satterthwaite": lambda logs: bool(reference.ttest_ind(logs[0], logs[1], equal_var=False).pvalue >= 0.05),
    }
    for name, covers in tests.items():
        yield name, float(np.mean([covers(logs) for logs in studies]))


def _pooled_covers(logs: Floats) -> bool:
    variants, runs = logs.shape
    spread = np.sqrt(2 * logs.var(axis=1, ddof=1).mean() / runs)
    quantile = reference.t.ppf(0.975, variants * (runs - 1))
    return bool(abs(logs[0].mean() - logs[1].mean()) <= quantile * spread)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Coverage of the interval and error rates of the verdicts.")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--alternatives", action="store_true", help="coverage of other methods at 3 runs")
    options = parser.parse_args()
    if options.alternatives:
        for regime in REGIMES:
            for name, coverage in alternatives(regime, 3, options.trials, options.seed):
                print(f"{regime.name:28} {name:32} {100 * coverage:6.1f}", flush=True)
        return
    print(
        f"{options.trials} trials; % of intervals that cover (worst candidate), of studies with any false claim, found"
    )
    print(f"{'regime':28} {'runs':>4} {'coverage':>9} {'worst':>6} {'any claim':>10} {'found':>6}")
    for regime in REGIMES:
        for runs in RUNS:
            outcome = simulate(regime, runs, options.trials, options.seed)
            print(
                f"{regime.name:28} {runs:4} {100 * outcome.coverage:9.1f} {100 * outcome.lowest_coverage:6.1f} "
                f"{100 * outcome.any_claim:10.1f} {100 * outcome.gains:6.1f}",
                flush=True,
            )
    print("\na gain found at 2 % between run medians, %")
    print(f"{'candidates':28} {'runs':>4} {'ratio 1.05':>11} {'5 % shorter':>12}")
    for candidates in (1, 2, 3):
        for runs in RUNS:
            shares = (gain_share(candidates, runs, gain, 5 * options.trials, options.seed) for gain in (GAIN, 1 / 0.95))
            print(f"{candidates:<28} {runs:4} {100 * next(shares):11.1f} {100 * next(shares):12.1f}", flush=True)


if __name__ == "__main__":
    main()
