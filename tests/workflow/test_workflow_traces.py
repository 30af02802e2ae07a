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
        builder.write(tmp_path / "one job" / f"rank{rank}.json.gz")
    result = run_checkout(tmp_path, "--config", "studies=[]", 'traces={ranks: "one job"}')
    assert result.returncode == 0, result.stdout
    folder = tmp_path / "results" / "traces" / "ranks"
    ranks = json.loads((folder / "summary.json").read_text())
    assert [(entry["rank"], entry["quality"]["steps"]) for entry in ranks["traces"]] == [(0, 2), (1, 2)]
    monkeypatch.chdir(tmp_path)
    assert cli.main(["analyze", "one job", "--out", "by one"]) == 0
    assert (tmp_path / "by one" / "summary.json").read_bytes() == (folder / "summary.json").read_bytes()
    assert {file.name for file in Path("by one/tables").rglob("*")} == {
        file.name for file in (folder / "tables").rglob("*") if file.name != ".snakemake_timestamp"
    }
    index = (tmp_path / "reports" / "index.html").read_text(encoding="utf-8")
    assert (folder / "report.html").is_file()
    assert 'href="../results/traces/ranks/report.html"' in index
    assert json.loads((tmp_path / "results" / "verdict.json").read_text())["status"] == "pass"


def test_traces_whose_paths_have_braces_dashes_and_quotes(tmp_path: Path) -> None:
    """Snakemake takes braces for wildcards, a shell quotes for its own, and a command a dash for an option."""
    names = {"braces": "a {trace} {{b}}.json", "open": "-{.json", "dash": "-out", "quotes": """it's "a" $HOME.json"""}
    for name in names.values():
        builder = TraceBuilder()
        training_step(builder, 0)
        builder.write(tmp_path / (f"{name}/trace.json" if name == "-out" else name))
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "workflow.yaml").write_text(json.dumps({"studies": [], "traces": names}))
    result = run_checkout(tmp_path)
    assert result.returncode == 0, result.stdout
    paths = [
        json.loads(file.read_text())["traces"][0]["path"] for file in tmp_path.glob("results/traces/*/summary.json")
    ]
    assert sorted(paths) == sorted([*(name for name in names.values() if name != "-out"), "-out/trace.json"])
    assert "Nothing to be done" in run_checkout(tmp_path).stdout
