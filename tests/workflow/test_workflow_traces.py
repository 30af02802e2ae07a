"""Traces alone, with nothing replaced: from `traces:` to a page of each and the index, and no training at all."""

import json
from pathlib import Path

import pytest

from builders import TraceBuilder, training_step
from snakemake_calls import run_checkout
from steptrace import cli

pytestmark = pytest.mark.workflow


def test_traces_without_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2})
        for index in range(2):
            training_step(builder, index, index * 1_100_000)
        builder.write(tmp_path / "job" / f"rank{rank}.json.gz")
        builder.write(tmp_path / "lone trace.json")
    result = run_checkout(tmp_path, "--config", "studies=[]", 'traces={lone: "lone trace.json", ranks: job}')
    assert result.returncode == 0, result.stdout
    traces = tmp_path / "results" / "traces"
    ranks = json.loads((traces / "ranks" / "summary.json").read_text())
    assert [entry["rank"] for entry in ranks["traces"]] == [0, 1]
    monkeypatch.chdir(tmp_path)
    assert cli.main(["analyze", "job", "--out", "by one"]) == 0
    assert (tmp_path / "by one" / "summary.json").read_bytes() == (traces / "ranks" / "summary.json").read_bytes()
    assert {file.name for file in Path("by one/tables").rglob("*")} == {
        file.name for file in (traces / "ranks" / "tables").rglob("*")
    }
    lone = traces / "lone"
    assert json.loads((lone / "summary.json").read_text())["traces"][0]["quality"]["steps"] == 2
    index = (tmp_path / "reports" / "index.html").read_text(encoding="utf-8")
    for folder in (lone, traces / "ranks"):
        assert (folder / "report.html").is_file()
        assert f'href="../results/traces/{folder.name}/report.html"' in index
    assert json.loads((tmp_path / "results" / "verdict.json").read_text())["status"] == "pass"
