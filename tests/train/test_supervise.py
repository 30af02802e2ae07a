"""The supervisor: every ending gets a status, and no child outlives it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from steptrace.record import read_status, write_status
from steptrace.train.process_tree import WORKDIR_VARIABLE, end_leftovers
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


def test_the_status_of_a_run_that_ended_well(out, capfd, monkeypatch):
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
def test_the_status_of_runs_that_failed_were_killed_or_left_no_result(out, code, expected):
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
    (out / "ranks" / "1").mkdir(parents=True)
    status = supervise(out, "raise ValueError('no')")
    assert status.status == "failed"
    assert sorted(path.name for path in out.iterdir()) == [".lock", "notes.txt", "status.json", "train.log"]


def test_failures_are_noted_under_their_key(out, tmp_path):
    file = tmp_path / "failures" / "run0.jsonl"
    supervise(out, "pass", "--failures", str(file), "--key", "abc")
    assert not file.exists()
    (out / "status.json").unlink()  # as Snakemake does before it repeats a run
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


#: A training with a process in a session of its own, which ends by itself in a minute; their numbers go to a file.
TRAINING = """
import os, subprocess, sys, time
sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
apart = subprocess.Popen(sleep, start_new_session=True)
with open(FILE + ".new", "w") as file:
    file.write(f"{os.getppid()} {os.getpid()} {apart.pid}")
