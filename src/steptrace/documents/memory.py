"""Figures of memory."""

from typing import Annotated, ClassVar, Final

from steptrace.documents.base import Document, Row, column, described, field, key, place_key

#: What memory is held for, in the order of pages.
MEMORY_CATEGORIES: Final = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "inputs",
    "workspaces",
    "temporary",
    "unknown",
)


@described("Live blocks of one origin.")
class AtPeak(Document, frozen=True):
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
    file: Annotated[str | None, place_key("Line", "File of the first frame that is neither PyTorch's nor steptrace's.")]
    line: Annotated[
        int | None, key("", "Line in `file`; for backward work the line of the forward operator.", local=True)
    ]
    function: Annotated[str | None, key("", "Function that the line stands in.")]
    code: Annotated[str | None, field("Text of the line, where the file is known.")]
    blocks: Annotated[
        int | None, column("Blocks", "Number of blocks; not measured where only their sum is known.", kind="sum")
    ]
    bytes: Annotated[int, column("Bytes", "Their bytes, summed.", kind="sum", plain=True)]


@described("The peak of one device's memory; of several runs that of the run with the highest peak.")
class DeviceMemory(Row, frozen=True):
    RUN_OF_GREATEST: ClassVar[str] = "peak_allocated_bytes"

    device_type: Annotated[str, key("", "`cpu`, `cuda`, or the profiler's number.")]
    device: Annotated[int | None, key("", "Index; null for the host.")]
    peak_allocated_bytes: Annotated[
        int,
        column(
            "Peak allocated",
            "Most bytes of live blocks in the profiled window, with those held before. Libraries' own allocations and "
            "loader workers' are not seen.",
            kind="max",
        ),
    ]
    peak_reserved_bytes: Annotated[
        int | None, column("Peak reserved", "Most bytes reserved by the caching allocator.", kind="max")
    ]
    peak_ts: Annotated[int, field("First instant of the peak.", kind="first")]
    before_bytes: Annotated[
        int, column("Before the trace", "Held since before the trace, as far as known.", kind="mean")
    ]
    complete: Annotated[bool, field("Whether that is known.")]
    counter_agrees: Annotated[
        float | None, field("Share of events whose counter is the sum of the live blocks.", kind="share")
    ]
    capacity_bytes: Annotated[
        int | None, column("Capacity", "Memory of the device, or the limit that was set.", kind="fact")
    ]
    capacity_source: Annotated[str | None, field("Who says so: `limit`, `device`, `machine`.")]
    headroom_bytes: Annotated[
        int | None,
        column(
            "Headroom",
            "Capacity (of the device, the machine or scale.memory_limit_mb) less the peak, reserved where cached.",
            kind="min",
        ),
    ]
    fragmentation: Annotated[
        float | None,
        column(
            "Fragmentation",
            "1 - largest free block / free bytes of the caching allocator, after a forward pass; none on a CPU.",
            "share",
            kind="share",
        ),
    ]
    by_category: Annotated[
        dict[str, int],
        column(
            "Live at the peak",
            "By category. Released in the part of the step that allocated it: temporary. Else by that part: data: "
            "inputs; forward, loss: activations; backward: gradients; optimizer: its state. Held before the window: by "
            "the run's count, else unknown.",
            "B",
            kind="sum",
        ),
    ]
    at_peak: Annotated[tuple[AtPeak, ...], field("Live at the peak by origin, largest first.", kind="first")]
    curve: Annotated[
        tuple[tuple[int, int, int | None], ...],
        field("Instant (ns), allocated, reserved (B), a point each.", kind="first"),
    ]
    step_end_bytes: Annotated[
        tuple[int, ...] | None,
        field("Bytes live at the end of each step on the host; null for a trace without steps.", kind="first"),
    ] = None
    stays: Annotated[
        tuple[AtPeak, ...],
        field(
            "Blocks that a step allocated and that are live at the end of the last step, without that step's own, by "
            "origin, largest first.",
            kind="first",
        ),
    ] = ()
