"""Moments between the steps of a training, and the time between them. Needs PyTorch and the standard library only."""

import time
from typing import Any

import torch


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
        """Nanoseconds between two moments. The device must have been synchronised since the later one."""
        return round(start.elapsed_time(end) * 1e6) if self.on_gpu else int(end - start)  # from float milliseconds

    def is_over(self, moment: Any) -> bool:
        """Whether the device has got to this moment."""
        return bool(moment.query()) if self.on_gpu else True

    def synchronize(self) -> None:
        """Wait until the current device has done all its work; nothing to do on a CPU."""
        if self.on_gpu:
            torch.cuda.synchronize()
