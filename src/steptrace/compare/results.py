"""Several results of one study, from machines, versions or dates: each held against the one before it.

Step times have an interval, over whole runs: Welch's t interval on the logarithms of the runs' step times, as within a
study; where one result compares means, all do. Runs of two sessions are never paired. Verdicts are corrected over the
study's variants (Holm); the noise floor is the larger one of both sessions. Where steps are as uneven as a study's page
allows no verdict for, there is none here; where the scales differ, no ratio either. Counts and words differ where they
are not equal. What has neither, such as a share of time, is listed where it moves by a tenth or more: no claim, but
where to look.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import ne
from typing import Any, Final

from msgspec.structs import replace

from steptrace import format as fmt
from steptrace import stats
from steptrace.documents.comparison import Change, ComparedResults, Comparison, Difference, Result, VariantChange
from steptrace.documents.finding import Finding
from steptrace.documents.variant import RatioToBaseline, StepVerdict, VariantResult
from steptrace.errors import RecordError

#: From which relative change on a figure without an interval is listed.
LISTED: Final = 0.10
_Value = Callable[[VariantResult], Any]
#: Keeps runs of B out of A's rounds.
_OTHER_ROUNDS: Final = 1_000_000


def compare_results(results: Sequence[tuple[str, Comparison]]) -> ComparedResults:
    """Results of a study, each with its file, in this order: their step times, and what changed from each to the next.

    Raises:
        RecordError: they are of different studies, or two that follow each other share no variant.
    """
    last, comparisons = results[-1][1], [comparison for _, comparison in results]
    if any(one.statistic == "mean" for one in comparisons):
        comparisons = [replace(one, variants=tuple(map(_with_mean, one.variants))) for one in comparisons]
    return ComparedResults(
        study=last.study,
        title=last.title,
        results=tuple(_result(file, one) for (file, _), one in zip(results, comparisons, strict=True)),
        changes=tuple(change(before, now) for before, now in pairwise(comparisons)),
    )


def _with_mean(variant: VariantResult) -> VariantResult:
    """The variant with the mean as its step time."""
    times = variant.step_ms
    if times is None or times.statistic == "mean":
        return variant
    of = stats.typical([run.mean_ms for run in variant.runs if run.mean_ms])
    return replace(variant, step_ms=replace(times, statistic="mean", low=of.low, high=of.high))


def _result(file: str, comparison: Comparison) -> Result:
    step_ms = {variant.name: variant.step_ms for variant in comparison.variants}
    return Result(
        file=file,
        measured_at=comparison.measured_at,
        machine=f"{comparison.machine or 'unknown machine'}, scale {comparison.scale}",
        step_ms=step_ms,
    )


def change(before: Comparison, now: Comparison) -> Change:
    """What changed from one result of a study to another.

    Raises:
        RecordError: they are of different studies, or share no variant.
    """
    if before.study != now.study:
        raise RecordError(
            f"the results are of different studies, '{before.study}' and '{now.study}'",
            expected="results of one study",
            next_step="compare two traces with: steptrace diff A B",
        )
    left, right = ({v.name: v for v in side.variants} for side in (before, now))
    shared = [name for name in left if name in right]
    if not shared:
        raise RecordError("no variant is in both", where=now.study, expected="results with variants of the same names")
    of_means = "mean" in (before.statistic, now.statistic)
    sides = {name: (left[name], right[name]) for name in shared if before.scale == now.scale}
    ratios = _ratios(sides, of_means=of_means)
    adjusted = stats.holm({name: r.p_value for name, r in ratios.items() if r.p_value is not None})
    floor = max(before.method.noise_floor, now.method.noise_floor)
    uneven = [name for name in ratios if _is_uneven(left[name]) or _is_uneven(right[name])]
    judged = [name for name in ratios if name not in uneven]
    verdicts = {name: stats.verdict(ratios[name], adjusted.get(name), floor) for name in judged}
    reconfigured = [name for name in shared if left[name].digest != right[name].digest]
    return Change(
        environment=tuple(_environment(before, now)),
        variants=tuple(_variant(left[n], right[n], ratios.get(n), verdicts.get(n)) for n in shared),
        only_before=tuple(name for name in left if name not in right),
        only_now=tuple(name for name in right if name not in left),
        findings_before=_findings(before, now),
        findings_now=_findings(now, before),
        notes=tuple(_notes(before, now, reconfigured, uneven)),
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


def _is_uneven(variant: VariantResult) -> bool:
    """Whether its steps vary too much for a verdict."""
    return (variant.noise.iqr_over_median or 0) > stats.IQR_REFUSED


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
    """Whether it moves by a tenth of A's or more, or was measured on one side only."""
    if a is None or b is None:
        return (a is None) is not (b is None)
    return bool(a != b and abs(b - a) >= LISTED * abs(a))


