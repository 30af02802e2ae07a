"""The functions of `torch.cuda` on memory during a prediction: the figures of the virtual GPUs' allocators."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, Final

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


#: The statistics of PyTorch's allocator: what is counted by pool and by kind of count, by kind of count, and alone.
_OF_POOLS: Final = (
    "allocation", "segment", "active", "inactive_split",
    "allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
_OF_ALL: Final = ("oversize_allocations", "oversize_segments")
_ALONE: Final = (
    "max_split_size", "num_alloc_retries", "num_device_alloc", "num_device_free", "num_oom_rejections", "num_ooms",
    "num_sync_all_streams",
)  # fmt: skip
_POOLS: Final = ("all", "large_pool", "small_pool")
_COUNTS: Final = ("allocated", "current", "freed", "peak")
_STATISTICS: Final = (
    *(f"{name}.{pool}.{count}" for name in _OF_POOLS for pool in _POOLS for count in _COUNTS),
    *(f"{name}.{count}" for name in _OF_ALL for count in _COUNTS),
    *_ALONE,
)


def memory_stats(device: object = None) -> dict[str, int]:
    """The statistics of a GPU's allocator, by their names; those that are not followed are 0."""
    memory = allocator(index_of(device))
    figures = {
        "allocated": (memory.live, memory.program_peak),
        "reserved": (memory.reserved, memory.program_reserved_peak),
    }
    figures["active"] = figures["requested"] = figures["allocated"]
    known = {
        f"{name}_bytes.all.{count}": value
        for name, pair in figures.items()
        for count, value in zip(("current", "peak"), pair, strict=True)
    }
    return OrderedDict(sorted({**dict.fromkeys(_STATISTICS, 0), **known}.items()))


def nested_memory_stats(device: object = None) -> dict[str, Any]:
    """The same as dictionaries within dictionaries."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *outer, last = name.split(".")
        inner = nested
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return nested


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


def snapshot(*_: object) -> dict[str, Any]:
    """`torch.cuda.memory._snapshot`: there is nothing to record."""
    return {"segments": [], "device_traces": [[]]}


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
