"""Trainings that take too long say where they are before they are stopped."""

import os
import signal
import subprocess
import sys
import time

import pytest

from steptrace import deadline
from steptrace.errors import SteptraceError
from steptrace.train import main

WAITING = """
import time
from steptrace.deadline import write_stacks_before_it

def next_batch():
    write_stacks_before_it(); time.sleep(600)

next_batch()
"""
IN_A_LIBRARY = """
Thread 0x00007f3521bd1b80 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 331 in _bootstrap
Current thread 0x00007f3521bd1b40 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1295 in _get_data
  File "train.py", line 9 in epoch
  File "train.py", line 30 in <module>
"""


@pytest.fixture(scope="module")
def stacks(tmp_path_factory):
    """What a program that waits writes before it is stopped, and its file."""
    file = tmp_path_factory.mktemp("waiting") / "train.py"
    file.write_text(WAITING)
    environment = os.environ | deadline.environment(0.0)
    with subprocess.Popen([sys.executable, file], env=environment, stderr=subprocess.PIPE, text=True) as program:
        lines = [program.stderr.readline()]
        while "in <module>" not in lines[-1]:
            lines.append(program.stderr.readline())
            assert lines[-1], "it ended"
        program.kill()
    assert program.wait() == -signal.SIGKILL
    return file, [line.rstrip("\n") for line in lines]


def test_the_stacks_tell_the_line_of_the_program_itself(stacks):
    file, lines = stacks
    assert deadline.stopped_at(["step 3", *lines]) == f"{file}:6 in next_batch"
    assert deadline.stopped_at(IN_A_LIBRARY.splitlines()) == "train.py:9 in epoch"


def test_output_without_stacks_tells_no_line():
    assert deadline.stopped_at([]) is None
    assert deadline.stopped_at(["Traceback (most recent call last):", '  File "train.py", line 3, in <module>']) is None


@pytest.fixture
def asked(monkeypatch):
    """The calls that have this process's stacks written."""
    calls = []
    monkeypatch.setattr(deadline.faulthandler, "dump_traceback_later", lambda *given, file: calls.append((given, file)))
    monkeypatch.setattr(deadline.os, "register_at_fork", lambda **_: None)
    for name, value in deadline.environment(1e9).items():
        monkeypatch.setenv(name, value)
    return calls


def test_a_training_has_its_stacks_written(asked, tmp_path, monkeypatch):
    def no_run(*_):
        raise SteptraceError("no")

    monkeypatch.setattr(main, "load_config", no_run)
    assert main.main([str(tmp_path), "--out", str(tmp_path), "--repeat", "0"]) == 2
    assert len(asked) == 1


def test_a_fork_of_a_training_ends_as_any_other():
    code = """
import os, sys
from steptrace.deadline import write_stacks_before_it
write_stacks_before_it()
child = os.fork()
if child == 0:
    sys.exit(3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = os.environ | deadline.environment(time.monotonic() + 600)
    # Python 3.13 takes faulthandler's thread for one that a fork may deadlock with, and warns.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    done = subprocess.run(command, env=environment, check=False, timeout=60, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")


def test_a_program_without_a_limit_is_left_alone(asked, monkeypatch):
    monkeypatch.delenv("STEPTRACE_DEADLINE")
    deadline.write_stacks_before_it()
    assert deadline.environment(None) == {}
    assert asked == []
