"""`steptrace capture`: what it shows, whom it asks, and what it says when it cannot."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders import TraceBuilder
from steptrace.capture import Capture, Settings, ask, identity
from steptrace.capture.control import RECORDING, STEPS, Entry, entries
from steptrace.capture.plan import Answer, Process
from steptrace.cli import main
from steptrace.errors import CaptureError


def _process(pid: int, *, rank: int | None = None, job: str | None = None, host: str | None = None) -> Process:
    return Process(
        pid=pid, born=identity.born(pid), host=host or identity.host(), rank=rank,
        world_size=None if rank is None else 4, local_rank=rank, job=job, script="train.py",
        command=("python", "train.py"), since=time.time() - 3700, folder="/captures", settings=Settings(), shared=False,
    )  # fmt: skip


def _enter(control: Path, process: Process, steps: int = 0) -> Entry:
    """The entry of a process that has none of its own."""
    control.mkdir(mode=0o700, exist_ok=True)
    entry = Entry(control / f"{process.host}.{process.pid}")
    entry.path.mkdir()
    entry.make_state(shared=False).words[STEPS] = steps
    entry.write_process(process)
    return entry


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


def test_the_list_shows_who_can_be_captured(control, sleeper, capsys):
    pid, other = sleeper(), sleeper()
    _enter(control, _process(pid, rank=1, job="a"), 7)
    _enter(control, _process(other), 1234)
    _enter(control, _process(5, rank=0, job="a", host="elsewhere"))
    assert main(["capture", "--list"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["host", "pid", "rank", "steps", "running", "state", "script"],
        [identity.host(), str(other), "-", "1234", "1h01m", "ready", "train.py"],
        ["elsewhere", "5", "0", "of", "4", "0", "1h01m", "ready", "train.py"],
        [identity.host(), str(pid), "1", "of", "4", "7", "1h01m", "ready", "train.py"],
    ]


def test_what_ended_processes_left_is_removed(control, sleeper):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = _enter(control, _process(gone.pid))
    reused = _process(sleeper())
    _enter(control, Process(**{**vars(reused), "born": 1}))
    assert list(entries(control)) == []
    assert list(control.iterdir()) == []
    # An answer that somebody may still wait for stays for a while.
    dead = _enter(control, _process(gone.pid))
    dead.close()
    dead.path.mkdir(exist_ok=True)
    dead.answer(Answer("1", "recorded", ""))
    assert list(entries(control)) == []
    assert dead.read_answer("1") is not None
    assert list(entries(control)) == []
    assert list(control.iterdir()) == []


def test_who_cannot_be_asked(control, sleeper, tmp_path, capsys, monkeypatch):
    assert "no process is named" in _refused([], capsys)
    pid = sleeper()
    said = _refused([str(pid)], capsys)
    assert f"process {pid}: it cannot be captured (" in said
    assert "capture.step()" in said
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert f"process {gone.pid}: there is no such process" in _refused([str(gone.pid)], capsys)
    _enter(control, _process(pid))
    assert f"one of {pid}" in _refused([str(os.getpid())], capsys)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    assert "not an empty folder" in _refused([str(pid), "--out", str(tmp_path / "full")], capsys)
    monkeypatch.setattr("steptrace.capture.ask.os.geteuid", lambda: 12345)
    assert "it belongs to " in _refused([str(sleeper()), "--control", str(tmp_path / "none")], capsys)


def test_a_control_folder_of_others_is_not_trusted(control, capsys):
    control.mkdir(mode=0o755)
    assert "not yours alone" in _refused(["--list"], capsys)


@pytest.mark.parametrize("wrong", [["--steps", "0"], ["--warmup", "-1"], ["--timeout", "0"], ["--steps", "x"]])
def test_wrong_numbers_are_refused(wrong, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["capture", "1", *wrong])
    assert caught.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_a_process_that_does_not_step_is_asked_no_longer(control, sleeper, tmp_path, capsys):
    pid = sleeper()
    entry = _enter(control, _process(pid))
    said = _refused([str(pid), "--out", str(tmp_path / "out"), "--wait", "--timeout", "0.01"], capsys)
    assert "no step ended within 0.01 s; the request is withdrawn" in said
    assert entry.take() == []


def test_a_process_that_records_is_not_asked(control, sleeper, capsys):
    pid = sleeper()
    entry = _enter(control, _process(pid))
    (entry.path / "state").unlink()
    entry.make_state(shared=False).words[RECORDING] = 1
    assert f"process {pid}: a capture is under way" in _refused([str(pid)], capsys)
    assert main(["capture", "--list"]) == 0
    assert "recording" in capsys.readouterr().out


def test_a_capture_that_takes_longer_goes_on(control, sleeper, tmp_path):
    pid = sleeper()
    entry = _enter(control, _process(pid))
    assert main(["capture", str(pid), "--out", str(tmp_path / "out")]) == 0
    (request,) = entry.take()
    entry.answer(Answer(request.id, "recording", "steps 3 to 5"))
    (target,) = ask.capturable(control)
    ((_, answer),) = ask.wait([target], request.id, 0.01)
    assert (answer.state, answer.message) == ("open", "not done after 0.01 s (steps 3 to 5)")


def test_a_process_that_ends_meanwhile_is_told(control, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    _enter(control, _process(child.pid))
    target = ask.find(control, child.pid)
    request = ask.post([target], tmp_path, Settings(), None)
    child.communicate()
    ((_, answer),) = ask.wait([target], request, 60)
    assert (answer.state, answer.message) == ("failed", "the process ended without an answer")


def test_a_process_that_nobody_has_waited_for_has_ended(control, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    _enter(control, _process(child.pid))
    target = ask.find(control, child.pid)
    request = ask.post([target], tmp_path, Settings(), None)
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and still in the table of processes
    ((_, answer),) = ask.wait([target], request, 5)
    assert answer.state == "failed"
    assert list(entries(control)) == []
    child.wait()


def test_a_process_that_runs_another_program_now_is_not_written_to(control, sleeper, tmp_path, capsys):
    """After an exec the number, the start and the link are those of before, and the file behind it is any file."""
    pid = sleeper()
    entry = _enter(control, _process(pid))
    with (tmp_path / "precious").open("wb+") as file:
        file.write(bytes(range(100, 140)))
        file.flush()
        (entry.path / "state").unlink()
        (entry.path / "state").symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        assert f"process {pid}: it has ended, or cannot be asked" in _refused([str(pid)], capsys)
        assert main(["capture", "--list"]) == 0
        assert capsys.readouterr().out == "no process can be captured\n"
    assert (tmp_path / "precious").read_bytes() == bytes(range(100, 140))


def test_a_process_that_cannot_be_seen_but_holds_its_lock_is_left_alone(control):
    """In another container that shares the machine's name and the folder it has a number that means nothing here."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    entry = _enter(control, _process(gone.pid))
    lock = entry.lock()
    assert list(entries(control)) == []
    assert entry.path.exists()
    os.close(lock)
    assert list(entries(control)) == []
    assert not entry.path.exists()


