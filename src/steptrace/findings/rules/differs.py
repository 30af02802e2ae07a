"""A variant computes something else than its reference."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from steptrace.documents.base import Document, field
from steptrace.documents.equivalence import Quantity
from steptrace.documents.variant import VariantResult
from steptrace.findings.rule import BaseFigures, Match, Rule, Words, advise, per_variant
from steptrace.format import error_bound


class ErrorFigures(Document, frozen=True, kw_only=True):
    """The error of one quantity."""

    quantity: Annotated[Quantity, field("What is compared; `gradient` is by the predictions, `parameters` by these.")]
    relative_error: Annotated[float | None, field("Its relative error; null where it is not finite.")]
    allowed: Annotated[float | None, field("The tolerance; null without one.")]


class Figures(BaseFigures, frozen=True, kw_only=True):
    """How a variant's answer differs."""

    errors: Annotated[tuple[ErrorFigures, ...], field("What was held against the reference.")]
    is_faster: Annotated[bool, field("Whether its verdict is `faster`, which then does not count.")]


def _find(variant: VariantResult) -> Iterator[Match[Figures]]:
    if variant.equivalence.status != "differs":
        return
    held = variant.equivalence.held
    errors = [ErrorFigures(quantity=name, relative_error=error, allowed=most) for name, error, most in held]
    # What is not finite is written as null. The network's quantities were held only if they have a tolerance.
    was_held = (
        compared for compared in errors if compared.quantity in ("loss", "gradient") or compared.allowed is not None
    )
    figures = Figures(errors=tuple(was_held), is_faster=variant.verdict == "faster")
    yield Match(severity="high", figures=figures)


_NAMES: Final[Mapping[Quantity, str]] = {
    "loss": "loss",
    "gradient": "gradient with respect to the predictions",
    "predictions": "predictions",
    "parameters": "gradient with respect to the parameters",
}


def _words(figures: Figures) -> Words:
    claim = "computes a different result from the reference"
    return Words(
        claim + (", so its speed does not count" if figures.is_faster else ""),
        tuple(
            f"relative error of the {_NAMES[error.quantity]}: "
            + ("not finite" if error.relative_error is None else error_bound(error.relative_error))
            + ("" if error.allowed is None else f", allowed {error_bound(error.allowed)}")
            for error in figures.errors
        ),
    )


RULE: Final = Rule(
    name="differs",
    topic="results",
    figures=Figures,
    words=_words,
    in_study=per_variant(_find),
    condition="loss, gradient or predictions lie outside the tolerance around the study's float64 reference",
    source="the rounding error that the number format and the tensors' sizes allow: see docs/methods.md",
    advice=advise(
        "Look up the case that differs in `equivalence.json`; a speed-up that changes the result does not count."
    ),
    counter_check="Run the check in float32: if the error shrinks to float32's rounding, the precision causes it, not "
    "the variant. A formula that subtracts nearly equal numbers loses digits: rewrite it without the difference.",
)
