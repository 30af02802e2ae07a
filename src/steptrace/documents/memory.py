"""Figures of memory."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.column import column, key


class AtPeak(Document, frozen=True):
    """Blocks of one origin: live at the peak, or kept by the steps until the window ends."""

    category: Annotated[
        str,
        key(
            "Category",
            "`parameters`, `gradients`, `optimizer_state`, `activations`, `inputs`, `workspaces`, `temporary` or "
            "`unknown`.",
        ),
    ]
    op: Annotated[str | None, key("Operator", "Outermost operator around the allocation.")]
    label: Annotated[str | None, key("Label", "Innermost `record_function` label around it.")]
    phase: Annotated[str | None, key("", "Part of the step.")]
    file: Annotated[str | None, key("Line", "File of the first frame that is neither PyTorch's nor steptrace's.")]
    line: Annotated[int | None, key("", "Line in `file`; of backward work that of the forward operator.", local=True)]
    function: Annotated[str | None, key("", "Function that the line stands in.")]
    code: Annotated[str | None, field("Text of the line, where the file is known.")]
    blocks: Annotated[int | None, column("Blocks", "Number of blocks; null where only their sum is known.")]
    bytes: Annotated[int, column("Bytes", "Their bytes, summed.", "B")]


class DeviceMemory(Document, frozen=True):
    """The peak of one device's memory, and what steps leave behind there."""

    device_type: Annotated[str, key("", "`cpu`, `cuda`, or the profiler's number.")]
    device: Annotated[int | None, key("", "Index; null for the host.")]
    peak_allocated_bytes: Annotated[
        int,
        column(
            "Peak allocated",
            "The most bytes of live blocks at any instant of the profiled window, by the allocators' "
            "events, with what was held before it: by the allocator's counter on a GPU, by the run's own "
            "count of its tensors on a CPU. What a library takes by itself, or a loader worker shares, is "
            "not seen. Reserved is what the allocator holds of the device.",
            "B",
        ),
    ]
    peak_reserved_bytes: Annotated[int | None, column("Peak reserved", "Most reserved; null on the host.", "B")]
    peak_ts: Annotated[int, field("First instant of the peak.", "ns", runs="none")]
    before_bytes: Annotated[int, column("Before the trace", "Held since before the trace, as far as known.", "B")]
    complete: Annotated[bool, field("Whether that is known.")]
    counter_agrees: Annotated[float | None, field("Share of events whose counter is the sum of the live blocks.")]
    capacity_bytes: Annotated[int | None, column("Capacity", "What was to be had.", "B")]
    capacity_source: Annotated[str | None, field("Who says so: `limit`, `device`, `machine`.")]
    headroom_bytes: Annotated[
        int | None,
        column(
            "Headroom",
            "Capacity is the device's memory, on a CPU the machine's, or what scale.memory_limit_mb "
            "grants. Headroom is capacity less the peak: the reserved one where there is a cache.",
            "B",
        ),
    ]
    fragmentation: Annotated[
        float | None,
        column(
            "Fragmentation",
            "1 - largest free block / free bytes of the caching allocator, at the end of a step's forward "
            "pass. A CPU's allocator keeps no free blocks, so there is none.",
            "share",
        ),
    ]
    by_category: Annotated[
        dict[str, int],
        column(
            "Category",
            "A block released in the part of the step that allocated it is temporary (so is what "
            "checkpointing computes again). Others go by that part: data: inputs; forward and loss: "
            "activations; backward: gradients; optimizer: optimizer state. What was there before the "
            "window is divided by the run's count, the rest unknown.",
            "B",
        ),
    ]
    at_peak: Annotated[tuple[AtPeak, ...], field("Live at the peak by origin, largest first.", runs="none")]
    curve: Annotated[
        tuple[tuple[int, int, int | None], ...], field("Instant (ns), allocated, reserved (B), a point each.")
    ]
    growth_bytes: Annotated[
        tuple[int, ...] | None,
        field("What each step left behind, but a program's first and the window's last: see docs/memory.md.", "B"),
    ] = None
    kept: Annotated[
        tuple[AtPeak, ...],
        field("What of these steps is live when the window ends, by origin, largest first.", runs="none"),
    ] = ()
