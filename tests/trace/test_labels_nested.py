"""Labels inside labels, with the work of each: against a slow count, and in memory by the size of a trace."""

import random
import tracemalloc

import pytest

from builders import TraceBuilder
from steptrace.analysis.common import labels
from steptrace.trace.model import Trace


def _slowly(trace: Trace) -> dict[str, tuple[int, int]]:
    """The activities of each label's name and the length of their union, for a trace of one thread."""
    parents = [-1 if missing else int(row) for row, missing in zip(*_column(trace), strict=True)]
    calls = trace.launches
    held: dict[str, set[int]] = {str(name): set() for name in trace.labels["name"]}
    spans = list(zip(trace.labels["ts"], trace.labels["ts"] + trace.labels["dur"], strict=True))
    for kernel, call in enumerate(trace.kernels["launch"]):
        at = calls["ts"].iloc[int(call)]
        around = [row for row, (start, end) in enumerate(spans) if start <= at < end]
        row = around[-1] if around else -1
        while row >= 0:
            if at < spans[row][1]:
                held[str(trace.labels["name"].iloc[row])].add(kernel)
            row = parents[row]
    counted = {}
    for name, kernels in held.items():
        covered: set[int] = set()
        for kernel in kernels:
            start = int(trace.kernels["ts"].iloc[kernel])
            covered |= set(range(start, start + int(trace.kernels["dur"].iloc[kernel])))
        counted[name] = len(kernels), len(covered)
    return counted


def _column(trace: Trace) -> tuple[list[object], list[bool]]:
    parent = trace.labels["parent"]
    return parent.fillna(-1).tolist(), parent.isna().tolist()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("most", [3, 1 << 19])
def test_the_work_of_labels_in_labels_is_counted_once(monkeypatch: pytest.MonkeyPatch, seed: int, most: int) -> None:
    monkeypatch.setattr(labels, "_MOST_PAIRS", most)
    rng = random.Random(seed)
    builder = TraceBuilder()

    def fill(start: int, end: int) -> None:
        if end - start < 40:
            builder.kernel(start + 2, 1_000 + rng.randrange(400), 1 + rng.randrange(60), stream=7 + rng.randrange(2))
            return
        builder.label(rng.choice("abc"), start, end - start)
        cut = rng.randrange(start + 5, end - 15)
        fill(start + 3, cut)
        fill(cut + 1, end - 3)

    fill(0, 400)
    trace = builder.trace()
    table = labels.label_times(trace)
    found = dict(zip(table["label"], zip(table["kernels"], table["device_ns"], strict=True), strict=True))
    assert found == _slowly(trace)


def test_deeply_nested_labels_need_memory_by_their_number() -> None:
    depth = 1_500
    builder = TraceBuilder()
    for level in range(depth):
        builder.label(f"level {level}", level, 100_000 - 2 * level)
    for number in range(depth):
        builder.kernel(10_000 + 10 * number, 200_000 + 10 * number, 5)
    trace = builder.trace()
    labels.label_of_kernels(trace)
    tracemalloc.start()
    table = labels.label_times(trace)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(table["kernels"]) == {depth}
    assert set(table["device_ns"]) == {5 * depth}
    # All pairs at once, of four numbers each, are more.
    assert most < 4 * 8 * depth * depth
