"""Peaks, curves and categories of memory, against a slow replay of every single block on made traces."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import AUTOGRAD, MAIN, TraceBuilder
from documents import fill
from steptrace.analysis import load_trace, summarize, summarize_trace
from steptrace.analysis.memory import downsample, memory, memory_blocks
from steptrace.documents.memory import MEMORY_CATEGORIES
from steptrace.documents.run import RunMemory
from steptrace.report.trace.page import write
from steptrace.run_folder import write_document

PHASES = [("data", 0, 20), ("forward", 20, 50), ("loss", 50, 60), ("backward", 60, 90), ("optimizer", 90, 100)]
CATEGORY = {
    "data": "inputs",
    "forward": "activations",
    "loss": "activations",
    "backward": "gradients",
    "optimizer": "optimizer_state",
}


class Memory(TraceBuilder):
    """A builder that keeps the allocators' counters."""

    def __init__(self, before: int = 0) -> None:
        super().__init__()
        self.total = {0: 0, 1: before}

    def block(self, ts: int, size: int, address: int, *, device: int = 1, tid: int = MAIN) -> None:
        """An allocation, or a release if `size` is negative."""
        self.total[device] += size
        args = {"Device Type": device, "Device Id": 0 if device else -1, "Addr": address, "Bytes": size}
        args |= {"Total Allocated": self.total[device], "Total Reserved": 1000 if device else 0}
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": tid, "ts": ts / 1000}
        self.events.append({**event, "s": "t", "args": args})


