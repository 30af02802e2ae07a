"""Timed trainings have their device to themselves, and nothing else runs beside them. The GPUs are made up."""

import itertools
from pathlib import Path

import pytest

pytestmark = pytest.mark.workflow


def spans(project):
    """(kind, start, end, devices) of everything that ran."""
    lines = (project.folder / "spans.txt").read_text().splitlines()
    return [(kind, float(start), float(end), device) for kind, start, end, device in map(str.split, lines)]


def overlap(one, other):
    return max(one[1], other[1]) < min(one[2], other[2])


@pytest.mark.parametrize(("visible", "most"), [("0", 1), ("3,5", 2)])
def test_one_training_per_gpu_and_nothing_beside_it(new_project, visible, most):
    project = new_project
    project.edit("config/workflow.yaml", "scale: cpu", "scale: gpu")
    project.edit("config/study/tiny.yaml", "loss=fake]", "loss=fake, loss.mode=half a second]")
    result = project.run(CUDA_VISIBLE_DEVICES=visible)
    assert result.returncode == 0, result.stdout
    ran = spans(project)
    trainings = [span for span in ran if span[0] == "train"]
    assert len(trainings) == 4
    assert {span[3] for span in trainings} == set(visible.split(","))
    at_once = [sum(overlap(one, other) for other in trainings) for one in trainings]
    assert max(at_once) == most
    for one, other in itertools.combinations(trainings, 2):
        assert not (overlap(one, other) and one[3] == other[3])
    for training in trainings:
        assert not any(overlap(training, span) for span in ran if span[0] != "train")
    assert not Path(project.folder, "results/tiny/plain/failures").exists()
