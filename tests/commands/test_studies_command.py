"""`steptrace studies`: what can be run in a folder, and what it costs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from steptrace.cli import main
from steptrace.commands.studies import steps_of
from steptrace.files import write_json

pytestmark = pytest.mark.usefixtures("hydra_composes_once")

STUDY = """
title: My study
baseline: a
overrides: [scale.warmup_steps=2, scale.timed_steps=7, profile.warmup=1, profile.active=3]
variants:
  a: [seed=0]
  b: [seed=1]
  only_on_gpus: {overrides: [seed=2], scales: [gpu]}
matrix:
  data.batch_size: [2, 4]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config" / "study").mkdir(parents=True)
    (tmp_path / "config" / "study" / "mine.yaml").write_text(STUDY)
    (tmp_path / "config" / "workflow.yaml").write_text("studies: [mine]\nrepeats: 2\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _studies(capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, dict[str, Any]]:
    assert main(["studies", "--scale", "cpu", "--json"]) == code
    return {study["name"]: study for study in json.loads(capsys.readouterr().out)}


def test_own_studies_come_first_and_ours_are_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = _studies(capsys)
    assert next(iter(found)) == "mine"
    assert found["mine"] == {
        "name": "mine", "title": "My study", "by_default": True, "scale": "cpu", "variants": 4, "trainings": 8,
        "steps": 16, "seconds": None, "error": None,
    }  # fmt: skip
    assert not found["masked_loss"]["by_default"]
    assert main(["studies", "--scale", "cpu"]) == 0
    assert "  mine               yes         4         8          16             -          My study" in (
        capsys.readouterr().out.splitlines()
    )
    assert not (folder / "results").exists()


def test_the_time_that_trainings_took_here(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = {"status": "ok", "exit_code": 0, "signal": None, "error": None, "log_tail": [], "attempt": 1}
    status |= {"started_at": "2026-01-01T00:00:00+00:00", "wall_s": 1.5}
    for variant in ("a__batch_size-2", "b__batch_size-2", "a__batch_size-4", "b__batch_size-4"):
        for k in range(2):
            write_json(folder / "results" / "mine" / variant / f"run{k}" / "status.json", status)
    assert _studies(capsys)["mine"]["seconds"] == 12.0
    shutil.rmtree(folder / "results" / "mine" / "a__batch_size-2" / "run1")
    assert _studies(capsys)["mine"]["seconds"] is None


def test_a_study_that_cannot_be_planned_hides_no_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config" / "study" / "wrong.yaml").write_text(STUDY.replace("seed=0", "sed=0"))
    found = _studies(capsys, code=2)
    assert "sed" in found["wrong"]["error"]
    assert found["mine"]["variants"] == 4


def test_the_steps_of_a_program() -> None:
    config = {"program": {}, "device": "cpu", "scale": {"warmup_steps": 4, "timed_steps": 8}}
    config["profile"] = {"warmup": 2, "active": 3}
    assert (steps_of(config), steps_of(config | {"device": "cuda"})) == (18, 20)
    assert steps_of(config | {"profile": {"warmup": 2, "active": 0}}) == 12