def step(builder: TraceBuilder, start: int = 0) -> None:
    builder.step(start // 100, start, 100)
    for name, begin, end in PHASES:
        builder.label(name, start + begin, end - begin)


def measured(builder, held=None):
    """The blocks, and the memory of the only device; `held` is what a run's memory.json says of a kind of device."""
    trace = builder.trace()
    for device, categories in (held or {}).items():
        trace = replace(trace, memory_record=fill(RunMemory, {"device": device, "held": categories}))
    (device_memory,) = memory(trace)
    return memory_blocks(trace), device_memory


def test_a_block_s_category_follows_from_where_it_is_allocated_and_released():
    builder = Memory(before=5000)
    step(builder)
    step(builder, 100)
    lives = {
        1: (5, 10, "temporary"),
        2: (5, 95, "inputs"),
        3: (30, 70, "activations"),
        4: (55, 65, "activations"),
        5: (30, 40, "temporary"),
        6: (65, 70, "temporary"),
        7: (70, 95, "gradients"),
        8: (92, None, "optimizer_state"),
        9: (65, 165, "gradients"),  # the same part of another step is another part
    }
    changes = [(begin, 10, address) for address, (begin, _, _) in lives.items()]
    changes += [(end, -10, address) for address, (_, end, _) in lives.items() if end is not None]
    changes.append((40, -500, 99))  # allocated before the trace
    for change in sorted(changes):
        builder.block(*change)
    blocks, peak = measured(builder)
    categories = dict(zip(blocks["address"], blocks["category"], strict=True))
    assert categories == {address: category for address, (*_, category) in lives.items()} | {99: "unknown"}
    assert blocks.loc[blocks["address"] == 99, "ts"].isna().all()
    assert (peak.before_bytes, peak.counter_agrees) == (5000, 1.0)


def test_what_was_held_before_is_divided_by_the_run_s_memory_record():
    builder = Memory(before=1000)
    step(builder)
    builder.block(30, 100, 1)
    held = {"cuda": {"parameters": 600, "gradients": 0, "optimizer_state": 300}}
    _, peak = measured(builder, held)
    assert (peak.peak_allocated_bytes, peak.peak_reserved_bytes, peak.complete) == (1100, 1000, True)
    assert [allocated for _, allocated, _ in peak.curve] == [1000, 1100]
    sums = {category: size for category, size in peak.by_category.items() if size}
    assert sums == {"parameters": 600, "optimizer_state": 300, "unknown": 100, "activations": 100}


def test_the_host_s_counter_begins_with_the_profiler():
    builder = Memory()
    step(builder)
    builder.block(30, 100, 1, device=0)
    _, peak = measured(builder)
    assert (peak.peak_allocated_bytes, peak.complete, peak.peak_reserved_bytes) == (100, False, None)
    _, peak = measured(builder, {"cpu": {"parameters": 40, "gradients": 0, "optimizer_state": 2}})
    assert (peak.peak_allocated_bytes, peak.complete) == (142, True)
    assert sum(row.bytes for row in peak.at_peak) == 142


def test_a_live_block_stands_at_its_outermost_operator_and_label():
    builder = Memory()
    step(builder)
    builder.frame("train.py(3): step", 1, 98)
    builder.op("aten::linear", 25, 15)
    builder.op("aten::empty", 28, 4)
    builder.block(30, 64, 1)
    builder.block(31, 36, 2)
    _, peak = measured(builder)
    row = peak.at_peak[0]
    assert (row.op, row.label, row.category, row.blocks, row.bytes) == (
        "aten::linear", "forward", "activations", 2, 100
    )  # fmt: skip
    assert (row.file, row.line) == ("train.py", 3)


def test_a_trace_without_our_labels_goes_by_pytorch_s_own():
    builder = Memory()
    builder.step(0, 0, 100)
    builder.label("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 20)
    builder.label("Optimizer.step#SGD.step", 90, 10)
    builder.op("aten::mm", 30, 5, **{"Sequence number": 1, "Fwd thread id": 0})
    builder.op("MmBackward0", 60, 10, AUTOGRAD, **{"Sequence number": 1, "Fwd thread id": 1})
    builder.op("AccumulateGrad", 75, 10, AUTOGRAD, **{"Sequence number": 1, "Fwd thread id": 1})
    for address, (begin, end) in enumerate([(5, 95), (32, 65), (33, 40), (62, 95), (64, 80), (92, 99)]):
        builder.block(begin, 10, address + 1, tid=AUTOGRAD if 60 < begin < 90 else MAIN)
        builder.block(end, -10, address + 1)
    builder.events.sort(key=lambda event: event["ts"])
    blocks, _ = measured(builder)
    assert blocks.sort_values("address")["category"].tolist() == [
        "inputs", "activations", "temporary", "gradients", "temporary", "temporary"
    ]  # fmt: skip


class Life(NamedTuple):
    """A block: None is before the trace, or after it."""

    begin: int | None
    end: int | None
    size: int


_TIMES = st.integers(1, 199)
_LIVES = st.lists(
    st.builds(Life, st.none() | _TIMES, st.none() | _TIMES, st.integers(1, 50)).filter(
        lambda life: life.begin is None or life.end is None or life.begin < life.end
    ),
    min_size=1,
    max_size=12,
)


@given(_LIVES, st.integers(0, 300))
def test_peak_curve_and_categories_are_those_of_a_replay(lives: list[Life], rest: int) -> None:
    if not any(life.begin is not None or life.end is not None for life in lives):
        return
    before = rest + sum(life.size for life in lives if life.begin is None)
    builder = Memory(before=before)
    step(builder)
    step(builder, 100)
    changes = [(life.begin, life.size, k) for k, life in enumerate(lives) if life.begin is not None]
    changes += [(life.end, -life.size, k) for k, life in enumerate(lives) if life.end is not None]
    for ts, size, k in sorted(changes):
        builder.block(ts, size, k + 1)
    blocks, peak = measured(builder)

    def level(t: int) -> int:
        return before + sum(size for ts, size, _ in changes if ts <= t)

    instants = sorted({0, *(ts for ts, *_ in changes)})
    assert [(ts, allocated) for ts, allocated, _ in peak.curve] == [(t, level(t)) for t in instants]
    assert peak.peak_allocated_bytes == max(level(t) for t in instants)
    assert peak.peak_ts == min(t for t in instants if level(t) == peak.peak_allocated_bytes)
    assert peak.before_bytes == before
    # Blocks of before the trace that it never releases are a part of what only the counter knows.
    assert len(blocks) == sum(life.begin is not None or life.end is not None for life in lives)

    def part(t: int) -> tuple[int, str]:
        return t // 100, next(name for name, begin, end in PHASES if begin <= t % 100 < end)

    expected = dict.fromkeys(MEMORY_CATEGORIES, 0)
    for life in lives:
        alive = (life.begin is None or life.begin <= peak.peak_ts) and (life.end is None or life.end > peak.peak_ts)
        if not alive:
            continue
        if life.begin is None:
            expected["unknown"] += life.size
        elif life.end is not None and part(life.begin) == part(life.end):
            expected["temporary"] += life.size
        else:
            expected[CATEGORY[part(life.begin)[1]]] += life.size
    expected["unknown"] += rest
    sums = {category: size for category, size in peak.by_category.items() if size}
    assert sums == {name: size for name, size in expected.items() if size}
    assert sum(row.bytes for row in peak.at_peak) == peak.peak_allocated_bytes


def test_an_address_given_out_again_without_a_release_ends_the_first_block():
    builder = Memory()
    step(builder)
    builder.block(30, 10, 1)
    builder.block(40, 20, 1)
    blocks, _ = measured(builder)
    assert blocks["until"].tolist()[0] == 40
    assert blocks["bytes"].tolist() == [10, 20]


@pytest.mark.parametrize("lost", [True, False])
def test_the_share_of_events_that_the_counter_agrees_with(lost):
    builder = Memory(before=100)
    step(builder)
    builder.block(30, 10, 1)
    if lost:
        builder.total[1] += 7
    builder.block(40, 20, 2)
    builder.block(50, 5, 3)
    _, peak = measured(builder)
    assert peak.counter_agrees == (pytest.approx(2 / 3) if lost else 1.0)


def test_a_device_without_a_number_has_no_known_capacity():
    builder = Memory()
    builder.metadata["deviceProperties"] = [{"id": 0, "name": "GPU", "totalGlobalMem": 9000}]
    step(builder)
    builder.block(30, 500, 1)
    builder.events[-1]["args"]["Device Id"] = -1
    _, peak = measured(builder)
    assert (peak.device, peak.peak_allocated_bytes, peak.capacity_bytes) == (None, 500, None)


def test_the_summary_takes_capacity_and_fragmentation_from_the_run_s_memory_record(tmp_path):
    builder = Memory(before=1000)
    builder.metadata["deviceProperties"] = [{"id": 0, "name": "GPU", "totalGlobalMem": 9000}]
    step(builder)
    builder.block(30, 500, 1)
    path = builder.write(tmp_path / "trace.json")
    (entry,) = summarize_trace(load_trace(path)).memory
    assert (entry.device_type, entry.device, entry.peak_allocated_bytes) == ("cuda", 0, 1500)
    assert (entry.capacity_bytes, entry.capacity_source, entry.headroom_bytes) == (9000, "device", 8000)
    assert entry.fragmentation is None
    assert entry.by_category["unknown"] == 1000
    assert entry.curve[-1] == (30, 1500, 1000)
    held = {"parameters": 900, "gradients": 0, "optimizer_state": 0}
    had = {"device": "cuda", "capacity_bytes": 5000, "capacity_source": "limit"}
    memory_record = fill(RunMemory, {**had, "held": held, "free_bytes": 40, "largest_free_bytes": 10})
    write_document(tmp_path, memory_record)
    (entry,) = summarize_trace(load_trace(path)).memory
    assert (entry.capacity_bytes, entry.headroom_bytes, entry.fragmentation) == (5000, 4000, 0.75)
    assert (entry.by_category["parameters"], entry.by_category["unknown"]) == (900, 100)
    assert sum(entry.by_category.values()) == entry.peak_allocated_bytes
    summary, _ = summarize([path])
    write(summary, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    section = page[page.index('id="memory"') :].split("</section>")[0]
    assert section.count("<svg") >= 1
    assert "75 %" in section
    assert "aten" not in section  # no operator is around the block


def test_a_trace_without_allocations_has_null_memory():
    builder = TraceBuilder()
    step(builder)
    builder.op("aten::mm", 1, 2)
    assert builder.summary().memory is None


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=900), st.integers(8, 400))
def test_a_curve_drawn_small_keeps_its_extremes_and_ends(values: list[int], most: int) -> None:
    array = np.array(values, dtype=np.int64)
    kept = downsample(array, most)
    assert len(kept) <= most
    assert list(kept) == sorted(set(kept))
    assert {0, len(values) - 1} <= set(kept)
    assert (array[kept].max(), array[kept].min()) == (array.max(), array.min())


def test_what_steps_leave_stands_by_the_line_that_allocated_it(tmp_path):
    builder = TraceBuilder(deviceProperties=[{"id": 0, "name": "GPU"}])
    for k in range(3):
        builder.step(k, k * 1_000_000, 1_000_000)
        builder.frame("train.py(7): keep", k * 1_000_000 + 5_000, 10_000)
        builder.op("aten::empty", k * 1_000_000 + 6_000, 5_000)
        args = {"Device Type": 1, "Device Id": 0, "Addr": 100 + k, "Bytes": 4096, "Total Allocated": 4096 * (k + 1)}
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 100, "s": "t"}
        builder.events.append({**event, "ts": (k * 1_000_000 + 7_000) / 1000, "args": args})
    (entry,) = summarize_trace(load_trace(builder.write(tmp_path / "trace.json"))).memory
    assert entry.step_end_bytes == (4096, 8192, 12288)
    (left,) = entry.stays
    assert (left.file, left.line, left.op, left.blocks, left.bytes) == ("train.py", 7, "aten::empty", 2, 8192)
