"""What is one host sync, and what is none."""

import pytest

from builders import (
    AUTOGRAD,
    D2D,
    LOADER,
    MAIN,
    PAGEABLE_D2H,
    PAGEABLE_H2D,
    PINNED_D2H,
    PINNED_H2D,
    TraceBuilder,
)


def _kinds(builder: TraceBuilder, *, counted: bool = True) -> list[tuple[str, int]]:
    syncs = builder.trace().syncs
    rows = syncs[syncs["counted"] == counted]
    return list(zip(rows["kind"], rows["blocked_ns"], strict=True))


def _stepped() -> TraceBuilder:
    builder = TraceBuilder()
    builder.step(0, 0, 100_000)
    builder.op("aten::mm", 1, 10)
    return builder


@pytest.mark.parametrize(
    "name",
    [
        "cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cuStreamSynchronize",
        "cuCtxSynchronize", "cuEventSynchronize", "hipStreamSynchronize", "hipDeviceSynchronize", "hipEventSynchronize",
    ],
)  # fmt: skip
def test_waiting_calls_count_under_their_own_name(name: str) -> None:
    builder = _stepped()
    for number, suffix in enumerate(["", "_v3020", "_ptsz", "_v2_ptsz"]):
        builder.call(name + suffix, 100 + 100 * number, 50)
    assert _kinds(builder) == [(name, 50)] * 4


@pytest.mark.parametrize(
    "name",
    [
        "cudaStreamWaitEvent", "cudaEventRecord", "cudaEventQuery", "cudaStreamQuery", "cudaEventElapsedTime",
        "cudaLaunchKernel", "cudaStreamIsCapturing", "hipStreamWaitEvent", "cudaMemsetAsync", "cudaMemcpyAsync",
    ],
)  # fmt: skip
def test_calls_that_hold_nobody_up(name: str) -> None:
    builder = _stepped()
    builder.call(name, 100, 50)
    assert _kinds(builder) == []
    assert len(builder.trace().syncs) == 0


@pytest.mark.parametrize(
    ("copy", "kind"),
    [
        (PAGEABLE_D2H, "d2h_copy"), (PINNED_D2H, "d2h_copy"), (PAGEABLE_H2D, "h2d_copy"), (PINNED_H2D, "h2d_copy"),
        ("Memcpy DtoH (Device -> Host)", "d2h_copy"), ("CopyHostToDevice", "h2d_copy"),
    ],
)  # fmt: skip
def test_a_copy_and_the_wait_behind_it_are_one(copy: str, kind: str) -> None:
    builder = _stepped()
    correlation = builder.call("cudaMemcpyAsync", 100, 50)
    builder.gpu(copy, 130, 10, correlation)
    if not copy.startswith("Mem"):
        builder.events[-1]["cat"] = "gpu_memcpy"
    builder.call("cudaStreamSynchronize", 160, 30)
    assert _kinds(builder) == [(kind, 80)]
    assert builder.trace().syncs[["ts", "dur"]].to_numpy().tolist() == [[100, 90]]


@pytest.mark.parametrize("copy", [PAGEABLE_D2H, PINNED_D2H, PAGEABLE_H2D, PINNED_H2D, D2D])
def test_of_copies_without_a_wait_only_one_to_pageable_memory_counts(copy: str) -> None:
    builder = _stepped()
    builder.gpu(copy, 130, 10, builder.call("cudaMemcpyAsync", 100, 50))
    assert _kinds(builder) == ([("d2h_copy", 50)] if copy == PAGEABLE_D2H else [])


def test_only_the_very_next_call_of_the_same_thread_is_merged() -> None:
    builder = _stepped()
    builder.op("X", 50, 10, AUTOGRAD, **{"Sequence number": 1, "Fwd thread id": 1})
    builder.gpu(PAGEABLE_D2H, 130, 10, builder.call("cudaMemcpyAsync", 100, 50))
    builder.call("cudaEventRecord", 160, 1)
    builder.call("cudaStreamSynchronize", 170, 30)
    builder.gpu(D2D, 310, 10, builder.call("cudaMemcpyAsync", 300, 50))
    builder.call("cudaStreamSynchronize", 360, 30)
    builder.gpu(PINNED_H2D, 510, 10, builder.call("cudaMemcpyAsync", 500, 50))  # the last call of its thread
    builder.call("cudaStreamSynchronize", 560, 30, AUTOGRAD)
    stream = ("cudaStreamSynchronize", 30)
    assert _kinds(builder) == [("d2h_copy", 50), stream, stream, stream]


@pytest.mark.parametrize("name", ["cudaMemcpy", "cudaMemcpy2D", "hipMemcpyWithStream", "cuMemcpyDtoH", "hipMemcpyHtoD"])
def test_synchronous_copies_count_unless_device_to_device(name: str) -> None:
    builder = _stepped()
    builder.gpu("Memcpy HtoD (Host -> Device)", 110, 10, builder.call(name + "_v2", 100, 50))
    builder.call(name, 200, 40)  # without a record of the GPU
    builder.gpu(D2D, 310, 10, builder.call(name, 300, 50))
    assert _kinds(builder) == [(name, 50), (name, 40)]


@pytest.mark.parametrize(("kind", "syncs"), [(1, 1), (2, 1), (3, 0), (4, 0)])
def test_a_synchronous_copy_counts_by_its_own_kind_whatever_the_gpu_record_says(kind: int, syncs: int) -> None:
    builder = _stepped()
    builder.gpu(D2D, 110, 10, builder.call("hipMemcpyWithStream", 100, 50))
    next(event for event in builder.events if event["name"] == "hipMemcpyWithStream")["args"]["kind"] = kind
    assert _kinds(builder) == [("hipMemcpyWithStream", 50)] * syncs


def test_only_training_threads_inside_steps_count() -> None:
    builder = _stepped()
    builder.op("X", 50, 10, AUTOGRAD, **{"Sequence number": 1, "Fwd thread id": 1})
    for tid in (MAIN, AUTOGRAD, LOADER):
        builder.call("cudaEventSynchronize", 1_000, 10, tid)
        builder.call("cudaDeviceSynchronize", 100_000, 10, tid)  # as the profiler does at its end
    assert _kinds(builder) == [("cudaEventSynchronize", 10)] * 2
    assert len(_kinds(builder, counted=False)) == 4
    builder.events = [event for event in builder.events if event["name"] != "ProfilerStep#0"]
    assert len(_kinds(builder)) == 4  # without steps the whole trace counts


def test_cuda_sync_records_are_no_calls() -> None:
    builder = _stepped()
    builder.call("cudaEventQuery", 100, 1)
    builder.add("cuda_sync", "Event Sync", 100, 1, pid=0, tid=7, args={"stream": 7, "correlation": 3})
    trace = builder.trace()
    assert len(trace.syncs) == 0
    assert len(trace.kernels) == 0
