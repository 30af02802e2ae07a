"""Syncs of a variant: their number by three sources, and how they differ from the baseline."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, column, described, field
from steptrace.documents.syncs import Place


class SyncCounts(Document, frozen=True):
    """Syncs per step by three sources."""

    measured_per_step: Annotated[
        float | None,
        column(
            "Syncs per step",
            "Host operations in a step that wait for queued GPU work: traced on a GPU, or predicted without one.",
        ),
    ]
    predicted_per_step: Annotated[float | None, field("Predicted without a GPU: the mean of the followed steps.")]
    predicted_not_judged: Annotated[int | None, field("Operations that the prediction does not cover.")]
    predicted_batch_size: Annotated[int | None, field("Batch size of the prediction.")]
    warned_per_step: Annotated[float | None, field("Warned of by PyTorch's own check.")]
    predicted_steps: Annotated[int | None, field("Steps that the prediction rests on.")] = None


@described("A place that the prediction does not cover.")
class UnknownPlace(Place, frozen=True):
    reason: Annotated[str | None, field("Why.")]
    count_per_step: Annotated[float | None, field("Per step.")]


class SyncedSteps(Document, frozen=True):
    """The steps in which a sync happens that is not in all of them."""

    in_steps: Annotated[int, field("In how many steps.")]
    of_steps: Annotated[int, field("How many steps were looked at.")]
    every: Annotated[int | None, field("Steps from one of them to the next, where that is regular.")]


@described("A sync on both sides.")
class SyncChange(Place, frozen=True):
    kind: Annotated[str | None, field("What waits.")]
    baseline_count_per_step: Annotated[float | None, field("Per step of the baseline.")]
    variant_count_per_step: Annotated[float | None, field("Per step of the variant.")]
    baseline_steps: Annotated[
        SyncedSteps | None, field("Of the baseline, where only some steps have it; else null.")
    ] = None
    variant_steps: Annotated[SyncedSteps | None, field("Of the variant, where only some steps have it; else null.")] = (
        None
    )


class SyncDiff(Document, frozen=True):
    """Which syncs a variant removes, keeps and adds."""

    basis: Annotated[Literal["measured", "predicted"], field("What is compared.")]
    sites: Annotated[tuple[SyncChange, ...], field("What changes in number first.")]
