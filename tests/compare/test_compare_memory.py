"""Memory of the variants side by side, and those that ran out of it."""

from typing import Any

import pytest

from documents import compare, fill
from steptrace.compare.study import compare as compared
from steptrace.documents.run import RunMemory
from steptrace.record import write_memory

MIB = 2**20


def entry(peak: int, **changes: Any) -> dict[str, Any]:
    """One of a trace's `memory`; two steps of 20 ms begin at 0."""
    fields = {
        "device_type": "cpu",
        "device": None,
        "peak_allocated_bytes": peak,
        "peak_reserved_bytes": None,
        "peak_ts": 25_000_000,
        "before_bytes": 10 * MIB,
        "complete": True,
        "capacity_bytes": 1000 * MIB,
        "capacity_source": "limit",
        "headroom_bytes": 1000 * MIB - peak,
        "fragmentation": None,
        "by_category": {"parameters": 10 * MIB, "activations": peak - 10 * MIB},
        "at_peak": [],
        "curve": [[ms * 1_000_000, ms * MIB, None] for ms in range(0, 40, 3)],
    }
    return fields | changes


PARTS = {"compute_ns": 1, "exposed_comm_ns": 0, "exposed_memory_ns": 0, "idle_ns": 0}
STEPS = [{"start_ns": k * 20_000_000, "dur_ns": 20_000_000, **PARTS} for k in range(2)]


def config(batch: int, **changes: Any) -> dict[str, Any]:
    return {"study": "s", "variant": f"b{batch}", "data": {"batch_size": batch, "num_workers": 0}, "seed": 0, **changes}


@pytest.fixture
def add(folder, trace_of):
    """Adds the runs of a variant with these peaks in MiB."""

    def add(name, batch, peaks, changes=None, **of_entry):
        for repeat, peak in enumerate(peaks):
            memory = [entry(peak * MIB, **of_entry), entry(16, device_type="cuda", device=0)]
            made = trace_of(memory=memory, steps=STEPS)
            run_dir = folder.add_run(name, repeat, [10.0] * 20, summary=made, config=config(batch, **(changes or {})))
            write_memory(run_dir, run_memory(batch, gradient_bytes=7))

    return add


def run_memory(batch, **more):
    """A run's record with 1000 MiB to be had."""
    had = {"device": "cpu", "batch_size": batch, "capacity_bytes": 1000 * MIB, "capacity_source": "limit"}
    return fill(RunMemory, {**had, "held": {"parameters": 10}, **more})


def test_figures_are_medians_of_the_device_that_trained(folder, add):
    folder.make_study([{"name": "base"}])
    add("base", 8, [100, 120, 110])
    (variant,) = compared(folder.path).variants
    traced, memory = variant.device_memory, variant.memory
    assert traced.peak_allocated_bytes == 110 * MIB
    assert traced.by_category == {"parameters": 10 * MIB, "activations": 100 * MIB}
    assert (traced.device_type, memory.batch_size, memory.gradient_bytes) == ("cpu", 8, 7)
    assert (memory.capacity_bytes, traced.headroom_bytes) == (1000 * MIB, 890 * MIB)


def test_without_allocations_there_is_no_memory(folder, trace_of):
    folder.make_study([{"name": "base"}], repeats=1)
    folder.add_run("base", 0, [10.0] * 20, summary=trace_of(memory=None))
    assert compare(folder.path)["variants"][0]["memory"] is None
