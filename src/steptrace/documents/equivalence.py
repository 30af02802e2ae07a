"""Whether two trainings compute the same: the result of a check (equivalence.json) and its parts."""

from typing import Annotated, Literal, get_args

from steptrace.documents.base import Document, File, column, field
from steptrace.documents.run import ProcessError

EquivalenceStatus = Literal["same", "differs", "not comparable", "failed", "not measured"]
#: Why the outputs of two programs cannot be compared.
NotComparableCode = Literal[
    "no_steps",
    "no_scalar_loss",
    "baseline_loss_not_finite",
    "other_samples",
    "other_gradients",
    "baseline_varies",
]
#: The quantities of a variant's answer that are compared with the reference.
Quantity = Literal["loss", "gradient", "predictions", "parameters"]


class Tolerance(Document, frozen=True):
    """The largest relative errors that count as the same answer."""

    loss: Annotated[float, field("Of the loss.")]
    gradient: Annotated[
        float | None,
        field("Of the loss's gradient by the predictions; for a program, of its first gradients in float32."),
    ] = None
    predictions: Annotated[float | None, field("Of the network's output.")] = None
    parameters: Annotated[float | None, field("Of the gradient by the parameters.")] = None


class NotComparable(Document, frozen=True):
    """Why the outputs of two programs cannot be compared; `words.equivalence` makes the sentence."""

    code: Annotated[NotComparableCode, field("Which reason.")]
    samples: Annotated[int | None, field("Samples in a step of the variant, where the numbers differ.")] = None
    baseline_samples: Annotated[int | None, field("Samples in a step of the baseline, where they differ.")] = None


class ComparedCase(Document, frozen=True, kw_only=True):
    """One batch or step on which two outputs were compared. A figure that is not finite is null."""

    name: Annotated[str, field("The batch or step: `seed 0`, `edge case 1`, `step 1`.")]
    loss: Annotated[float | None, field("Loss of the variant.")]
    reference_loss: Annotated[float | None, field("Loss of the reference.")]
    loss_rel_err: Annotated[float | None, field("Relative error of the loss.")] = None
    gradient_rel_err: Annotated[float | None, field("Relative error of the gradient.")] = None
    predictions_rel_err: Annotated[float | None, field("Relative error of the network's output.")] = None
    parameters_rel_err: Annotated[float | None, field("Relative error of the gradient by the parameters.")] = None
    tolerance: Annotated[Tolerance, field("What is allowed.")]
    holds: Annotated[bool, field("Whether every error is within its tolerance.")]


class EquivalenceResult(File, frozen=True, kw_only=True):
    """The result of an equivalence check (equivalence.json).

    The figures of each quantity are those of the case whose error is largest relative to its tolerance. A figure that
    is not finite is null.
    """

    status: Annotated[Literal["same", "differs", "not comparable"], field("The outcome.")]
    max_rel_err: Annotated[float | None, field("The larger error of loss and gradient.")] = None
    loss_rel_err: Annotated[float | None, field("Relative error of the loss.")] = None
    gradient_rel_err: Annotated[float | None, field("Relative error of the gradient.")] = None
    predictions_rel_err: Annotated[float | None, field("Relative error of the network's output.")] = None
    parameters_rel_err: Annotated[float | None, field("Relative error of the gradient by the parameters.")] = None
    tolerance: Annotated[Tolerance | None, field("What is allowed; null if nothing was compared.")] = None
    reason: Annotated[str | None, field("Why the two cannot be compared, as a sentence.")] = None
    not_comparable: Annotated[NotComparable | None, field("The same as a code.")] = None
    cases: Annotated[tuple[ComparedCase, ...], field("All compared cases.")] = ()


class Equivalence(Document, frozen=True):
    """Whether a variant computes what its reference computes."""

    status: Annotated[
        EquivalenceStatus,
        column(
            "Equivalence",
            "Loss, predictions and gradients against a float64 reference on shared values and fixed seeds; outside "
            "the tolerance of its number format a variant differs.",
        ),
    ]
    max_rel_err: Annotated[float | None, field("The larger of both errors.")] = None
    loss_rel_err: Annotated[float | None, field("Relative error of the loss.")] = None
    gradient_rel_err: Annotated[
        float | None, field("Relative error of the loss's gradient by the predictions, on shared predictions.")
    ] = None
    predictions_rel_err: Annotated[float | None, field("Relative error of the network's output.")] = None
    parameters_rel_err: Annotated[float | None, field("Relative error of the gradient by the parameters.")] = None
    tolerance: Annotated[Tolerance | None, field("What is allowed.")] = None
    failure: Annotated[ProcessError | None, field("How the check failed.")] = None
    reason: Annotated[str | None, field("Why the two cannot be compared, as a sentence.")] = None
    not_comparable: Annotated[
        NotComparable | None, field("Why the two cannot be compared; null in files of before this field.")
    ] = None

    @property
    def held(self) -> list[tuple[Quantity, float | None, float | None]]:
        """The quantities compared with the reference: name, relative error, and tolerance (None without one)."""
        names = get_args(Quantity)
        return [(name, getattr(self, f"{name}_rel_err"), getattr(self.tolerance, name, None)) for name in names]
