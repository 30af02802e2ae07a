"""Which ended runs of a killed workflow are kept for the next call."""

import base64
from pathlib import Path

import pytest

from documents import fill
from steptrace.documents.run import Status
from steptrace.record import FINISHED_FILE, STATUS_FILE, write_status
from steptrace.workflow.resume import keep_finished


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that ended well and is still marked as incomplete."""
    folder = tmp_path / "results" / "tiny" / "plain" / "run0"
    folder.mkdir(parents=True)
    write_status(folder, fill(Status, {"status": "ok"}))
    marks = tmp_path / ".snakemake" / "incomplete"
    marks.mkdir(parents=True)
    (marks / base64.urlsafe_b64encode(b"results/tiny/plain/run0/status.json").decode()).touch()
    return folder


def test_a_run_that_ended_unnoticed_is_kept(tmp_path: Path, run: Path) -> None:
    assert keep_finished(tmp_path) == 1
    assert [path.name for path in run.iterdir()] == [FINISHED_FILE]


def test_runs_are_not_kept_where_they_are_forced(tmp_path: Path, run: Path) -> None:
    assert keep_finished(tmp_path, forced=True) == 0
    assert [path.name for path in run.iterdir()] == [STATUS_FILE]  # Snakemake removes it


def test_what_an_earlier_call_kept_is_not_taken_where_runs_are_forced(tmp_path: Path, run: Path) -> None:
    assert keep_finished(tmp_path) == 1
    assert keep_finished(tmp_path, forced=True) == 0
    assert list(run.iterdir()) == []
