"""What a person is told of a workflow's jobs, what the time went into, and which jobs come first."""

import importlib
import logging
import os
import shutil
import sys
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

import snakemake_scheduler_plugin_steptrace
from documents import fill
from snakemake_scheduler_plugin_steptrace import Scheduler
from steptrace.documents.run import Status
from steptrace.format import rough_duration
from steptrace.progress import Progress, job_of, summary
from steptrace.record import write_status


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
def test_kind_and_study_of_a_job_follow_from_the_name_of_its_rule(rule, kind, study):
    job = job_of(rule, {}, (), 0)
    assert (job.kind, job.study) == (kind, study)


@pytest.mark.parametrize("rule", ["all", "enforce", "my_own_rule"])
def test_rules_that_are_not_counted_in_progress(rule):
    assert job_of(rule, {}, (), 0) is None


def status(tmp_path, **values):
    part = {"status": "ok", "started_at": "", "wall_s": 4.2, "attempt": 1, **values}
    return (str(write_status(tmp_path, fill(Status, part))),)


S = 1_000_000_000


def test_each_training_says_how_many_are_left_and_about_how_long(tmp_path):
    progress = Progress(started=100 * S)
    jobs = {"train_a_round0": 2, "train_b_round0": 3, "analyze_a": 1, "report": 1, "all": 1}
    assert progress.plan(jobs) == ["5 trainings: a 2, b 3"]
    assert Progress(started=0).plan({"train_a_round0": 1}) == ["1 training: a 1"]
    wildcards = {"study": "a", "variant": "where", "repeat": "0"}
    progress.start(1, job_of("train_a_round0", wildcards, status(tmp_path), 102 * S))
    progress.now = 112 * S
    # Four trainings of eight seconds (the first one had to start a process besides), one second each for the others.
    assert progress.end(1) == ["a 1/2: where run0 ok after 4 s, about 34 s left"]
    assert progress.end(7) == []  # not one of ours


def run_jobs(jobs):
    """The progress of a call with these jobs: their rule, start and end in seconds."""
    progress = Progress(started=0)
    progress.plan(Counter(rule for rule, _, _ in jobs))
    for number, (rule, start, end) in enumerate(jobs):
        progress.start(number, job_of(rule, {}, (), start * S))
        progress.now = end * S
        progress.end(number)
    return progress


def test_time_left_counts_jobs_of_a_kind_that_runs_two_at_once_by_half():
    progress = run_jobs([("train_a_round0", 0, 10), ("predict_a", 10, 20), ("predict_a", 10, 20)])
    progress.plan({"predict_a": 10})
    assert progress.seconds_left() == pytest.approx(10 * (10 - 2) / 2)  # the first one started a process


def test_what_runs_beside_trainings_adds_nothing_to_the_time_left():
    progress = run_jobs([("train_a_round0", 0, 20), ("predict_a", 0, 20)])
    progress.plan({"train_a_round0": 1, "predict_a": 1})
    assert progress.seconds_left() == pytest.approx(18)


def test_a_failure_is_told_of_whatever_was_supervised(tmp_path):
    progress = Progress(started=0)
    progress.plan({"train_a_round0": 1, "predict_a": 2})
    failed = status(tmp_path, status="failed", error="ValueError: no")
    for number, rule in enumerate(["train_a_round0", "predict_a"]):
        wildcards = {"study": "a", "variant": "where"} | ({"repeat": "0"} if number == 0 else {})
        progress.start(number, job_of(rule, wildcards, failed, 0))
        progress.now = S
        line = progress.end(number)[0]
        assert "failed after 4 s (ValueError: no)" in line
    assert line == "a: where prediction failed after 4 s (ValueError: no)"


def test_the_time_of_each_kind_is_that_in_which_one_ran():
    progress = run_jobs([("train_a_round0", 0, 6), ("predict_a", 6, 8), ("predict_a", 7, 9)])
    progress.now = 10 * S
    timing = progress.timing()
    assert timing["kinds"]["trainings"] == {"jobs": 1, "job_s": 6.0, "wall_s": 6.0, "share": 0.6}
    assert timing["kinds"]["predictions"] == {"jobs": 2, "job_s": 4.0, "wall_s": 3.0, "share": 0.3}
    assert (timing["wall_s"], timing["no_job_s"]) == (10.0, 1.0)
    assert summary(timing) == "10 s, of which trainings 60%, predictions 30%, no job 10%"


def test_durations():
    assert [rough_duration(seconds) for seconds in (3.4, 100, 5000)] == ["3 s", "2 min", "1 h 23 min"]


@dataclass(frozen=True)
class Job:
    name: str
    priority: int
    scheduler_resources: dict[str, int] = field(default_factory=lambda: {"_cores": 1})
    jobid: int = 0

    def is_group(self):
        return False


@dataclass(frozen=True)
class Group:
    name: str
    jobs: list[Job]
    priority: int = 1
    scheduler_resources: dict[str, int] = field(default_factory=lambda: {"_cores": 1})

    def is_group(self):
        return True


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


def test_jobs_of_equal_priority_start_in_the_order_of_their_numbers():
    jobs = [
        Job("third", 1, jobid=7),
        Job("first", 1, jobid=2),
        Group("second", [Job("", 1, jobid=9), Job("", 1, jobid=4)]),
    ]
    scheduler = Scheduler(None, None, logging.getLogger())
    chosen = scheduler.select_jobs(jobs, jobs, {"_cores": 2}, {})
    assert [job.name for job in chosen] == ["first", "second"]


@pytest.mark.parametrize(("free", "written"), [(2**20, False), (2**30, True)])
def test_no_bytecode_is_written_on_a_disk_that_is_nearly_full(monkeypatch, free, written):
    """Half a .pyc would stop every later start (python/cpython#126606)."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(os, "environ", {})
    importlib.reload(snakemake_scheduler_plugin_steptrace)
    assert sys.dont_write_bytecode is not written
    assert ("PYTHONDONTWRITEBYTECODE" in os.environ) is not written
