"""Checks claims of a study's source: the number of kernels that it states for a label, beside our own count."""

from collections.abc import Mapping

from msgspec.structs import asdict

from steptrace.compare.explain import followed_prediction
from steptrace.compare.load import StudyRuns, VariantRuns
from steptrace.documents.comparison import CheckedClaim
from steptrace.documents.run import Claim
from steptrace.documents.variant import VariantResult


def checked_claims(study: StudyRuns, results: Mapping[str, VariantResult]) -> tuple[CheckedClaim, ...]:
    """The claims of a study's file with our counts, by the variant's trace, or by its prediction if it has no trace."""
    variants = {variant.name: variant for variant in study.variants}
    return tuple(
        _checked(claim, results.get(claim.variant), variants.get(claim.variant)) for claim in study.plan.claims
    )


def _checked(claim: Claim, result: VariantResult | None, variant: VariantRuns | None) -> CheckedClaim:
    measured = None if result is None else launched_per_step(result, claim.label)
    if measured is not None:
        return CheckedClaim(**asdict(claim), counted=measured, basis="measured")
    step = None if variant is None else followed_prediction(variant.path)
    predicted = None if step is None else step.operators_per_step_by_label.get(claim.label)
    return CheckedClaim(**asdict(claim), counted=predicted, basis=None if predicted is None else "predicted")


def launched_per_step(variant: VariantResult, label: str) -> float | None:
    """GPU activities per profiled step that are launched within a label; None where no trace with GPU work counts."""
    trace = variant.trace
    if trace is None or not trace.quality.steps:
        return None
    rows = [row for row in trace.labels if row.label == label and row.kernels is not None]
    return sum(row.kernels or 0 for row in rows) / trace.quality.steps if rows else None
