"""Estimates for GPUs that are not there: which variant of a study is estimated to be the fastest."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from steptrace.documents.answer import EstimatedAnswer, EstimatedOutcome
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Band, Estimate
from steptrace.documents.variant import VariantResult
from steptrace.format import same_band

#: A difference below this share of the step comes from rounding.
_NO_DIFFERENCE: Final = 1e-3


def leads(study: Comparison) -> bool:
    """Whether estimates answer the study's question: no step was measured on a GPU, and the estimates differ.

    A study of something that estimates leave out, such as data loading, is answered by this machine's times.
    """
    measured = study.environment is not None and study.environment.gpu is not None and study.measured
    gpus = [gpu for gpu in estimated_gpus(study) if _bands(study, gpu)]
    return not measured and any(len(study.variants) == 1 or not all_alike(study, gpu) for gpu in gpus)


def all_alike(study: Comparison, gpu: str) -> bool:
    """Whether all variants have the same estimate on one GPU: equal bands, and no difference with the same draws."""
    bands = _bands(study, gpu)
    if len(bands) != len(study.variants) or not same_band(bands.values()):
        return False
    estimates = (estimate_of(variant, gpu) for variant in study.variants)
    pairs = [estimate.difference for estimate in estimates if estimate is not None and estimate.difference is not None]
    least = _NO_DIFFERENCE * min(low for low, _ in bands.values())
    return all(abs(end) <= least for pair in pairs for end in pair.saved_ms)


def estimated_gpus(study: Comparison) -> list[str]:
    """The GPUs that a variant has an estimate for, in the order of `estimate_gpus`."""
    return list(dict.fromkeys(estimate.gpu for variant in study.variants for estimate in variant.estimates))


def estimate_of(variant: VariantResult, gpu: str) -> Estimate | None:
    """A variant's estimate for one GPU."""
    return next((estimate for estimate in variant.estimates if estimate.gpu == gpu), None)


def estimated_fastest(study: Comparison, gpu: str) -> list[VariantResult]:
    """The variants that may be the fastest, the simplest first: those that are not clearly slower than another one.

    A variant is clearly slower if the range of its difference to the fastest one, with the same draws, does not hold
    0. If no difference is known, it is clearly slower if another variant's band lies below its band.
    """
    times = _bands(study, gpu)
    least = min((high for _, high in times.values()), default=0.0)

    def may_be(variant: VariantResult) -> bool:
        estimate = estimate_of(variant, gpu)
        if estimate is None or estimate.step_ms is None:
            return True
        if estimate.behind is not None:
            return not estimate.behind.is_slower
        return estimate.difference is not None or estimate.step_ms[0] <= least

    return sorted(filter(may_be, study.variants), key=study.changed)


def estimated_winner(study: Comparison, gpu: str) -> VariantResult | None:
    """The simplest of the variants that may be the fastest and are clearly faster than their baseline.

    It is None if there is no such variant: then no difference to the baseline can be estimated. Where steps do
    different work, as in a matrix, it is the variant with the largest difference to a baseline that does the same work.
    """
    if _work_differs(study, gpu):
        return _most_times_as_fast(study, gpu)
    times = _bands(study, gpu)
    may_be = estimated_fastest(study, gpu)
    if len(may_be) == 1:
        return may_be[0]
    faster = [variant for variant in may_be if _clearly_faster(variant, times, gpu)]
    return next((variant for variant in faster if variant.can_be_used), next(iter(faster), None))


def _work_differs(study: Comparison, gpu: str) -> bool:
    """Whether not all variants do the same work in a step: a matrix, batch sizes or numbers of GPUs."""
    return any(variant.cell or _has_other_batch(study, variant, gpu) for variant in study.variants)


def _has_other_batch(study: Comparison, variant: VariantResult, gpu: str) -> bool:
    """Whether a step of a variant has another number of samples than its baseline's, which no step time compares.

    The samples are those of all GPUs that train together.
    """
    baseline = study.variant(variant.baseline)
    batches = {
        estimate.batch * estimate.devices
        for estimate in (None if result is None else estimate_of(result, gpu) for result in (variant, baseline))
        if estimate is not None and estimate.batch is not None
    }
    return len(batches) > 1


