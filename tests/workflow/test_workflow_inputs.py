"""What a person can get wrong ends in one message and a non-zero exit, and the Snakefile is in good order."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.workflow

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "studies=[tinny]"], "there is no study 'tinny'\n  next: did you mean 'tiny'?"),
        (["--config", "variants=[othre]"], "there is no variant 'othre'\n  next: did you mean 'other'?"),
        (["--config", "repeat=1"], "unknown field `repeat`\n  next: did you mean 'repeats'?"),
        (["--config", "scale=gpuu"], "there is no scale 'gpuu'\n  next: did you mean 'gpu'?"),
    ],
)
def test_a_misspelt_name_gets_one_message_with_the_near_one(fresh, arguments, message):
    result = fresh.run("--dry-run", *arguments)
    assert result.returncode == 2
    assert message in result.stdout
    assert "Traceback" not in result.stdout


def test_results_that_cannot_be_written_get_one_message(fresh, tmp_path):
    (tmp_path / "results").write_text("a file where the folder goes")
    result = fresh.run("--directory", str(tmp_path))
    assert result.returncode == 2
    assert f"{tmp_path}/results" in result.stdout
    assert "Traceback" not in result.stdout


def test_a_gpu_asked_for_in_vain_leaves_the_earlier_results(project):
    before = {path: path.read_bytes() for path in project.folder.glob("results/tiny/*/run*/*.*")}
    result = project.run("--config", "scale=gpu", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 2
    assert "scale=gpu trains on a GPU, and there is none" in result.stdout
    assert "use scale=cpu" in result.stdout
    assert project.ran() == []
    assert before
    assert {path: path.read_bytes() for path in before} == before
    assert project.run("--dry-run", "--config", "scale=gpu", CUDA_VISIBLE_DEVICES="").returncode == 0


def test_gpus_that_are_given_as_a_resource_need_not_be_here(new_project):
    arguments = ("--config", "scale=gpu", "repeats=1", "--resources", "gpu=1")
    result = new_project.run(*arguments, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 1  # here trainings fail instead, each by itself
    assert "tiny/plain run0 failed: GPUs needed: 1, available: 0; use scale=cpu" in result.stdout


def test_command_line_narrows(fresh, planned):
    result = fresh.run("--dry-run", "--config", "studies=[tiny]", "scale=cpu", "repeats=1", "variants=[plain]")
    assert result.returncode == 0, result.stdout
    assert planned(result)["train_tiny_run0"] == 1
    assert "train_tiny_run1" not in planned(result)


def test_another_directory_receives_the_results(fresh, tmp_path):
    result = fresh.run("--dry-run", "--directory", str(tmp_path))
    assert result.returncode == 0, result.stdout
    assert [path.name for path in (tmp_path / "results").iterdir()] == [".cache"]  # a dry run writes nothing else


def test_lint_has_only_the_remark_about_conda(fresh):
    result = fresh.run("--lint")  # Snakemake 9.27 prints text even for `--lint json`
    remarks = {line.strip() for line in result.stdout.splitlines() if line.startswith("    * ")}
    assert remarks == {"* Specify a conda environment or container for each rule.:"}


def test_snakefiles_are_formatted():
    if shutil.which("snakefmt", path=Path(sys.executable).parent) is None:
        pytest.skip("snakefmt is not installed")
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    result = subprocess.run(
        [sys.executable, "-m", "snakefmt", "--check", "Snakefile", "workflow"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
