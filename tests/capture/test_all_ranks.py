"""`steptrace capture --all-ranks`: every rank of a job records the same steps into one folder."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from steptrace.cli import main
from steptrace.commands import capture as command
from steptrace.engine.recording import RecordingSettings, Request
from steptrace.launch import capture as capture_mode
from steptrace.launch.capture import ALL_RANKS_FILE, JobRequest, Listener, ListeningProcess, job_of, processes

RANK_PROGRAM = """
import sys, time
import torch
from steptrace.launch.capture import Listener

listener = Listener(sys.argv[1])
while True:
    torch.ones(4).sum()
    time.sleep(0.02)
    listener.step()
"""
JOB = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1234"}


@pytest.fixture(autouse=True)
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control folder of this test."""
    monkeypatch.setenv("STEPTRACE_FOLDER", str(tmp_path / "user"))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[list[ListeningProcess]]:
    """Two ranks that have begun to step."""
    traces = tmp_path / "captures"
    traces.mkdir()
    command = [sys.executable, "-c", RANK_PROGRAM, str(traces)]
    ranks = [subprocess.Popen(command, env={**os.environ, **JOB, "RANK": str(rank)}) for rank in range(2)]
    try:
        while len(running := [one for one in processes() if one.step_s]) < len(ranks):
            assert all(rank.poll() is None for rank in ranks)
            time.sleep(0.05)
        yield running
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_all_ranks_record_the_same_steps(
    job: list[ListeningProcess], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all"
    options = ["--all-ranks", "--steps", "2", "--warmup", "1", "--no-stacks", "--out", str(out), "--json"]
    assert main(["capture", str(job[0].pid), *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {rank["state"] for rank in answer["ranks"].values()} == {"recorded"}
    assert sorted(path.name for path in out.iterdir()) == [
        "capture.json",
        "capture.rank1.json",
        "trace.json.gz",
        "trace.rank1.json.gz",
    ]
    records = [json.loads((out / name).read_text()) for name in ("capture.json", "capture.rank1.json")]
    assert [record["rank"] for record in records] == [0, 1]
    assert records[0]["steps"] == records[1]["steps"]
    assert not (tmp_path / "captures" / ALL_RANKS_FILE).exists()


def test_one_process_is_no_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listener = Listener(str(tmp_path))
    listener.step()
    assert main(["capture", str(os.getpid()), "--all-ranks"]) == 2
    assert "--all-ranks needs one of several ranks" in capsys.readouterr().err
    listener.close()


@pytest.fixture
def rank_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """This process as rank 1 of a job, which looks for requests at each step."""
    monkeypatch.setattr(capture_mode, "_LOOK_NS", 0)
    for name, value in {**JOB, "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    listener = Listener(str(tmp_path))
    listener.step()
    yield listener
    listener.close()


def ask(folder: Path, *, at_step: int, job: str, name: str = "1") -> Path:
    """Leave a request to all ranks; returns the folder for traces."""
    process = ListeningProcess(os.getpid(), "", "", 0.0, str(folder), steps=at_step, job=job)
    settings = RecordingSettings(steps=1, warmup=0, stacks=False, shapes=False, memory=False)
    process.post_to_all(Request(name, str(folder / f"traces{name}"), settings))
    return folder / f"traces{name}"


def test_a_rank_that_comes_too_late_says_so(rank_1: Listener, tmp_path: Path) -> None:
    for _ in range(9):
        rank_1.step()
    out = ask(tmp_path, at_step=3, job=job_of({**os.environ}))
    rank_1.step()
    record = json.loads((out / "capture.rank1.json").read_text())
    assert record["state"] not in ("recorded", "partial")
    assert "steps after the one to start at" in record["message"]


@pytest.mark.parametrize("kind", ["of another job", "of another start", "no request"])
def test_what_does_not_concern_a_rank_is_passed_over(rank_1: Listener, tmp_path: Path, kind: str) -> None:
    if kind == "of another job":
        ask(tmp_path, at_step=2, job="another")
    elif kind == "no request":
        (tmp_path / ALL_RANKS_FILE).write_text('{"id": 7}')
    else:
        rank_1.close()
        ask(tmp_path, at_step=2, job=job_of({**os.environ}))
        rank_1 = Listener(str(tmp_path))
    for _ in range(5):
        rank_1.step()
    assert not rank_1.recording
    assert list(tmp_path.glob("traces*")) == []
    rank_1.close()


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"id":', b"\xff\xfe", b"[]", b'{"settings": 3}'])
def test_a_damaged_request_does_not_keep_a_rank_from_starting(rank_1: Listener, tmp_path: Path, content: bytes) -> None:
    (tmp_path / ALL_RANKS_FILE).write_bytes(content)
    rank_1.step()
    rank_1.close()
    again = Listener(str(tmp_path))
    again.step()
    assert not again.recording
    again.close()


def test_a_named_pipe_in_place_of_a_request_does_not_stop_a_rank(rank_1: Listener, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ALL_RANKS_FILE)
    rank_1.step()
    assert not rank_1.recording


def test_sigterm_withdraws_the_request(job: list[ListeningProcess], tmp_path: Path) -> None:
    out = tmp_path / "all"
    call = [sys.executable, "-m", "steptrace.cli", "capture", str(job[0].pid), "--all-ranks", "--out", str(out)]
    asking = subprocess.Popen([*call, "--steps", "500"])
    request = tmp_path / "captures" / ALL_RANKS_FILE
    while not request.exists():
        assert asking.poll() is None
        time.sleep(0.02)
    asking.terminate()
    assert asking.wait() != 0
    assert not request.exists()


def test_ranks_that_all_pass_a_request_over_are_not_waited_for(
    rank_1: Listener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They go on, so that the wait would last as long as their training."""
    asked = ListeningProcess.post_to_all

    def passed_over(process: ListeningProcess, request: Request) -> JobRequest:
        to_all = asked(process, request)
        rank_1._seen = request.id
        for _ in range(to_all.at_step + to_all.settings.warmup + to_all.settings.steps + 1):
            rank_1.step()
        return to_all

    monkeypatch.setattr(ListeningProcess, "post_to_all", passed_over)
    monkeypatch.setattr(command, "_WAIT_FOR_OTHERS_S", 0.2)
    assert main(["capture", str(os.getpid()), "--all-ranks", "--steps", "1", "--out", str(tmp_path / "all")]) == 2
    assert "no answer of 2 ranks: 0, 1" in capsys.readouterr().err
    assert not (tmp_path / ALL_RANKS_FILE).exists()


@pytest.mark.usefixtures("rank_1")
def test_a_request_that_no_rank_would_read_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as where the folder's server gives all files of root to another user."""
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    assert main(["capture", str(os.getpid()), "--all-ranks", "--out", str(tmp_path / "all")]) == 2
    assert str(tmp_path / ALL_RANKS_FILE) in capsys.readouterr().err
    assert not (tmp_path / ALL_RANKS_FILE).exists()


def test_the_request_of_another_capture_is_not_withdrawn(rank_1: Listener, tmp_path: Path) -> None:
    ask(tmp_path, at_step=3, job=job_of({**os.environ}), name="first")
    ask(tmp_path, at_step=3, job=job_of({**os.environ}), name="second")
    for name, left in (("first", True), ("second", False)):
        rank_1._process.withdraw_from_all(Request(name, str(tmp_path), RecordingSettings()))
        assert (tmp_path / ALL_RANKS_FILE).exists() == left