def _most_times_as_fast(study: Comparison, gpu: str) -> VariantResult | None:
    """The variant that is most times as fast as its baseline, by the low end, of those that are clearly faster."""
    speeds = []
    for variant in study.variants:
        estimate = estimate_of(variant, gpu)
        pair = None if estimate is None else estimate.difference
        if pair is not None and pair.is_faster and not _has_other_batch(study, variant, gpu):
            speeds.append((variant.can_be_used, pair.times_as_fast[0], variant))
    return max(speeds, key=lambda speed: speed[:2])[2] if speeds else None


def _clearly_faster(variant: VariantResult, times: Mapping[str, Band], gpu: str) -> bool:
    estimate = estimate_of(variant, gpu)
    if estimate is not None and estimate.difference is not None:
        return estimate.difference.is_faster
    both = variant.name in times and variant.baseline in times
    return both and times[variant.baseline][0] > times[variant.name][1]


def estimated_answer(study: Comparison, gpu: str) -> EstimatedAnswer:
    """Which variant is estimated to be the fastest on one GPU, or why none is."""
    times = _bands(study, gpu)
    best = estimated_winner(study, gpu)
    missing = tuple(variant.name for variant in study.variants if variant.name not in times)
    if len(study.variants) == 1:
        (only,) = study.variants
        band = times.get(only.name)
        outcome: EstimatedOutcome = "not_estimated" if band is None else "one_variant"
        return EstimatedAnswer(gpu=gpu, outcome=outcome, name=only.name, step_ms=band, not_estimated=missing)
    changed = [variant for variant in study.variants if not variant.is_baseline]
    if best is None and changed and all(_has_other_batch(study, variant, gpu) for variant in changed):
        return EstimatedAnswer(gpu=gpu, outcome="other_batches", not_estimated=missing)
    if best is None:
        if missing:
            outcome = "some_not_estimated"
        elif all_alike(study, gpu):
            outcome = "all_alike"
        else:
            outcome = "cannot_tell"
        return EstimatedAnswer(gpu=gpu, outcome=outcome, not_estimated=missing)
    work_differs = _work_differs(study, gpu)
    may_be = [] if work_differs else [variant for variant in estimated_fastest(study, gpu) if variant is not best]
    estimate = estimate_of(best, gpu)
    pair = None if estimate is None else estimate.difference
    return EstimatedAnswer(
        gpu=gpu,
        outcome="fastest",
        name=best.name,
        baseline=None if best.is_baseline else best.baseline,
        computes_something_else=best.equivalence.status == "differs",
        step_ms=times[best.name],
        baseline_ms=None if best.is_baseline else times.get(best.baseline),
        saved_ms=pair.saved_ms if pair is not None and pair.is_faster else None,
        times_as_fast=_times_as_fast(times, best, gpu),
        alike=tuple(variant.name for variant in may_be if variant.name in times),
        is_alone=not may_be and not work_differs,
        not_estimated=missing,
    )


@dataclass(frozen=True)
class MostWaiting:
    """The most that all waits of a step for the GPU cost, by an estimate.

    Attributes:
        ms: per step, data loading left out.
        gpu: the GPU of the estimate.
    """

    ms: float
    gpu: str


def most_waiting(variant: VariantResult) -> MostWaiting | None:
    """The most that a variant's waits cost by its first estimate; None without one.

    A step without syncs takes as long as the GPU's work or the host's, whichever is longer; with syncs at most as
    long as both together.
    """
    estimate = next(iter(variant.estimates), None)
    if estimate is None or estimate.gpu_ms is None or estimate.host_ms is None:
        return None
    return MostWaiting(min(estimate.gpu_ms[1], estimate.host_ms[1]), estimate.gpu)


def _times_as_fast(times: Mapping[str, Band], best: VariantResult, gpu: str) -> Band | None:
    """How many times as fast as its baseline a variant is; None where it is not clearly faster."""
    estimate = estimate_of(best, gpu)
    if best.is_baseline or best.baseline not in times or estimate is None or estimate.step_ms is None:
        return None
    if estimate.difference is not None:
        return estimate.difference.times_as_fast if estimate.difference.is_faster else None
    low, high = estimate.step_ms
    low_before, high_before = times[best.baseline]
    return None if low_before <= high else (low_before / high, high_before / low)


def _bands(study: Comparison, gpu: str) -> dict[str, Band]:
    estimates = {variant.name: estimate_of(variant, gpu) for variant in study.variants}
    return {
        name: estimate.step_ms
        for name, estimate in estimates.items()
        if estimate is not None and estimate.step_ms is not None
    }
