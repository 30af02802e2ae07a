"""Rules on a study: which variant to use, whether it can be relied on, and the syncs predicted where no GPU ran.

The rules on traces are applied to its variants' traces.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER, PREDICTED_SYNCS, Finding
from steptrace.documents.note import UNEVEN
from steptrace.documents.run import ProcessError, RunResult
from steptrace.documents.syncs import PredictedSite, place_of
from steptrace.documents.variant import LoaderWait, VariantResult
from steptrace.findings.data import INPUT_BOUND, Waiting, input_bound
from steptrace.findings.estimated import waits_at_most
from steptrace.findings.replacements import by_replacement, counter_check, replacement
from steptrace.findings.rule import Match, Rule, per_variant, rule
from steptrace.findings.verdict import verdict_of
from steptrace.findings.waiting import source_of
from steptrace.format import plural
from steptrace.format import share as percent
from steptrace.limits import NOISE_FLOOR, PROFILER_OVERHEAD
from steptrace.stats import IQR_REFUSED, IQR_WARNING
from steptrace.words.notes import note_texts

_IN_WORDS: Final = {
    "gradient": "gradient with respect to the predictions",
    "parameters": "gradient with respect to the parameters",
}


def _differs(variant: VariantResult) -> Iterator[Match]:
    result = variant.equivalence
    if result.status != "differs":
        return
    # What is not finite is written as null: of the network's links only if they have been held, with a tolerance.
    held = [item for item in result.held if item[0] in ("loss", "gradient") or item[2] is not None]
    yield Match(
        severity="high",
        claim="computes a different result from the reference"
        + (", so its speed does not count" if variant.verdict == "faster" else ""),
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
            claim="the equivalence check failed, so its result is unchecked",
            evidence=(_ending(variant.equivalence.failure),),
        )


def _out_of_memory(variant: VariantResult) -> Iterator[Match]:
    runs = [run for run in variant.runs if run.status == "out of memory"]
    if runs:
        yield Match(
            severity="high",
            claim=f"{len(runs)} of {len(variant.runs)} runs ran out of memory",
            evidence=_endings(runs),
        )


def _failed_runs(variant: VariantResult) -> Iterator[Match]:
    failed = [run for run in variant.runs if run.status not in ("ok", "out of memory")]
    if failed:
        missing = all(run.status == "not run" for run in failed)
        yield Match(
            severity="warning" if missing else "high",
            claim=f"{len(failed)} of {len(variant.runs)} runs " + ("are missing" if missing else "failed"),
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
            evidence=note_texts(one for one in variant.noise.notes if one.code in UNEVEN),
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
            claim=f"the runs' environments differ: {', '.join(keys)}",
            evidence=tuple(
                f"{key}: {', '.join('none' if value is None else str(value) for value in values)}"
                for key, values in keys.items()
            ),
        )


def _predicted_syncs(variant: VariantResult) -> Iterator[Match]:
    """Syncs that a GPU would see, where none has looked yet. What they cost only a GPU can tell."""
    count, sites = variant.syncs.predicted_per_step, variant.predicted_sites
    if variant.syncs.measured_per_step is not None or not count or not sites:
        return
    lines = len({(site.file, site.line) for site in sites})
    on_lines, cost = f" on {lines} lines" if lines > 1 else "", waits_at_most(variant)
    yield Match(
        severity="warning",
        claim=f"{_predicted_in_all(sites)} predicted{on_lines}, first in a step at {place_of(sites[0])}",
        evidence=(
            f"all syncs of a step together cost {cost}" if cost else "cost not measured",
            _predicted(sites[0]),
        ),
        source=source_of(sites[0]),
        advice=replacement(sites[0]),
        counter_check=counter_check(sites[0]),
    )


def predicted_findings(sites: Iterable[PredictedSite]) -> Iterable[Finding]:
    """A finding for each replacement, with its lines; their cost is not known without a GPU."""
    for text, group in by_replacement(sites).items():
        lines = ", ".join(dict.fromkeys(map(place_of, group)))
        yield Finding(
            rule=PREDICTED_SYNCS, severity="warning", claim=f"{_predicted_in_all(group)} predicted, at {lines}",
            cost_ns_per_step=None, source=source_of(group[0]), evidence=(), advice=text,
            counter_check=counter_check(group[0]), variant=None,
        )  # fmt: skip


def _predicted_in_all(sites: Sequence[PredictedSite]) -> str:
    """The syncs of several sites: "2 syncs per step", or "1 sync in 4 steps" where none of them comes in each step."""
    per_step = sum(site.count_per_step or 0 for site in sites)
    steps = {site.of_steps for site in sites if site.in_steps != site.of_steps and site.every is None}
    if len(steps) == 1 and (of_steps := steps.pop()) is not None:
        return f"{plural(round(per_step * of_steps), 'sync')} in {of_steps} steps"
    return f"{plural(per_step, 'sync')} per step"


def _predicted(site: PredictedSite) -> str:
    code = f"`{site.code}`, " if site.code else ""
    backward = ", in its backward pass" if site.phase == "backward" else ""
    kind = (site.kind or "sync").replace("_", " ")
    return f"{code}{site.counted(f'{kind}{backward}')}"


def _input_bound(study: Comparison) -> Iterator[Match]:
    """Waits for the loader in unprofiled steps."""
    for variant in study.variants:
        if variant.input is not None:
            advice = _NO_CORES if _cores_taken(study, variant) else None
            runs = 1 if variant.step_ms is None else variant.step_ms.runs
            waiting = _waiting_in(variant.input, advice, runs)
            for match in input_bound(replace(waiting, note=_beside_step_time(waiting.step_ns, variant))):
                yield replace(match, variant=variant.name)


def _beside_step_time(mean_ns: float | None, variant: VariantResult) -> str | None:
    """How the mean step that waits are a share of fits the variant's step time, where the two differ."""
    times = variant.step_ms
    if times is None or mean_ns is None or abs(mean_ns / fmt.NS_PER_MS - times.value) <= NOISE_FLOOR * times.value:
        return None
    return f"the step time, {fmt.duration_ms(times.value)}, is the {times.statistic} of all runs' steps"


