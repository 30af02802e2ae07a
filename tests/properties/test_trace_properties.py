"""What must hold for every trace, whatever is in it. How many traces are tried: tests/conftest.py."""

import random
from typing import Any

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from builders import D2D, TraceBuilder, training_step
from steptrace.analysis import TABLES as COMPUTED
from steptrace.analysis import steps
from steptrace.analysis.overview import operators_per_step
from steptrace.analysis.syncs import sync_sites
from steptrace.documents.table import records
from steptrace.trace.model import Trace

_NAMES = {"compute": "gemm", "comm": "ncclDevKernel_AllGather(x)", "memory": D2D}
_ACTIVITY = st.tuples(
    st.sampled_from(sorted(_NAMES)),
    st.integers(1, 60),  # start: a record at 0 of length 0 is one that the profiler did not fill in
    st.integers(0, 15),  # length
    st.integers(7, 9),  # stream
    st.integers(0, 60),  # launch before the start, 0 for none
)
_ACTIVITIES = st.lists(_ACTIVITY, min_size=1, max_size=12)
_STEPS = st.lists(st.integers(1, 30), max_size=3)


def _build(activities: list[Any], step_lengths: list[int]) -> TraceBuilder:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 100)
    ts = 0
    for index, length in enumerate(step_lengths):
        builder.step(index, ts, length)
        ts += length
    for kind, start, length, stream, before in activities:
        correlation = builder.call("cudaLaunchKernel", max(start - before, 0), 1) if before else None
        builder.gpu(_NAMES[kind], start, length, correlation, stream=stream)
    return builder


def _figures(trace: Trace) -> dict[str, Any]:
    """Everything that is computed from a trace, as plain values."""
    tables = {name: table(trace) for name, table in COMPUTED.items()}
    gaps = tables.pop("idle_gaps")  # holds absolute times
    figures: dict[str, Any] = {
        name: sorted(map(str, records(table.drop(columns=["launch", "op_row"], errors="ignore"))))
        for name, table in tables.items()
    }
    figures["gpu"] = steps.gpu_time(trace)
    figures["by_cause"] = gaps.groupby("cause")["dur"].sum().to_dict()
    figures["operators"] = operators_per_step(trace).tolist()
    return figures


@given(_ACTIVITIES, _STEPS, st.integers(0, 10**15), st.randoms(use_true_random=False))
def test_neither_a_shift_of_a_trace_nor_the_order_of_its_events_means_anything(
    activities: list[Any], step_lengths: list[int], shift: int, rng: random.Random
) -> None:
    builder = _build(activities, step_lengths)
    training_step(builder, 50, 1_000)
    figures = _figures(builder.trace())
    for event in builder.events:
        event["ts"] = (round(event["ts"] * 1000) + shift) / 1000
    rng.shuffle(builder.events)
    assert _figures(builder.trace()) == figures


@given(_ACTIVITIES, _STEPS, st.data())
def test_splitting_an_activity_changes_no_time(
    activities: list[Any], step_lengths: list[int], data: st.DataObject
) -> None:
    builder = _build(activities, step_lengths)
    before = builder.trace()
    on_gpu = [event for event in builder.events if event["cat"] in ("kernel", "gpu_memcpy")]
    event = data.draw(st.sampled_from(on_gpu))
    length = round(event["dur"] * 1000)
    first = data.draw(st.integers(0, length))
    builder.events.append({**event, "ts": event["ts"] + first / 1000, "dur": (length - first) / 1000})
    event["dur"] = first / 1000
    after = builder.trace()
    # One activity more can make another step look cut off. tests/trace/test_missing_records.py has which steps count.
    assume(not before.meta.records.left_out and not after.meta.records.left_out)
    one, two = steps.gpu_time(before), steps.gpu_time(after)
    assert two.activities == one.activities + 1
    assert two == msgspec.structs.replace(one, activities=two.activities)
    columns = ["dur_ns", "busy_ns", "compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns"]
    assert steps.step_times(after)[columns].equals(steps.step_times(before)[columns])


def _sites(steps: int, extra: tuple[int, int]) -> dict[tuple[str, int], int]:
    """How often each line waits in so many steps, one of which has a wait of its own (step, line) besides."""
    builder = TraceBuilder()
    for index in range(steps):
        training_step(builder, index, index * 1_100_000)
    ts = extra[0] * 1_100_000 + 600_000
    builder.frame(f"other.py({extra[1]}): metric", ts, 90_000)
    builder.op("aten::_local_scalar_dense", ts + 1_000, 80_000)
    builder.item(ts + 2_000, 30_000, ts + 5_000)
    table = sync_sites(builder.trace())
    return {(row.file, row.line): row.count for row in table.itertuples()}


@given(st.integers(1, 4), st.integers(0, 3), st.integers(1, 40))
def test_each_step_waits_once_and_one_more_sync_adds_one_at_its_line(count: int, chosen: int, line: int) -> None:
    assert _sites(count, (chosen % count, line)) == {("model.py", 10): count, ("other.py", line): 1}
