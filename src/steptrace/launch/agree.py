"""Do two programs compute the same? Losses and gradients of their first steps, held against each other.

Both start from the same seed, so a program that draws its numbers alike computes the same to the last digit, and one
that is arranged differently comes close to it. The loss and the gradients of the first step are held: tolerances follow
from the coarsest number format in use and the size of the network, as in `steptrace.train.tolerance`. Gradients in 16
bits are not held: rounding decides on which side of a kink a unit lies. The losses of later steps may be further apart
by a factor of ten each, since every update carries the difference on.

Nothing is said of programs that cannot be compared: with other samples in a step, other parameters, or numbers that
differ from one start of the same program to the next.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

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
    cases = [_case(number, *steps, tolerance) for number, steps in enumerate(zip(answers, reference, strict=False))]
    worst = max(cases, key=_of_tolerance)
    loss, gradient = worst["loss_rel_err"], cases[0]["gradient_rel_err"]
    known = [error for error in (loss, gradient) if error is not None]
    return {
        "status": "same" if all(case["holds"] for case in cases) else "differs",
        "loss_rel_err": loss,
        "gradient_rel_err": gradient,
        "max_rel_err": max(known) if len(known) == 2 else None,
        "tolerance": {**cases[0]["tolerance"], "loss": worst["tolerance"]["loss"]},
        "cases": cases,
    }


def _of_tolerance(case: Mapping[str, Any]) -> float:
    """How much of its tolerance a step's loss takes; what is not finite takes the most."""
    error: float | None = case["loss_rel_err"]
    return math.inf if error is None else error / float(case["tolerance"]["loss"])


def _case(number: int, own: Answer, other: Answer, tolerance: tuple[float, float | None]) -> dict[str, Any]:
    """One step against the same step of the reference."""
    errors = {"loss": _relative(own["loss"], other["loss"])}
    allowed = {"loss": tolerance[0] * _GROWTH**number}
    if number == 0:
        errors["gradient"] = max(map(_distance, own["gradients"], other["gradients"]), default=0.0)
        allowed |= {} if tolerance[1] is None else {"gradient": tolerance[1]}
    return {
        "name": f"step {number + 1}",
        "loss": own["loss"],
        "reference_loss": other["loss"],
        **{f"{held}_rel_err": _finite(error) for held, error in errors.items()},
        "tolerance": allowed,
        "holds": all(errors[held] <= limit for held, limit in allowed.items()),
    }


def _not_comparable(answers: Sequence[Answer], reference: Sequence[Answer]) -> str | None:
    if not answers or not reference:
        return "no step of the program was seen"
    own, other = answers[0], reference[0]
    if own["loss"] is None or other["loss"] is None:
        return "the program's backward passes do not begin from one number, so its loss is not known"
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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
