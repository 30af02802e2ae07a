"""Rules on whether a comparison can be relied on: equivalence, failed runs, noise, the profiler, environments."""

from collections.abc import Iterable, Iterator
from typing import Final

from steptrace.documents.comparison import Comparison, ProcessError, RunResult, VariantResult
from steptrace.findings.model import Match, Rule
from steptrace.findings.variants import per_variant
from steptrace.format import whole_percent as percent
from steptrace.stats import IQR_REFUSED, IQR_WARNING

#: Profiled over unprofiled step time above which trace figures tell of the profiler too.
PROFILER_OVERHEAD: Final = 1.10


def _differs(variant: VariantResult) -> Iterator[Match]:
    result = variant.equivalence
    if result.status != "differs":
        return
    faster = variant.ratio is not None and variant.ratio.verdict == "faster"
    allowed = result.tolerance
    # What is not finite is written as null: of the network's links only if they have been held, with a tolerance.
    held = (
        ("loss", result.loss_rel_err, allowed and allowed.loss),
        ("loss's gradient by the predictions", result.gradient_rel_err, allowed and allowed.gradient),
    )
    links = (
        ("predictions", result.predictions_rel_err, allowed and allowed.predictions),
        ("gradient by the parameters", result.parameters_rel_err, allowed and allowed.parameters),
    )
    yield Match(
        severity="high",
        claim="computes a different result from the reference"
        + (": it is faster, but at another task" if faster else ""),
        evidence=tuple(
            f"relative error of the {name}: "
            + ("not finite" if error is None else f"{error:.2g}")
            + (f", allowed {most:.2g}" if most is not None else "")
            for name, error, most in (*held, *(link for link in links if link[2] is not None))
        ),
    )


def _unchecked(variant: VariantResult) -> Iterator[Match]:
    if variant.equivalence.status == "failed":
        yield Match(
            severity="high",
            claim="could not be held against the reference: the equivalence check failed",
            evidence=(_ending(variant.equivalence.failure),),
        )


def _out_of_memory(variant: VariantResult) -> Iterator[Match]:
    runs = [run for run in variant.runs if run.status == "oom"]
    if runs:
        yield Match(
            severity="high",
            claim=f"{len(runs)} of {len(variant.runs)} runs ran out of memory",
            evidence=_endings(runs),
        )


def _failed_runs(variant: VariantResult) -> Iterator[Match]:
    failed = [run for run in variant.runs if run.status not in ("ok", "oom")]
    if failed:
        missing = all(run.status == "not run" for run in failed)
        yield Match(
            severity="warning" if missing else "high",
            claim=f"{len(failed)} of {len(variant.runs)} runs " + ("are missing" if missing else "did not end well"),
            evidence=_endings(failed),
        )


def _endings(runs: Iterable[RunResult]) -> tuple[str, ...]:
    return tuple(f"run {run.repeat}: {_ending(run.error)}" for run in runs)


def _ending(error: ProcessError | None) -> str:
    """How a process ended, its error, else the last line of its log."""
    if error is None:
        return "failed"
    ending = error.status
    if error.signal is not None:
        ending += f", signal {error.signal}"
    elif error.exit_code is not None:
        ending += f", exit code {error.exit_code}"
    reason = error.error or next(reversed(error.log_tail), None)
    return ending + (f": {reason}" if reason else "")


def _noise(variant: VariantResult) -> Iterator[Match]:
    spread = variant.noise.iqr_over_median
    if spread is not None and spread > IQR_WARNING:
        yield Match(
            severity="high" if spread > IQR_REFUSED else "warning",
            claim=f"step times are uneven: their interquartile range is {percent(spread)} of the median"
            + (", too much for a verdict" if spread > IQR_REFUSED else ""),
            evidence=variant.noise.uneven,
        )


def _profiler_overhead(variant: VariantResult) -> Iterator[Match]:
    ratio = variant.profiled_over_unprofiled
    if ratio is not None and ratio > PROFILER_OVERHEAD:
        yield Match(
            severity="warning",
            claim=f"a profiled step takes {ratio:.2f} times as long as an unprofiled one",
            evidence=(f"median profiled step over median timed step: {ratio:.3f}",),
        )


def _environments_differ(comparison: Comparison) -> Iterator[Match]:
    keys = comparison.environments_differ
    if keys:
        yield Match(
            severity="warning",
            claim=f"the study's runs did not take place in the same environment: {', '.join(keys)} differ",
            evidence=tuple(f"environment.{key} has more than one value" for key in keys),
        )


TRUST_RULES: Final[tuple[Rule[Comparison], ...]] = (
    Rule(
        name="differs",
        condition="loss, gradient or predictions lie outside the tolerance around the study's float64 reference",
        basis="what rounding in the number format can do, by the sizes: see docs/equivalence.md",
        advice="Find the case that differs in equivalence.json; a speed-up that changes the answer does not count.",
        counter_check="Run the check in float32: an error that shrinks to its rounding is the precision's, not the "
        "variant's. A formula that cancels is worse off than its format: write it without the difference.",
        find=per_variant(_differs),
        priority="first",
    ),
    Rule(
        name="equivalence_failed",
        condition="the equivalence check did not end well",
        basis="a variant that was not checked may compute anything",
        advice="Read equivalence/status.json and its log; the next call of the workflow tries again.",
        counter_check="Run the check's command by hand.",
        find=per_variant(_unchecked),
        priority="first",
    ),
    Rule(
        name="out_of_memory",
        condition="a run ended out of memory",
        basis="the supervisor's status",
        advice="Lower the batch size, checkpoint activations, or use a smaller precision.",
        counter_check="Look for other processes on the device: its memory may not have been free.",
        find=per_variant(_out_of_memory),
        priority="first",
        study="memory",
    ),
    Rule(
        name="failed_run",
        condition="a run failed, was killed or is missing",
        basis="the supervisor's status",
        advice="Read the run's train.log; the next call of the workflow runs only what failed.",
        counter_check="Run it again: a failure that does not repeat is the machine's.",
        find=per_variant(_failed_runs),
        priority="first",
    ),
    Rule(
        name="noise",
        condition=f"IQR/median of the steps is above {percent(IQR_WARNING)}; above {percent(IQR_REFUSED)} there is no "
        "verdict",
        basis="torch.utils.benchmark warns at the same shares",
        advice="Free the machine of other work, fix the clocks, or time more and longer steps.",
        counter_check="Look at the plot of the steps: two levels are a pattern of the training, not noise.",
        find=per_variant(_noise),
    ),
    Rule(
        name="profiler_overhead",
        condition=f"profiled over unprofiled step time is above {PROFILER_OVERHEAD:.2f}",
        basis="above it, the trace's figures tell of the profiler as well",
        advice="Read the trace for where time goes, not for how much; switch off profile.with_stack or record_shapes.",
        counter_check="Profile with fewer options: shares that stay are the training's.",
        find=per_variant(_profiler_overhead),
        study="overheads",
    ),
    Rule(
        name="environments_differ",
        condition="a key of the environment has more than one value among the measured runs",
        basis="a comparison holds for one machine and one set of versions",
        advice="Run the whole study again in one environment.",
        counter_check="Compare run.json of the runs: a key that cannot change the speed is no objection.",
        find=_environments_differ,
    ),
)
