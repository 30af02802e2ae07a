"""What a training step was estimated to take on a GPU that is not there."""

from typing import Annotated

from steptrace.documents.base import Document, field

#: A lowest and a highest value.
Band = tuple[float, float]


class NotEstimated(Document, frozen=True):
    """An operator that no rule with a measured error covers."""

    name: str
    reason: str
    share_pct: Annotated[float, field("Its share of the estimated GPU work, by its bytes alone.", "%")]
    calls: Annotated[float, field("Calls per step.")]
    file: str | None
    line: int | None


class Estimate(Document, frozen=True):
    """A step on one GPU; times are null where under 90 % of the GPU work is covered, or nothing is known of it."""

    gpu: str
    batch: int | None
    step_ms: Annotated[Band | None, field("At least GPU or host, whichever is longer; with syncs at most both.", "ms")]
    gpu_ms: Annotated[Band | None, field("Work of the GPU.", "ms")]
    host_ms: Annotated[Band | None, field("Launches of the host; data loading is not in it.", "ms")]
    gpu_busy_pct: Annotated[Band | None, field("GPU work / step.", "%")]
    limited_by: Annotated[str | None, field("`arithmetic`, `memory`, `launches`, `syncs` or `undecided`.")]
    launches: Annotated[float, field("Kernels, copies and fills that the host launches per step.")]
    syncs: Annotated[float, field("Predicted syncs per step.")]
    peak_memory_bytes: Annotated[
        int | None, field("Peak of live storages as the caching allocator rounds them, without libraries' workspaces.")
    ]
    fits: bool | None
    largest_batch: Annotated[int | None, field("That fits; null unless two batches were followed.")]
    covered_pct: Annotated[float, field("Share of the estimated GPU work that rules with a measured error cover.", "%")]
    reason: Annotated[str | None, field("Why there is no step time.")]
    not_estimated: tuple[NotEstimated, ...]
