"""The functions of `torch.cuda` on memory during a prediction: the figures of the virtual GPUs' allocators."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from steptrace.predict.backend import device_count, index_of, machine
from steptrace.predict.memory import allocator
from steptrace.predict.syncs import Syncs


def empty_cache() -> None:
    """`torch.cuda.empty_cache`: each block that goes back to the device makes the host wait."""
    for gpu in range(device_count()):
        allocator(gpu).give_back()
    if Syncs.active is not None:
        reason = "cudaFree waits for the device, once per block that the allocator gives back"
        Syncs.active.cannot_judge("torch.cuda.empty_cache", reason)


def figure_of_allocator(attribute: str) -> Callable[..., int]:
    """A function that returns one figure of a GPU's allocator."""
    return lambda device=None: int(getattr(allocator(index_of(device)), attribute))


def memory_stats(device: object = None) -> dict[str, int]:
    """The statistics of a GPU's allocator, by their names; those that are not followed are 0."""
    memory = allocator(index_of(device))
    figures = {
        "allocated": (memory.live, memory.program_peak),
        "reserved": (memory.reserved, memory.program_reserved_peak),
    }
    figures["active"] = figures["requested"] = figures["allocated"]
    return defaultdict(
        int,
        {
            f"{name}_bytes.all.{key}": value
            for name, pair in figures.items()
            for key, value in zip(("current", "peak"), pair, strict=True)
        },
    )


def nested_memory_stats(device: object = None) -> dict[str, Any]:
    """The same as dictionaries within dictionaries."""

    def nested() -> dict[str, Any]:
        return defaultdict(nested)

    stats = nested()
    for name, value in memory_stats(device).items():
        kind, pool, key = name.split(".")
        stats[kind][pool][key] = value
    return stats


def reset_peaks(device: object = None) -> None:
    """`torch.cuda.reset_peak_memory_stats`."""
    allocator(index_of(device)).reset_program_peak()


def memory_info(device: object = None) -> tuple[int, int]:
    """The free and the total bytes of a GPU."""
    total = machine.driver.memory_bytes
    return max(0, total - allocator(index_of(device)).reserved), total


def host_memory_stats() -> dict[str, int]:
    """The statistics of pinned memory, by their names: 0, as none is pinned."""
    return defaultdict(int)


class MemPool:
    """`torch.cuda.MemPool`: a part of the memory, which the virtual GPU does not divide."""

    id = (0, 1)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.allocator = None

    def use_count(self) -> int:
        """How many use it."""
        return 1

    def snapshot(self, *_: Any, **__: Any) -> list[Any]:
        """Its segments: none."""
        return []
