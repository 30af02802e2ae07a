"""Checks that are forked: the same as programs of their own, and ended with whoever asked for them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from processes import gone, wait_for
from steptrace.jobs import forked
from steptrace.run_folder import read_status

#: Stands for the workflow's job: it checks variants in forks.
CHECKS = """
import sys
from pathlib import Path
from steptrace.jobs import forked
from steptrace.jobs.supervise import Job, supervise

module = "steptrace.equivalence.main"
forked.preload(module)
jobs = [
    Job(
        Path(out),
        [sys.executable, "-m", module, "--config", config, "--reference", config, "--out", out],
        result="equivalence.json",
    )
    for config, out in zip(sys.argv[1::2], sys.argv[2::2], strict=True)
]
for job, status in supervise(jobs, at_once=2):
    pass
"""
# Notes the command line of the process that checks.
OWN_LOSS = """
import os, time
from pathlib import Path
from steptrace.workloads.masked_losses import IgnoreIndexLoss


class Loss(IgnoreIndexLoss):
    def forward(self, output, target):
        Path("checks.txt").write_text(f"{os.getpid()} {Path('/proc/self/cmdline').read_text()}")
        return super().forward(output, target)


class Endless(Loss):
    def forward(self, output, target):
        super().forward(output, target)
        time.sleep(10_000)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux alone")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPTRACE_FOLDER", str(tmp_path / "locks"))
    monkeypatch.delenv(forked.VARIABLE, raising=False)
    Path("own_losses.py").write_text(OWN_LOSS)
    return tmp_path


@pytest.fixture
def config_of(folder, write_config):  # noqa: ARG001 - its folder is the working directory
    def config(loss):
        target = {"loss": {"_target_": f"own_losses.{loss}"}, "python_path": ["."]}
        return str(write_config(target, name=f"{loss}.yaml"))

    return config


def start(*arguments):
    return subprocess.Popen([sys.executable, "-c", CHECKS, *arguments], stdout=subprocess.DEVNULL)


def checking():
    """The process that checks, once it does."""
    wait_for(lambda: Path("checks.txt").exists() and Path("checks.txt").read_text())
    return psutil.Process(int(Path("checks.txt").read_text().split()[0]))


def test_a_forked_check_gives_what_any_other_does(config_of):
    config = config_of("Loss")
    assert start(config, "forked/equivalence").wait(1500) == 0
    assert read_status(Path("forked/equivalence")).status == "ok", Path("forked/equivalence/train.log").read_text()
    assert "forked.preload" in Path("checks.txt").read_text()
    command = [sys.executable, "-m", "steptrace.equivalence.main", "--config", config, "--reference", config]
    subprocess.run([*command, "--out", "own/equivalence"], check=True)
    assert "forked.preload" not in Path("checks.txt").read_text()
    documents = [json.loads(Path(out, "equivalence/equivalence.json").read_text()) for out in ("forked", "own")]
    assert documents[0] == documents[1]


def test_one_that_fails_does_not_harm_the_next(config_of):
    job = start(config_of("Lost"), "lost/equivalence", config_of("Loss"), "whole/equivalence")
    assert job.wait(1500) == 0
    status = read_status(Path("lost/equivalence"))
    assert (status.status, status.exit_code) == ("failed", 2)
    assert "own_losses.Lost" in status.error
    assert read_status(Path("whole/equivalence")).status == "ok"


def test_one_that_a_signal_ends(config_of):
    job = start(config_of("Endless"), "check/equivalence")
    checking().send_signal(signal.SIGKILL)
    assert job.wait(1500) == 0
    assert (read_status(Path("check/equivalence")).status, read_status(Path("check/equivalence")).signal) == (
        "killed",
        9,
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_job(config_of, number):
    job = start(config_of("Endless"), "check/equivalence")
    process = checking()
    job.send_signal(number)
    assert job.wait(1500) != 0
    wait_for(lambda: gone(process.pid))
    assert not Path("check/equivalence/status.json").exists()


def test_trainings_are_programs_of_their_own(monkeypatch):
    monkeypatch.setattr(forked, "_preloaded", set(forked.PROGRAMS))
    python = [sys.executable, "-m"]
    assert forked.forked_program([*python, "steptrace.lab", "config.yaml"], os.environ) is None
    assert forked.forked_program([*python, "steptrace.equivalence.main"], os.environ) is not None


def test_nothing_is_forked_where_that_is_turned_off(monkeypatch):
    monkeypatch.setenv(forked.VARIABLE, "0")
    forked.preload("steptrace.equivalence.main")
    assert forked.forked_program([sys.executable, "-m", "steptrace.equivalence.main"], os.environ) is None
