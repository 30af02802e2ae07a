"""The supervisor: every ending gets a status, and no child outlives it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from steptrace.record import read_status
from steptrace.train.supervise import main

# The child's death signal is set between fork and exec. A supervisor has one thread, pytest's process may have more.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

MODULE = [sys.executable, "-m", "steptrace.train.supervise"]


@pytest.fixture(autouse=True)
def locks(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPTRACE_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run0"


def supervise(out, code, *options):
    """Supervise `python -c code`; return the status it wrote."""
    assert main(["--out", str(out), "--attempt", "1", *options, "--", sys.executable, "-c", code]) == 0
    return read_status(out)


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "took too long"
        time.sleep(0.02)


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_good_run(out, capfd, monkeypatch):
    code = "import os, pathlib; print('timed 1/2'); print('other'); pathlib.Path(os.environ['OUT'], 'run.json').touch()"
    monkeypatch.setenv("OUT", str(out))
    status = supervise(out, code, "--expect", "run.json", "--label", "study/variant run0")
    assert (status.status, status.exit_code, status.signal, status.error) == ("ok", 0, None, None)
    assert status.log_tail == ("timed 1/2", "other")
    assert status.attempt == 1
    assert status.wall_s > 0
    assert (out / "train.log").read_text() == "timed 1/2\nother\n"
    captured = capfd.readouterr().err
    assert "study/variant run0: timed 1/2\n" in captured
    assert "other" not in captured


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("raise ValueError('no')", ("failed", 1, None, "ValueError: no")),
        ("import sys; sys.exit('error: the config is empty')", ("failed", 1, None, "the config is empty")),
        ("import sys; sys.exit(3)", ("failed", 3, None, "exit code 3")),
        ("raise MemoryError", ("oom", 1, None, "MemoryError")),
        ("import os; os.kill(os.getpid(), 9)", ("killed", None, 9, "ended by SIGKILL")),
        ("import os; os.kill(os.getpid(), 15)", ("killed", None, 15, "ended by SIGTERM")),
        ("import os; os.abort()", ("failed", None, 6, "ended by SIGABRT")),
        ("pass", ("failed", 0, None, "ended without an error but left no run.json")),
    ],
)
def test_every_other_ending(out, code, expected):
    status = supervise(out, code, "--expect", "run.json")
    assert (status.status, status.exit_code, status.signal, status.error) == expected


def test_the_log_keeps_all_and_the_status_its_end(out):
    code = "import sys\nfor i in range(1000): print('line', i)\nsys.stderr.write('last without end'); sys.exit(1)"
    status = supervise(out, code)
    lines = (out / "train.log").read_text().splitlines()
    assert len(lines) == 1001
    assert status.log_tail == tuple(lines[-20:])
    assert status.error == "last without end"


def test_a_command_that_does_not_exist(out):
    assert main(["--out", str(out), "--attempt", "1", "--", "/no/such/program"]) == 0
    status = read_status(out)
    assert (status.status, status.exit_code) == ("failed", None)
    assert "/no/such/program" in status.error
    assert "/no/such/program" in (out / "train.log").read_text()


def test_nothing_of_an_earlier_attempt_remains(out):
    out.mkdir()
    stale = ["run.json", "steps.parquet", "trace.json.gz", "trace.rank1.json.gz", "status.json", "summary.json"]
    for name in [*stale, "notes.txt"]:
        (out / name).write_text("earlier")
    (out / "tables" / "trace0").mkdir(parents=True)
    status = supervise(out, "raise ValueError('no')")
    assert status.status == "failed"
    assert sorted(path.name for path in out.iterdir()) == ["notes.txt", "status.json", "train.log"]


def test_failures_are_noted_under_their_key(out, tmp_path):
    file = tmp_path / "failures" / "run0.jsonl"
    supervise(out, "pass", "--failures", str(file), "--key", "abc")
    assert not file.exists()
    supervise(out, "raise ValueError", "--failures", str(file), "--key", "abc")
    supervise(out, "raise MemoryError", "--failures", str(file), "--key", "abc")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["key"], line["status"]) for line in lines] == [("abc", "failed"), ("abc", "oom")]


def test_a_run_that_takes_too_long_is_stopped(out):
    status = supervise(out, "import time; time.sleep(60)", "--timeout", "0.5")
    assert status.status == "failed"
    assert "timeout_minutes" in status.error
    assert status.wall_s < 30


def test_what_a_child_leaves_running_is_stopped_and_not_waited_for(out, tmp_path):
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid))"
    )
    status = supervise(out, code)
    assert status.status == "ok"
    assert status.wall_s < 30
    grandchild = int((tmp_path / "pid").read_text())
    wait_for(lambda: gone(grandchild))


@pytest.fixture
def running(tmp_path, out):
    """Something that starts a supervisor of a child that sleeps: its process, the supervisor's pid and the child's."""
    code = (
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(f'{{os.getppid()}} {{os.getpid()}}')\n"
        "time.sleep(60)"
    )
    command = [*MODULE, "--out", str(out), "--attempt", "1", "--device", "cpu", "--", sys.executable, "-c", code]
    starter = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:]); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", starter, *command])
    wait_for(lambda: (tmp_path / "pid").exists() and len((tmp_path / "pid").read_text().split()) == 2)
    supervisor, child = map(int, (tmp_path / "pid").read_text().split())
    yield parent, supervisor, child
    for pid in (parent.pid, supervisor, child):
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)
    parent.wait()


def test_the_child_ends_when_the_supervisors_parent_is_gone(running, out):
    parent, supervisor, child = running
    parent.kill()
    wait_for(lambda: gone(child) and gone(supervisor))
    assert not (out / "status.json").exists()  # the run counts as not begun


def test_the_child_ends_when_the_supervisor_is_killed(running, out):
    _, supervisor, child = running
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: gone(child))
    assert not (out / "status.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_child_ends_when_the_supervisor_is_told_to(running, out, number):
    _, supervisor, child = running
    os.kill(supervisor, number)
    wait_for(lambda: gone(child) and gone(supervisor))
    assert not (out / "status.json").exists()


def test_a_training_for_more_gpus_than_there_are_fails_before_it_begins(out, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    status = supervise(out, "print('trained')", "--device", "cuda", "--devices", "2")
    assert status.status == "failed"
    assert "needs 2 GPUs, and this process may use 1" in status.error
    assert "trained" not in (out / "train.log").read_text()
