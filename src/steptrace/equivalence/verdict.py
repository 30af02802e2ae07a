"""The verdict on two outputs: whether the errors of all compared cases are within their tolerances.

Imports no torch: a comparison of two programs by their records needs none.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptrace.documents.equivalence import ComparedCase, EquivalenceResult, Tolerance


@dataclass(frozen=True)
class Case:
    """One batch or step on which two outputs were compared: relative errors and their tolerances, by quantity.

    Errors without a tolerance are reported, not enforced.
    """

    name: str
    loss: float
    reference_loss: float
    errors: Mapping[str, float]
    tolerance: Mapping[str, float]

    def excess(self, quantity: str) -> float:
        """The error as a multiple of its tolerance; infinite for NaN."""
        error = self.errors[quantity]
        allowed = self.tolerance.get(quantity)
        if allowed is None:
            return 0.0
        if math.isnan(error):
            return math.inf
        if allowed > 0:
            return error / allowed
        if error > 0:
            return math.inf
        return 0.0


def verdict_on(cases: Sequence[Case]) -> EquivalenceResult:
    """The result of a check: `same` if no error of any case exceeds its tolerance, and otherwise `differs`.

    The figures of each quantity (`loss`, `gradient` and so on) are those of the case whose error is largest relative to
    its tolerance. `max_rel_err` is the larger error of loss and gradient. Figures that are not finite are None.
    """
    worst: dict[str, Case] = {}
    for case in cases:
        for quantity in case.errors:
            if quantity not in worst or case.excess(quantity) > worst[quantity].excess(quantity):
                worst[quantity] = case
    errors = {quantity: case.errors[quantity] for quantity, case in worst.items()}
    tolerances = {quantity: case.tolerance.get(quantity) for quantity, case in worst.items()}
    # NaN counts as larger than any number.
    largest = max(errors["loss"], errors["gradient"], key=lambda error: math.inf if math.isnan(error) else error)
    return EquivalenceResult(
        status="same" if all(case.excess(quantity) <= 1 for quantity, case in worst.items()) else "differs",
        **_relative_errors(errors),
        max_rel_err=_finite(largest),
        tolerance=_tolerance(tolerances),
        cases=tuple(map(_compared, cases)),
    )


def _compared(case: Case) -> ComparedCase:
    return ComparedCase(
        name=case.name,
        loss=_finite(case.loss),
        reference_loss=_finite(case.reference_loss),
        **_relative_errors(case.errors),
        tolerance=_tolerance(case.tolerance),
        holds=all(case.excess(quantity) <= 1 for quantity in case.errors),
    )


def _tolerance(tolerances: Mapping[str, float | None]) -> Tolerance:
    """The document for tolerances by quantity; the loss always has one."""
    allowed = {quantity: tolerance for quantity, tolerance in tolerances.items() if tolerance is not None}
    return Tolerance(**allowed)


def relative(value: float, reference: float) -> float:
    """|value - reference| / |reference|, or the absolute error where the reference is 0."""
    error = abs(value - reference)
    return error / abs(reference) if reference else error


def _relative_errors(errors: Mapping[str, float]) -> dict[str, Any]:
    """The fields of the errors in a document, by their names."""
    return {f"{quantity}_rel_err": _finite(error) for quantity, error in errors.items()}


def _finite(value: float) -> float | None:
    """The value, or None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
