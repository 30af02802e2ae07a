"""The process that trains, and its device: moments between its steps, and its peaks of memory.

Needs PyTorch and the standard library only.
"""

import os
import platform
import time
from typing import Any

import torch

from steptrace.rank import this_rank


class Clock:
    """CUDA events on a GPU: moments of its current stream, marked without waiting for it, to about 500 ns.

    Else the host's monotonic clock: right where operations run when they are called, which is on a CPU.
    """

    def __init__(self, *, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.name = "cuda_events" if on_gpu else "monotonic"

    def now(self) -> Any:
        """This moment."""
        if not self.on_gpu:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between_ns(self, start: Any, end: Any) -> int:
        """Nanoseconds between two moments. There must have been a sync since the later one."""
        return round(start.elapsed_time(end) * 1e6) if self.on_gpu else int(end - start)  # from float milliseconds

    def is_over(self, moment: Any) -> bool:
        """Whether the device has got to this moment."""
        return bool(moment.query()) if self.on_gpu else True

    def synchronize(self) -> None:
        """Wait until the current device has done all its work; nothing to do on a CPU."""
        if self.on_gpu:
            torch.cuda.synchronize()


def current_clock() -> Clock:
    """The clock of a step that begins now."""
    return Clock(on_gpu=bool(torch.cuda.is_initialized()))  # type: ignore[no-untyped-call]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work; nothing to do on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def gpu() -> dict[str, Any] | None:
    """The GPU in use: `name`, `memory_bytes` and the `count` of visible GPUs; None where CUDA is not in use."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {"name": properties.name, "memory_bytes": properties.total_memory, "count": torch.cuda.device_count()}


def peaks() -> dict[str, int | None]:
    """Peak memory that PyTorch's allocator has allocated and reserved on the GPU in use; None without one."""
    on_gpu = current_clock().on_gpu
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
    }


def process_record() -> dict[str, Any]:
    """What a record says of the process that it is of."""
    where = this_rank()
    return {
        "rank": where.rank or 0,
        "world_size": where.world_size or 1,
        "cwd": os.getcwd(),  # noqa: PTH109 - as text
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # the installed package's own version may lack the build, as in 2.11.0+cu130
        "cuda": torch.version.cuda,
    }
