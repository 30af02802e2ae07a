"""What a person can get wrong ends in one message and a non-zero exit, and the Snakefile is in good order."""

import json
import shutil
import subprocess
import sys

import pytest

from workflow.conftest import Project

pytestmark = pytest.mark.workflow


def test_a_misspelt_name_ends_with_one_message(fresh):
    result = fresh.run("--dry-run", "--config", "studies=[tinny]")
    assert result.returncode == 2
    assert "there is no study 'tinny'\n  next: did you mean 'tiny'?" in result.stdout
    assert "Traceback" not in result.stdout


def test_a_gpu_asked_for_in_vain_leaves_the_earlier_results(project):
    before = {path: path.read_bytes() for path in project.folder.glob("results/tiny/*/run*/*.*")}
    result = project.run("--config", "scale=gpu", CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 2
    assert "scale=gpu needs a GPU, and none was found" in result.stdout
    assert "use scale=cpu" in result.stdout
    assert project.ran() == []
    assert before
    assert {path: path.read_bytes() for path in before} == before


def test_gpus_that_are_given_as_a_resource_need_not_be_here(new_project):
    arguments = ("--config", "scale=gpu", "--resources", "gpu=1")
    result = new_project.run("results/tiny/plain/run0/status.json", *arguments, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0  # the training fails instead
    assert "tiny/plain run0 failed: GPUs needed: 1, available: 0; use scale=cpu" in result.stdout


def test_a_space_a_quote_and_unicode_in_the_paths_of_the_project_and_its_environment(new_project, tmp_path):
    folder = new_project.folder.rename(tmp_path / """Zoë's "own" $HOME folder""")
    (tmp_path / "my environment").symlink_to(sys.prefix)
    python = tmp_path / "my environment" / "bin" / "python"
    project = Project(folder)
    result = subprocess.run(
        [str(python), *project.command()[1:]],
        cwd=folder,
        env=project.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    assert "all 4 runs ok" in result.stdout
    assert (folder / "reports/tiny.html").is_file()


def test_a_dry_run_in_another_directory_without_the_gpu_that_is_asked_for(fresh, planned, tmp_path):
    config = ("studies=[tiny]", "scale=gpu", "repeats=1")
    result = fresh.run("--dry-run", "--directory", str(tmp_path), "--config", *config, CUDA_VISIBLE_DEVICES="")
    assert result.returncode == 0, result.stdout
    assert planned(result)["train_tiny_run0"] == 2
    assert "train_tiny_run1" not in planned(result)
    assert not (tmp_path / "results").exists()  # a dry run writes nothing


def test_lint_has_only_the_remark_about_conda(fresh):
    result = fresh.run("--lint")  # Snakemake 9.27 prints text even for `--lint json`
    remarks = {line.strip() for line in result.stdout.splitlines() if line.startswith("    * ")}
    assert remarks == {"* Specify a conda environment or container for each rule.:"}


def test_braces_in_gates_reach_the_verdict_as_they_are(project):
    gates = {
        "equivalence.status": {"equals": "{study} {{x}}"},
        "syncs.per_step": {"at_most_ratio": 2, "baseline": "kept {b}.json"},
    }
    project.edit("config/workflow.yaml", "scale: cpu", f"scale: cpu\ngates: {json.dumps({'tiny': {'other': gates}})}")
    for there in (False, True):
        if there:
            shutil.copy(project.folder / "results/tiny/comparison.json", project.folder / "kept {b}.json")
        result = project.run()
        assert result.returncode == 1, result.stdout
        assert "Wildcard" not in result.stdout
        verdict = json.loads((project.folder / "results/verdict.json").read_text())
        assert [(gate["limits"], gate["outcome"]) for gate in verdict["gates"]] == [
            (g, "broken") for g in gates.values()
        ]
        (project.folder / "results/verdict.json").unlink()
