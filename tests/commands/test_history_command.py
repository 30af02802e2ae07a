"""`steptrace history`: kept results in order, judged against the one before on the same machine."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from documents import fill
from steptrace import cli
from steptrace.documents.base import read, write
from steptrace.documents.comparison import Comparison, Partial
from steptrace.documents.kept import History
from steptrace.judging import baseline

MACHINE = {"cpu": "Epyc", "cpu_count": 8, "gpu": "H200", "gpu_count": 1, "torch": "2.12.0"}


def keep(
    path: Path, date: str | None, median: float, study: str = "s", *, digest: str | None = None, **environment: Any
) -> Path:
    """A comparison of one variant with five runs about a median."""
    runs = [{"repeat": k, "status": "ok", "median_ms": median * (1 + 0.001 * (k - 2))} for k in range(5)]
    step = {"median": median, "low": median * 0.99, "high": median * 1.01, "runs": 5, "steps": 50}
    variants = [{"name": "a", "digest": digest, "step_ms": step, "runs": runs}, {"name": "b", "step_ms": None}]
    part = {"study": study, "scale": "gpu", "environment": MACHINE | environment, "variants": variants}
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, fill(Comparison, {**part, "measured_at": date, "method": {"noise_floor": 0.01}}))


def history(*arguments: object) -> int:
    return cli.main(["history", *map(str, arguments)])


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Three results on one machine, the last with a newer PyTorch, and between them one on another machine."""
    folder = tmp_path / "kept"
    keep(folder / "march.json", "2026-03-01T10:00:00+00:00", 5.0, torch="2.13.0")
    keep(folder / "january.json", "2026-01-01T10:00:00+00:00", 10.0)
    keep(folder / "deep/er/comparison.json", "2026-01-15T10:00:00+00:00", 10.0)
    keep(folder / "other.json", "2026-02-01T10:00:00+00:00", 40.0, gpu="L4")
    return folder


def test_results_are_in_order_and_judged_against_the_one_before_on_the_same_machine(kept: Path, tmp_path: Path) -> None:
    assert history(kept, "--out", tmp_path / "out") == 0
    (study,) = read(tmp_path / "out" / "history.json", History).studies
    told = [
        (run.name, run.compared_with, *((v.name, v.ratio, v.verdict) for v in run.variants)) for run in study.results
    ]
    assert told == [
        ("january.json", None, ("a", None, None)),
        ("deep/er/comparison.json", "january.json", ("a", pytest.approx(1.0), "same")),
        ("other.json", None, ("a", None, None)),
        ("march.json", "deep/er/comparison.json", ("a", pytest.approx(2.0), "faster")),
    ]
    changes = [[(change.key, change.before, change.now) for change in run.changes] for run in study.results]
    assert changes == [[], [], [("gpu", "H200", "L4")], [("gpu", "L4", "H200"), ("torch", "2.12.0", "2.13.0")]]


def test_times_of_a_simulated_gpu_get_no_ratio(tmp_path: Path) -> None:
    for month, step in ((1, 10.0), (2, 5.0)):
        keep(tmp_path / "kept" / f"{month}.json", f"2026-0{month}-01T10:00:00+00:00", step, gpu="H100 (stand-in)")
    assert history(tmp_path / "kept", "--out", tmp_path / "out") == 0
    (study,) = read(tmp_path / "out" / "history.json", History).studies
    assert [run.variants[0].ratio for run in study.results] == [None, None]
    assert study.results[1].compared_with == "1.json"


def test_another_configuration_is_told_beside_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for month, digest in enumerate((None, "one", "one", "two"), start=1):
        keep(tmp_path / f"{month}.json", f"2026-0{month}-01T10:00:00+00:00", 10.0 * month, digest=digest)
    assert history(tmp_path) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if ".json" in line]
    assert [row.endswith("slower   its configuration") for row in rows] == [False, False, False, True]


def test_machines_that_differ_in_their_processors_have_two_names(tmp_path: Path) -> None:
    for name, processors in (("a", 16), ("b", 64)):
        keep(tmp_path / "kept" / f"{name}.json", "2026-01-01T10:00:00+00:00", 5.0, cpu_count=processors)
    assert history(tmp_path / "kept", "--out", tmp_path / "out") == 0
    (study,) = read(tmp_path / "out" / "history.json", History).studies
    assert len({run.machine for run in study.results}) == 2