def test_all_ranks_of_one_job_and_no_other(control, sleeper, capsys):
    pids = [sleeper() for _ in range(4)]
    for rank, pid in enumerate(pids[:2]):
        _enter(control, _process(pid, rank=rank, job="a"))
    _enter(control, _process(5, rank=2, job="a", host="elsewhere"))
    assert [target.process.rank for target in ask.find_job(control, os.getpid())] == [0, 1, 2]
    _enter(control, _process(pids[2], rank=0, job="b"))
    _enter(control, _process(pids[3]))
    assert [target.process.pid for target in ask.find_job(control, pids[1])] == [*pids[:2], 5]
    assert [target.process.pid for target in ask.find_job(control, pids[3])] == [pids[3]]
    with pytest.raises(CaptureError, match="3 jobs were started by it"):
        ask.find_job(control, os.getpid())
    assert main(["capture", "--all-ranks", str(pids[0])]) == 0
    assert "only 3 of 4 ranks can be asked from here" in capsys.readouterr().err


def test_the_step_agreed_on_lies_ahead_of_the_furthest(control, sleeper, monkeypatch):
    words = []
    for rank in range(2):
        entry = _enter(control, _process(sleeper(), rank=rank, job="a"))
        (entry.path / "state").unlink()
        words.append(entry.make_state(shared=False))

    def steps_pass(seconds: float) -> None:
        for states, start in zip(words, (100, 101), strict=True):
            states.words[STEPS] = start + int(seconds * 50)

    monkeypatch.setattr(ask.time, "sleep", steps_pass)
    steps_pass(0)
    # Ten steps in 0.2 s; another two seconds' worth and two ahead of 111.
    assert ask.agreed_step(ask.capturable(control)) == 111 + 100 + 2


def test_places_in_a_job(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    assert identity.place() == identity.Place(None, None, None, None)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert identity.place() == identity.Place(3, 4, None, f"{identity.host()}:{os.getppid()}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert identity.place().job == "slurm:7.0"
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert identity.place().job == "node1:29500:"
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")  # of each machine its own
    assert identity.place().job == f"{identity.host()}/127.0.0.1:29500:"
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert identity.place().job is None


def test_what_is_asked_for_beats_what_the_training_would_record(control, tmp_path):
    with Capture(tmp_path / "captures", settings=Settings(steps=9, shapes=False), signum=None):
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
