"""Idle time: HTA's three categories per stream, and one cause per gap of the device."""

import pytest

from builders import D2D, LOADER, MAIN, PINNED_D2H, TraceBuilder
from recorded import trace_of
from steptrace.analysis.idle import idle_by_stream, idle_gaps
from steptrace.analysis.steps import gpu_time

_NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def test_by_stream() -> None:
    builder = TraceBuilder()
    builder.nothing(builder.kernel(0, 2_000, 1_000), 2_000)
    builder.kernel(10, 10_000, 1_000)  # queued, 7 us later: kernel_wait
    builder.kernel(20, 41_000, 1_000)  # queued, 30 us later: other
    builder.kernel(50_000, 52_000, 1_000)  # launched 8 us after the end: host_wait
    builder.gpu("lost", 60_000, 1_000, None)  # no launch known, 7 us
    builder.kernel(15, 100_000, 1_000, stream=9)
    builder.kernel(16, 100_500, 1_000, stream=9)  # overlaps: no gap
    builder.kernel(0, 500, 10, device=1)  # not merged with the stream of the same number of the other device
    table = idle_by_stream(builder.trace()).to_numpy().tolist()
    assert table == [[0, 7, 10_000, 7_000 + 7_000, 30_000], [0, 9, 0, 0, 0], [1, 7, 0, 0, 0]]


def _causes(builder: TraceBuilder) -> list[tuple[str, int]]:
    gaps = idle_gaps(builder.trace())
    return list(zip(gaps["cause"], gaps["dur"], strict=True))


def _busy_until(end: int) -> TraceBuilder:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    builder.op("aten::mm", 0, 10)
    builder.nothing(builder.kernel(10, 1_000, end - 1_000), 1_000)
    return builder


@pytest.mark.parametrize(
    ("wait", "ts", "length", "launch", "cause"),
    [
        ("cudaStreamSynchronize", 5_000, 97_000, 150_000, "sync"),  # returns 2 us after the GPU ran dry
        ("cudaEventSynchronize", 120_000, 1_000, 150_000, "host"),  # begins after the GPU ran dry
        # fills most of the gap, for work launched before it: the rest is the launch's own latency
        ("cudaDeviceSynchronize", 112_000, 60_000, 110_000, "host"),
    ],
)
def test_a_sync_owns_the_gap_that_begins_within_it(wait: str, ts: int, length: int, launch: int, cause: str) -> None:
    builder = _busy_until(100_000)
    builder.call(wait, ts, length)
    builder.kernel(launch, 160_000, 10)
    assert _causes(builder) == [(cause, 60_000)]


def test_gaps_between_work_queued_before_the_sync_are_not_the_syncs() -> None:
    builder = _busy_until(100_000)
    builder.kernel(2_000, 102_000, 10_000)  # queued before the wait, follows within 30 us
    builder.kernel(4_000, 200_000, 10_000, stream=9)  # queued too; nothing says why it is late
    builder.gpu("lost", 215_000, 10_000, None)  # begins within the wait: the host cannot have launched it there
    builder.gpu("lost", 260_000, 10_000, None)  # likewise, but no work behind other work starts so late
    builder.call("cudaDeviceSynchronize", 6_000, 270_000)
    builder.kernel(280_000, 300_000, 10_000)
    builder.call("cudaDeviceSynchronize", 290_000, 30_000)
    builder.gpu("lost", 400_000, 10_000, None)  # behind the wait
    assert _causes(builder) == [
        ("between_kernels", 2_000),
        ("unknown", 88_000),
        ("dependency", 5_000),
        ("unknown", 35_000),
        ("sync", 30_000),
        ("sync", 90_000),
    ]


def test_the_loader_wins_over_a_sync_only_where_it_fills_the_gap() -> None:
    for loader_dur, cause in ((80_000, "loader"), (10_000, "sync")):
        builder = _busy_until(100_000)
        builder.call("cudaStreamSynchronize", 5_000, 97_000)
        builder.label(_NEXT, 103_000, loader_dur)
        builder.kernel(190_000, 200_000, 10)
        assert _causes(builder) == [(cause, 100_000)]


@pytest.mark.parametrize(("tid", "cause"), [(MAIN, "loader"), (LOADER, "host")])
def test_waiting_for_the_loader_is_a_cause_but_on_a_background_thread(tid: int, cause: str) -> None:
    builder = _busy_until(100_000)
    builder.call("cudaStreamSynchronize", 5_000, 150_000, LOADER)
    builder.label(_NEXT, 50_000, 90_000, tid)
    builder.kernel(150_000, 160_000, 10)
    assert _causes(builder) == [(cause, 60_000)]