def test_the_table_and_the_page_name_every_result_and_what_changed(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(kept, "--out", tmp_path) == 0
    page, text = (tmp_path / "history.html").read_text(), capsys.readouterr().out
    markdown = (tmp_path / "history.md").read_text()
    for said in (
        "january.json",
        "deep/er/comparison.json",
        "other.json",
        "march.json",
        "torch 2.12.0 → 2.13.0",
        "faster",
    ):
        assert said in text
        assert said in markdown
        assert said in page
    assert page.count("<circle") == 4  # a dot a result
    assert [page.count(f'class="key {colour}"') for colour in ("blue", "vermillion", "green")] == [1, 1, 0]
    assert page.count('class="changed"') == 2
    assert "| Ratio to the result before | Verdict |" in markdown
    assert history(kept, "--markdown") == 0
    assert capsys.readouterr().out.strip() == markdown.strip()
    assert history(kept, "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "history.json").read_text())


def test_what_is_no_result_is_said_and_skipped(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kept / "foreign.json").write_text('{"a": 1}')
    (kept / "corrupt.json").write_text('{"variants": [')
    (kept / "later.json").write_text('{"schema_version": 99, "variants": []}')
    (kept / "latin.json").write_bytes(b'{"variants": [], "study": "\xff"}')
    (kept / "key.json").write_bytes(b'{"\xff": 1}')
    (kept / "half.json").write_text('{"schema_version": 2, "variants": []}')
    (kept / "gone.json").symlink_to("nowhere.json")
    os.mkfifo(kept / "pipe.json")
    (kept / "notes.txt").write_text("not JSON, and not looked at")
    (kept / "verdict.json").write_text('{"passed": true}')  # the workflow's own
    (kept / "study.json").write_text('{"variants": []}')
    (kept / "january.json").unlink()
    assert history(kept, "--out", tmp_path) == 0
    said = capsys.readouterr().err
    skipped = {Path(one.file).name: one.reason for one in read(tmp_path / "history.json", History).skipped}
    assert {name: skipped[name].partition(" (")[0] for name in skipped} == {
        "foreign.json": "neither a comparison.json nor a baseline",
        "corrupt.json": "no JSON object",
        "later.json": skipped["later.json"],
        "latin.json": "file does not hold a Comparison",
        "key.json": "no JSON object",
        "half.json": "file does not hold a Comparison",
        "gone.json": "no regular file",
        "pipe.json": "no regular file",
    }
    assert "is of version 99" in skipped["later.json"]
    assert all(name in said for name in skipped)
    assert "notes" not in said
    assert "verdict" not in said
    assert "study.json" not in said
    assert len(read(tmp_path / "history.json", History).studies[0].results) == 3


def test_a_result_may_have_a_name_that_steptrace_uses_itself(kept: Path, tmp_path: Path) -> None:
    (kept / "january.json").rename(kept / "timing.json")
    assert history(kept, "--out", tmp_path) == 0
    names = [one.name for one in read(tmp_path / "history.json", History).studies[0].results]
    assert "timing.json" in names


def test_a_result_that_was_kept_twice_counts_once_and_one_without_a_date_has_its_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        keep(tmp_path / f"{name}.json", "2026-03-01T10:00:00", 5.0)
    old = keep(tmp_path / "old.json", None, 7.0)
    os.utime(old, (1_700_000_000, 1_700_000_000))
    assert history(tmp_path, "--out", tmp_path / "out") == 0
    (study,) = read(tmp_path / "out" / "history.json", History).studies
    assert [(run.name, run.date) for run in study.results] == [
        ("old.json", "2023-11-14T22:13:20+00:00"),
        ("one.json", "2026-03-01T10:00:00+00:00"),
    ]


def test_a_baseline_of_a_kept_comparison_is_the_same_result(tmp_path: Path) -> None:
    for name, date in (("one", "2026-03-01T10:00:00+00:00"), ("two", "2026-04-01T10:00:00+00:00")):
        kept = keep(tmp_path / f"{name}.json", date, 5.0)
    for name in ("saved", "saved_again"):
        baseline.save([read(kept, Comparison)], tmp_path / f"{name}.json")
    assert history(tmp_path, "--out", tmp_path / "out") == 0
    (study,) = read(tmp_path / "out" / "history.json", History).studies
    assert [run.name for run in study.results] == ["one.json", "two.json"]


def test_a_study_that_is_not_done_is_no_result(kept: Path, tmp_path: Path) -> None:
    document = read(kept / "march.json", Comparison)
    write(kept / "comparison.partial.json", replace(document, partial=Partial(runs=1, planned=2)))
    assert history(kept, "--out", tmp_path) == 0
    found = read(tmp_path / "history.json", History)
    assert [one.reason for one in found.skipped] == ["comparison of a study that is not done"]
    assert "comparison.partial.json" not in [run.name for run in found.studies[0].results]


def test_studies_and_variants_can_be_chosen(kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(kept / "t.json", "2026-03-01T10:00:00+00:00", 5.0, study="t")
    assert history(kept, "--study", "t", "--out", tmp_path) == 0
    assert [study.study for study in read(tmp_path / "history.json", History).studies] == ["t"]
    assert 'role="img"' not in (tmp_path / "history.html").read_text()  # one result has no course
    for wrong, said in (
        (("--study", "u"), "no kept result of the study 'u'"),
        (("--variant", "u"), "no step time of the variant 'u' is kept\n  next: known: "),
        (("--variant", "a", "--variant", "u"), "no step time of the variant 'u'"),
    ):
        assert history(kept, *wrong) == 2
        assert said in capsys.readouterr().err
    assert history(tmp_path / "none") == 2
    assert "there is no such file or folder" in capsys.readouterr().err


def test_names_of_others_become_neither_markup_nor_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep(tmp_path / "x.json", "2026-03-01T10:00:00", 5.0, study="<script>alert(1)</script>\x1b[2J", gpu="<b>")
    assert history(tmp_path, "--out", tmp_path / "out") == 0
    assert "\x1b" not in capsys.readouterr().out
    page = (tmp_path / "out" / "history.html").read_text()
    assert "<script>alert" not in page
    assert "<b>, gpu" not in page
