"""Rules on memory: much of it left unused, growth from step to step."""

from collections.abc import Iterator
from statistics import median
from typing import Final

from steptrace.documents.finding import Source
from steptrace.documents.memory import AtPeak, DeviceMemory
from steptrace.findings.model import Match, Rule, rule
from steptrace.findings.window import Window
from steptrace.format import count, place, size_bytes
from steptrace.format import share as percent
from steptrace.limits import COUNTER_AGREES

#: Below this share of a device's memory at its peak half of it is unused.
UNUSED_SHARE: Final = 0.50
#: Busy share of a step below which a GPU counts as idle (Nsight Systems' gpu_time_util, PyTorch's TensorBoard plugin).
BUSY_PCT: Final = 50.0
#: What a step leaves behind at least where it is reported; of how many steps; and in how many a full device is urgent.
LEFT_BYTES, MOST_STEPS, SOON_STEPS = 4096, 0.75, 1000
#: With fewer steps a buffer that still fills looks the same: nothing more is concluded from them.
ENOUGH_STEPS: Final = 4
#: Why growth on the host is an info.
_RELEASES_UNKNOWN: Final = (
    "releases of what the host allocated before the trace are not recorded, so a full buffer may look the same"
)
_FEW: Final = (
    "with so few steps a buffer that fills up, or gradients that accumulate, look the same: profile at least six"
)


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


def _growth(window: Window) -> Iterator[Match]:
    for device in _devices(window):
        left = device.growth_bytes or ()
        growing = sum(size >= LEFT_BYTES for size in left)
        lost = device.counter_agrees is not None and device.counter_agrees < COUNTER_AGREES
        if len(left) < 2 or growing < MOST_STEPS * len(left) or left[-1] < LEFT_BYTES or lost:
            continue
        size, on_host, few = median(left), device.device_type == "cpu", len(left) < ENOUGH_STEPS
        room = None if device.capacity_bytes is None else device.capacity_bytes - device.peak_allocated_bytes
        more = None if room is None or few or not device.complete else int(room / size)
        lines = (
            Source(file=row.file, line=row.line, function=row.function, code=row.code)
            for row in device.kept
            if row.file is not None and row.line is not None
        )
        yield Match(
            severity="info" if on_host or few else "high" if more is not None and more < SOON_STEPS else "warning",
            claim=f"memory of {_name(device)} grows by {size_bytes(size)} per step"
            + ("" if more is None else f": at this rate it is full after at most {count(more)} more steps"),
            evidence=(
                f"{growing} of {len(left)} steps left at least {size_bytes(LEFT_BYTES)} behind",
                _peak(device),
                *(_kept(row) for row in device.kept[:3]),
                *([_RELEASES_UNKNOWN] if on_host else []),
                *([_FEW] if few else []),
            ),
            source=next(lines, None),
        )


def _kept(row: AtPeak) -> str:
    """One origin of what steps left behind."""
    at = f" at {place(row.file, row.line, row.function)}" if row.file else ""
    op = row.op or "no operator"
    return f"{size_bytes(row.bytes)} in {count(row.blocks)} blocks allocated by {op}{at} are live at the end"


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
    rule(
        "growing_memory",
        _growth,
        {
            "left": size_bytes(LEFT_BYTES),
            "most": MOST_STEPS,
            "soon": SOON_STEPS,
            "agrees": COUNTER_AGREES,
            "enough": ENOUGH_STEPS,
        },
    ),
)