def test_queued_work_depends_on_its_stream_or_on_an_event() -> None:
    builder = _busy_until(100_000)
    builder.kernel(2_000, 110_000, 10_000)  # queued, follows within 30 us
    builder.call("cudaStreamWaitEvent", 5_000, 100)
    builder.kernel(6_000, 200_000, 10_000, stream=9)  # behind an event
    builder.kernel(8_000, 300_000, 10_000, stream=9)  # queued; nothing says why it is late
    builder.gpu("lost", 400_000, 10_000, None)
    assert _causes(builder) == [
        ("between_kernels", 10_000),
        ("dependency", 80_000),
        ("unknown", 90_000),
        ("unknown", 90_000),
    ]


def test_a_short_gap_is_the_gpus_own_only_behind_work_of_the_same_stream() -> None:
    builder = _busy_until(100_000)
    builder.kernel(2_000, 102_000, 10_000, stream=9)  # behind the other stream's work
    builder.kernel(4_000, 113_700, 10_000, stream=9)
    builder.kernel(
        6_000, 101_000, 22_700, stream=8
    )  # ends together with the one before: either may have held up the next
    builder.kernel(8_000, 125_000, 10_000, stream=9)
    builder.kernel(10_000, 165_000, 10_000, stream=9)  # on its stream, but too late for a gap of the GPU's own
    builder.gpu("other GPU", 90_000, 10_000, None, stream=9, device=1)
    assert _causes(builder) == [("dependency", 1_000), ("between_kernels", 1_300), ("unknown", 30_000)]


def test_gaps_of_a_real_h100_are_its_own() -> None:
    """One stream, the next kernel queued: 5 % of the time, 1.5 us each."""
    gaps = idle_gaps(trace_of("h100_qwen"))
    own = gaps[gaps["cause"] == "between_kernels"]
    assert not (gaps["cause"] == "dependency").any()
    assert 1_000 < own["dur"].mean() < 2_000
    assert 0.04 < own["dur"].sum() / gpu_time(trace_of("h100_qwen")).span_ns < 0.06


def test_with_one_stream_there_is_no_other_to_wait_for() -> None:
    builder = _busy_until(100_000)
    builder.call("cudaStreamWaitEvent", 2_000, 100)
    builder.kernel(4_000, 101_700, 10_000)
    graph = builder.call("cudaGraphLaunch", 6_000, 1_000)
    for start in (113_000, 124_000):
        builder.gpu("node", start, 10_000, graph)
    assert _causes(builder) == [("between_kernels", 1_700), ("between_kernels", 1_300), ("between_kernels", 1_000)]


def test_a_launch_still_running_when_the_gap_begins_is_the_hosts() -> None:
    builder = _busy_until(100_000)
    builder.gpu("gemm", 160_000, 10, builder.call("cudaLaunchKernel", 90_000, 65_000, MAIN))
    assert _causes(builder) == [("host", 60_000)]


def test_each_gap_has_the_cause_at_its_start() -> None:
    builder = _busy_until(100_000)
    builder.gpu(PINNED_D2H, 110_000, 1_000, builder.call("cudaMemcpyAsync", 90_000, 1_000))
    builder.call("cudaStreamSynchronize", 91_000, 22_000)
    builder.kernel(120_000, 130_000, 10_000)
    builder.kernel(150_000, 160_000, 10_000)
    # The first gap and the one behind the copy begin while the host waits; the last is Python's.
    assert _causes(builder) == [("sync", 10_000), ("sync", 19_000), ("host", 20_000)]


def test_the_wait_of_a_synchronous_copy_is_a_sync_whatever_the_gpu_record_says() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10)
    builder.kernel(1_000, 10_000, 90_000)
    builder.gpu(D2D, 180_000, 10_000, builder.call("hipMemcpyWithStream", 90_000, 110_000))
    builder.events[-2]["args"]["kind"] = 2
    assert _causes(builder) == [("sync", 80_000)]


@pytest.mark.parametrize(
    ("call", "copy", "cause"),
    [
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", "sync"),
        ("cudaMemcpy", "Memcpy DtoH (Device -> Pageable)", "sync"),
        ("cudaMemcpy", "Memcpy HtoD (Pageable -> Device)", "sync"),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", "host"),  # the host copies to a staging buffer first
    ],
)
def test_idle_time_while_the_host_is_in_a_copy_is_not_unknown(call: str, copy: str, cause: str) -> None:
    builder = _busy_until(100_000)
    builder.gpu(copy, 180_000, 10_000, builder.call(call, 90_000, 110_000))
    builder.kernel(210_000, 220_000, 10_000)
    assert _causes(builder) == [(cause, 80_000), (cause, 30_000)]
