"""`steptrace baseline save|compare`: what is stored, and when later step times are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from documents import fill
from steptrace.cli import main
from steptrace.documents import base
from steptrace.documents.comparison import Comparison


def write(folder: Path, median: float | None, *, study: str = "s", **environment: Any) -> None:
    facts = {"cpu": "Epyc", "cpu_count": 8, "gpu": None, "gpu_count": 0, "torch": "2.13.0", **environment}
    variants = [{"name": "a", "step_ms": None if median is None else {"median": median}}, {"name": "b"}]
    part = {"study": study, "scale": "cpu", "environment": facts, "variants": variants}
    base.write(folder / "results" / study / "comparison.json", fill(Comparison, part))


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with results of 10 ms, stored as `ci`."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 10.0)
    assert main(["baseline", "save", "ci"]) == 0
    return tmp_path


def test_only_what_was_measured_is_stored(stored: Path) -> None:
    document = json.loads((stored / "baselines" / "ci.json").read_text())
    assert set(document["studies"]["s"]["variants"]) == {"a"}
    assert document["studies"]["s"]["environment"]["cpu"] == "Epyc"


@pytest.mark.parametrize(
    ("now", "most", "code"), [(10.4, "1.05", 0), (10.6, "1.05", 1), (99.0, None, 0), (None, "1.05", 1)]
)
def test_later_step_times_are_held_against_it(
    stored: Path, now: float | None, most: str | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write(stored, now)
    assert main(["baseline", "compare", "ci", *(["--max-ratio", most] if most else [])]) == code
    captured = capsys.readouterr()
    assert "s/a" in captured.out
    assert ("s/a" in captured.err) is (code == 1)


def test_another_machine_is_refused_and_another_version_told(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(stored, 10.0, torch="2.14.0")
    assert main(["baseline", "compare", "ci"]) == 0
    assert "another version: torch 2.13.0, here 2.14.0" in capsys.readouterr().err
    write(stored, 10.0, cpu="Xeon")
    assert main(["baseline", "compare", "ci"]) == 2
    assert "stored on another machine (cpu Epyc, here Xeon)" in capsys.readouterr().err


def test_a_file_instead_of_a_name(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["baseline", "save", "--out", "somewhere/else.json"]) == 0
    assert main(["baseline", "compare", "--from", "somewhere/else.json", "--results", str(stored / "results")]) == 0
    assert "1.000x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["save"], "no baseline is named"),
        (["save", ""], "no baseline is named"),
        (["save", "x", "--out", "y.json"], "no baseline is named, or two"),
        (["compare", "other"], "file is missing\n  expected: a stored baseline (ci)"),
        (["compare", "other"], "next: steptrace baseline save other\n"),
        (
            ["compare", "--from", "away/x.json"],
            "there is none here)\n  next: steptrace baseline save --out away/x.json",
        ),
        (["compare", "ci", "--results", "nowhere"], "there is no comparison.json"),
    ],
)
def test_what_a_person_can_get_wrong(
    stored: Path,  # noqa: ARG001
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["baseline", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_comparison_of_another_version_is_refused(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stored / "results" / "s" / "comparison.json").write_text('{"study": "s", "variants": []}')
    assert main(["baseline", "save", "later"]) == 2
    captured = capsys.readouterr().err
    assert "results/s/comparison.json: file does not hold a Comparison" in captured
    assert "next: make it again: run the study" in captured


def test_a_baseline_of_other_studies_is_no_comparison(stored: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stored / "results" / "s" / "comparison.json").unlink()
    write(stored, 1.0, study="other")
    assert main(["baseline", "compare", "ci"]) == 2
    assert "none of the studies in it has results here" in capsys.readouterr().err
