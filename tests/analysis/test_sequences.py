"""Kernel sequences under operators and labels, against a search by time through every activity."""

from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders import AUTOGRAD, LOADER, MAIN, TraceBuilder
from steptrace.analysis.kernels import kernel_sequences, most_frequent
from steptrace.trace.model import Trace


def _sequences(trace: Trace) -> list[dict[str, Any]]:
    return kernel_sequences(trace).to_dict("records")


def _attention(builder: TraceBuilder, ts: int, *names: str) -> None:
    builder.op("attention", ts, 9_000)
    for place, name in enumerate(names):
        builder.kernel(ts + place * 2_000, ts + 20_000 + place * 1_000, 700, name=name)


def test_equal_sequences_are_counted_and_summed() -> None:
    builder = TraceBuilder()
    for ts in (0, 100_000, 200_000):
        _attention(builder, ts, "qk", "softmax", "av")
    _attention(builder, 300_000, "qk", "av")
    long, short = _sequences(builder.trace())
    times = {"kernel_ns": 9 * 700, "span_ns": 3 * 2_700, "host_ns": 27_000}
    kernels = "qk\nsoftmax\nav"
    assert long == {"kind": "op", "name": "attention", "length": 3, "count": 3, "kernels": kernels, **times}
    assert (short["length"], short["count"]) == (2, 1)


def test_the_order_is_that_of_the_gpu_and_the_outermost_call_of_a_name_counts() -> None:
    builder = TraceBuilder()
    builder.op("block", 0, 50_000)
    builder.op("block", 1_000, 9_000)
    builder.kernel(2_000, 40_000, 10, name="second", stream=9)
    builder.kernel(12_000, 20_000, 10, name="first")
    assert [(row["count"], row["kernels"]) for row in _sequences(builder.trace())] == [(1, "first\nsecond")]


def test_of_callers_with_the_same_work_the_outermost_stands_for_all() -> None:
    builder = TraceBuilder()
    builder.op("aten::linear", 0, 50_000)
    builder.op("aten::addmm", 1_000, 40_000)
    builder.kernel(2_000, 20_000, 10, name="split")
    builder.kernel(4_000, 21_000, 10, name="gemm")
    trace = builder.trace()
    assert [row["name"] for row in _sequences(trace)] == ["aten::linear"]
    builder.label("layer 1", 0, 60_000)  # all of its work is its own thread's
    assert [row["name"] for row in _sequences(builder.trace())] == ["layer 1"]


def test_a_label_owns_what_other_training_threads_launch_meanwhile() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100_000)
    builder.label("backward", 10_000, 50_000)
    builder.op("evaluate", 20_000, 20_000, tid=AUTOGRAD, **{"Fwd thread id": 1})
    builder.kernel(21_000, 30_000, 10, name="a", tid=AUTOGRAD)
    builder.kernel(23_000, 31_000, 10, name="b", tid=AUTOGRAD)
    builder.kernel(25_000, 32_000, 10, name="prefetch", tid=LOADER)
    rows = [row for row in _sequences(builder.trace()) if row["name"] == "backward"]
    assert [(row["kind"], row["kernels"]) for row in rows] == [("label", "a\nb")]


def test_without_sequences_the_table_is_empty() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10)
    assert _sequences(builder.trace()) == []


def test_the_summary_folds_neighbours_of_one_name() -> None:
    builder = TraceBuilder()
    for ts in (0, 100_000):
        _attention(builder, ts, "void ns::gemm<int>(int)", "void ns::gemm<int>(int)", "add")
    _attention(builder, 200_000, "once", "only")
    trace = builder.trace()
    (row,) = most_frequent(kernel_sequences(trace))
    assert [(entry.name, entry.times) for entry in row.kernels] == [("gemm", 2), ("add", 1)]
    assert (row.count, row.left_out) == (2, 0)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30), st.just("p")), max_size=6),
    # From 1: a record at 0 of length 0 is one that the profiler did not fill in.
    st.lists(st.tuples(st.integers(0, 80), st.integers(1, 90), st.integers(0, 5), st.sampled_from("abc")), max_size=9),
)
def test_sequences_of_a_name_equal_brute_force(ops: list[Any], kernels: list[Any]) -> None:
    builder = TraceBuilder()
    builder.op("first", 0, 1, tid=LOADER)
    spans: list[tuple[int, int, str]] = []
    for start, length, name in ops:
        # Operators of one thread nest or follow each other.
        if all(start + length <= a or b <= start or (a <= start and start + length <= b) for a, b, _ in spans):
            spans.append((start, start + length, name))
            builder.op(name, start, length, tid=MAIN)
    made = []
    for launch, start, length, name in kernels:
        correlation = builder.call("cudaLaunchKernel", launch, 0)
        builder.gpu(name, start, length, correlation)
        made.append((start, start + length, name, launch))
    trace = builder.trace()
    order = {(k.ts, k.ts + k.dur, k.name): i for i, k in enumerate(trace.kernels.itertuples())}
    calls = set(spans)
    outer = [c for c in calls if not any(o != c and o[0] <= c[0] and c[1] <= o[1] for o in calls)]
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for start, end, _ in outer:
        inside = sorted((k for k in made if start <= k[3] < end), key=lambda k: order[k[:3]])
        if len(inside) >= 2:
            sums = expected["\n".join(k[2] for k in inside)]
            sums[0] += 1
            sums[1] += sum(k[1] - k[0] for k in inside)
            sums[2] += max(k[1] for k in inside) - min(k[0] for k in inside)
            sums[3] += end - start
    got = {r["kernels"]: [r["count"], r["kernel_ns"], r["span_ns"], r["host_ns"]] for r in _sequences(trace)}
    assert got == dict(expected)
