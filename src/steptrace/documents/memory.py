"""memory.json: what a run says of its memory, also one that ran out of it. Unmeasured is null."""

from typing import Annotated

from steptrace.documents.base import Document, File, field


class LiveTensors(Document, frozen=True):
    """Tensors of one kind that were alive when memory ran out; those of shared storage count once."""

    category: Annotated[str, field("Category, as in docs/memory.md.")]
    what: Annotated[str, field("Operator that saved them, or what they are.")]
    shape: Annotated[tuple[int, ...], field("Shape.")]
    dtype: Annotated[str, field("Number format.")]
    count: Annotated[int, field("How many.")]
    bytes: Annotated[int, field("Their bytes together.", "B")]


class OutOfMemory(Document, frozen=True):
    """How a run ran out of memory, and what was alive."""

    message: Annotated[str, field("The error.")]
    phase: Annotated[str | None, field("Part of the step.")]
    requested_bytes: Annotated[int | None, field("Asked for.", "B")]
    used_bytes: Annotated[int | None, field("Taken by then.", "B")]
    by_category: Annotated[dict[str, int], field("Alive by category; what no row of `live` explains is unknown.", "B")]
    live: Annotated[tuple[LiveTensors, ...], field("Alive by kind of tensor.")]


class RunMemory(File, frozen=True, kw_only=True):
    """The memory of a run: what there was to be had, and who held it."""

    device: Annotated[str, field("`cpu` or `cuda`.")]
    batch_size: Annotated[int, field("Batch size.")]
    capacity_bytes: Annotated[int, field("What there was to be had.", "B")]
    capacity_source: Annotated[str, field("`limit` (scale.memory_limit_mb), `device` or `machine`.")]
    held: Annotated[dict[str, int], field("Bytes of tensors between two steps, by category.", "B")]
    gradient_bytes: Annotated[int | None, field("Gradients of the parameters at the end of a backward pass.", "B")] = (
        None
    )
    free_bytes: Annotated[
        int | None, field("Free in the caching allocator at the end of the forward pass; a CPU has none.", "B")
    ] = None
    largest_free_bytes: Annotated[int | None, field("The largest free block then.", "B")] = None
    oom: Annotated[OutOfMemory | None, field("How it ran out.")] = None

    @property
    def fragmentation(self) -> float | None:
        """1 - largest free block / free bytes of the caching allocator; None without one, or with nothing free."""
        if not self.free_bytes or self.largest_free_bytes is None:
            return None
        return 1 - self.largest_free_bytes / self.free_bytes
