"""Training steps whose times on the stand-in device can be calculated: `python timed_steps.py NAME TRACE`.

The host's part of a step is a wait of a set length, the device's a number of kernels of one length. The steps are
recorded again where another process held up the host, for `PATIENCE_S`; then the exit code is `TOO_BUSY`.
"""

import contextlib
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

STEPS = 4
PATIENCE_S = 20
TOO_BUSY = 3
#: How much longer than its median a recorded step may take the host.
QUIET_S = 0.001

Step = Callable[[], object]
numbers = torch.zeros(64, device="cuda")
#: 1 ms on a bus of 0.1 GB/s.
on_host = torch.zeros(100_000, dtype=torch.uint8)
pinned = on_host.pin_memory()
on_device = on_host.cuda()


def host(ms: float) -> None:
    """The host computes for so long."""
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:
        pass


def kernels(count: int) -> None:
    """So many kernels, in one launch each."""
    for _ in range(count):
        numbers.add_(1)


def item() -> None:
    host(5)
    kernels(10)
    numbers[0].item()


def late_item() -> None:
    host(8)
    kernels(2)
    numbers[0].item()


def nonzero() -> None:
    host(4)
    kernels(3)
    numbers.nonzero()


def upload() -> None:
    host(6)
    on_device.copy_(on_host)
    kernels(4)


def hidden_upload() -> None:
    host(3)
    on_device.copy_(on_host)
    kernels(4)


def pinned_upload() -> None:
    host(1)
    on_device.copy_(pinned, non_blocking=True)
    kernels(4)


def download() -> None:
    host(2)
    kernels(3)
    on_host.copy_(on_device)


def two_streams() -> Step:
    side = torch.cuda.Stream()
    ready = torch.cuda.Event()
    done = torch.cuda.Event()
    main = torch.cuda.current_stream()

    def step() -> None:
        host(3)
        kernels(2)
        ready.record(main)
        with torch.cuda.stream(side):
            side.wait_event(ready)
            kernels(3)
            done.record(side)
        kernels(1)
        main.wait_event(done)
        kernels(1)
        numbers[0].item()

    return step


def graph_of_kernels() -> Step:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels(8)

    def step() -> None:
        host(2)
        graph.replay()
        numbers[0].item()

    return step


def full_queue() -> None:
    kernels(1500)
    numbers[0].item()


def recorded(step: Step) -> tuple[profile, list[float]]:
    """The steps, and what each took the host in seconds."""
    starts = []
    plan = schedule(wait=0, warmup=2, active=STEPS, repeat=1)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], schedule=plan, with_stack=True) as profiler:
        for number in range(2 + STEPS):
            starts.append(time.perf_counter())
            step()
            if number == 1:  # recording begins with empty queues
                torch.cuda.synchronize()
            if number < 1 + STEPS:
                profiler.step()
        starts.append(time.perf_counter())
    return profiler, [end - start for start, end in itertools.pairwise(starts[2:])]


def between_steps() -> tuple[profile, list[float]]:
    """Steps that are marked by hand, with a sync between each two."""
    took = []
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=True) as profiler:
        for number in range(STEPS):
            start = time.perf_counter()
            with record_function(f"ProfilerStep#{number}"):
                host(2)
                kernels(3)
            torch.cuda.synchronize()
            took.append(time.perf_counter() - start)
    return profiler, took


def main(name: str, trace: str) -> int:
    """Record the program `name` into the file `trace`."""
    made = {"two_streams": two_streams, "graph": graph_of_kernels}
    step = made[name]() if name in made else globals()[name]
    with contextlib.suppress(PermissionError):  # nothing else of the machine holds it up then
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        torch.cuda.synchronize()
        profiler, took = between_steps() if step is between_steps else recorded(step)
        if max(took) - statistics.median(took) < QUIET_S:
            profiler.export_chrome_trace(trace)
            return 0
    return TOO_BUSY


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
