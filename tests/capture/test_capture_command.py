"""`steptrace capture`: what it shows, whom it asks, and what it says when it cannot."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from pathlib import Path

import pytest

from builders import TraceBuilder
from steptrace.capture import Capture, Settings
from steptrace.capture.control import Process, processes
from steptrace.cli import main
from steptrace.commands import capture as ask
from steptrace.errors import CaptureError
from steptrace.place import Place, place
from steptrace.recording import Recording

HOST = socket.gethostname()


def _process(pid: int, *, rank: int | None = None, job: str | None = None, host: str = HOST, steps: int = 0) -> Process:
    where = Place() if rank is None else Place(rank, 4, job)
    return Process(pid, where, "train.py", time.time() - 3700, "/captures", Settings(), host, steps=steps)


@pytest.fixture
def enter_process(control: Path) -> Iterator[Callable[[Process], tuple[Process, int]]]:
    """Makes the entry of a process that has none of its own, and locks it until the test is over."""
    locks = []

    def make(process: Process) -> tuple[Process, int]:
        lock = process.enter(control)
        assert lock is not None
        locks.append(lock)
        return process, lock

    yield make
    for lock in locks:
        with suppress(OSError):  # the test has done so
            os.close(lock)


@pytest.fixture
def sleeper():
    """Starts processes that do nothing until the test is over."""
    started = []

    def start() -> int:
        started.append(subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE))
        return started[-1].pid

    yield start
    for process in started:
        process.communicate()


def _refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["capture", *arguments]) == 2
    return capsys.readouterr().err


def test_the_list_shows_who_can_be_captured(enter_process, capsys):
    assert main(["capture", "--list"]) == 0
    assert capsys.readouterr().out == "no process can be captured\n"
    enter_process(_process(7, rank=1, job="a", steps=7))
    enter_process(_process(8, steps=1234))
    assert main(["capture", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["pid", "8", "7"]
    enter_process(_process(5, rank=0, job="a", host="elsewhere"))
    assert main(["capture", "--list"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["host", "pid", "rank", "steps", "running", "state", "script"],
        [HOST, "8", "-", "1234", "1h01m", "ready", "train.py"],
        ["elsewhere", "5", "0", "of", "4", "0", "1h01m", "ready", "train.py"],
        [HOST, "7", "1", "of", "4", "7", "1h01m", "ready", "train.py"],
    ]


def test_what_ended_processes_left_is_removed(control, enter_process):
    _, lock = enter_process(_process(7))
    assert len(processes(control)) == 1
    os.close(lock)
    assert processes(control) == []
    assert list(control.iterdir()) == []


def test_a_process_that_runs_another_program_now_has_ended(control):
    """An exec keeps the process's number; the lock is released."""
    script = (
        "import os, sys\n"
        "from steptrace.capture import Capture\n"
        "capture = Capture()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "os.execv(sys.executable, [sys.executable, '-c', 'print(\"other\", flush=True); input()'])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "ready\n"
        assert [entry.pid for entry in processes(control)] == [child.pid]
        child.stdin.write("go\n")
        child.stdin.flush()
        assert child.stdout.readline() == "other\n"
        assert processes(control) == []


def test_a_child_that_outlives_its_parent_does_not_pass_for_it(control):
    script = (
        "import os, time\n"
        "from steptrace.capture import Capture\n"
        "capture = Capture()\n"
        "if os.fork() == 0:\n"
        "    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
        "os._exit(0)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, process_group=0) as child:
        assert child.stdout.readline() == b"ready\n"
        child.wait()
        assert processes(control) == []
        os.killpg(child.pid, signal.SIGKILL)


def test_a_process_that_cannot_be_captured_is_refused_with_the_reason(
    enter_process, sleeper, tmp_path, capsys, monkeypatch
):
    assert "no process is named" in _refused([], capsys)
    pid = sleeper()
    said = _refused([str(pid)], capsys)
    assert f"process {pid}: it cannot be captured" in said
    assert "capture.step()" in said
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert f"process {gone.pid}: there is no such process" in _refused([str(gone.pid)], capsys)
    enter_process(_process(pid))
    assert f"one of its children {pid}" in _refused([str(os.getpid())], capsys)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    assert "not an empty folder" in _refused([str(pid), "--out", str(tmp_path / "full")], capsys)
    assert "cannot be asked, or written" in _refused([str(pid), "--out", str(tmp_path / "full/file/out")], capsys)

    def refuse(*_: int) -> None:
        raise PermissionError

    monkeypatch.setattr("steptrace.commands.capture.os.kill", refuse)
    assert "it belongs to another user" in _refused(["1"], capsys)


def test_a_control_folder_of_others_is_not_trusted(control, capsys):
    control.mkdir(mode=0o755)
    assert "folder is not private" in _refused(["--list"], capsys)


@pytest.mark.parametrize("wrong", [["--steps", "0"], ["--warmup", "-1"], ["--timeout", "0"], ["--steps", "x"]])
def test_wrong_numbers_are_refused(wrong, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["capture", "1", *wrong])
    assert caught.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_a_process_that_does_not_step_is_asked_no_longer(enter_process, tmp_path, capsys):
    entry, _ = enter_process(_process(os.getpid()))
    said = _refused([str(os.getpid()), "--out", str(tmp_path / "out"), "--wait", "--timeout", "0.01"], capsys)
    assert "no step ended within 0.01 s; the request is withdrawn" in said
    assert entry.take() == []


def test_a_process_that_records_is_not_asked(enter_process, capsys):
    entry, _ = enter_process(_process(7))
    entry.recording = True
    entry.publish()
    assert "process 7: a capture is under way" in _refused(["7"], capsys)
    assert main(["capture", "--list"]) == 0
    assert "recording" in capsys.readouterr().out


def test_a_capture_that_takes_longer_goes_on(enter_process, control, tmp_path):
    entry, _ = enter_process(_process(7))
    asked = ask.find(control, 7)
    request = ask.post(asked, tmp_path / "out", Settings(), None)
    assert entry.take() == [request]
    assert ask.wait(asked, request, 0.01) == [("open", "not done after 0.01 s")]
    Recording(request).close("the reason")
    assert ask.wait(asked, request, 0.01) == [("refused", "the reason")]


def test_the_record_of_another_request_is_no_answer(enter_process, control, tmp_path):
    enter_process(_process(7))
    asked = ask.find(control, 7)
    Recording(ask.post(asked, tmp_path, Settings(), None)).close()
    request = ask.post(asked, tmp_path, Settings(), None)
    assert ask.wait(asked, request, 0.01)[0][1].startswith("no step ended")


def test_a_process_that_ends_meanwhile_is_told(enter_process, control, tmp_path):
    _, lock = enter_process(_process(7))
    asked = ask.find(control, 7)
    request = ask.post(asked, tmp_path, Settings(), None)
    os.close(lock)
    assert ask.wait(asked, request, 60) == [("failed", "the process ended without an answer")]


def test_all_ranks_of_one_job_and_no_other(control, enter_process, sleeper, capsys):
    pids = [sleeper() for _ in range(4)]
    for rank, pid in enumerate(pids[:2]):
        enter_process(_process(pid, rank=rank, job="a"))
    enter_process(_process(5, rank=2, job="a", host="elsewhere"))

    def found(pid: int) -> list[int]:
        return [entry.pid for entry in ask.find(control, pid, all_ranks=True)]

    assert found(os.getpid()) == [*pids[:2], 5]
    enter_process(_process(pids[2], rank=0, job="b"))
    enter_process(_process(pids[3]))
    assert found(pids[1]) == [*pids[:2], 5]
    assert found(pids[3]) == [pids[3]]
    with pytest.raises(CaptureError, match="3 jobs were started by it"):
        found(os.getpid())
    assert main(["capture", "--all-ranks", str(pids[0])]) == 0
    assert "only 3 of 4 ranks can be asked from here" in capsys.readouterr().err


def test_ranks_that_have_not_begun_begin_together(monkeypatch):
    monkeypatch.setattr(ask, "_AHEAD_S", 0.1)  # that long it waits to learn how fast they go
    assert ask.agreed_step([_process(rank, rank=rank, job="a") for rank in range(2)])[1] == 2


def test_the_step_agreed_on_lies_ahead_of_the_furthest(enter_process):
    ranks = [enter_process(_process(rank, rank=rank, job="a", steps=100 + rank))[0] for rank in range(2)]
    seen = [copy(rank) for rank in ranks]
    for rank in ranks:
        rank.step_ns = 20_000_000
        rank.publish()  # how fast they go is not known before
    by_now, step = ask.agreed_step(seen)
    assert step == 101 + 150 + 2
    assert [rank.step_ns for rank in by_now] == [20_000_000] * 2
    assert ask.agreed_step(ranks)[1] == 101 + 150 + 2  # three seconds of 50 steps a second
    ranks[0].host = "elsewhere"
    assert ask.agreed_step(ranks)[1] == 101 + 500 + 2


def test_rank_world_size_and_job_are_read_from_the_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    assert place() == Place()
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert place() == Place(3, 4, f"{HOST}:{os.getppid()}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert place().job == "slurm:7.0"
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert place().job == "node1:29500:"
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # of each machine its own
    assert place().job == f"{HOST}/127.0.0.1:29500:"
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert place().job is None


def test_options_of_the_command_override_the_settings_of_the_training(control, tmp_path):
    with Capture(tmp_path / "captures", settings=Settings(steps=9, shapes=False)):
        options = ["--warmup", "0", "--shapes", "--no-stacks"]
        assert main(["capture", str(os.getpid()), *options]) == 0
        (path,) = control.iterdir()
        (file,) = path.glob("request-*.json")
        asked = json.loads(file.read_text())
        assert asked["settings"] == {"steps": 9, "warmup": 0, "stacks": False, "shapes": True, "memory": True}
        assert Path(asked["folder"]).parent == tmp_path / "captures"


def test_a_folder_of_captures_is_not_analyzed_as_one(tmp_path, capsys):
    for name in ("1", "2"):
        TraceBuilder().write(tmp_path / "captures" / name / "trace.json.gz")
    assert main(["analyze", str(tmp_path / "captures"), "--out", str(tmp_path / "out")]) == 2
    assert f"name a sub-folder, as in {tmp_path / 'captures' / '2'} (2 folders in all)" in capsys.readouterr().err