def _waiting_in(waits: LoaderWait, advice: str | None, runs: int) -> Waiting:
    times = (waits.wait_ms, waits.counted_ms, waits.step_ms)
    wait_ns, counted_ns, step_ns = (None if ms is None else ms * fmt.NS_PER_MS for ms in times)
    on_gpu = waits.idle_part is not None
    # The table's step time averages the runs in another way, so where they differ its figure does, too.
    per = "per unprofiled step, mean" + (" (medians of the runs)" if runs > 1 else "")
    return Waiting(wait_ns, counted_ns, waits.share, step_ns, on_gpu=on_gpu, per=per, advice=advice)


def _cores_taken(study: Comparison, variant: VariantResult) -> bool:
    """Whether the loader has as many workers as there are cores."""
    workers = None if variant.input is None else variant.input.workers
    return workers is not None and study.environment is not None and workers >= study.environment.cpu_count


_NO_CORES: Final = (
    "Give the loader's workers less to do: decode beforehand, make a sample cheaper, or decode on the GPU. There is a "
    "worker for every core, so more workers gain nothing."
)


def _answer(study: Comparison) -> Iterator[Match]:
    verdict = verdict_of(study)
    if len(study.variants) > 1 and verdict.advice:
        yield Match("info", verdict.sentence, (), advice=verdict.advice, variant=verdict.use)


STUDY_RULES: Final[tuple[Rule[Comparison], ...]] = (
    rule(ANSWER, _answer),
    rule(PREDICTED_SYNCS, per_variant(_predicted_syncs)),
    rule("differs", per_variant(_differs)),
    rule("equivalence_failed", per_variant(_unchecked)),
    rule("out_of_memory", per_variant(_out_of_memory)),
    rule("failed_run", per_variant(_failed_runs)),
    rule("input_bound", _input_bound, INPUT_BOUND),
    rule("noise", per_variant(_noise), {"warned": IQR_WARNING, "refused": IQR_REFUSED}),
    rule("profiler_overhead", per_variant(_profiler_overhead), {"most": f"{PROFILER_OVERHEAD:.2f}"}),
    rule("environments_differ", _environments_differ),
)