#: Name, value, its words, and when the two sides differ.
_FIGURES: Final[Sequence[tuple[str, _Value, Callable[[Any], str], Callable[[Any, Any], bool]]]] = (
    ("status", lambda v: v.status, str, ne),
    ("answer", lambda v: v.equivalence.status, str, ne),
    ("against its baseline", lambda v: v.ratio and v.ratio.verdict, str, ne),
    ("syncs per step, measured", lambda v: v.syncs.measured_per_step, fmt.count, ne),
    ("syncs per step, predicted", lambda v: v.syncs.predicted_per_step, fmt.count, ne),
    ("operators per step", lambda v: v.operators_per_step, fmt.count, ne),
    ("kernels per step", lambda v: v.kernels_per_step, fmt.count, ne),
    ("peak memory", lambda v: v.peak_allocated_bytes, fmt.size_bytes, _by_a_tenth),
    ("GPU busy", lambda v: v.gpu_busy_pct, fmt.percent, _by_a_tenth),
    ("waiting for data", lambda v: v.input and v.input.share, fmt.share, _by_a_tenth),
    ("profiled over unprofiled", lambda v: v.profiled_over_unprofiled, fmt.ratio, _by_a_tenth),
)  # fmt: skip


def _differing(a: VariantResult, b: VariantResult) -> Iterator[Difference]:
    for name, value, words, differ in _FIGURES:
        sides = value(a), value(b)
        if differ(*sides):
            yield Difference(name=name, **_words(sides, words))


def _environment(a: Comparison, b: Comparison) -> Iterator[Difference]:
    sides = [a.conditions, b.conditions]
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        values = [side.get(key) for side in sides]
        if values[0] != values[1]:
            words = fmt.size_bytes if key.endswith("_bytes") else str
            yield Difference(name=key, **_words(values, words))


def _words(sides: Sequence[Any], words: Callable[[Any], str]) -> dict[str, str | None]:
    return {name: None if side is None else words(side) for name, side in zip(("before", "now"), sides, strict=True)}


def _findings(of: Comparison, other: Comparison) -> tuple[str, ...]:
    places = {_place(finding) for finding in other.findings}
    return tuple(f"{f.variant or of.study}: {f.claim}" for f in of.findings if _place(f) not in places)


def _place(finding: Finding) -> tuple[object, ...]:
    source = finding.source
    return finding.rule, finding.variant, *((source.file, source.line) if source is not None else ())


def _notes(a: Comparison, b: Comparison, reconfigured: list[str], uneven: list[str]) -> Iterator[str]:
    if a == b:
        yield "both are the same result, so nothing can differ"
        return
    if a.scale != b.scale:
        yield "the scales differ, so step times cannot be compared"
    if "mean" in (a.statistic, b.statistic):
        yield "step times are means, since long steps come back in some of them"
    if reconfigured:
        yield f"another configuration than before: {fmt.names(reconfigured)}"
    if uneven:
        yield f"no verdict, IQR/median of the steps is above {fmt.setting(stats.IQR_REFUSED)}: {fmt.names(uneven)}"
    yield "the runs did not alternate, so other changes of the machine are part of the difference"
