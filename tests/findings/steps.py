"""Traces of steps of 1 ms for tests of findings; one long kernel keeps the GPU busy for nearly all of a step."""

from collections.abc import Callable
from typing import Any

from builders import TraceBuilder

US, MS = 1_000, 1_000_000
WORK = "triton_poi_fused_0"  # its name tells no number format
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
GPU = {"deviceProperties": [{"id": 0, "name": "made", "totalGlobalMem": 1000, "numSms": 10}]}

#: What makes one step, from its first instant; whether it has the fault.
Step = Callable[[TraceBuilder, int, bool], None]


def made(step: Step, *, faulty: bool, steps: int = 3, **metadata: Any) -> TraceBuilder:
    """A trace of steps, all with the fault or all without it."""
    builder = TraceBuilder(**metadata)
    for k in range(steps):
        builder.step(k, k * MS, MS)
        step(builder, k * MS, faulty)
    return builder


def work(builder: TraceBuilder, at: int, until: int, *, launched: int | None = None, name: str = WORK) -> None:
    """A kernel from `at` to `until`, launched a microsecond before if not said otherwise."""
    builder.kernel(at - US if launched is None else launched, at, until - at, name)


def communicates(builder: TraceBuilder, at: int, until: int, elements: int, launched: int) -> None:
    """An all-reduce from `at` to `until` on a stream of its own."""
    sizes = {"In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float", "Collective name": "allreduce"}
    builder.kernel(launched, at, until - at, NCCL, stream=20, **sizes)
