"""`steptrace capture`: what it shows, whom it asks, and what it says when it cannot."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders import TraceBuilder
from figures import figures_in
from steptrace.cli import main
from steptrace.commands import capture
from steptrace.engine.recording import Recording, RecordingSettings, Request
from steptrace.files import user_folder
from steptrace.launch.capture import ListeningProcess, processes, start_of


@pytest.fixture(autouse=True)
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The control folder of this test."""
    monkeypatch.setenv("STEPTRACE_FOLDER", str(tmp_path / "user"))
    return user_folder() / "capture"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does nothing until the test is over."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process


def published(pid: int, **how: object) -> ListeningProcess:
    process = ListeningProcess(pid, start_of(pid) or "", "train.py", time.time() - 3605, str(user_folder() / "traces"))
    for name, value in how.items():
        setattr(process, name, value)
    process.publish()
    return process


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["capture", *arguments]) == 2
    return capsys.readouterr().err


def test_the_list_shows_what_can_be_captured(
    sleeper: subprocess.Popen[bytes], control: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capture"]) == 0
    assert "steptrace run --capture" in capsys.readouterr().out
    published(sleeper.pid, rank=1, world_size=4, steps=7, recording=True)
    assert main(["capture"]) == 0
    head, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["pid", "rank", "steps", "running", "state", "script"]
    assert row == [str(sleeper.pid), "1", "of", "4", "7", "1", "h", "0", "min", "recording", "train.py"]
    assert figures_in(refused([str(sleeper.pid)], capsys)) == [sleeper.pid, 1]
    sleeper.communicate()
    assert processes() == []
    assert list(control.iterdir()) == []


def test_a_number_that_was_given_again_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    published(sleeper.pid, start="1")
    assert processes() == []


def test_a_process_that_cannot_be_captured_is_refused_with_the_reason(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pid = str(sleeper.pid)
    message = refused([pid], capsys)
    assert [named for named in (pid, "steptrace run --capture") if named not in message] == []
    published(sleeper.pid)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    assert "full/file: holds something" in refused([pid, "--out", str(tmp_path / "full")], capsys)
    assert "cannot be written (" in refused([pid, "--out", str(tmp_path / "full/file/out")], capsys)


def test_a_control_folder_of_others_is_not_trusted(control: Path, capsys: pytest.CaptureFixture[str]) -> None:
    control.mkdir(mode=0o755)
    assert "folder is not private" in refused([], capsys)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_withdraws_the_request(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    process = published(sleeper.pid)
    monkeypatch.setattr(time, "sleep", lambda _: signal.raise_signal(number))
    assert main(["capture", str(sleeper.pid), "--out", str(tmp_path / "out")]) == 130
    assert process.take() is None


def test_what_becomes_of_a_request(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    process = published(sleeper.pid)
    Recording(capture.post(process, tmp_path / "out", RecordingSettings())).close("an earlier one")
    request = capture.post(process, tmp_path / "out", RecordingSettings())
    assert process.take() == request
    (tmp_path / "out" / "capture.json").unlink()
    Recording(request).close("the reason")
    assert capture.wait(process, request) == ("refused", "the reason")
    other = capture.post(process, tmp_path / "other", RecordingSettings())
    sleeper.communicate()
    assert capture.wait(process, other)[0] == "failed"


@pytest.mark.parametrize("content", ["{", "[]", '{"id": "1", "folder": 3}', '{"id": "1", "settings": {"x": 1}}'])
def test_what_is_no_request_is_dropped(sleeper: subprocess.Popen[bytes], content: str) -> None:
    process = published(sleeper.pid)
    (process.path / "request.json").write_text(content)
    assert process.take() is None
    assert not (process.path / "request.json").exists()


def test_options_of_the_command(
    sleeper: subprocess.Popen[bytes], control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(sleeper.pid, folder=str(control.parent / "captures"))
    asked: list[Request] = []
    monkeypatch.setattr(capture, "wait", lambda _, request: asked.append(request) or ("recorded", ""))
    assert main(["capture", str(sleeper.pid), "--warmup", "0", "--shapes", "--no-stacks"]) == 0
    (request,) = asked
    assert request.settings == RecordingSettings(steps=3, warmup=0, stacks=False, shapes=True, memory=True)
    assert Path(request.folder).parent == control.parent / "captures"
    assert published(sleeper.pid).take() == request


def test_a_folder_of_captures_is_not_analyzed_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("1", "2"):
        TraceBuilder().write(tmp_path / "captures" / name / "trace.json.gz")
    assert main(["analyze", str(tmp_path / "captures"), "--out", str(tmp_path / "out")]) == 2
    assert str(tmp_path / "captures" / "2") in capsys.readouterr().err
