"""Differences between a study's variants that are certain even if their step times are not."""

from typing import Final

from steptrace.documents.answer import Known, NowAndBefore
from steptrace.documents.comparison import Comparison
from steptrace.documents.variant import VariantResult

#: Numbers that differ by less than this count as equal.
_LEAST: Final = 0.05


def known_difference(study: Comparison) -> Known | None:
    """The usable variant with the fewest syncs, then launches, and the counts that are lower than its baseline's.

    None where no variant has fewer syncs or launches, or less memory. Syncs are measured or predicted ones; launches
    and memory are of the first estimate.
    """
    pairs = [
        (variant, baseline)
        for variant in study.variants
        if variant.can_be_used
        and not variant.is_baseline
        and not variant.predicted_unknown
        and (baseline := study.variant(variant.baseline)) is not None
    ]
    known = [_less(study, variant, baseline) for variant, baseline in pairs]
    with_figures = [
        difference for difference in known if difference.syncs or difference.launches or difference.memory_bytes
    ]
    counts = study.sync_counts[1]
    launches = {variant.name: _launches(variant) for variant in study.variants}
    return min(
        with_figures,
        key=lambda difference: (counts.get(difference.name, float("inf")), launches[difference.name] or float("inf")),
        default=None,
    )


def _less(study: Comparison, variant: VariantResult, baseline: VariantResult) -> Known:
    counts = study.sync_counts[1]
    return Known(
        name=variant.name,
        baseline=baseline.name,
        syncs=_fewer(counts.get(variant.name), counts.get(baseline.name)),
        launches=_fewer(_launches(variant), _launches(baseline)),
        memory_bytes=_fewer(_memory(variant), _memory(baseline)),
    )


def _fewer(now: float | None, before: float | None) -> NowAndBefore | None:
    """Both numbers, if the first is clearly less than the second; else None."""
    if now is None or not before or now > (1 - _LEAST) * before:
        return None
    return NowAndBefore(now=now, before=before)


def _launches(variant: VariantResult) -> float | None:
    return next((estimate.launches for estimate in variant.estimates), None)


def _memory(variant: VariantResult) -> float | None:
    return next((estimate.peak_memory_bytes for estimate in variant.estimates), None)
