"""A rule on memory: much of it is left unused."""

from collections.abc import Iterator
from typing import Final

from steptrace.documents.memory import DeviceMemory
from steptrace.findings.model import Match, Rule, rule
from steptrace.findings.window import Window
from steptrace.format import share as percent
from steptrace.format import size_bytes

#: A device whose peak takes less than this share of its memory leaves room for a larger batch.
UNUSED_SHARE: Final = 0.50
#: Busy share of a step below which a GPU counts as idle (Nsight Systems' gpu_time_util, PyTorch's TensorBoard plugin).
BUSY_PCT: Final = 50.0


def _unused_memory(window: Window) -> Iterator[Match]:
    entry = window.entry
    shares = (("GPU busy", entry.gpu_busy_pct), ("multiprocessors in use", entry.sm_weighted_pct))
    low = [f"{what}: {percent(value / 100)}" for what, value in shares if value is not None and value < BUSY_PCT]
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


def _devices(window: Window) -> tuple[DeviceMemory, ...]:
    return window.entry.memory or ()


def _taken_share(device: DeviceMemory) -> float | None:
    """The peak as a share of the capacity; None if either is unknown."""
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


def _most(share: float) -> str:
    return "over 99 %" if share > 0.99 else percent(share)


MEMORY_RULES: Final[tuple[Rule[Window], ...]] = (
    rule("unused_memory", _unused_memory, {"unused": UNUSED_SHARE, "busy": BUSY_PCT / 100}),
)
