"""Compares two programs of a study of commands by the losses and gradients of their first steps.

Both start from the same seed, so a
variant that draws the same random numbers matches up to rounding. The loss and the gradients of the first step are
checked; tolerances follow from the coarsest number format in use and the size of the network, as in
`tolerance.py`. 16-bit gradients are not checked: rounding decides on which side of a kink a unit lies. The
tolerance of the loss grows tenfold with each later step, since updates amplify differences; a later step without a loss
is skipped. Programs with different samples in a step or different parameters, or whose own results vary from run to
run, are not comparable.

Imports no torch.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from steptrace.equivalence.tolerance import ROUNDINGS, ROUNDOFF
from steptrace.equivalence.verdict import Case, relative, verdict_on

_FLOAT32: Final = ROUNDOFF["float32"]
#: Factor on the loss's tolerance from one step to the next.
_GROWTH: Final = 10.0

#: What a program has recorded of one step.
Outputs = Mapping[str, Any]


def verdict_on_programs(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, Any]:
    """The content of equivalence.json: `same`, `differs` or `not comparable` with a `reason`."""
    reason = _not_comparable(outputs, reference)
    if reason is not None:
        return {"status": "not comparable", "reason": reason}
    tolerance = _tolerance(outputs[0], reference[0])
    steps = enumerate(zip(outputs, reference, strict=False))
    with_loss = [(n, own, other) for n, (own, other) in steps if own["loss"] is not None and other["loss"] is not None]
    return verdict_on([_case(number, own, other, tolerance) for number, own, other in with_loss])


def _case(number: int, own: Outputs, other: Outputs, tolerance: tuple[float, float | None]) -> Case:
    """Compare one step with the same step of the reference."""
    errors = {"loss": relative(own["loss"], other["loss"])}
    allowed = {"loss": tolerance[0] * _GROWTH**number}
    if number == 0:
        distances = list(map(_distance, own["gradients"], other["gradients"]))
        errors["gradient"] = math.nan if any(map(math.isnan, distances)) else max(distances, default=0.0)
        allowed |= {} if tolerance[1] is None else {"gradient": tolerance[1]}
    return Case(f"step {number + 1}", own["loss"], other["loss"], errors, allowed)


def _not_comparable(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> str | None:
    if not outputs or not reference:
        return "the program made no training step"
    own, other = outputs[0], reference[0]
    if own["loss"] is None or other["loss"] is None:
        return "the program's backward passes do not start from a scalar, so its loss is unknown"
    if not math.isfinite(other["loss"]):
        return "the baseline's own loss is infinite or NaN"
    if own["samples"] != other["samples"]:
        return f"a step has {own['samples']} samples, the baseline's has {other['samples']}"
    values = [sorted(gradient["values"] for gradient in step["gradients"]) for step in (own, other)]
    if values[0] != values[1]:
        return "the gradients' sizes differ from the baseline's"
    return None


def _tolerance(own: Outputs, other: Outputs) -> tuple[float, float | None]:
    """Relative tolerances of the loss and of the gradients (None: not checked)."""
    formats = [name for step in (own, other) for name in step["formats"]]
    unit = max((ROUNDOFF.get(name, _FLOAT32) for name in formats), default=_FLOAT32)
    depth = max(own["depth"], other["depth"], 1)
    terms = max(own["terms"], other["terms"], 1)
    sums = math.sqrt(depth * terms) * min(unit, _FLOAT32)
    loss = 2 * (ROUNDINGS * math.sqrt(depth) * unit + sums)
    # The order of a batch's sums is not fixed: each gradient adds up as many terms as there are positions.
    return loss, 100 * loss if unit <= _FLOAT32 else None


def _distance(own: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The distance of two gradients relative to the second, estimated from their projections."""
    square = sum((a - b) ** 2 for a, b in zip(own["projections"], other["projections"], strict=True))
    size = other["norm"]
    error = math.sqrt(square / max(len(own["projections"]), 1))
    return error / size if size > 0 else error
