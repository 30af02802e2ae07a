"""Of a variant: host synchronisations as predicted, warned of and traced, and what a step would be without them."""

from typing import Annotated, Final, Literal

from steptrace.documents.base import Document, field
from steptrace.documents.column import column, key
from steptrace.documents.syncs import Place, SyncSite


class SyncCounts(Document, frozen=True):
    """Host synchronisations per step by three sources."""

    measured_per_step: Annotated[
        float | None,
        column(
            "Syncs per step",
            "Host operations inside a step after which the host goes on only once queued GPU work is "
            "complete. Measured in the trace of a GPU run; predicted without a GPU by following the step "
            "on a virtual device.",
        ),
    ]
    predicted_per_step: Annotated[int | None, field("Predicted without one.")]
    predicted_not_judged: Annotated[int | None, field("Operations that the prediction cannot judge.")]
    predicted_batch_size: Annotated[int | None, field("Batch size of the prediction.")]
    warned_per_step: Annotated[float | None, field("Warned of by PyTorch's own check.")]


class PredictedSite(Place, frozen=True):
    """Predicted synchronisations at one place."""

    kind: Annotated[str | None, key("Kind", "What waits: `d2h_copy`, `stream`, ...")]
    count_per_step: Annotated[float | None, column("Per step", "Syncs per step.")]
    program_file: Annotated[
        str | None, field("Of a sync in a library: file of the program's line that leads there.")
    ] = None
    program_line: Annotated[int | None, field("That line.")] = None

    @property
    def program_place(self) -> str | None:
        """`file:line` of the program where the sync is in a library."""
        return None if self.program_file is None else f"{self.program_file}:{self.program_line}"


class UnknownPlace(Place, frozen=True):
    """A place that the prediction cannot judge."""

    reason: Annotated[str | None, field("Why.")]
    count_per_step: Annotated[float | None, field("Per step.")]


class SyncChange(Place, frozen=True):
    """A synchronisation on both sides."""

    kind: Annotated[str | None, field("What waits.")]
    variant_file: Annotated[str | None, field("The variant's file where it differs.")]
    variant_line: Annotated[int | None, field("The variant's line where it differs.")]
    baseline_count_per_step: Annotated[float | None, field("Per step of the baseline.")]
    variant_count_per_step: Annotated[float | None, field("Per step of the variant.")]
    baseline_blocked_ns_per_step: Annotated[float | None, field("Host blocked, baseline.", "ns")]
    variant_blocked_ns_per_step: Annotated[float | None, field("Host blocked, variant.", "ns")]
    baseline_exposed_idle_ns_per_step: Annotated[float | None, field("GPU idle exposed, baseline.", "ns")]
    variant_exposed_idle_ns_per_step: Annotated[float | None, field("GPU idle exposed, variant.", "ns")]


class SyncDiff(Document, frozen=True):
    """Which synchronisations a variant removes, keeps and adds."""

    basis: Annotated[Literal["measured", "predicted"], field("What is compared.")]
    sites: Annotated[tuple[SyncChange, ...], field("What changes in number first.")]


#: What a page and a message call the one place without a line of the program that everybody can name: the training loop
#: is the pipeline's, so no frame of the program is on the stack where a batch goes to the device; its labels tell.
BATCH_COPY: Final = "the loop's copy of the batch"
#: The labels of the loop: of the whole part, and of the copy alone.
_LABELS: Final = ("data", "copy data")


def is_batch_copy(site: PredictedSite | SyncChange | SyncSite) -> bool:
    """Whether a sync site is that copy: a copy to the device under the loop's label, without a line of the program."""
    return site.file is None and site.label in _LABELS and site.kind == "h2d_copy"
