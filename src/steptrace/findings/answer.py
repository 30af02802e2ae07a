"""The answer of a study, as facts: which variant is faster, why, what was checked, and what to do.

On a machine without a GPU the estimates for GPUs give the answer, if they tell variants apart. `words.answer` makes the
sentences.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

from msgspec.structs import replace

from steptrace.documents.answer import (
    Answer,
    Counted,
    Ended,
    Fewer,
    MemoryRange,
    NamedTime,
    NoVerdict,
    Outcome,
    PeakMemory,
    SameAnswer,
    SavedByClass,
    Speed,
    SyncsOfVariants,
    Tone,
    WhyFaster,
)
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Limit
from steptrace.documents.variant import VariantResult
from steptrace.findings.advice import advice_of, estimated_advice, unconfirmed
from steptrace.findings.estimated import estimate_of, estimated_answer, estimated_gpus, estimated_winner, leads
from steptrace.findings.known import known_difference
from steptrace.findings.matrix import matrix_speeds
from steptrace.findings.removals import removals_of_answer
from steptrace.findings.sections import hidden_section
from steptrace.findings.why import LEAST_PART, why
from steptrace.limits import NOISE_FLOOR
from steptrace.stats import IQR_REFUSED
from steptrace.words.equivalence import not_comparable_text

#: Peaks differ clearly from this ratio on. Ours.
_OTHER_PEAK: Final = 1.25
#: Saved GPU work is the reason if it is at least this share of the saved time.
_LARGER_PART: Final = 0.5


def answer_of(study: Comparison) -> Answer:
    """The answer of a study."""
    return _estimated(study) if leads(study) else _measured(study)


def broken_gates(study: Comparison) -> int:
    """The number of broken gates."""
    return sum(gate.outcome == "broken" for gate in study.gates)


def _measured(study: Comparison) -> Answer:
    """The answer of the step times."""
    best = study.fastest()
    chosen = best if best is None or not study.alike else study.variant(study.alike[0])
    reason = _reason(study, chosen if chosen is not None else _shortest(study), estimated=False)
    advice, use = advice_of(study, chosen)
    return Answer(
        tone=_tone(study, chosen),
        use=use,
        advice=advice,
        reason=reason,
        section=hidden_section(study),
        matrix=matrix_speeds(study),
        **_of_study(study, reason),
        **_speeds(study, chosen),
    )


def _estimated(study: Comparison) -> Answer:
    """The answer of the estimates."""
    gpus = estimated_gpus(study)
    winners = [estimated_winner(study, gpu) for gpu in gpus]
    best = winners[0] if all(winner is winners[0] for winner in winners) else None
    usable = best is not None and best.can_be_used
    estimated = tuple(estimated_answer(study, gpu) for gpu in gpus)
    # A difference below the noise floor is no reason to change a program.
    pays = any(row.times_as_fast is None or row.times_as_fast[1] - 1 >= NOISE_FLOOR for row in estimated)
    tone: Tone = "neutral"
    if broken_gates(study) or (best is not None and not usable):
        tone = "care"
    elif usable and pays:
        tone = "good"
    reason = _reason(study, best, estimated=True)
    advice, use = estimated_advice(study, best, gpus, pays=pays)
    return Answer(
        outcome="estimated",
        tone=tone,
        use=use,
        advice=advice,
        reason=reason,
        estimated=estimated,
        known=known_difference(study) if best is None else None,
        matrix=tuple(speed for gpu in gpus for speed in matrix_speeds(study, gpu)),
        **_of_study(study, reason),
    )


def _shortest(study: Comparison) -> VariantResult | None:
    """The usable variant with the shortest step, for studies without any verdict, such as those of one run each."""
    candidates = [
        variant for variant in study.measured if not variant.is_baseline and not study.has_other_batch(variant)
    ]
    if any(variant.verdict is not None for variant in candidates):
        return None
    times = study.step_times_ms
    shorter = [
        variant
        for variant in candidates
        if variant.can_be_used and times[variant.name] < times.get(variant.baseline, 0.0)
    ]
    return min(shorter, key=lambda variant: times[variant.name], default=None)


def _of_study(study: Comparison, reason: WhyFaster | None) -> dict[str, Any]:
    """The parts of an answer that do not depend on whether it is measured or estimated."""
    return {
        "baseline": study.baseline,
        "same": _same(study.variants),
        "syncs": _syncs(study, reason),
        "gates_broken": broken_gates(study),
        "confidence": study.method.confidence,
        "candidates": study.method.candidates,
        "ended": _ended(study.variants),
        "removals": removals_of_answer(study),
        "memory": _memory(study),
    }


def _memory(study: Comparison) -> MemoryRange | None:
    """The lowest and the highest peak, measured on a GPU, or estimated where that leads; None if about equal."""
    gpu = estimated_gpus(study)[0] if leads(study) else None
    peaks = []
    for variant in study.variants if gpu is not None or not _without_gpu(study) else ():
        peak = variant.peak_allocated_bytes if gpu is None else _estimated_peak(variant, gpu)
        peaks += [] if peak is None else [PeakMemory(name=variant.name, peak_bytes=round(peak))]
    if not peaks:
        return None
    least = min(peaks, key=lambda row: row.peak_bytes)
    most = max(peaks, key=lambda row: row.peak_bytes)
    if most.peak_bytes < _OTHER_PEAK * least.peak_bytes:
        return None
    return MemoryRange(gpu=gpu, least=least, most=most)


def _estimated_peak(variant: VariantResult, gpu: str) -> int | None:
    estimate = estimate_of(variant, gpu)
    return None if estimate is None else estimate.peak_memory_bytes


def _without_gpu(study: Comparison) -> bool:
    return study.environment is None or study.environment.gpu is None


def _tone(study: Comparison, chosen: VariantResult | None) -> Tone:
    if not study.measured:
        return "bad"
    if broken_gates(study) or (chosen is not None and not chosen.can_be_used):
        return "care"
    return "neutral" if chosen is None else "good"


def _ended(variants: Iterable[VariantResult]) -> tuple[Ended, ...]:
    """The variants that ended without a step time, by how they ended."""
    by_status: dict[str, list[str]] = defaultdict(list)
    for variant in variants:
        if variant.step_ms is None and variant.status != "ok":
            by_status[variant.status].append(variant.name)
    return tuple(Ended(status=status, names=tuple(names)) for status, names in by_status.items())


def _speeds(study: Comparison, chosen: VariantResult | None) -> dict[str, Any]:
    """The variants that are faster than their baselines, those that are not, and those that are undecided."""
    if not study.measured:
        return {"outcome": "nothing_measured"}
    times = sorted((ms, name) for name, ms in study.step_times_ms.items())
    changed = [variant for variant in study.measured if not variant.is_baseline]
    candidates = [variant for variant in changed if not study.has_other_batch(variant)]
    other_batches = tuple(_speed(study, variant) for variant in changed if variant not in candidates)
    by_verdict: dict[str | None, list[VariantResult]] = defaultdict(list)
    for variant in candidates:
        by_verdict[variant.verdict].append(variant)

    def speeds(variants: Iterable[VariantResult]) -> tuple[Speed, ...]:
        return tuple(_speed(study, variant) for variant in variants)

    if other_batches and not candidates:
        return {"outcome": "other_batches", "other_batches": other_batches}
    if set(by_verdict) <= {None}:
        return {
            "outcome": "no_verdict",
            "other_batches": other_batches,
            "no_verdict": _no_verdict(study, candidates),
            "times": tuple(NamedTime(name=name, step_ms=ms) for ms, name in times),
        }
    apart = unconfirmed(study)
    outcome: Outcome = "no_difference"
    if chosen is not None:
        outcome = "faster"
    elif apart:
        outcome = "unconfirmed"
    elif by_verdict["slower"]:
        outcome = "none_faster"
    faster = [variant for variant in by_verdict["faster"] if variant is not chosen]
    sides = {variant.name for variant in apart} | {variant.baseline for variant in apart}
    return {
        "outcome": outcome,
        "chosen": None if chosen is None else _speed(study, chosen),
        "alike": speeds(variant for variant in faster if variant.name in study.alike),
        "faster": speeds(variant for variant in faster if variant.name not in study.alike),
        "unconfirmed": speeds(apart),
        "unconfirmed_runs": min((variant.runs_ok for variant in study.measured if variant.name in sides), default=None),
        "slower": speeds(by_verdict["slower"]),
        "same_speed": speeds(by_verdict["same"]),
        "undecided": speeds(variant for variant in by_verdict["undecided"] if variant not in apart),
        "unjudged": speeds(by_verdict[None]),
        "other_batches": other_batches,
    }


def _speed(study: Comparison, variant: VariantResult) -> Speed:
    times = study.step_times_ms
    baseline = study.variant(variant.baseline)
    return Speed(
        name=variant.name,
        baseline=variant.baseline,
        step_ms=times.get(variant.name),
        baseline_ms=times.get(variant.baseline),
        ratio=variant.ratio,
        samples=variant.samples_per_step,
        baseline_samples=None if baseline is None else baseline.samples_per_step,
        equivalence=variant.equivalence.status,
        ratio_per_sample=variant.ratio_per_sample,
    )


def _no_verdict(study: Comparison, candidates: Sequence[VariantResult]) -> NoVerdict:
    """Why no variant has a verdict."""
    if not {variant.baseline for variant in study.variants} & {variant.name for variant in study.measured}:
        return "baseline_not_measured"
    if not candidates:
        return "baseline_alone"
    if all(variant.runs_ok <= 1 for variant in study.measured):
        return "one_run_each"
    if any((variant.noise.iqr_over_median or 0) > IQR_REFUSED for variant in study.measured):
        return "too_noisy"
    return "other"


def _reason(study: Comparison, chosen: VariantResult | None, *, estimated: bool) -> WhyFaster | None:
    """Why the chosen variant is faster than its baseline; None if it is the baseline, or if there is none."""
    baseline = None if chosen is None else study.variant(chosen.baseline)
    if chosen is None or baseline is None or baseline is chosen:
        return None
    fewer = _fewer(study, baseline, chosen, estimated=estimated)
    reason = WhyFaster(name=chosen.name, baseline=baseline.name, fewer=tuple(fewer), sync_source=study.sync_counts[0])
    if not estimated:
        return replace(reason, why=why(baseline, chosen))
    limits = {estimate.limited_by for estimate in baseline.estimates}
    limit = limits.pop() if len(limits) == 1 else None  # the same on every GPU
    limited_by = _limit(limit, fewer)
    saved = {} if limited_by else _saved_gpu_work(chosen)
    return replace(reason, limited_by=limited_by, **_less_gpu_work(baseline, chosen), **saved)


def _limit(limited_by: Limit | None, fewer: Iterable[Fewer]) -> Literal["launches", "syncs"] | None:
    """The limit of the baseline's step, if the variant has fewer of it."""
    counted = {row.what for row in fewer}
    if limited_by == "launches" and "launches" in counted:
        return "launches"
    return "syncs" if limited_by == "syncs" and "syncs" in counted else None


