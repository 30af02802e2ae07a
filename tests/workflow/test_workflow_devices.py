"""Timed trainings have their device to themselves, and nothing else runs beside them. The GPUs are made up."""

import itertools

import pytest

from steptrace.record import read_status

pytestmark = pytest.mark.workflow


def spans(project):
    """(kind, start, end, devices) of everything that ran."""
    lines = (project.folder / "spans.txt").read_text().splitlines()
    return [(kind, float(start), float(end), device) for kind, start, end, device in map(str.split, lines)]


def overlap(one, other):
    return max(one[1], other[1]) < min(one[2], other[2])


@pytest.mark.parametrize(("visible", "most"), [pytest.param("0", 1, marks=pytest.mark.slow), ("3,5", 2)])
def test_one_training_per_gpu(new_project, visible, most):
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


@pytest.mark.slow
def test_a_training_for_more_gpus_than_there_are_fails_alone(new_project):
    project = new_project
    project.edit("config/workflow.yaml", "scale: cpu", "scale: gpu")
    project.edit("config/workflow.yaml", "repeats: 2", "repeats: 1")
    project.edit("config/study/tiny.yaml", "other: [seed=1]", "other: [seed=1, distributed.world_size=2]")
    result = project.run(CUDA_VISIBLE_DEVICES="0")
    assert result.returncode == 1, result.stdout
    assert read_status(project.folder / "results/tiny/plain/run0").status == "ok"
    status = read_status(project.folder / "results/tiny/other/run0")
    assert status.status == "failed"
    assert "GPUs needed: 2, available: 1" in status.error
