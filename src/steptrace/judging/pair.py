"""One study's results from two machines, versions or dates, side by side: what differs, and how sure that is.

Step times have an interval, over whole runs: Welch's t interval on the logarithms of the runs' medians, as within a
study. Runs of two sessions are never paired. Verdicts are corrected over the study's variants (Holm); the noise floor
is the larger one of both sessions. Where steps are as uneven as a study's page allows no verdict for, and where the
scales differ, there is none here. Counts and words differ where they are not equal. What has neither, such as a share
of time, is listed where it moves by a tenth or more: no claim, but where to look.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import ne
from typing import Any, Final

import msgspec

from steptrace import format as fmt
from steptrace import stats
from steptrace.documents.comparison import Comparison, StepTimes, VariantResult, Verdict
from steptrace.documents.finding import Finding
from steptrace.errors import RecordError

#: From which relative change on a figure without an interval is listed.
LISTED: Final = 0.10
_Value = Callable[[VariantResult], Any]
#: Keeps runs of B out of A's rounds.
_OTHER_ROUNDS: Final = 1_000_000


@dataclass(frozen=True)
class Figure:
    """One figure of a variant on both sides, as words; None where it was not measured."""

    name: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class VariantPair:
    """One variant on both sides.

    Attributes:
        a_ms, b_ms: median step time and its interval in words; None where there is none.
        ratio: A's step time over B's with its interval: above 1 means that B is faster.
        verdict: of B against A; None where none can be given.
        differing: the figures that differ.
        same_configuration: whether both sides trained the same configuration.
    """

    name: str
    a_ms: tuple[float, float | None, float | None] | None
    b_ms: tuple[float, float | None, float | None] | None
    ratio: tuple[float, float | None, float | None] | None
    verdict: Verdict | None
    differing: tuple[Figure, ...]
    same_configuration: bool


@dataclass(frozen=True)
class Pair:
    """A study on both sides. `environment` holds the keys that differ; findings are in words."""

    study: str
    title: str
    environment: tuple[Figure, ...]
    variants: tuple[VariantPair, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    findings_only_a: tuple[str, ...]
    findings_only_b: tuple[str, ...]
    notes: tuple[str, ...]


def pair(a: Comparison, b: Comparison) -> Pair:
    """Both results of a study side by side.

    Raises:
        RecordError: they are of different studies, or share no variant.
    """
    if a.study != b.study:
        raise RecordError(
            f"A is of the study '{a.study}', B of '{b.study}'",
            expected="two results of one study",
            next_step="compare two traces with: steptrace diff A B",
        )
    left, right = ({v.name: v for v in side.variants} for side in (a, b))
    shared = [name for name in left if name in right]
    if not shared:
        raise RecordError("no variant is in both", where=a.study, expected="results with variants of the same names")
    simulated = a.on_simulated_gpu or b.on_simulated_gpu
    ratios = {} if simulated else _ratios({name: (left[name], right[name]) for name in shared})
    adjusted = stats.holm({name: r.p_value for name, r in ratios.items() if r.p_value is not None})
    floor = max(a.method.noise_floor, b.method.noise_floor)
    uneven = [name for name in ratios if _is_uneven(left[name]) or _is_uneven(right[name])]
    judged = [name for name in ratios if name not in uneven and a.scale == b.scale]
    verdicts = {name: stats.verdict(ratios[name], adjusted.get(name), floor) for name in judged}
    return Pair(
        study=a.study,
        title=b.title,
        environment=tuple(_environment(a, b)),
        variants=tuple(_variant(left[n], right[n], ratios.get(n), verdicts.get(n)) for n in shared),
        only_a=tuple(name for name in left if name not in right),
        only_b=tuple(name for name in right if name not in left),
        findings_only_a=_findings(a, b),
        findings_only_b=_findings(b, a),
        notes=tuple(_notes(a, b, [name for name in shared if left[name].digest != right[name].digest], uneven)),
    )


def headline(found: Pair) -> str:
    """What differs, in one sentence made from the data; names stand in backticks."""
    named = {word: [_with_ratio(v) for v in found.variants if v.verdict == word] for word in ("faster", "slower")}
    clauses = [f"{word} in B: {fmt.enumeration(names[:5])}{_more(names[5:])}" for word, names in named.items() if names]
    by_verdict = {word: sum(v.verdict == word for v in found.variants) for word in ("same", "undecided", None)}
    clauses += [f"{by_verdict['same']} the same"] if by_verdict["same"] else []
    clauses += [f"{by_verdict['undecided']} undecided"] if by_verdict["undecided"] else []
    clauses += [f"{by_verdict[None]} without a verdict"] if by_verdict[None] else []
    other = sum(bool(v.differing) for v in found.variants)
    clauses.append(f"other figures differ in {fmt.plural(other, 'variant')}" if other else "no other figure differs")
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _with_ratio(variant: VariantPair) -> str:
    assert variant.ratio is not None
    value, low, high = variant.ratio
    return f"`{variant.name}` ({fmt.ratio(value, low, high)}, {fmt.ratio_interval(low, high)})"


def _names(names: list[str]) -> str:
    return f"{fmt.enumeration([f'`{name}`' for name in names[:5]])}{_more(names[5:])}"


def _more(names: list[str]) -> str:
    return f" and {len(names)} more" if names else ""


def _ratios(sides: dict[str, tuple[VariantResult, VariantResult]]) -> dict[str, stats.Ratio]:
    found = {}
    for name, (a, b) in sides.items():
        medians = {
            "a": {run.repeat: run.median_ms for run in a.runs if run.median_ms},
            "b": {_OTHER_ROUNDS + run.repeat: run.median_ms for run in b.runs if run.median_ms},
        }
        if medians["a"] and medians["b"]:
            found[name] = stats.ratios(medians, "a")["b"]
    return found


def _is_uneven(variant: VariantResult) -> bool:
    """Whether its steps vary too much for a verdict."""
    return (variant.noise.iqr_over_median or 0) > stats.IQR_REFUSED


def _variant(a: VariantResult, b: VariantResult, ratio: stats.Ratio | None, verdict: Verdict | None) -> VariantPair:
    return VariantPair(
        name=a.name,
        a_ms=_step(a.step_ms),
        b_ms=_step(b.step_ms),
        ratio=None if ratio is None else (ratio.value, ratio.low, ratio.high),
        verdict=verdict,
        differing=tuple(_differing(a, b)),
        same_configuration=a.digest == b.digest,
    )


def _step(step: StepTimes | None) -> tuple[float, float | None, float | None] | None:
    return None if step is None else (step.median, step.low, step.high)


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
    ("syncs a step, measured", lambda v: v.syncs.measured_per_step, fmt.count, ne),
    ("syncs a step, predicted", lambda v: v.syncs.predicted_per_step, fmt.count, ne),
    ("operators a step", lambda v: v.operators_per_step, fmt.count, ne),
    ("kernels a step", lambda v: v.kernels_per_step, fmt.count, ne),
    ("peak memory", lambda v: v.peak_allocated_bytes, fmt.size_bytes, _by_a_tenth),
    ("GPU busy", lambda v: v.gpu_busy_pct, fmt.percent, _by_a_tenth),
    ("waiting for data", lambda v: v.loader_wait_pct, fmt.percent, _by_a_tenth),
    ("profiled over unprofiled", lambda v: v.profiled_over_unprofiled, fmt.multiple, _by_a_tenth),
)  # fmt: skip


def _differing(a: VariantResult, b: VariantResult) -> Iterator[Figure]:
    for name, value, words, differ in _FIGURES:
        sides = value(a), value(b)
        if differ(*sides):
            yield Figure(name, *(None if side is None else words(side) for side in sides))


def _environment(a: Comparison, b: Comparison) -> Iterator[Figure]:
    sides = [{"scale": side.scale, **(msgspec.to_builtins(side.environment) or {})} for side in (a, b)]
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        values = [side.get(key) for side in sides]
        if values[0] != values[1]:
            words = fmt.size_bytes if key.endswith("_bytes") else str
            yield Figure(key, *(None if value is None else words(value) for value in values))


def _findings(of: Comparison, other: Comparison) -> tuple[str, ...]:
    known = {_place(finding) for finding in other.findings}
    return tuple(f"{f.variant or of.study}: {f.claim}" for f in of.findings if _place(f) not in known)


def _place(finding: Finding) -> tuple[object, ...]:
    source = finding.source
    return finding.rule, finding.variant, *((source.file, source.line) if source is not None else ())


def _notes(a: Comparison, b: Comparison, reconfigured: list[str], uneven: list[str]) -> Iterator[str]:
    for side, name in ((a, "A"), (b, "B")):
        if side.partial is not None:
            yield f"{name} is of {side.partial.runs} of {side.partial.planned} runs"
        if side.on_simulated_gpu:
            yield f"the GPU of {name} is simulated: its times mean nothing, so there is no ratio and no verdict"
    if a.scale != b.scale:
        yield "the scales differ: these are other sizes, and a ratio of their step times says nothing of the machines"
    if reconfigured:
        yield f"not the same configuration on both sides: {_names(reconfigured)}"
    if uneven:
        yield f"no verdict, IQR/median of the steps is above {stats.IQR_REFUSED:.0%}: {_names(uneven)}"
    yield "the two sessions did not take turns, so whatever changed between them is part of the difference"
