"""Compares two programs of a study of commands by the losses and gradients of their first steps.

Both start from the same seed, so a variant that draws the same random numbers matches up to rounding. Gradients are
compared in the first step only, losses in every step that has one. Tolerances follow from the coarsest number format in
use and the size of the network, as in `tolerance.py`. 16-bit gradients are not compared, since rounding decides on
which side of a kink, such as that of a ReLU, a unit lies. The loss's tolerance grows tenfold with each step, since
updates amplify differences.

Programs are not comparable if their steps have different samples, if they have different parameters, or if their own
results vary from run to run.

Imports no torch.
"""

import math
from collections.abc import Sequence
from typing import Final

from steptrace.documents.equivalence import EquivalenceResult, NotComparable
from steptrace.documents.probe import GradientOutputs, StepOutputs
from steptrace.equivalence.tolerance import ROUNDINGS, ROUNDOFF
from steptrace.equivalence.verdict import Case, relative, verdict_on
from steptrace.words.equivalence import not_comparable_text

_FLOAT32: Final = ROUNDOFF["float32"]
#: Factor on the loss's tolerance from one step to the next.
_GROWTH: Final = 10.0


def verdict_on_programs(outputs: Sequence[StepOutputs], reference: Sequence[StepOutputs]) -> EquivalenceResult:
    """The result of the check: `same`, `differs`, or `not comparable` with the reason.

    Args:
        outputs: the variant's first steps.
        reference: the same steps of the baseline.
    """
    why = _not_comparable(outputs, reference)
    if why is not None:
        return not_comparable(why)
    tolerance = _tolerance(outputs[0], reference[0])
    cases = [_case(number, *steps, tolerance) for number, steps in enumerate(zip(outputs, reference, strict=False))]
    return verdict_on([case for case in cases if case is not None])


def not_comparable(why: NotComparable) -> EquivalenceResult:
    """The result of a check of two programs that cannot be compared, with the reason as a code and in words."""
    return EquivalenceResult(status="not comparable", reason=not_comparable_text(why), not_comparable=why)


def _case(number: int, variant: StepOutputs, other: StepOutputs, tolerance: tuple[float, float | None]) -> Case | None:
    """Compare one step with the same step of the reference; None if either has no loss."""
    if variant.loss is None or other.loss is None:
        return None
    errors = {"loss": relative(variant.loss, other.loss)}
    allowed = {"loss": tolerance[0] * _GROWTH**number}
    if number == 0:
        distances = list(map(_distance, variant.gradients, other.gradients))
        errors["gradient"] = math.nan if any(map(math.isnan, distances)) else max(distances, default=0.0)
        allowed |= {} if tolerance[1] is None else {"gradient": tolerance[1]}
    return Case(f"step {number + 1}", variant.loss, other.loss, errors, allowed)


def _not_comparable(outputs: Sequence[StepOutputs], reference: Sequence[StepOutputs]) -> NotComparable | None:
    """Why the outputs cannot be compared; None if they can."""
    if not outputs or not reference:
        return NotComparable(code="no_steps")
    variant = outputs[0]
    other = reference[0]
    if variant.loss is None or other.loss is None:
        return NotComparable(code="no_scalar_loss")
    if not math.isfinite(other.loss):
        return NotComparable(code="baseline_loss_not_finite")
    if variant.samples != other.samples:
        return NotComparable(code="other_samples", samples=variant.samples, baseline_samples=other.samples)
    values = [sorted(gradient.values for gradient in step.gradients) for step in (variant, other)]
    if values[0] != values[1]:
        return NotComparable(code="other_gradients")
    return None


def _tolerance(variant: StepOutputs, other: StepOutputs) -> tuple[float, float | None]:
    """Relative tolerances of the loss and of the gradients (None: not checked)."""
    formats = [name for step in (variant, other) for name in step.formats]
    unit = max((ROUNDOFF.get(name, _FLOAT32) for name in formats), default=_FLOAT32)
    depth = max(variant.depth, other.depth, 1)
    terms = max(variant.terms, other.terms, 1)
    sums = math.sqrt(depth * terms) * min(unit, _FLOAT32)
    loss = 2 * (ROUNDINGS * math.sqrt(depth) * unit + sums)
    # The order of summation over a batch is not fixed, and a gradient adds up as many terms as there are positions. So
    # its tolerance is wider.
    return loss, 100 * loss if unit <= _FLOAT32 else None


def _distance(variant: GradientOutputs, other: GradientOutputs) -> float:
    """The distance of two gradients relative to the second, estimated from their projections."""
    square = sum((a - b) ** 2 for a, b in zip(variant.projections, other.projections, strict=True))
    size = other.norm
    error = math.sqrt(square / max(len(variant.projections), 1))
    return error / size if size > 0 else error
