"""snapshot.json: the content of PyTorch's memory snapshots, and what grew from the first one to the last.

A snapshot is a file of `torch.cuda.memory._dump_snapshot()`. It holds the state of the caching allocator, and, where
`torch.cuda.memory._record_memory_history()` was called before, the allocations and releases up to then.
"""

from typing import Annotated, Literal

from steptrace.documents.base import Document, File, Row, column, described, field, key, place_key

#: The use of memory, as the stack of its allocation shows.
Category = Literal[
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "inputs",
    "workspaces",
    "before_history",
    "unknown",
]


class Origin(Document, frozen=True, kw_only=True):
    """A line of the program that allocates."""

    category: Annotated[
        Category,
        key(
            "Category",
            "By the stack of the allocation. In an optimizer's step: `optimizer_state`. In a backward pass, whose "
            "threads have no Python frames: `gradients`. As a module is moved or initialised: `parameters`. In a "
            "module's forward: `activations`. In a loader: `inputs`. By cuBLAS, where C++ frames were recorded: "
            "`workspaces`. Before the history was recorded: `before_history`. Otherwise: `unknown`.",
        ),
    ]
    file: Annotated[
        str | None,
        place_key("Line", "File of the innermost Python frame that is no installed package's; null without frames."),
    ]
    line: Annotated[int | None, key("", "Line in `file`.", local=True)]
    function: Annotated[str | None, key("", "Function that the line stands in.")]


@described("Blocks of one line that are live at one moment.")
class LiveLine(Origin, frozen=True, kw_only=True):
    blocks: Annotated[int, column("Blocks", "Number of blocks.", kind="sum", plain=True)]
    bytes: Annotated[int, column("Bytes", "Bytes that the program asked for, summed.", kind="sum")]


@described("An allocation that failed.")
class OutOfMemory(Document, frozen=True, kw_only=True):
    bytes: Annotated[int, column("Asked for", "Bytes that could not be allocated.")]
    device_free_bytes: Annotated[int | None, column("Free on the GPU", "What the GPU had free then, outside PyTorch.")]
    allocated_bytes: Annotated[int, column("Allocated then", "Bytes of live blocks then.")]
    reserved_bytes: Annotated[int, column("Reserved then", "Bytes that the caching allocator held then.")]
    file: Annotated[str | None, field("File of the line that asked.")]
    line: Annotated[int | None, field("Line in it.")]
    function: Annotated[str | None, field("Function that the line stands in.")]


@described("One GPU's memory in a snapshot.")
class SnapshotDevice(Row, frozen=True, kw_only=True):
    device: Annotated[int, key("GPU", "Index of the GPU.")]
    allocated_bytes: Annotated[
        int, column("Allocated", "Bytes that the program asked for in blocks that are live at the snapshot.")
    ]
    reserved_bytes: Annotated[int, column("Reserved", "Bytes that the caching allocator holds at the snapshot.")]
    free_bytes: Annotated[int, column("Free of these", "Reserved bytes in blocks that are not in use.")]
    stuck_bytes: Annotated[
        int,
        column(
            "Free, but stuck",
            "Free bytes in segments that hold a live block: `empty_cache` cannot give them back to the GPU.",
        ),
    ]
    largest_free_bytes: Annotated[
        int, column("Largest free block", "The largest allocation that needs no new segment.")
    ]
    fragmentation: Annotated[
        float | None,
        column("Fragmentation", "1 - largest free block / free bytes; null where nothing is free.", "share"),
    ]
    segments: Annotated[int, column("Segments", "Pieces of memory that the allocator got from the GPU.")]
    peak_bytes: Annotated[
        int | None,
        column(
            "Peak",
            "Most bytes of live blocks within the recorded history, as the program asked for them.",
        ),
    ]
    peak_event: Annotated[int | None, field("Number of the event that reaches the peak, from 0.")]
    events: Annotated[int, column("Events", "Allocations and releases in the recorded history.")]
    agrees: Annotated[
        bool | None,
        field("Whether the history ends at the blocks that are live at the snapshot; null without history."),
    ]
    at_peak: Annotated[tuple[LiveLine, ...], field("Live at the peak by line, largest first.")]
    live: Annotated[tuple[LiveLine, ...], field("Live at the snapshot by line, largest first.")]
    peak_by_category: Annotated[dict[str, int], field("Bytes live at the peak, by category.")]
    out_of_memory: Annotated[tuple[OutOfMemory, ...], field("Allocations that failed, first to last.")]
    curve: Annotated[
        tuple[tuple[int, int, int], ...], field("Event, allocated and reserved bytes after it: at most 400 points.")
    ]


@described("One file.")
class MemorySnapshot(Document, frozen=True, kw_only=True):
    path: Annotated[str, field("The file.")]
    sha256: Annotated[str, field("SHA-256 of its content.")]
    settings: Annotated[str | None, field("`PYTORCH_CUDA_ALLOC_CONF` of the program; null where it is not recorded.")]
    devices: Annotated[tuple[SnapshotDevice, ...], field("The GPUs on which the program has used memory.")]


@described("What one line holds live in the first snapshot and in the last.")
class Growth(Origin, frozen=True, kw_only=True):
    device: Annotated[int, key("GPU", "Index of the GPU.")]
    before_bytes: Annotated[int, column("Before", "Live bytes in the first snapshot.")]
    now_bytes: Annotated[int, column("Now", "Live bytes in the last snapshot.")]
    grown_bytes: Annotated[int, column("Growth", "Their difference; negative where less is live now.")]
    before_blocks: Annotated[int, field("Live blocks in the first snapshot.")]
    now_blocks: Annotated[int, field("Live blocks in the last snapshot.")]


class MemorySnapshots(File, frozen=True, kw_only=True):
    """The content of snapshot.json."""

    snapshots: Annotated[tuple[MemorySnapshot, ...], field("The files, in the order in which they were named.")]
    growth: Annotated[
        tuple[Growth, ...] | None,
        field("Lines whose live bytes differ between first and last, most growth first; null for one file."),
    ]
