"""Do two programs compute the same? Losses and gradients of their first steps, held against each other.

Both start from the same seed, so a program that draws its numbers alike computes the same to the last digit, and one
that is arranged differently comes close to it. The loss and the gradients of the first step are held: tolerances follow
from the coarsest number format in use and the size of the network, as in `steptrace.train.tolerance`. Gradients in 16
bits are not held: rounding decides on which side of a kink a unit lies. The losses of later steps may be further apart
by a factor of ten each, since every update carries the difference on; a later step whose loss is not known is left out.

Nothing is said of programs that cannot be compared: with other samples in a step, other parameters, or numbers that
differ from one start of the same program to the next.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from steptrace.train.cases import Case, verdict_on

#: Roundings by a layer, as in `steptrace.train.tolerance`.
_ROUNDINGS: Final = 3
#: Unit roundoff of the number formats that autocast and tensors have.
_ROUNDOFF: Final = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
_FLOAT32: Final = _ROUNDOFF["float32"]
#: How much further apart the losses of each further step may be.
_GROWTH: Final = 10.0

Answer = Mapping[str, Any]


def verdict(answers: Sequence[Answer], reference: Sequence[Answer]) -> dict[str, Any]:
    """The content of equivalence.json: `same`, `differs` or `not comparable` with a `reason`."""
    reason = _not_comparable(answers, reference)
    if reason is not None:
        return {"status": "not comparable", "reason": reason}
    tolerance = _tolerance(answers[0], reference[0])
    steps = enumerate(zip(answers, reference, strict=False))
    known = [(n, own, other) for n, (own, other) in steps if own["loss"] is not None and other["loss"] is not None]
    return verdict_on([_case(number, own, other, tolerance) for number, own, other in known])


def _case(number: int, own: Answer, other: Answer, tolerance: tuple[float, float | None]) -> Case:
    """One step against the same step of the reference."""
    errors = {"loss": _relative(own["loss"], other["loss"])}
    allowed = {"loss": tolerance[0] * _GROWTH**number}
    if number == 0:
        distances = list(map(_distance, own["gradients"], other["gradients"]))
        errors["gradient"] = math.nan if any(map(math.isnan, distances)) else max(distances, default=0.0)
        allowed |= {} if tolerance[1] is None else {"gradient": tolerance[1]}
    return Case(f"step {number + 1}", own["loss"], other["loss"], errors, allowed)


def _not_comparable(answers: Sequence[Answer], reference: Sequence[Answer]) -> str | None:
    if not answers or not reference:
        return "no step of the program was seen"
    own, other = answers[0], reference[0]
    if own["loss"] is None or other["loss"] is None:
        return "the program's backward passes do not begin from one number, so its loss is not known"
    if not math.isfinite(other["loss"]):
        return "the baseline's own loss is infinite or no number"
    if own["samples"] != other["samples"]:
        return f"a step has {own['samples']} samples, the baseline's {other['samples']}"
    values = [sorted(gradient["values"] for gradient in step["gradients"]) for step in (own, other)]
    if values[0] != values[1]:
        return "the gradients have other sizes than the baseline's"
    return None


def _tolerance(own: Answer, other: Answer) -> tuple[float, float | None]:
    """What the loss may be apart, and the gradients if they are held."""
    formats = [name for step in (own, other) for name in step["formats"]]
    unit = max((_ROUNDOFF.get(name, _FLOAT32) for name in formats), default=_FLOAT32)
    depth = max(own["depth"], other["depth"], 1)
    terms = max(own["terms"], other["terms"], 1)
    sums = math.sqrt(depth * terms) * min(unit, _FLOAT32)
    loss = 2 * (_ROUNDINGS * math.sqrt(depth) * unit + sums)
    # Nothing orders the sums over a batch: each gradient adds up as many terms as there are positions.
    return loss, 100 * loss if unit <= _FLOAT32 else None


def _distance(own: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """How far apart two gradients are, relative to the second: their projections estimate it."""
    square = sum((a - b) ** 2 for a, b in zip(own["projections"], other["projections"], strict=True))
    size = other["norm"]
    error = math.sqrt(square / max(len(own["projections"]), 1))
    return error / size if size > 0 else error


def _relative(value: float, reference: float) -> float:
    error = abs(value - reference)
    return error / abs(reference) if reference else error
