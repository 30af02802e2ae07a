"""One plain call makes again what is damaged or was made of something else; a look at the workflow changes nothing."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.workflow

#: One file of each kind that the workflow makes; the fakes' trainings leave fewer than real ones.
FILES = (
    "results/tiny/plain/run0/run.json",
    "results/tiny/plain/run1/status.json",
    "results/tiny/plain/run0/summary.json",
    "results/tiny/plain/run0/tables/steps.parquet",
    "results/tiny/other/equivalence/equivalence.json",
    "results/tiny/plain/equivalence/status.json",
    "results/tiny/plain/prediction.json",
    "results/tiny/other/prediction/status.json",
    "results/tiny/equivalence.json",
    "results/tiny/prediction.json",
    "results/tiny/comparison.json",
    "results/tiny/study.json",
    "results/tiny/other/config.yaml",
    "results/traces/recorded/summary.json",
    "results/traces/recorded/report.html",
    "results/traces/recorded/tables/trace0/call_tree.parquet",
    "results/verdict.json",
    "reports/tiny.html",
    "reports/tiny.ipynb",
    "reports/index.html",
)
#: What can happen to a file.
DAMAGE: dict[str, Callable[[Path], object]] = {
    "deleted": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
    "truncated": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
    "garbage": lambda file: file.write_bytes(random.Random(0).randbytes(file.stat().st_size)),
    "of another version": lambda file: file.write_text('{"schema_version": 99}'),
    "nested too deeply": lambda file: file.write_text('{"a":' * 100_000 + "1" + "}" * 100_000),
}


def contents(folder: Path) -> dict[str, bytes]:
    """What each of the files holds; of those that say when they were made, how they ended."""
    held = {name: (folder / name).read_bytes() for name in FILES}
    for name in FILES:
        if name.endswith("status.json"):
            held[name] = json.loads(held[name])["status"].encode()
        elif name in ("results/tiny/equivalence.json", "results/tiny/prediction.json"):
            held[name] = json.loads(held[name])["key"].encode()
    return held


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and time of every file of the results and pages."""
    files = [path for name in ("results", "reports") for path in (folder / name).rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.parametrize(
    ("turn", "records"),
    [(0, "kept"), (1, "lost"), *(pytest.param(turn, "kept", marks=pytest.mark.slow) for turn in range(2, len(DAMAGE)))],
)
def test_one_plain_call_heals_what_is_damaged(project, turn: int, records: str) -> None:
    """All files at once, each in another way than its neighbours, with and without what Snakemake has recorded."""
    kinds = [*DAMAGE.values()]
    before = contents(project.folder)
    if records == "lost":
        shutil.rmtree(project.folder / ".snakemake")
    for place, name in enumerate((*FILES, "results/traces/recorded/.steptrace.json")):
        kinds[(place + turn) % len(kinds)](project.folder / name)
    result = project.run()
    assert result.returncode == 0, result.stdout
    assert contents(project.folder) == before
    trained = {line for line in project.ran() if line.startswith("train")}
    assert trained == {"train results/tiny/plain/run0", "train results/tiny/plain/run1"}
    assert "Nothing to be done" in project.run("--dry-run").stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_each_kind_of_damage_to_each_kind_of_file(project, name: str) -> None:
    """One at a time, and again and again in the same project."""
    for number, damage in enumerate(DAMAGE.values()):
        before = contents(project.folder)
        if number % 2:
            shutil.rmtree(project.folder / ".snakemake")
        damage(project.folder / name)
        result = project.run()
        assert result.returncode == 0, result.stdout
        assert contents(project.folder) == before
        assert "Nothing to be done" in project.run("--dry-run").stdout


def test_modules_that_were_compiled_on_a_full_disk_are_compiled_again(project) -> None:
    """Python before 3.12.8 keeps half a file, and fails whenever it is imported."""
    (project.folder / "results/tiny/plain/run0/run.json").unlink()
    compiled = [*(project.folder / "src/steptrace").rglob("*.pyc")]
    cut_off = [
        file for file in compiled if file.name.split(".")[0] in ("process", "supervise", "files", "snakemake_plan")
    ]
    assert len(cut_off) >= 3
    for file in cut_off:
        os.truncate(file, file.stat().st_size // 2)
    result = project.run()
    assert result.returncode == 0, result.stdout
    assert "EOFError" not in result.stdout


def test_without_snakemake_s_records_an_edit_counts_and_nothing_else(project, planned) -> None:
    """They are removed as a cure, lost with a disk, or stay behind when results are copied from a cluster."""
    shutil.rmtree(project.folder / ".snakemake")
    for path in project.folder.glob("results/tiny/**/*"):
        os.utime(path, (1e9, 1e9))  # a copy has other times
    assert "Nothing to be done" in project.run("--dry-run").stdout
    project.edit("config/loss/fake.yaml", "mode: ok", "mode: ok\nmore: 1")
    project.edit("src/steptrace/workloads/fake_losses.py", "mode: str)", "mode: str, more: int = 0)")
    jobs = planned(project.run("--dry-run"))
    assert (jobs["train_tiny_run0"], jobs["train_tiny_run1"]) == (2, 2)
    assert (jobs["equivalence_tiny"], jobs["prediction_tiny"], jobs["compare"]) == (1, 1, 1)
    result = project.run()
    assert result.returncode == 0, result.stdout
    assert "Nothing to be done" in project.run("--dry-run").stdout


def test_results_of_another_project_are_not_taken_for_its_own(project, planned) -> None:
    """Whole and readable, but of another configuration; Snakemake's records say nothing of it."""
    file = project.folder / "results/tiny/other/run0/status.json"
    times = file.stat()
    file.write_text(file.read_text().replace(json.loads(file.read_text())["key"], "key of another configuration"))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    jobs = planned(project.run("--dry-run"))
    assert {name: count for name, count in jobs.items() if name.startswith("train")} == {"train_tiny_run0": 1}


def test_a_look_at_the_workflow_writes_and_removes_nothing(project, planned) -> None:
    """Also after failures, which the next call tries again."""
    project.edit("config/study/tiny.yaml", "[seed=1]", "[seed=1, loss.mode=raise]")
    assert project.run().returncode == 1
    before = everything(project.folder)
    failed = ["results/tiny/other/run0/status.json", "results/tiny/other/run1/status.json"]
    for look in (["--list-rules"], ["--lint"], ["--list-changes", "params"], ["--summary"], ["--dry-run"]):
        result = project.run(*look)
        assert everything(project.folder) == before
        if "--list-changes" in look:
            assert result.stdout.splitlines()[1:] == [*failed]
    assert {name: count for name, count in planned(result).items() if name.startswith("train")} == {
        "train_tiny_run0": 1,
        "train_tiny_run1": 1,
    }
