"""What a person is told of a workflow's jobs, what the time went into, and which jobs come first."""

import json
import logging
from dataclasses import dataclass, field

import pytest

from snakemake_scheduler_plugin_steptrace import Scheduler
from steptrace.format import rough_duration
from steptrace.progress import Progress, job_of, summary, union


@pytest.mark.parametrize(
    ("rule", "kind", "study"),
    [
        ("train_masked_loss_round0", "trainings", "masked_loss"),
        ("train_a_round1_round12", "trainings", "a_round1"),
        ("equivalence_report", "equivalence checks", "report"),
        ("predict_giou", "predictions", "giou"),
        ("analyze_giou", "analyses", "giou"),
        ("report", "pages", None),
        ("mine_train_giou_round0", "trainings", "giou"),  # of a module that was given a prefix
    ],
)
def test_what_a_rule_is_for(rule, kind, study):
    job = job_of(rule, {}, (), 0.0)
    assert (job.kind, job.study) == (kind, study)


@pytest.mark.parametrize("rule", ["all", "enforce", "my_own_rule"])
def test_nobody_waits_for_others(rule):
    assert job_of(rule, {}, (), 0.0) is None


def status(tmp_path, **values):
    path = tmp_path / "status.json"
    path.write_text(json.dumps({"status": "ok", "error": None, "wall_s": 4.2, **values}))
    return (str(path),)


def test_each_training_says_how_many_are_left_and_about_how_long(tmp_path):
    progress = Progress(started=100.0)
    jobs = {"train_a_round0": 2, "train_b_round0": 3, "analyze_a": 1, "report": 1, "all": 1}
    assert progress.plan(jobs) == ["5 trainings: a 2, b 3"]
    wildcards = {"study": "a", "variant": "where", "repeat": "0"}
    progress.start(1, job_of("train_a_round0", wildcards, status(tmp_path), 102.0))
    progress.now = 112.0
    # Four trainings of ten seconds, an analysis and a page that are not known yet, one after the other.
    assert progress.end(1) == ["a 1/2: where run0 ok after 4 s, about 44 s left"]
    assert progress.end(7) == []  # not one of ours


def test_a_failure_is_told_of_whatever_was_supervised(tmp_path):
    progress = Progress(started=0.0)
    progress.plan({"train_a_round0": 1, "predict_a": 2})
    failed = status(tmp_path, status="failed", error="ValueError: no")
    for number, rule in enumerate(["train_a_round0", "predict_a"]):
        wildcards = {"study": "a", "variant": "where"} | ({"repeat": "0"} if number == 0 else {})
        progress.start(number, job_of(rule, wildcards, failed, 0.0))
        progress.now = 1.0
        line = progress.end(number)[0]
        assert "failed after 4 s (ValueError: no)" in line
    assert line == "a: where prediction failed after 4 s (ValueError: no)"


def test_the_time_of_each_kind_is_that_in_which_one_ran():
    progress = Progress(started=0.0)
    spans = [("train_a_round0", 0, 6), ("predict_a", 6, 8), ("predict_a", 7, 9)]
    for number, (rule, start, end) in enumerate(spans):
        progress.start(number, job_of(rule, {}, (), float(start)))
        progress.now = float(end)
        progress.end(number)
    progress.now = 10.0
    timing = progress.timing()
    assert timing["kinds"]["trainings"] == {"jobs": 1, "job_s": 6.0, "wall_s": 6.0, "share": 0.6}
    assert timing["kinds"]["predictions"] == {"jobs": 2, "job_s": 4.0, "wall_s": 3.0, "share": 0.3}
    assert (timing["wall_s"], timing["no_job_s"]) == (10.0, 1.0)
    assert summary(timing) == "10 s, of which trainings 60%, predictions 30%, no job 10%"


def test_durations_and_spans():
    assert [rough_duration(seconds) for seconds in (3.4, 100, 5000)] == ["3 s", "2 min", "1 h 23 min"]
    assert union([(5, 6), (0, 2), (1, 3), (1, 2)]) == 4


@dataclass(frozen=True)
class Job:
    name: str
    priority: int
    scheduler_resources: dict[str, int] = field(default_factory=lambda: {"_cores": 1})


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (2, ["check", "other check"]),
        (1, ["check"]),
        (5, ["check", "other check", "training", "later"]),
        (4, ["check", "other check"]),  # what is left is kept for the training
    ],
)
def test_nothing_overtakes_a_job_of_a_higher_priority(free, expected):
    jobs = [Job("later", 1), Job("training", 5, {"_cores": 2}), Job("check", 9), Job("other check", 9)]
    if free == 4:
        jobs[1] = Job("training", 5, {"_cores": 3})
    scheduler = Scheduler(None, None, logging.getLogger())
    assert [job.name for job in scheduler.select_jobs(jobs, jobs, {"_cores": free}, {})] == expected
