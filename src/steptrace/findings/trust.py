"""Rules on whether a comparison can be relied on: equivalence, failed runs, noise, the profiler, environments."""

from collections.abc import Iterator, Sequence
from typing import Final

from steptrace.findings.model import Json, Match, Rule, percent
from steptrace.findings.variants import per_variant
from steptrace.stats import IQR_REFUSED, IQR_WARNING

#: Profiled over unprofiled step time above which trace figures tell of the profiler too.
PROFILER_OVERHEAD: Final = 1.10

#: What the equivalence check holds, and what it is called in a sentence.
_HELD: Final = {
    "loss": "loss",
    "gradient": "loss's gradient by the predictions",
    "predictions": "predictions",
    "parameters": "gradient by the parameters",
}


def _differs(variant: Json) -> Iterator[Match]:
    result = variant.get("equivalence") or {}
    if result.get("status") != "differs":
        return
    faster = (variant.get("ratio") or {}).get("verdict") == "faster"
    tolerance = result.get("tolerance") or {}
    # What is not finite is written as null: of the network's links only if they have been held, with a tolerance.
    errors = {
        name: result.get(f"{name}_rel_err") for name in _HELD if name in tolerance or name in ("loss", "gradient")
    }
    yield Match(
        severity="high",
        claim="computes something else than the reference" + (": it is faster, but at another task" if faster else ""),
        evidence=tuple(
            f"relative error of the {_HELD[name]}: "
            + ("not finite" if error is None else f"{error:.2g}")
            + (f", allowed {tolerance[name]:.2g}" if name in tolerance else "")
            for name, error in errors.items()
        ),
    )


def _unchecked(variant: Json) -> Iterator[Match]:
    result = variant.get("equivalence") or {}
    if result.get("status") == "failed":
        yield Match(
            severity="high",
            claim="could not be held against the reference: the equivalence check failed",
            evidence=_endings([result.get("failure") or {}]),
        )


def _out_of_memory(variant: Json) -> Iterator[Match]:
    runs = [run for run in variant.get("runs") or () if run["status"] == "oom"]
    if runs:
        yield Match(
            severity="high",
            claim=f"{len(runs)} of {len(variant['runs'])} runs ran out of memory",
            evidence=_endings([{"repeat": run["repeat"], **(run.get("error") or {})} for run in runs]),
        )


def _failed_runs(variant: Json) -> Iterator[Match]:
    failed = [run for run in variant.get("runs") or () if run["status"] not in ("ok", "oom")]
    if failed:
        total = len(variant["runs"])
        did_not_run = all(run["status"] == "not run" for run in failed)
        yield Match(
            severity="warning" if did_not_run else "high",
            claim=f"{len(failed)} of {total} runs " + ("are missing" if did_not_run else "did not end well"),
            evidence=_endings([{"repeat": run["repeat"], **(run.get("error") or {})} for run in failed]),
        )


def _endings(errors: Sequence[Json]) -> tuple[str, ...]:
    """One line for each failed process: how it ended, its error, else the last line of its log."""
    lines = []
    for error in errors:
        ending = error.get("status") or "failed"
        if error.get("signal") is not None:
            ending += f", signal {error['signal']}"
        elif error.get("exit_code") is not None:
            ending += f", exit code {error['exit_code']}"
        reason = error.get("error") or next(iter(reversed(error.get("log_tail") or [])), None)
        run = f"run {error['repeat']}: " if "repeat" in error else ""
        lines.append(f"{run}{ending}" + (f": {reason}" if reason else ""))
    return tuple(lines)


def _noise(variant: Json) -> Iterator[Match]:
    noise = variant.get("noise") or {}
    spread = noise.get("iqr_over_median")
    if spread is not None and spread > IQR_WARNING:
        yield Match(
            severity="high" if spread > IQR_REFUSED else "warning",
            claim=f"step times are uneven: their interquartile range is {percent(spread)} of the median"
            + (", too much for a verdict" if spread > IQR_REFUSED else ""),
            evidence=tuple(noise.get("uneven") or ()),
        )


def _profiler_overhead(variant: Json) -> Iterator[Match]:
    ratio = variant.get("profiled_over_unprofiled")
    if ratio is not None and ratio > PROFILER_OVERHEAD:
        yield Match(
            severity="warning",
            claim=f"a profiled step takes {ratio:.2f} times as long as an unprofiled one",
            evidence=(f"median profiled step over median timed step: {ratio:.3f}",),
        )


def _environments_differ(comparison: Json) -> Iterator[Match]:
    keys = comparison.get("environments_differ") or ()
    if keys:
        yield Match(
            severity="warning",
            claim=f"the study's runs did not take place in the same environment: {', '.join(keys)} differ",
            evidence=tuple(f"environment.{key} has more than one value" for key in keys),
        )


TRUST_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        name="differs",
        condition="loss, gradient or predictions lie outside the tolerance around the study's float64 reference",
        basis="what rounding in the number format can do, by the sizes: see docs/equivalence.md",
        advice="Find the case that differs in equivalence.json; a speed-up that changes the answer is none.",
        counter_check="Run the check in float32: an error that shrinks to its rounding is the precision's, not the "
        "variant's. A formula that cancels is worse off than its format: write it without the difference.",
        find=per_variant(_differs),
        standing="error",
    ),
    Rule(
        name="equivalence_failed",
        condition="the equivalence check did not end well",
        basis="a variant that was not checked may compute anything",
        advice="Read equivalence/status.json and its log; the next call of the workflow tries again.",
        counter_check="Run the check's command by hand.",
        find=per_variant(_unchecked),
        standing="error",
    ),
    Rule(
        name="out_of_memory",
        condition="a run ended out of memory",
        basis="the supervisor's status",
        advice="Lower the batch size, checkpoint activations, or use a smaller precision.",
        counter_check="Look for other processes on the device: its memory may not have been free.",
        find=per_variant(_out_of_memory),
        standing="error",
        study="memory",
    ),
    Rule(
        name="failed_run",
        condition="a run failed, was killed or is missing",
        basis="the supervisor's status",
        advice="Read the run's train.log; the next call of the workflow runs only what failed.",
        counter_check="Run it again: a failure that does not repeat is the machine's.",
        find=per_variant(_failed_runs),
        standing="error",
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
