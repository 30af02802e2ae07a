"""Rules on whether a comparison can be relied on: equivalence, failed runs, noise, the profiler, environments."""

from collections.abc import Iterable, Iterator
from typing import Final

from steptrace.documents.comparison import Comparison, RunResult, VariantResult
from steptrace.documents.comparison.runs import ProcessError
from steptrace.findings.model import Match, Rule, per_variant, rule
from steptrace.format import whole_percent as percent
from steptrace.stats import IQR_REFUSED, IQR_WARNING

#: Profiled over unprofiled step time above which trace figures tell of the profiler too.
PROFILER_OVERHEAD: Final = 1.10


_IN_WORDS: Final = {"gradient": "loss's gradient by the predictions", "parameters": "gradient by the parameters"}


def _differs(variant: VariantResult) -> Iterator[Match]:
    result = variant.equivalence
    if result.status != "differs":
        return
    # What is not finite is written as null: of the network's links only if they have been held, with a tolerance.
    held = [item for item in result.held if item[0] in ("loss", "gradient") or item[2] is not None]
    yield Match(
        severity="high",
        claim="computes a different result from the reference"
        + (": it is faster, but at another task" if variant.verdict == "faster" else ""),
        evidence=tuple(
            f"relative error of the {_IN_WORDS.get(name, name)}: "
            + ("not finite" if error is None else f"{error:.2g}")
            + (f", allowed {most:.2g}" if most is not None else "")
            for name, error, most in held
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
    ending = ", ".join(filter(None, [error.status, error.ending]))
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
    rule("differs", per_variant(_differs)),
    rule("equivalence_failed", per_variant(_unchecked)),
    rule("out_of_memory", per_variant(_out_of_memory)),
    rule("failed_run", per_variant(_failed_runs)),
    rule("noise", per_variant(_noise), {"warned": IQR_WARNING, "refused": IQR_REFUSED}),
    rule("profiler_overhead", per_variant(_profiler_overhead), {"most": f"{PROFILER_OVERHEAD:.2f}"}),
    rule("environments_differ", _environments_differ),
)
