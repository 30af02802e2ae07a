"""Compares several results of one study, from machines, versions or dates, each with the one before it.

Step times have an interval, over whole runs: Welch's t interval on the logarithms of the runs' step times, as within a
study; where one result compares means, all do. Runs of two sessions are never paired. Verdicts are corrected over the
study's variants (Holm); the noise floor is the larger one of both sessions. A variant whose steps are too uneven for a
verdict on a study's page has none here. If the scales differ, there is no ratio either. Counts and words are listed if
they are not equal. Any other figure, such as a share of time, is listed if it changes by a tenth or more: that is no
claim, but says where to look.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import ne
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from steptrace import format as fmt
from steptrace import stats
from steptrace.documents.comparison import (
    Change,
    ChangeNote,
    ComparedResults,
    Comparison,
    Difference,
    FigureOfChange,
    Result,
    VariantChange,
)
from steptrace.documents.finding import Finding
from steptrace.documents.step_times import RatioToBaseline, StepVerdict
from steptrace.documents.variant import VariantResult
from steptrace.errors import RecordError
from steptrace.words.results import change_note_text, environment_text, figure_name, figure_text

#: The least relative change of a figure without an interval that is listed.
LISTED: Final = 0.10
_Value = Callable[[VariantResult], Any]
#: Keeps runs of B out of A's rounds.
_OTHER_ROUNDS: Final = 1_000_000


def compare_results(results: Sequence[tuple[str, Comparison]]) -> ComparedResults:
    """The comparison of several results of a study: their step times, and the changes from each to the next.

    Raises:
        RecordError: they are of different studies, or two that follow each other share no variant.
    """
    last = results[-1][1]
    comparisons = [comparison for _, comparison in results]
    if any(study.statistic == "mean" for study in comparisons):
        comparisons = [replace(study, variants=tuple(map(_with_mean, study.variants))) for study in comparisons]
    return ComparedResults(
        study=last.study,
        title=last.title,
        results=tuple(_result(file, study) for (file, _), study in zip(results, comparisons, strict=True)),
        changes=tuple(change(before, now) for before, now in pairwise(comparisons)),
    )


def _with_mean(variant: VariantResult) -> VariantResult:
    """The variant with the mean as its step time."""
    times = variant.step_ms
    if times is None or times.statistic == "mean":
        return variant
    mean = stats.typical([run.mean_ms for run in variant.runs if run.mean_ms])
    return replace(variant, step_ms=replace(times, statistic="mean", low=mean.low, high=mean.high))


def _result(file: str, comparison: Comparison) -> Result:
    step_ms = {variant.name: variant.step_ms for variant in comparison.variants}
    return Result(
        file=file,
        measured_at=comparison.measured_at,
        machine=f"{comparison.machine or 'unknown machine'}, scale {comparison.scale}",
        step_ms=step_ms,
        torch=None if comparison.environment is None else comparison.environment.torch,
        steptrace=None if comparison.environment is None else comparison.environment.steptrace,
    )


def change(before: Comparison, now: Comparison) -> Change:
    """The changes from one result of a study to another.

    Raises:
        RecordError: they are of different studies, or share no variant.
    """
    if before.study != now.study:
        raise RecordError(
            f"the results are of different studies, '{before.study}' and '{now.study}'",
            expected="results of one study",
            next_step="compare two traces with: steptrace diff A B",
        )
    left, right = ({variant.name: variant for variant in side.variants} for side in (before, now))
    shared = [name for name in left if name in right]
    if not shared:
        raise RecordError("no variant is in both", where=now.study, expected="results with variants of the same names")
    of_means = "mean" in (before.statistic, now.statistic)
    sides = {name: (left[name], right[name]) for name in shared if before.scale == now.scale}
    ratios = _ratios(sides, of_means=of_means)
    adjusted = stats.holm({name: r.p_value for name, r in ratios.items() if r.p_value is not None})
    floor = max(before.method.noise_floor, now.method.noise_floor)
    uneven = [name for name, r in ratios.items() if r.low is not None and _is_uneven(left[name], right[name])]
    judged = [name for name in ratios if name not in uneven]
    verdicts = {name: stats.verdict(ratios[name], adjusted.get(name), floor) for name in judged}
    reconfigured = [name for name in shared if left[name].digest != right[name].digest]
    without_verdict = _Unjudged(
        before=[name for name in sides if not _has_times(left[name])],
        now=[name for name in sides if not _has_times(right[name])],
        too_few_runs=[name for name, ratio in ratios.items() if ratio.low is None],
        uneven=uneven,
    )
    notes = tuple(_notes(before, now, reconfigured, without_verdict))
    return Change(
        environment=tuple(_environment(before, now)),
        variants=tuple(_variant(left[n], right[n], ratios.get(n), verdicts.get(n)) for n in shared),
        only_before=tuple(name for name in left if name not in right),
        only_now=tuple(name for name in right if name not in left),
        findings_before=_findings(before, now),
        findings_now=_findings(now, before),
        notes=tuple(map(change_note_text, notes)),
        remarks=notes,
    )


def _ratios(sides: dict[str, tuple[VariantResult, VariantResult]], *, of_means: bool) -> dict[str, stats.Ratio]:
    ratios = {}
    for name, (a, b) in sides.items():
        times = {
            key: {first + run.repeat: ms for run in side.runs if (ms := run.mean_ms if of_means else run.median_ms)}
            for key, side, first in (("a", a, 0), ("b", b, _OTHER_ROUNDS))
        }
        if times["a"] and times["b"]:
            ratios[name] = stats.ratios(times, "a")["b"]
    return ratios


class _Unjudged(NamedTuple):
    """The variants without a verdict, by the reason."""

    #: Without a step time in the result before, and in this one.
    before: list[str]
    now: list[str]
    #: Without an interval, which takes two runs of each side.
    too_few_runs: list[str]
    uneven: list[str]


def _has_times(variant: VariantResult) -> bool:
    """Whether any of its runs was measured."""
    return any(run.median_ms for run in variant.runs)


def _is_uneven(*variants: VariantResult) -> bool:
    """Whether the steps of any of them vary too much for a verdict."""
    return any((variant.noise.iqr_over_median or 0) > stats.IQR_REFUSED for variant in variants)


def _variant(
    a: VariantResult, b: VariantResult, ratio: stats.Ratio | None, verdict: StepVerdict | None
) -> VariantChange:
    return VariantChange(
        name=a.name,
        ratio=None
        if ratio is None
        else RatioToBaseline(value=ratio.value, low=ratio.low, high=ratio.high, verdict=verdict),
        differing=tuple(_differing(a, b)),
    )


def _by_a_tenth(a: Any, b: Any) -> bool:
    """Whether a figure changes by a tenth or more, or was measured on one side only."""
    if a is None or b is None:
        return (a is None) is not (b is None)
    return bool(a != b and abs(b - a) >= LISTED * abs(a))


#: The figures that are listed: the value, and when the two sides differ.
_FIGURES: Final[Mapping[FigureOfChange, tuple[_Value, Callable[[Any, Any], bool]]]] = {
    "status": (lambda variant: variant.status, ne),
    "equivalence.status": (lambda variant: variant.equivalence.status, ne),
    "ratio.verdict": (lambda variant: variant.ratio and variant.ratio.verdict, ne),
    "syncs.measured_per_step": (lambda variant: variant.syncs.measured_per_step, ne),
    "syncs.predicted_per_step": (lambda variant: variant.syncs.predicted_per_step, ne),
    "operators_per_step": (lambda variant: variant.operators_per_step, ne),
    "kernels_per_step": (lambda variant: variant.kernels_per_step, ne),
    "peak_allocated_bytes": (lambda variant: variant.peak_allocated_bytes, _by_a_tenth),
    "gpu_busy_pct": (lambda variant: variant.gpu_busy_pct, _by_a_tenth),
    "input.share": (lambda variant: variant.input and variant.input.share, _by_a_tenth),
    "profiled_over_unprofiled": (lambda variant: variant.profiled_over_unprofiled, _by_a_tenth),
}


def _differing(a: VariantResult, b: VariantResult) -> Iterator[Difference]:
    for figure, (value, differ) in _FIGURES.items():
        before, now = value(a), value(b)
        if differ(before, now):
            yield Difference(
                name=figure_name(figure),
                before=figure_text(figure, before),
                now=figure_text(figure, now),
                figure=figure,
                before_value=before,
                now_value=now,
            )


def _environment(a: Comparison, b: Comparison) -> Iterator[Difference]:
    for key in dict.fromkeys([*a.conditions, *b.conditions]):
        before, now = a.conditions.get(key), b.conditions.get(key)
        if before != now:
            yield Difference(
                name=key,
                before=environment_text(key, before),
                now=environment_text(key, now),
                before_value=before,
                now_value=now,
            )


def _findings(result: Comparison, other: Comparison) -> tuple[str, ...]:
    """The findings that the other result lacks, each once with the variants that have it in the same words."""
    places = {_place(finding) for finding in other.findings}
    variants: dict[str, list[str]] = {}
    for finding in result.findings:
        if _place(finding) not in places:
            variants.setdefault(finding.claim, []).append(finding.variant or result.study)
    return tuple(f"{fmt.enumeration(names)}: {claim}" for claim, names in variants.items())


def _place(finding: Finding) -> tuple[object, ...]:
    source = finding.source
    return finding.rule, finding.variant, *((source.file, source.line) if source is not None else ())


def _notes(a: Comparison, b: Comparison, reconfigured: list[str], unjudged: _Unjudged) -> Iterator[ChangeNote]:
    """The notes on what to read with care."""
    if a == b:
        yield ChangeNote("same_result", {})
        return
    if a.scale != b.scale:
        yield ChangeNote("other_scale", {})
    if "mean" in (a.statistic, b.statistic):
        yield ChangeNote("means", {})
    if reconfigured:
        yield ChangeNote("reconfigured", {"variants": reconfigured})
    if unjudged.before or unjudged.now:
        yield ChangeNote("not_measured", {"before": unjudged.before, "now": unjudged.now})
    if unjudged.too_few_runs:
        yield ChangeNote("too_few_runs", {"variants": unjudged.too_few_runs})
    if unjudged.uneven:
        yield ChangeNote("too_uneven", {"variants": unjudged.uneven, "most": stats.IQR_REFUSED})
    yield ChangeNote("runs_apart", {})
