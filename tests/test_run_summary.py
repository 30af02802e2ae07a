"""A run's summary.json, of the traces of all its ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from builders import TraceBuilder, training_step
from documents import fill
from steptrace.documents.run import Status
from steptrace.run_folder import write_document
from steptrace.workflow.run_summary import summarize_run


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of two ranks that ended well."""
    monkeypatch.chdir(tmp_path)
    folder = Path("results", "study", "variant", "run0")
    for rank in range(2):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2, "backend": "nccl"})
        training_step(builder, 0)
        described = {"Collective name": "allreduce", "Seq": 1, "Process Group Ranks": "[0, 1]", "In msg nelems": 8}
        kernel = {"device": 0, "stream": 20, "correlation": 77, **described}
        builder.add("kernel", "ncclDevKernel_AllReduce", 600_000 + 9_000 * rank, 30_000, pid=0, tid=20, args=kernel)
        builder.write(folder / f"trace_rank{rank}.json.gz")
    write_document(folder, fill(Status, {"status": "ok", "started_at": "", "wall_s": 1.0}))
    return folder


def summary(run: Path) -> dict[str, Any]:
    summarize_run(run, run / "summary.json")
    return dict(json.loads((run / "summary.json").read_text()))


def test_the_ranks_of_a_run_are_compared(run: Path) -> None:
    assert summary(run)["ranks"]["collectives"]["matched"] == 2
    assert (run / "tables").is_dir()


def test_a_rank_that_cannot_be_read_is_the_summary_s_error(run: Path) -> None:
    (run / "trace_rank1.json.gz").write_bytes(b"{")
    assert "trace_rank1" in summary(run)["error"]


def test_a_run_that_failed_has_a_summary_without_traces(run: Path) -> None:
    write_document(run, fill(Status, {"status": "failed", "started_at": "", "wall_s": 1.0}))
    assert summary(run)["traces"] == []
