"""The tables of the allocators' memory: blocks, curves, peaks, blocks live at a peak, growth by step."""

from steptrace.documents.column import columns_of
from steptrace.documents.memory import AtPeak
from steptrace.schema.table import Column, Table

_DEVICE_TYPE = Column("device_type", "int64", "0 is the host, 1 a CUDA or ROCm device.")
_DEVICE = Column("device", "int64", "Index of the device, null for the host.", nullable=True)
_CATEGORY = Column(
    "category",
    "string",
    "`parameters`, `gradients`, `optimizer_state`, `activations`, `inputs`, `workspaces`, `temporary` or `unknown`.",
)

MEMORY_BLOCKS = Table(
    "memory_blocks",
    "One block of memory from its allocation to its release, as far as the trace holds them.",
    _DEVICE_TYPE,
    _DEVICE,
    Column("address", "int64", "Address of the block."),
    Column("bytes", "int64", "Its size.", "B"),
    Column("ts", "int64", "When it was allocated; null if that was before the trace.", "ns", nullable=True),
    Column("until", "int64", "When it was released; null if the trace does not hold it.", "ns", nullable=True),
    Column("thread", "int64", "Row of `threads` that allocated it; null before the trace.", nullable=True),
    Column("op", "int64", "Row of `ops`: the innermost operator around the allocation.", nullable=True),
    Column("phase", "string", "Part of the step it was allocated in; null outside of them.", nullable=True),
    _CATEGORY,
)

MEMORY_CURVE = Table(
    "memory_curve",
    "Bytes in use on one device, from this instant to the device's next row.",
    _DEVICE_TYPE,
    _DEVICE,
    Column("ts", "int64", "Instant.", "ns"),
    Column("allocated", "int64", "Bytes of all live blocks, with what was there before the trace.", "B"),
    Column("reserved", "int64", "Bytes the allocator holds of the device; null on the host.", "B", nullable=True),
    key=("device_type", "device", "ts"),
)

MEMORY_DEVICES = Table(
    "memory_devices",
    "The peak of one device.",
    _DEVICE_TYPE,
    _DEVICE,
    Column("before", "int64", "Bytes held since before the trace, as far as known.", "B"),
    Column("complete", "bool", "Whether those bytes are known: by the allocator's counter or the run's memory.json."),
    Column("agrees", "float64", "Share of events whose counter is the sum of the live blocks.", nullable=True),
    Column("peak_ts", "int64", "First instant of the peak.", "ns"),
    Column("peak_allocated", "int64", "Bytes allocated at the peak.", "B"),
    Column("peak_reserved", "int64", "Most bytes reserved at any instant; null on the host.", "B", nullable=True),
    key=("device_type", "device"),
)

MEMORY_AT_PEAK = Table(
    "memory_at_peak",
    "What was live at a device's peak: the blocks of one origin together. Their bytes add up to the peak.",
    _DEVICE_TYPE,
    _DEVICE,
    *columns_of(AtPeak),
)

MEMORY_GROWTH = Table(
    "memory_growth",
    "What each step left behind on a device, but for blocks of 512 B and less: neither a program's first step nor the "
    "window's last.",
    _DEVICE_TYPE,
    _DEVICE,
    Column("index", "int64", "The N of the step's `ProfilerStep#N`."),
    Column(
        "bytes",
        "int64",
        "Bytes it made that are live when the window ends, or what it added to the blocks that outlive a step where "
        "that is less: negative where more of older ones was released.",
        "B",
    ),
)

MEMORY_KEPT = Table(
    "memory_kept",
    "What these steps made that is live when the window ends: the blocks of one origin together.",
    _DEVICE_TYPE,
    _DEVICE,
    *columns_of(AtPeak),
)
