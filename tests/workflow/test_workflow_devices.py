"""Timed trainings have their device to themselves, and nothing else runs beside them. The GPUs are made up."""

import itertools

import pytest

pytestmark = pytest.mark.workflow


def spans(project):
    """(kind, start, end, devices) of everything that ran."""
    lines = (project.folder / "spans.txt").read_text().splitlines()
    return [(kind, float(start), float(end), device) for kind, start, end, device in map(str.split, lines)]


def overlap(one, other):
    return max(one[1], other[1]) < min(one[2], other[2])


def test_each_gpu_runs_one_training_at_a_time(new_project):
    project = new_project
    project.edit("config/workflow.yaml", "scale: cpu", "scale: gpu")
    project.write("pace", "0.5")
    files = [f"results/tiny/{variant}/run{repeat}/status.json" for variant in ("plain", "other") for repeat in (0, 1)]
    result = project.run(*files, CUDA_VISIBLE_DEVICES="3,5")
    assert result.returncode == 0, result.stdout
    trainings = spans(project)
    assert [span[0] for span in trainings] == 4 * ["train"]
    assert {span[3] for span in trainings} == {"3", "5"}
    assert max(sum(overlap(one, other) for other in trainings) for one in trainings) == 2
    for one, other in itertools.combinations(trainings, 2):
        assert not (overlap(one, other) and one[3] == other[3])
