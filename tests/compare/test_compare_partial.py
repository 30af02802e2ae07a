"""A comparison while runs are still to come: what exists is compared, what has not run yet is no failure."""

import os
from pathlib import Path
from typing import Any

import pytest

from steptrace.compare.study import compare
from steptrace.documents.base import write
from steptrace.documents.comparison import Partial
from steptrace.files import read_json
from steptrace.findings import with_findings
from steptrace.record import write_status
from steptrace.standing import is_whole
from steptrace.workflow.partial import write_partial_pages


def test_runs_to_come_are_counted_and_not_called_failed(folder: Any) -> None:
    folder.make_study([{"name": "base"}, {"name": "begun"}, {"name": "absent"}], repeats=2)
    folder.add_run("base", 0, [10.0, 10.1, 9.9])
    folder.add_run("begun", 0, [5.0, 5.1, 4.9])
    found = with_findings(compare(folder.path, partial=True))
    assert found.partial == Partial(runs=2, planned=6)
    assert [(v.status, len(v.runs)) for v in found.variants] == [("ok", 1), ("ok", 1), ("not run", 0)]
    assert found.variants[1].ratio.value == 2.0
    assert "failed_run" not in {finding.rule for finding in found.findings}
    whole = with_findings(compare(folder.path))
    assert whole.partial is None
    assert {finding.rule for finding in whole.findings} >= {"failed_run"}


def test_a_partial_page_is_marked_and_takes_the_place_of_an_outdated_comparison(
    folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.make_study([{"name": "base"}], repeats=2)
    folder.add_run("base", 0, [10.0, 10.1, 9.9])
    folder.add_run("base", 1, [10.0, 10.1, 9.9])
    results, pages = folder.path.parent, tmp_path / "reports"
    for run in ("run0", "run1"):
        folder.add_summary(folder.path / "base" / run, {"traces": []})
    for check in ("equivalence", "prediction"):
        status = (folder.path / "base" / "run0" / "status.json").read_text()
        (folder.path / "base" / check).mkdir()
        (folder.path / "base" / check / "status.json").write_text(status)
    comparison = write(folder.path / "comparison.json", compare(folder.path))
    assert is_whole(folder.path)
    assert write_partial_pages(results, pages) == []

    monkeypatch.chdir(tmp_path)
    (folder.path / "base" / "run1" / "status.json").unlink()
    assert not is_whole(folder.path)
    assert write_partial_pages(results, pages) == [pages / f"{folder.path.name}.html", pages / "index.html"]
    assert not comparison.exists()
    assert read_json(folder.path / "comparison.partial.json")["partial"] == {"runs": 1, "planned": 2}
    assert "1 of 2 runs are in this comparison" in (pages / f"{folder.path.name}.html").read_text()
    index = (pages / "index.html").read_text()
    assert "1 not run yet" in index


def test_traces_that_nobody_has_analysed_are_analysed_for_the_partial_page(folder: Any, tmp_path: Path) -> None:
    folder.make_study([{"name": "base"}], repeats=2)
    run = folder.add_run("base", 0, [10.0, 10.1, 9.9])
    write_partial_pages(folder.path.parent, tmp_path / "reports")
    made = run / "summary.partial.json"
    assert read_json(made)["traces"] == []  # this run left no trace
    assert not (run / "summary.json").exists()  # a rule makes that
    before = made.stat().st_mtime_ns
    write_partial_pages(folder.path.parent, tmp_path / "reports")
    assert made.stat().st_mtime_ns == before
    later = made.stat().st_mtime + 1
    os.utime(run / "status.json", (later, later))
    write_partial_pages(folder.path.parent, tmp_path / "reports")
    assert made.stat().st_mtime_ns != before


def test_a_study_without_a_run_has_no_partial_page(folder: Any, tmp_path: Path) -> None:
    folder.make_study([{"name": "base"}])
    assert write_partial_pages(folder.path.parent, tmp_path / "reports") == []
    assert not (tmp_path / "reports").exists()


def test_a_failed_run_is_a_failure_in_a_partial_comparison_too(folder: Any, status_of: Any) -> None:
    folder.make_study([{"name": "base"}], repeats=2)
    write_status(folder.path / "base" / "run0", status_of("failed", error="ValueError"))
    found = with_findings(compare(folder.path, partial=True))
    assert found.variants[0].status == "failed"
    assert "failed_run" in {finding.rule for finding in found.findings}
