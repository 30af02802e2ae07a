"""Rules on memory: too little left, much left unused, room lost between blocks."""

from collections.abc import Iterator
from typing import Final

from steptrace.documents.summary import DeviceMemory
from steptrace.findings.model import Match, Rule
from steptrace.findings.step_time import BUSY_PCT
from steptrace.findings.trace.window import Window
from steptrace.format import size_bytes
from steptrace.format import whole_percent as percent

#: Shares of a device's memory at its peak: above the one it is nearly full, below the other half of it is unused.
FULL_SHARE, UNUSED_SHARE = 0.90, 0.50
#: Of the allocator's free memory, what is not in its largest free block; and its free memory of all it reserved.
FRAGMENTED, FREE_SHARE = 0.50, 0.10


def _low_headroom(window: Window) -> Iterator[Match]:
    for device in _devices(window):
        share = _taken_share(device)
        if share is not None and share > FULL_SHARE:
            yield Match(
                severity="warning",
                claim=f"{_name(device)} is {percent(share)} full at the peak, "
                f"{size_bytes(device.headroom_bytes or 0)} left",
                evidence=(_peak(device), *_largest(device)),
            )


def _unused_memory(window: Window) -> Iterator[Match]:
    entry = window.entry
    shares = (("the GPU's busy share", entry.gpu_busy_pct), ("its multiprocessors' busy share", entry.sm_weighted_pct))
    low = [f"{what} is {value:.0f} %" for what, value in shares if value is not None and value < BUSY_PCT]
    for device in _devices(window):
        share = _taken_share(device)
        if share is None or share >= UNUSED_SHARE or not low or device.device != entry.device:
            continue
        yield Match(
            severity="info",
            claim=f"{_most(1 - share)} of the memory of {_name(device)} is never used and the GPU is not busy all "
            "the time: a larger batch may fit and make better use of it",
            evidence=(_peak(device), *low),
        )


def _fragmentation(window: Window) -> Iterator[Match]:
    for device in _devices(window):
        lost, reserved = device.fragmentation, device.peak_reserved_bytes
        if lost is None or not reserved:
            continue
        free = reserved - device.peak_allocated_bytes
        if lost > FRAGMENTED and free > FREE_SHARE * reserved:
            yield Match(
                severity="warning",
                claim=f"{percent(lost)} of the allocator's free memory on {_name(device)} lies outside its largest "
                "free block: a large tensor may not fit though there is room",
                evidence=(_peak(device), f"{size_bytes(free)} reserved and not allocated at the peaks"),
            )


def _devices(window: Window) -> tuple[DeviceMemory, ...]:
    return window.entry.memory or ()


def _taken_share(device: DeviceMemory) -> float | None:
    """What was taken at the peak of what was to be had; None if either is not known."""
    capacity, headroom = device.capacity_bytes, device.headroom_bytes
    return None if not capacity or headroom is None else 1 - headroom / capacity


def _name(device: DeviceMemory) -> str:
    return "the host" if device.device_type == "cpu" else f"GPU {device.device or 0}"


def _peak(device: DeviceMemory) -> str:
    reserved, capacity = device.peak_reserved_bytes, device.capacity_bytes
    return (
        f"at the peak {size_bytes(device.peak_allocated_bytes)} allocated"
        + (f" and {size_bytes(reserved)} reserved" if reserved is not None else "")
        + (f" of {size_bytes(capacity)}" if capacity else "")
    )


def _largest(device: DeviceMemory) -> list[str]:
    """What takes most of the peak."""
    held = sorted(device.by_category.items(), key=lambda item: -item[1])
    said = ", ".join(f"{name.replace('_', ' ')} {size_bytes(size)}" for name, size in held[:3] if size)
    return [said] if said else []


def _most(share: float) -> str:
    return "over 99 %" if share > 0.99 else percent(share)


MEMORY_RULES: Final[tuple[Rule[Window], ...]] = (
    Rule(
        name="low_headroom",
        condition=f"the peak takes more than {percent(FULL_SHARE)} of a device's memory",
        basis="PyTorch's TensorBoard plugin warns above 90 %",
        advice="Checkpoint activations, train under bf16 autocast, drop gradients (set_to_none), or a smaller batch "
        "with gradient accumulation.",
        counter_check="The allocator keeps what it once reserved: look at the peak that is allocated, and whether runs "
        "with longer samples still end.",
        find=_low_headroom,
        study="memory",
    ),
    Rule(
        name="unused_memory",
        condition=f"the peak takes less than {percent(UNUSED_SHARE)} of a GPU's memory, and the GPU is busy, or its "
        f"multiprocessors are, for less than {BUSY_PCT:.0f} % of the time",
        basis="PyTorch's TensorBoard plugin advises a larger batch below 50 % of utilisation; half of the memory is "
        "where a batch of twice the size surely fits",
        advice="Try a larger batch (`steptrace find-batch` measures the largest that fits): kernels get longer, "
        "steps fewer.",
        counter_check="Samples per second must grow, not the step alone; a larger batch also changes the training.",
        find=_unused_memory,
        study="memory",
    ),
    Rule(
        name="fragmented_memory",
        condition=f"more than {percent(FRAGMENTED)} of the allocator's free memory lies outside its largest free "
        f"block, and more than {percent(FREE_SHARE)} of what it reserved is free",
        basis="ours; the measure is the TensorFlow Profiler's, which names no threshold",
        advice="Set `PYTORCH_ALLOC_CONF=expandable_segments:True`, and let tensors of one size be reused: pad to a "
        "few lengths.",
        counter_check="Without an allocation that fails or retries fragmentation costs no time.",
        find=_fragmentation,
        study="memory",
    ),
)
