"""Tables that are written as traces are read: the same files and figures, and little left in memory."""

from pathlib import Path

import pandas as pd
import pytest

from builders import TraceBuilder, training_step
from steptrace import cli
from steptrace.analysis import TABLES as COMPUTED
from steptrace.analysis import ranks, summarize
from steptrace.analysis.build import write_all
from steptrace.documents.table import read_table, write_table
from steptrace.errors import TraceError
from steptrace.trace.link import read_trace
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


def test_a_table_that_is_not_computed_without_rows_would_have_none(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.add("cpu_op", "aten::mm", 10_000, 5_000)
    path = builder.write(tmp_path / "trace.json")
    skipped = []
    for name, compute in COMPUTED.items():
        chain = [compute]
        while hasattr(chain[-1], "__wrapped__"):
            chain.append(chain[-1].__wrapped__)
        if len(chain) > 2:  # remembered, and not called without rows of the trace's
            skipped.append(name)
            pd.testing.assert_frame_equal(compute(read_trace(path)), chain[-1](read_trace(path)), check_dtype=False)
    assert {"kernel_names", "function_times", "queues"} <= {*skipped}


def test_tables_without_rows_are_files_of_their_own_columns(tmp_path: Path) -> None:
    for name, frame in (
        ("a", pd.DataFrame({"x": pd.Series([], dtype="int64")})),
        ("b", pd.DataFrame({"x": pd.Series([], dtype="float64")})),
        ("c", pd.DataFrame({"x": pd.Series([], dtype="int64")})),
    ):
        write_table(frame, tmp_path / f"{name}.parquet")
        pd.testing.assert_frame_equal(read_table(tmp_path / f"{name}.parquet"), frame)


def test_of_many_traces_only_some_are_read_and_a_shared_warning_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        builder = TraceBuilder()
        builder.add("cpu_op", "aten::mm", 10_000, 5_000)
        builder.write(tmp_path / f"trace{number}.json")
    assert cli.main(["analyze", str(tmp_path), "--limit", "4", "--no-report", "--out", str(tmp_path / "out")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning: " in line]
    left_out = [line for line in lines if line.startswith("steptrace: ")]
    assert len(left_out) == 1
    assert "2 of 6" in left_out[0]
    told = [line for line in lines if line not in left_out]
    assert len({line.split("warning: ")[1] for line in told}) == len(told)
    assert {line.split(": ")[0] for line in told} == {f"{tmp_path}/trace0.json and 3 more"}
    assert sorted(path.name for path in (tmp_path / "out" / "tables").glob("trace*")) == [f"trace{k}" for k in range(4)]