def _fewer(study: Comparison, baseline: VariantResult, chosen: VariantResult, *, estimated: bool) -> list[Fewer]:
    """The launches (kernels, operators) and syncs that a step of the chosen variant has fewer of than its baseline."""
    pair = (baseline, chosen)
    _, syncs = study.sync_counts
    counts: dict[Counted, list[float | None]] = {
        "launches": [
            next((estimate.launches for estimate in variant.estimates), None) if estimated else None for variant in pair
        ],
        "kernels": [None if estimated else variant.kernels_per_step for variant in pair],
        "operators": [
            None if estimated or variant.kernels_per_step is not None else variant.operators_per_step
            for variant in pair
        ],
        "syncs": [syncs.get(variant.name) for variant in pair],
    }
    return [
        Fewer(what=what, before=before, now=now)
        for what, (before, now) in counts.items()
        if before is not None and now is not None and now <= (1 - LEAST_PART) * before and before
    ]


def _less_gpu_work(baseline: VariantResult, chosen: VariantResult) -> dict[str, Any]:
    """The GPU work of both variants on the first GPU, if the bands do not overlap."""
    before, after = (next((estimate.gpu_ms for estimate in variant.estimates), None) for variant in (baseline, chosen))
    if before is None or after is None or after[1] >= before[0]:
        return {}
    return {"gpu_work_ms": after, "baseline_gpu_work_ms": before}


