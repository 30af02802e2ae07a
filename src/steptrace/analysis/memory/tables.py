"""The rows of the tables of the allocators' memory: blocks, curves, peaks, blocks live at a peak, growth by step."""

from typing import Annotated

from steptrace.documents.base import Document, field
from steptrace.documents.column import key
from steptrace.documents.memory import AtPeak

_DeviceType = Annotated[int, key("", "0 is the host, 1 a CUDA or ROCm device.")]
_Device = Annotated[int | None, key("", "Index of the device, null for the host.")]


class _OnDevice(Document, frozen=True):
    device_type: _DeviceType
    device: _Device


class MemoryBlock(_OnDevice, frozen=True):
    """One block of memory from its allocation to its release, as far as the trace holds them."""

    address: Annotated[int, field("Address of the block.")]
    bytes: Annotated[int, field("Its size.")]
    ts: Annotated[int | None, field("When it was allocated; null if that was before the trace.")]
    until: Annotated[int | None, field("When it was released; null if the trace does not hold it.")]
    thread: Annotated[int | None, field("Row of `threads` that allocated it; null before the trace.")]
    op: Annotated[int | None, field("Row of `ops`: the innermost operator around the allocation.")]
    phase: Annotated[str | None, field("Part of the step it was allocated in; null outside of them.")]
    category: Annotated[str, field("As `AtPeak.category`.")]


class MemoryPoint(_OnDevice, frozen=True):
    """Bytes in use on one device, from this instant to the device's next row."""

    ts: Annotated[int, key("", "Instant.")]
    allocated: Annotated[int, field("Bytes of all live blocks, with what was there before the trace.")]
    reserved: Annotated[int | None, field("Bytes the allocator holds of the device; null on the host.")]


class MemoryPeak(_OnDevice, frozen=True):
    """The peak of one device."""

    before: Annotated[int, field("Bytes held since before the trace, as far as known.")]
    complete: Annotated[
        bool, field("Whether those bytes are known: by the allocator's counter or the run's memory.json.")
    ]
    agrees: Annotated[float | None, field("Share of events whose counter is the sum of the live blocks.")]
    peak_ts: Annotated[int, field("First instant of the peak.")]
    peak_allocated: Annotated[int, field("Bytes allocated at the peak.")]
    peak_reserved: Annotated[int | None, field("Most bytes reserved at any instant; null on the host.")]


class BlocksOnDevice(AtPeak, frozen=True):
    """Blocks of one origin: those live at the device's peak, which add up to it, or those that stay."""

    device_type: _DeviceType
    device: _Device


class MemoryGrowth(_OnDevice, frozen=True):
    """What each step left behind on a device, but for blocks of 512 B and less: neither a program's first step nor the
    window's last."""

    index: Annotated[int, field("The N of the step's `ProfilerStep#N`.")]
    bytes: Annotated[
        int,
        field(
            "Bytes it made that are live when the window ends, or what it added to the blocks that outlive a step "
            "where that is less: negative where more of older ones was released.",
        ),
    ]
