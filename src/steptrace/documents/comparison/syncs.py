"""Of a variant: its syncs as predicted, warned of and traced, and which of the baseline's it removes."""

from typing import Annotated, Literal

from steptrace.documents.base import Document, field
from steptrace.documents.column import column
from steptrace.documents.syncs import Place


class SyncCounts(Document, frozen=True):
    """Syncs per step by three sources."""

    measured_per_step: Annotated[
        float | None,
        column(
            "Syncs per step",
            "Host operations in a step that wait for queued GPU work: traced on a GPU, else predicted.",
        ),
    ]
    predicted_per_step: Annotated[
        float | None, field("Predicted without one; of a program the mean of the steps followed.")
    ]
    predicted_not_judged: Annotated[int | None, field("Operations that the prediction does not cover.")]
    predicted_batch_size: Annotated[int | None, field("Batch size of the prediction.")]
    warned_per_step: Annotated[float | None, field("Warned of by PyTorch's own check.")]


class UnknownPlace(Place, frozen=True):
    """A place that the prediction does not cover."""

    reason: Annotated[str | None, field("Why.")]
    count_per_step: Annotated[float | None, field("Per step.")]


class SyncChange(Place, frozen=True):
    """A sync on both sides."""

    kind: Annotated[str | None, field("What waits.")]
    baseline_count_per_step: Annotated[float | None, field("Per step of the baseline.")]
    variant_count_per_step: Annotated[float | None, field("Per step of the variant.")]


class SyncDiff(Document, frozen=True):
    """Which syncs a variant removes, keeps and adds."""

    basis: Annotated[Literal["measured", "predicted"], field("What is compared.")]
    sites: Annotated[tuple[SyncChange, ...], field("What changes in number first.")]
