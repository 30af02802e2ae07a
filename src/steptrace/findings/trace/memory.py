"""Rules on memory: too little left, much left unused, room lost between blocks."""

from collections.abc import Iterator
from typing import Final

from steptrace.documents.summary import DeviceMemory
from steptrace.findings.model import Match, Rule, rule
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
    rule("low_headroom", _low_headroom, {"full": FULL_SHARE}),
    rule("unused_memory", _unused_memory, {"unused": UNUSED_SHARE, "busy": BUSY_PCT / 100}),
    rule("fragmented_memory", _fragmentation, {"lost": FRAGMENTED, "free": FREE_SHARE}),
)
