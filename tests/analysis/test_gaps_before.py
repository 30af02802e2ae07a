"""Before which kernels the GPU waits: every gap is on the account of the activity that ends it."""

from pathlib import Path

import pytest

from builders import TraceBuilder
from recorded import TRACES, needs_traces
from steptrace.analysis import load_trace, summarize_trace
from steptrace.documents.gaps_before import GapBefore


def test_gaps_are_added_up_by_the_name_of_the_activity_that_ends_them(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for start, length, name in ((0, 1_000, "first"), (1_500, 500, "slow"), (2_000, 500, "close"), (5_500, 100, "slow")):
        builder.kernel(10 * start, 10 * start, 10 * length, name=name)
    rows = summarize_trace(load_trace(builder.write(tmp_path / "made.json"))).gaps_before
    assert rows == (GapBefore(name="slow", count=2, gaps=2, gap_ns=35_000, longest_ns=30_000, ns=6_000),)


@needs_traces
@pytest.mark.parametrize("name", ["nccl.json.gz", "h100_vit.json.gz", "alexnet_cuda_sync.json.gz"])
def test_they_add_up_to_the_idle_time(name: str) -> None:
    summary = summarize_trace(load_trace(TRACES / name))
    assert sum(row.gap_ns for row in summary.gaps_before) == summary.gpu.idle_ns
    assert sum(row.gaps for row in summary.gaps_before) == summary.idle.gaps


@needs_traces
def test_without_a_gpu_there_are_none() -> None:
    assert summarize_trace(load_trace(TRACES / "cpu_only.json.gz")).gaps_before == ()
