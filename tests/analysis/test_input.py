"""Waiting for data: in the loader's `__next__` or a loop's own section, and the part of it with the GPU idle."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders import LOADER, TraceBuilder
from steptrace.analysis.input import input_wait, input_waits, verdict_on

_NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def _two_steps() -> TraceBuilder:
    builder = TraceBuilder()
    for k in range(2):
        builder.step(k, k * 100_000, 100_000)
        builder.op("aten::mm", k * 100_000 + 50_000, 10)
    return builder


def test_with_a_gpu_only_what_it_idles_counts() -> None:
    builder = _two_steps()
    builder.label(_NEXT, 10_000, 30_000)
    builder.kernel(0, 20_000, 40_000)  # computes from 20 to 60 us
    builder.label(_NEXT, 100_000, 20_000)
    builder.kernel(130_000, 140_000, 20_000)
    trace = builder.trace()
    table = input_waits(trace)
    assert table["wait_ns"].tolist() == [30_000, 20_000]
    assert table["gpu_idle_wait_ns"].tolist() == [10_000, 20_000]
    figures = input_wait(trace)
    assert (figures.source, figures.steps, figures.waits, figures.wait_ns) == ("loader", 2, 2, 50_000)
    assert (figures.gpu_idle_wait_ns, figures.counted_ns, figures.window_ns) == (30_000, 30_000, 200_000)
    assert (figures.share, figures.verdict) == (0.15, "moderate")


def test_without_a_gpu_all_of_it_counts() -> None:
    builder = _two_steps()
    builder.label(_NEXT, 10_000, 30_000)
    builder.label(_NEXT, 110_000, 20_000)
    figures = input_wait(builder.trace())
    assert (figures.wait_ns, figures.gpu_idle_wait_ns, figures.counted_ns) == (50_000, None, 50_000)
    assert (figures.share, figures.verdict) == (0.25, "high")


def test_a_loop_s_own_section_stands_in_for_a_loader() -> None:
    builder = _two_steps()
    builder.label("data", 10_000, 30_000)
    builder.label("copy data", 30_000, 5_000)
    figures = input_wait(builder.trace())
    assert (figures.source, figures.waits, figures.wait_ns) == ("label", 1, 25_000)
    builder.label(_NEXT, 12_000, 4_000)  # it knows better
    figures = input_wait(builder.trace())
    assert (figures.source, figures.waits, figures.wait_ns) == ("loader", 1, 4_000)


def test_without_any_sign_of_a_loader_nothing_is_measured() -> None:
    builder = _two_steps()
    builder.label("data", 10_000, 30_000)  # someone's label, not this loop's
    builder.label(_NEXT, 10_000, 30_000, LOADER)  # a background thread's wait holds nobody up
    trace = builder.trace()
    figures = input_wait(trace)
    assert input_waits(trace).empty
    assert {figures.source, figures.waits, figures.wait_ns, figures.share, figures.verdict} == {None}


def test_a_wait_within_another_counts_once() -> None:
    builder = _two_steps()
    builder.label(_NEXT, 10_000, 30_000)
    builder.label("enumerate(DataPipe)#Mapper", 15_000, 10_000)
    figures = input_wait(builder.trace())
    assert (figures.waits, figures.wait_ns) == (1, 30_000)


def test_a_trace_without_steps_counts_in_its_whole_length() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 100_000)
    builder.label(_NEXT, 10_000, 10_000)
    figures = input_wait(builder.trace())
    assert (figures.steps, figures.waits, figures.wait_ns, figures.window_ns) == (None, 1, 10_000, 100_000)
    assert figures.verdict == "moderate"


@pytest.mark.parametrize(
    ("share", "verdict"), [(None, None), (0.0, "none"), (0.049, "none"), (0.05, "moderate"), (0.2, "high")]
)
def test_thresholds(share: float | None, verdict: str | None) -> None:
    assert verdict_on(share) == verdict


_WAITS = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), max_size=5)
_KERNELS = st.lists(st.tuples(st.integers(0, 100), st.integers(1, 25)), max_size=6)
_STEPS = st.lists(st.integers(1, 40), max_size=3)


@given(_WAITS, _KERNELS, _STEPS)
@example([(0, 2), (3, 1)], [], [1, 3])  # a wait across the boundary of two steps
def test_brute_force(waits: list[Any], kernels: list[Any], lengths: list[int]) -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 120)
    ends = np.cumsum([0, *lengths])
    for index, length in enumerate(lengths):
        builder.step(index, int(ends[index]), length)
    end = -1
    kept = []
    for start, length in sorted(waits):  # one after the other, as one thread can wait
        if start > end:
            kept.append((start, length))
            builder.label(_NEXT, start, length)
            end = start + length
    for start, length in kernels:
        builder.gpu("gemm", start, length, None)
    trace = builder.trace()
    figures = input_wait(trace)
    if not kept:
        assert figures.wait_ns is None
        return
    waiting = _instants(kept)
    busy = _instants(kernels)
    # Without marks the steps are those between the waits, where there are two.
    first, last = trace.steps_span if lengths or len(kept) > 1 else (-1, 1_000)
    host_end = ends[-1] if lengths else last

    def inside(time: int) -> bool:
        return bool(first <= time < host_end)

    assert figures.wait_ns == sum(inside(t) for t in waiting)
    assert figures.waits == sum(inside(start) for start, _ in kept)
    assert figures.gpu_idle_wait_ns == (sum(inside(t) for t in waiting - busy) if kernels else None)
    assert figures.counted_ns == (figures.gpu_idle_wait_ns if kernels else figures.wait_ns)
    assert figures.share is not None
    assert 0 <= figures.share <= 1


def _instants(spans: list[Any]) -> set[int]:
    return {t for start, length in spans for t in range(start, start + length)}