os.rename(FILE + ".new", FILE)
time.sleep(60)
"""


@pytest.fixture
def running(tmp_path, out):
    """A supervised training: processes by name. `parent` is what has started the supervisor."""
    code = TRAINING.replace("FILE", repr(str(tmp_path / "pids")))
    command = [*MODULE, "--out", str(out), "--attempt", "1", "--device", "cpu", "--", sys.executable, "-c", code]
    starter = "import subprocess, sys, time; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); time.sleep(60)"
    parent = subprocess.Popen([sys.executable, "-c", starter, *command], stdout=subprocess.PIPE)
    supervisor = int(parent.stdout.readline())
    wait_for((tmp_path / "pids").exists)
    guard, child, apart = map(int, (tmp_path / "pids").read_text().split())
    yield {"parent": parent.pid, "supervisor": supervisor, "guard": guard, "child": child, "apart": apart}
    for pid in (parent.pid, supervisor, guard, child, apart):
        if not gone(pid):
            os.kill(pid, signal.SIGKILL)
    parent.communicate()


@pytest.mark.parametrize("killed", ["parent", "supervisor"])
def test_nothing_is_left_when_one_process_is_killed(running, out, killed):
    os.kill(running[killed], signal.SIGKILL)
    rest = [pid for name, pid in running.items() if name not in ("parent", killed)]
    wait_for(lambda: all(map(gone, rest)))
    assert not (out / "status.json").exists()  # the run counts as not begun


@pytest.mark.parametrize("killed", ["guard", "child"])
def test_a_killed_training_has_a_status_and_leaves_nothing(running, out, killed):
    os.kill(running[killed], signal.SIGKILL)
    wait_for((out / "status.json").exists)
    assert (read_status(out).status, read_status(out).signal) == ("killed", 9)
    assert all(gone(running[name]) for name in ("guard", "child", "apart"))


def test_under_nohup_a_run_outlives_the_terminal(out, tmp_path):
    begun = tmp_path / "begun"
    code = f"import pathlib, time; pathlib.Path({str(begun)!r}).touch(); time.sleep(1)"
    options = ["--out", str(out), "--attempt", "1", "--", sys.executable, "-c", code]
    supervisor = subprocess.Popen(["nohup", *MODULE, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(begun.exists)
    supervisor.send_signal(signal.SIGHUP)
    assert supervisor.wait(60) == 0
    assert read_status(out).status == "ok"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_supervisor_is_told_to_end(running, out, number):
    os.kill(running["supervisor"], number)
    wait_for(lambda: all(gone(running[name]) for name in ("supervisor", "guard", "child", "apart")))
    assert not (out / "status.json").exists()


def test_a_process_in_a_session_of_its_own_does_not_survive_the_time_limit(out, tmp_path):
    status = supervise(out, TRAINING.replace("FILE", repr(str(tmp_path / "pids"))), "--timeout", "0.5")
    assert "timeout_minutes" in status.error
    assert all(map(gone, map(int, (tmp_path / "pids").read_text().split())))


def test_a_supervisor_whose_parent_ended_before_it_was_ready_starts_nothing(out):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    options = ["--out", str(out), "--attempt", "1", "--parent", str(ended.pid), "--", sys.executable, "-c", ""]
    assert subprocess.run([*MODULE, *options], check=False, timeout=600).returncode == 128 + signal.SIGTERM
    assert not out.exists()


def test_a_second_attempt_waits_until_the_first_has_ended(running, out):
    log = (out / "train.log").stat().st_ino
    command = [*MODULE, "--out", str(out), "--attempt", "2", "--", sys.executable, "-c", "print('second')"]
    second = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert (
        second.stderr.readline() == f"run0: waits for another attempt at this run (process {running['supervisor']})\n"
    )
    assert (out / "train.log").stat().st_ino == log
    assert not gone(running["child"])
    os.kill(running["supervisor"], signal.SIGKILL)  # what it has started may be gone a moment later
    assert second.wait(timeout=600) == 0
    second.stderr.close()
    assert (read_status(out).status, read_status(out).attempt) == ("ok", 2)
    assert all(gone(running[name]) for name in ("guard", "child", "apart"))


def test_a_failure_shows_the_log_where_asked(out, capfd):
    supervise(out, "print('the whole'); print('complaint'); raise SystemExit(1)", "--show-log")
    assert "the whole\ncomplaint\n" in capfd.readouterr().err


def test_jobs_of_an_earlier_workflow_are_ended_and_no_others(tmp_path):
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    marks = ({WORKDIR_VARIABLE: str(tmp_path)}, {WORKDIR_VARIABLE: str(tmp_path / "other")})
    slurm = {**marks[0], "SLURM_JOB_ID": "17"}
    ours, other, slurms = (
        subprocess.Popen(sleep, env=os.environ | mark, start_new_session=True) for mark in (*marks, slurm)
    )
    try:
        wait_for(lambda: end_leftovers(tmp_path) == 1)  # once it has its environment
        assert ours.wait(timeout=600) == -signal.SIGKILL
        assert (other.poll(), slurms.poll()) == (None, None)
    finally:
        for process in (ours, other, slurms):
            process.kill()
            process.wait()


def test_a_training_for_more_gpus_than_there_are_fails_before_it_begins(out, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    status = supervise(out, "print('trained')", "--device", "cuda", "--devices", "2")
    assert status.status == "failed"
    assert "needs 2 GPUs, and this process may use 1" in status.error
    assert "trained" not in (out / "train.log").read_text()


@pytest.mark.parametrize(
    ("key", "status", "left", "taken"),
    [("k", "ok", True, True), ("j", "ok", True, False), ("k", "failed", True, False), ("k", "ok", False, False)],
)
@pytest.mark.parametrize("name", ["status.json", "status.finished.json"])
def test_a_run_that_has_ended_is_taken_as_it_is_if_it_is_the_very_same(out, name, key, status, left, taken):
    code = f"import pathlib; pathlib.Path({str(out)!r}, 'run.json').touch()"
    supervise(out, code, "--key", "k", "--expect", "run.json")
    before = read_status(out)
    assert before.key == "k"
    write_status(out, replace(before, status=status, started_at="before"))
    (out / "status.json").rename(out / name)
    if not left:
        (out / "run.json").unlink()
    after = supervise(out, code, "--key", key, "--expect", "run.json")
    assert (after.status, after.started_at == "before") == ("ok", taken)
    assert not (out / "status.finished.json").exists()


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("import steptrace.train.supervise", ("msgspec", "dataclasses", "subprocess")),
        ("from steptrace.workflow.partial import *\nwrite_partial_pages(Path(), Path())", ("pandas", "jinja2")),
    ],
)
def test_what_every_job_and_every_end_of_a_workflow_starts_imports_little(code, missing, tmp_path):
    """The client of a fork server, and the pages of what is half done where nothing is."""
    blocked = f"import sys\nfor name in {missing}: sys.modules[name] = None\n"
    done = subprocess.run([sys.executable, "-c", blocked + code], cwd=tmp_path, check=False, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