def _saved_gpu_work(chosen: VariantResult) -> dict[str, Any]:
    """How much GPU work a variant saves, where that is at least half of the time that it saves, on the first GPU."""
    pair = next((estimate.difference for estimate in chosen.estimates), None)
    if pair is None or pair.gpu_saved_ms is None or pair.gpu_saved_ms[0] <= 0:
        return {}
    if sum(pair.gpu_saved_ms) < _LARGER_PART * sum(pair.saved_ms):
        return {}
    classes = tuple(SavedByClass(kind=gpu_class.kind, saved_ms=gpu_class.saved_ms) for gpu_class in pair.gpu_classes)
    return {"gpu_saved_ms": pair.gpu_saved_ms, "gpu_classes": classes}


def _syncs(study: Comparison, reason: WhyFaster | None) -> SyncsOfVariants | None:
    """The syncs of all variants; None where the reason names them, and all of them are covered."""
    has_syncs = reason is not None and reason.shows_counts and any(row.what == "syncs" for row in reason.fewer)
    not_covered = tuple(variant.name for variant in study.variants if variant.predicted_unknown)
    if has_syncs and not not_covered:
        return None
    source, counts = study.sync_counts
    return SyncsOfVariants(source=source, per_step=counts, not_covered=not_covered if source == "predicted" else ())


def _same(variants: Sequence[VariantResult]) -> SameAnswer:
    """Whether the variants compute the same, by the check against the float64 reference."""
    by_status: dict[str, list[str]] = defaultdict(list)
    for variant in variants:
        by_status[variant.equivalence.status].append(variant.name)
    reasons = {variant.equivalence.not_comparable for variant in variants}
    shared = reasons.pop() if len(reasons) == 1 else None
    return SameAnswer(
        by_status={status: tuple(names) for status, names in by_status.items()},
        reason=None if shared is None else not_comparable_text(shared),
        not_comparable=shared,
    )
