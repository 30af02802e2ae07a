"""All-reduces before a step's last pass, on a GPU and on the host."""

import pytest

from builders import LOADER, TraceBuilder
from steptrace.analysis.communication.all_reduce import FORWARD, ReducePasses, reduce_passes

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def gloo(builder: TraceBuilder, ts: int, dur: int, elements: int) -> None:
    args = {"External id": builder.number(), "Input Dims": [[elements]], "Input type": ["float"]}
    builder.add("user_annotation", "gloo:all_reduce", ts, dur, tid=LOADER, args=args)


def accumulated(*, on_gpu: bool, no_sync: bool, small: bool = False) -> ReducePasses | None:
    """Two steps of two passes each; `small`: the first pass reduces next to nothing."""
    builder = TraceBuilder()
    for k in range(2):
        start = k * 1_000_000
        builder.step(k, start, 900_000)
        for half in range(2):
            at = start + half * 400_000
            builder.label(FORWARD, at + 10_000, 50_000)
            builder.kernel(at + 20_000, at + 30_000, 50_000) if on_gpu else builder.op("aten::mm", at + 20_000, 10_000)
            if no_sync and half == 0:
                continue
            if on_gpu:
                # Runs long after the next forward pass has begun: what counts is when it was asked for.
                builder.kernel(at + 100_000, at + 600_000, 30_000, NCCL, stream=20)
            else:
                gloo(builder, at + 100_000, 30_000, 10 if small and half == 0 else 1_000)
    return reduce_passes(builder.trace())


@pytest.mark.parametrize("on_gpu", [True, False])
def test_each_pass_reduces(*, on_gpu: bool) -> None:
    passes = accumulated(on_gpu=on_gpu, no_sync=False)
    assert passes is not None
    assert (passes.passes_per_step, passes.redundant.count, passes.redundant.measured_ns) == (2, 2, 60_000)
    assert passes.redundant.bytes == (None if on_gpu else 8_000)


@pytest.mark.parametrize("on_gpu", [True, False])
def test_the_last_pass_alone_reduces(*, on_gpu: bool) -> None:
    passes = accumulated(on_gpu=on_gpu, no_sync=True)
    assert passes is not None
    assert (passes.passes_per_step, passes.redundant.count, passes.redundant.measured_ns) == (2, 0, 0)


def test_something_small_is_no_reduction_of_gradients() -> None:
    passes = accumulated(on_gpu=False, no_sync=False, small=True)
    assert passes is not None
    assert passes.redundant.count == 0


def test_without_passes_steps_or_all_reduces_there_is_no_result() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 900_000)
    gloo(builder, 10_000, 1_000, 10)
    assert reduce_passes(builder.trace()) is None
    builder.label(FORWARD, 1_000, 2_000)
    assert reduce_passes(builder.trace()) is not None
