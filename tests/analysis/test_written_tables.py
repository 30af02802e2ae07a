"""Tables that are written as traces are read: the same files and figures, and little left in memory."""

from pathlib import Path

import pandas as pd
import pytest

from builders import TraceBuilder, training_step
from steptrace import cli
from steptrace.analysis import TABLES as COMPUTED
from steptrace.analysis import ranks, summarize
from steptrace.analysis.build import write_all
from steptrace.errors import TraceError
from steptrace.trace.rows import TABLES


def _ranks(folder: Path) -> list[Path]:
    paths = []
    for rank in (1, 0):  # not in the order of their ranks
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2, "backend": "nccl"})
        training_step(builder, 0)
        described = {"Collective name": "allreduce", "Seq": 1, "Process Group Ranks": "[0, 1]", "In msg nelems": 8}
        kernel = {"device": 0, "stream": 20, "correlation": 77, **described}
        builder.add("kernel", "ncclDevKernel_AllReduce", 600_000 + 9_000 * rank, 30_000, pid=0, tid=20, args=kernel)
        paths.append(builder.write(folder / f"{rank}.json"))
    return paths


def test_the_same_as_written_at_the_end(tmp_path: Path) -> None:
    paths = _ranks(tmp_path)
    whole, traces = summarize(paths)
    for number, trace in enumerate(traces):
        own = {name: getattr(trace, name) for name in TABLES}
        tables = {name: table(trace) for name, table in COMPUTED.items()}
        write_all({**own, **tables}, tmp_path / "end" / f"trace{number}")
    write_all(ranks.tables(traces), tmp_path / "end" / "ranks")
    summary, light = summarize(paths, tables=tmp_path / "once")
    assert summary == whole
    assert summary.ranks is not None
    files = sorted(path.relative_to(tmp_path / "end") for path in (tmp_path / "end").rglob("*"))
    assert files == sorted(path.relative_to(tmp_path / "once") for path in (tmp_path / "once").rglob("*"))
    for file in files:
        if file.suffix:
            pd.testing.assert_frame_equal(
                pd.read_parquet(tmp_path / "once" / file), pd.read_parquet(tmp_path / "end" / file)
            )
    assert [trace.rank for trace in light] == [0, 1]
    assert not any("call_tree" in name for trace in light for name, *_ in trace.derived)
    assert [len(trace.ops) for trace in light] == [0, 0]


def test_a_trace_that_cannot_be_read_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, _ = _ranks(tmp_path)
    bad = tmp_path / "bad.json"
    bad.write_bytes(good.read_bytes()[:-50])
    out = tmp_path / "new" / "out"
    assert cli.main(["analyze", str(good), str(bad), "--out", str(out)]) == 2
    assert str(bad) in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert cli.main(["analyze", "--no-report", str(good), "--out", str(out)]) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert cli.main(["analyze", str(bad), "--out", str(out)]) == 2
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    with pytest.raises(TraceError):
        summarize([bad], tables=out / "tables")
