"""The clock of the device that trains. Needs PyTorch and the standard library only."""

import time
from typing import Any

import torch


class Clock:
    """Moments of the device that trains.

    On a GPU a moment is a CUDA event in the current stream: it is marked without waiting for the GPU, and is exact to
    about 500 ns. Otherwise it is the time of the host's monotonic clock, since operations on a CPU run when they are
    called.
    """

    def __init__(self, *, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.name = "cuda_events" if on_gpu else "monotonic"

    def now(self) -> Any:
        """The present moment."""
        if not self.on_gpu:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between_ns(self, start: Any, end: Any) -> int:
        """The nanoseconds between two moments. The host must have waited for the device since the later one."""
        return round(start.elapsed_time(end) * 1e6) if self.on_gpu else int(end - start)  # from float milliseconds

    def is_over(self, moment: Any) -> bool:
        """Whether the device has reached a moment."""
        return bool(moment.query()) if self.on_gpu else True

    def synchronize(self) -> None:
        """Wait until the current device has done all its work. On a CPU it always has."""
        if self.on_gpu:
            torch.cuda.synchronize()


def current_clock() -> Clock:
    """The clock for a step that begins now."""
    return Clock(on_gpu=bool(torch.cuda.is_initialized()))  # type: ignore[no-untyped-call]
