"""A run's summary.json: the same whether one process reads all ranks or each rank has been analysed by itself."""

from pathlib import Path

import msgspec
import pytest

from builders import TraceBuilder, training_step
from documents import fill
from steptrace.analysis import summarize_ranks
from steptrace.documents.run import Status
from steptrace.errors import RecordError
from steptrace.record import write_status
from steptrace.workflow.run_summary import analyze_rank, summarize_run


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
    write_status(folder, fill(Status, {"status": "ok", "started_at": "", "wall_s": 1.0, "attempt": 1}))
    return folder


def summaries(run: Path) -> list[bytes]:
    """The summary of a run made both ways; the tables of either way are compared here."""
    written, tables = [], []
    for ranks in (0, 2):
        for rank in range(ranks):
            folder = run / "ranks" / str(rank)
            analyze_rank(run, rank, folder)
            (folder / ".snakemake_timestamp").touch()  # Snakemake's, in every folder that is an output
        summarize_run(run, run / "summary.json", ranks=ranks)
        written.append((run / "summary.json").read_bytes())
        (run / "tables").rename(run / f"tables{ranks}")
        tables.append({file.relative_to(run / f"tables{ranks}") for file in run.glob(f"tables{ranks}/**/*")})
    assert tables[0] == tables[1]
    return written


def test_ranks_analysed_one_by_one_come_to_the_same_summary(run: Path) -> None:
    together, merged = summaries(run)
    assert msgspec.json.decode(together)["ranks"]["collectives"]["matched"] == 2
    assert merged == together


def test_a_rank_that_cannot_be_read_is_the_summary_s_error(run: Path) -> None:
    (run / "trace_rank1.json.gz").write_bytes(b"{")
    together, merged = summaries(run)
    assert "trace_rank1" in msgspec.json.decode(together)["error"]
    assert merged == together


def test_ranks_that_an_earlier_run_left_do_not_count(run: Path) -> None:
    analyze_rank(run, 0, run / "ranks" / "2")
    together, merged = summaries(run)
    assert merged == together


def test_a_run_with_fewer_traces_than_ranks_has_a_summary_of_those(run: Path) -> None:
    (run / "trace_rank1.json.gz").unlink()
    together, merged = summaries(run)
    assert msgspec.json.decode(merged)["error"] is None
    assert merged == together


def test_an_analysed_rank_with_a_damaged_table_is_analysed_again(run: Path) -> None:
    folder = run / "ranks" / "0"
    analyze_rank(run, 0, folder)
    for table in folder.glob("*.parquet"):
        table.write_bytes(b"\x00 garbage")
    with pytest.raises(RecordError, match="not an analysed rank"):
        summarize_ranks([folder], run / "tables")


def test_a_run_that_failed_has_a_summary_without_traces(run: Path) -> None:
    write_status(run, fill(Status, {"status": "failed", "started_at": "", "wall_s": 1.0, "attempt": 1}))
    together, merged = summaries(run)
    assert msgspec.json.decode(together)["traces"] == []
    assert merged == together
