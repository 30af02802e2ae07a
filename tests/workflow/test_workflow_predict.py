"""Predictions in the workflow: at the scale of a GPU, made again only for a reason, and never a reason to fail."""

import json

import pytest

pytestmark = pytest.mark.workflow


def status(project, variant):
    return json.loads((project.folder / f"results/tiny/{variant}/prediction/status.json").read_text())["status"]


def test_a_step_that_cannot_be_followed_fails_nothing_and_is_not_tried_in_vain(project):
    project.edit("config/study/tiny.yaml", "other: [seed=1]", "other: [loss.mode=unpredictable, seed=1]")
    result = project.run()
    assert result.returncode == 0, result.stdout
    assert (status(project, "plain"), status(project, "other")) == ("ok", "failed")
    assert [line for line in project.ran() if line.startswith("predict")] == ["predict results/tiny/other"]
    assert "Nothing to be done" in project.run().stdout


@pytest.mark.slow
def test_what_only_a_cpu_run_does_is_no_reason_to_predict_anew(project):
    """A prediction follows the variant at the scale of a GPU: only what changes that variant counts."""
    project.edit(
        "config/study/tiny.yaml", "overrides: [loss=fake]", "overrides: [loss=fake]\nscales: {cpu: [data.batch_size=3]}"
    )
    assert project.run().returncode == 0
    kinds = {line.split()[0] for line in project.ran()}
    assert "train" in kinds
    assert "predict" not in kinds
