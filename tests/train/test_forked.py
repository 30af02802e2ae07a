"""Trainings that are forked: the same as by processes of their own, and ended with whoever asked for them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from msgspec.structs import asdict

from processes import gone, wait_for
from steptrace.config.schema import ScaleConfig
from steptrace.record import read_status, read_steps
from steptrace.train import forked
from steptrace.train.main import main

JOB = [sys.executable, "-IS", forked.__file__, "steptrace.train.supervise"]
HOLDER = """
import os
from steptrace.train import forked
forked.start_server()
print(os.environ[forked.VARIABLE], flush=True)
input()
"""
# Notes which process trains.
OWN_LOSS = """
from pathlib import Path
from steptrace.workloads.masked_losses import IgnoreIndexLoss


class Loss(IgnoreIndexLoss):
    def forward(self, output, target):
        Path("trains.txt").write_text(Path("/proc/self/cmdline").read_text())
        return super().forward(output, target)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux alone")


@pytest.fixture(scope="module")
def server():
    """A server's address, and the process that it lives as long as."""
    left = {name: value for name, value in os.environ.items() if name != forked.VARIABLE}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], env=left, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        yield holder.stdout.readline().strip(), psutil.Process(holder.pid)
        holder.kill()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPTRACE_FOLDER", str(tmp_path / "locks"))
    Path("own_losses.py").write_text(OWN_LOSS)
    return tmp_path


def start(address, config, out):
    """Start a job of the workflow: a supervised training."""
    command = [*JOB, "--out", out, "--cpu", "--"]
    training = [sys.executable, "-m", "steptrace.train", str(config), "--out", out]
    return subprocess.Popen([*command, *training], env={**os.environ, forked.VARIABLE: address})


@pytest.fixture
def config_of(folder, write_config):  # noqa: ARG001 - its folder is the working directory
    def config(loss="Loss", **scale):
        scale = {"scale": asdict(ScaleConfig(name="cpu", warmup_steps=2, **scale))} if scale else {}
        return write_config({"loss": {"_target_": f"own_losses.{loss}"}, "python_path": ["."]} | scale)

    return config


@pytest.fixture
def endless(config_of):
    return config_of(timed_steps=10**8, at_most_s=1e6)


def training_of(holder):
    """The process that trains, once it does."""
    wait_for(Path("trains.txt").exists)
    (supervisor,) = next(one for one in holder.children() if "_serve" in " ".join(one.cmdline())).children()
    return supervisor, *supervisor.children()


def test_a_forked_run_trains_as_any_other(server, config_of):
    assert start(server[0], config_of(), "forked").wait(120) == 0
    assert read_status(Path("forked")).status == "ok", Path("forked", "train.log").read_text()
    assert "_serve" in Path("trains.txt").read_text()
    assert main([str(config_of()), "--out", "own"]) == 0
    losses = [read_steps(Path(out))["loss"].tolist() for out in ("forked", "own")]
    assert losses[0] == losses[1] != []


def test_without_a_server_a_job_is_a_process_of_its_own(folder):  # noqa: ARG001 - the working directory
    program = [sys.executable, "-c", "import os; print(open(f'/proc/{os.getppid()}/cmdline').read())"]
    command = [*JOB, "--out", "run", "--", *program]
    subprocess.run(command, env={**os.environ, forked.VARIABLE: "0"}, check=True, timeout=1500)
    (line,) = read_status(Path("run")).log_tail
    assert "steptrace.train.supervise" in line
    assert "_serve" not in line


def test_a_forked_run_that_fails(server, config_of):
    assert start(server[0], config_of("Lost"), "run").wait(120) == 0
    status = read_status(Path("run"))
    assert (status.status, status.exit_code) == ("failed", 1)
    assert "own_losses.Lost" in status.error


def test_a_forked_run_that_a_signal_ends(server, endless):
    job = start(server[0], endless, "run")
    training_of(server[1])[1].send_signal(signal.SIGKILL)
    assert job.wait(60) == 0
    assert (read_status(Path("run")).status, read_status(Path("run")).signal) == ("killed", 9)


@pytest.mark.parametrize("who", ["job", "workflow"])  # the second ends the server
def test_a_forked_run_ends_with_its_job_and_with_the_workflow(server, endless, who):
    job = start(server[0], endless, "run")
    processes = training_of(server[1])
    (job if who == "job" else server[1]).kill()
    wait_for(lambda: all(gone(process.pid) for process in processes))
    assert job.wait(60) != 0
    assert not Path("run/status.json").exists()
