"""What runs again after a change, and what does not. Trainings are the expensive part and must not run in vain."""

import json
import os
import re
from collections import Counter

import pytest

pytestmark = pytest.mark.workflow


def test_first_run_runs_each_part_once_and_interleaves_the_repeats(finished):
    ran = (finished.folder / "runs.txt").read_text().splitlines()
    assert Counter(line.split()[0] for line in ran) == {
        "train": 4,
        "equivalence": 2,
        "predict": 2,
        "analyze_runs": 4,
        "compare": 1,
        "report": 2,
    }
    trainings = [line.removeprefix("train results/tiny/") for line in ran if line.startswith("train")]
    assert [run.partition("/")[2] for run in trainings] == ["run0", "run0", "run1", "run1"]
    order = [line.split()[0] for line in ran]
    assert order[:4] == ["train"] * 4  # the checks take all cores, too, and come later
    assert order[8:12] == ["analyze_runs"] * 4
    log = (finished.folder / "first.log").read_text()
    line = re.compile(r"^tiny/(?:plain|other) run[01] ok \(\d+ of (\d+) jobs, about .+ left\)$", re.MULTILINE)
    assert line.findall(log) == 4 * ["15"]  # the trainings, two checks, three analyses, and what is written of them
    assert log.rstrip().splitlines()[-1].endswith("reports/index.html")
    summary = json.loads((finished.folder / "results/traces/recorded/summary.json").read_text())
    assert summary["traces"][0]["quality"]["steps"] == 1


def test_nothing_runs_again_for_nothing(project):
    """Neither the same command, nor whitespace in rules, comments and docstrings in code, nor new file times."""
    project.edit(
        "workflow/rules/train.smk",
        "            depends=RULES.training,",
        "            depends=RULES.training,\n",
    )
    project.edit("workflow/rules/train.smk", "exec ", "exec  ")
    project.edit("src/steptrace/workloads/fake_losses.py", "STEPS = 1", "# a comment\nSTEPS  =  1")
    project.edit("src/steptrace/workloads/fake_losses.py", "The fake training's loss.", "Another docstring.")
    project.edit("config/loss/fake.yaml", "mode: ok", "mode: ok  # a comment")
    for path in [
        *project.folder.glob("src/**/*.py"),
        *project.folder.glob("workflow/**/*"),
        *project.folder.glob("config/**/*"),
    ]:
        os.utime(path)
    for path in project.folder.glob("results/tiny/*/config.yaml"):
        os.utime(path)
    result = project.run()
    assert result.returncode == 0, result.stdout
    assert "Nothing to be done" in result.stdout
    assert project.ran() == []


def test_an_edit_plans_the_trainings_that_it_concerns(project, planned):
    project.edit("config/study/tiny.yaml", "seed=1", "seed=7")
    jobs = planned(project.run("--dry-run", "--config", "repeats=3"))
    trainings = {name: count for name, count in jobs.items() if name.startswith("train_")}
    assert trainings == {"train_tiny_run0": 1, "train_tiny_run1": 1, "train_tiny_run2": 2}
    assert jobs["compare"] == 1


def test_an_edit_of_the_analysis_analyses_a_trace_again_and_trains_nothing(project, planned):
    project.edit("workflow/scripts/compare.py", '"by": name', '"by": name, "more": 1')
    project.edit("src/steptrace/analysis/idle.py", "MOST_GAPS, MOST_CALLS = 5, 3", "MOST_GAPS, MOST_CALLS = 6, 3")
    jobs = planned(project.run("--dry-run"))
    assert (jobs["analyze_trace"], jobs["compare"]) == (1, 1)
    assert not [name for name in jobs if name.startswith(("train", "equivalence", "prediction"))]


def test_predictions_are_for_the_first_of_the_gpus_to_estimate(project):
    """And are made again where that is another one."""
    project.edit("config/workflow.yaml", "scale: cpu", "scale: cpu\nestimate_gpus: [T4, L40S]")
    result = project.run()
    assert result.returncode == 0, result.stdout
    predicted = [line for line in project.ran() if line.startswith("predict")]
    assert sorted(predicted) == [f"predict results/tiny/{variant} T4" for variant in ("other", "plain")]
    project.edit("config/workflow.yaml", "[T4, L40S]", "[T4]")
    assert not [line for line in (project.run(), project.ran())[1] if line.startswith("predict")]
