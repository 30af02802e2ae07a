"""Under `run --capture` no error of steptrace ends the program, wherever and whatever is raised."""

import sys
from pathlib import Path

import pytest

from steptrace.cli import main

#: Breaks something of steptrace at its fifth step, trains on, works for a while and ends with an exit code of its own.
PROGRAM = """
import importlib, os, signal, sys, time
import torch
import steptrace.launch.capture
module, name, error = sys.argv[1:]
steptrace.launch.capture._LOOK_NS = 0  # it looks for requests at each step

def broken(*_, **__):
    raise eval(error)

class Preempted(TimeoutError):
    pass

def preempted(number, frame):
    raise Preempted

class Handler:
    def __call__(self, number, frame):
        raise Preempted

def damage():
    *owners, last = name.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    real = getattr(owner, last)

    def signalled(*_, **__):
        setattr(owner, last, real)
        os.kill(os.getpid(), signal.SIGUSR1)
        for _ in range(1000):
            pass

    signal.signal(signal.SIGUSR1, Handler() if error == "signal of an object" else preempted)
    setattr(owner, last, signalled if error.startswith("signal") else broken)

if name.endswith("__init__"):
    damage()
weight = torch.zeros(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
loader = torch.utils.data.DataLoader(torch.zeros(40, 3), batch_size=2)
seen = 0
try:
    for step, batch in enumerate(loader):
        if step == 5 and not name.endswith("__init__"):
            damage()
        optimizer.zero_grad()
        (weight - batch).square().sum().backward()
        try:
            optimizer.step()
        except Preempted:
            if error != "signal that the program survives":
                raise
        seen += 1
except Preempted:
    sys.exit(9)
assert seen == 20
if error == "signal that the program survives":
    steps = {process.pid: process.steps for process in steptrace.launch.capture.processes()}
    sys.exit(7 if steps.get(os.getpid()) == 20 else 8)
time.sleep(0.7)
sys.exit(7)
"""


pytestmark = pytest.mark.usefixtures("forked_programs")


@pytest.fixture(autouse=True)
def _no_time_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steptrace.jobs.process._GRACE_S", 0.0)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def run(tmp_path: Path, *arguments: str) -> int:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "train.py"), *arguments]
    return main(["run", "--capture", "--out", str(tmp_path / "captures"), "--", *command])


HOOKS = "steptrace.launch.hooks"
STEPS = "steptrace.engine.steps"
CAPTURE = "steptrace.launch.capture"


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (CAPTURE, "Listener.step", "SystemExit(3)"),
        (CAPTURE, "Listener.step", "StopIteration()"),
        (CAPTURE, "Listener.step", "BaseException()"),
        (CAPTURE, "Listener.__init__", "MemoryError()"),
        (CAPTURE, "ListeningProcess.take", "RecursionError()"),
        (CAPTURE, "ListeningProcess.publish", "SystemExit(3)"),
        (HOOKS, "_is_loss", "TypeError()"),
        (HOOKS, "_batch_size", "SystemExit(3)"),
        (STEPS, "StepFinder.optimizer_begins", "ValueError()"),
        (STEPS, "StepFinder.optimizer_ends", "SystemExit(3)"),
        (STEPS, "StepFinder.backward_ends", "KeyError()"),
    ],
)
def test_the_program_ends_as_it_would_alone(tmp_path: Path, module: str, name: str, error: str) -> None:
    assert run(tmp_path, module, name, error) == 7


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (STEPS, "StepFinder.optimizer_begins", "signal"),
        (STEPS, "StepFinder.optimizer_begins", "signal of an object"),
        (CAPTURE, "ListeningProcess.publish", "signal"),
        (CAPTURE, "Path.is_file", "signal"),
    ],
)
def test_an_error_that_a_signal_handler_of_the_program_raises_in_code_of_ours_reaches_the_program(
    tmp_path: Path, module: str, name: str, error: str
) -> None:
    assert run(tmp_path, module, name, error) == 9


def test_a_program_that_survives_an_error_of_its_signal_handler_can_still_be_captured(tmp_path: Path) -> None:
    assert run(tmp_path, CAPTURE, "ListeningProcess.publish", "signal that the program survives") == 7
