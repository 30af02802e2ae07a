"""How commands and the workflow's programs end: full disks, Ctrl-C, closed output, and names that are no text."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builders import TraceBuilder, training_step
from figures import figures_in
from steptrace.cli import main
from steptrace.commands.console import Progress
from steptrace.documents import table
from steptrace.errors import SteptraceError, code_of
from steptrace.files import replace_atomically, write_json
from steptrace.trace.files import find_traces


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    training_step(builder, 0, 0)
    return builder.write(tmp_path / "in" / "trace.json")


def fails(number: int, name: str | None = None) -> Callable[..., int]:
    def main(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number), *([] if name is None else [name]))

    return main


def test_each_error_of_the_system_is_one_message_with_the_name_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(fails(errno.ENOSPC, "/data/summary.json")) == 2
    assert (
        capsys.readouterr().err
        == "error: /data/summary.json: No space left on device\n  next: free space on this disk\n"
    )
    assert code_of(fails(errno.EACCES, "/data/x")) == 2
    assert "/data/x: Permission denied" in capsys.readouterr().err


def test_an_interrupt_and_an_error_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    def wrong() -> int:
        raise SteptraceError("is wrong", where="here")

    assert code_of(interrupted) == 130
    assert code_of(wrong) == 2
    assert capsys.readouterr().err == "error: interrupted\nerror: here: is wrong\n"


@pytest.mark.parametrize("what", ["tables", "json"])
def test_a_full_disk_during_an_analysis_names_the_file(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """Arrow's errors have no name at all, and those of a write have none either."""
    if what == "tables":
        monkeypatch.setattr("pyarrow.parquet.write_table", fails(errno.ENOSPC))
    else:
        monkeypatch.setattr(Path, "write_bytes", fails(errno.ENOSPC))
    assert main(["analyze", str(trace), "--out", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert "No space left on device" in errors
    assert (".parquet:" if what == "tables" else "/step.json.gz:") in errors  # whichever is written first
    assert "next: free space" in errors
    assert not (tmp_path / "out").exists() or what == "json"


def test_a_temporary_name_is_never_told(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"result\.json") as caught:
        replace_atomically(tmp_path / "result.json", lambda path: fails(errno.EIO, str(path))())
    assert caught.value.filename == str(tmp_path / "result.json")


NAMES = [b"plain", "Gr\u00f6\u00dfe".encode(), b"\xff\xfe", b"\xed\xb2\x80", b"a{b}", b'it\'s "quoted"', b"-dash"]


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C", "PYTHONUTF8": "0"},
        pytest.param({"LC_ALL": "C"}, marks=pytest.mark.slow),
        pytest.param({"LC_ALL": "C.UTF-8"}, marks=pytest.mark.slow),
    ],
)
def test_names_that_are_no_text_can_be_read_and_written(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch, locale: dict[str, str]
) -> None:
    for name, value in locale.items():
        monkeypatch.setenv(name, value)
    names = [os.fsdecode(name) for name in NAMES]
    for name in names:
        (tmp_path / f"{name}.json").write_bytes(trace.read_bytes())
    script = (
        "import sys\nfrom steptrace.cli import main\n"
        "for name in sys.argv[1:]:\n"
        "    assert main(['analyze', '--out', './' + name, '--', name + '.json']) == 0, name\n"
        "    assert main(['analyze', '--json', '--out', './' + name, '--', name + '.json']) == 0, name\n"
        "    assert main(['diff', '--out', './' + name, '--', name + '.json', name + '.json']) == 0, name\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *names], cwd=tmp_path, capture_output=True, check=False, timeout=1500
    )
    assert done.returncode == 0, done.stderr
    assert all((tmp_path / name / "report.html").is_file() for name in names)


def test_a_table_under_a_name_that_is_no_text(tmp_path: Path) -> None:
    import pandas as pd

    path = tmp_path / os.fsdecode(b"\xff.parquet")
    table.write_table(pd.DataFrame({"a": [1, 2]}), path)
    assert table.read_table(path)["a"].tolist() == [1, 2]


@pytest.mark.parametrize("arguments", [["analyze", "missing.json", "--out", "x"], ["diff"], ["nothing"]])
def test_with_standard_error_closed_errors_are_not_printed_on_standard_output(
    tmp_path: Path, arguments: list[str]
) -> None:
    command = f'exec "{sys.executable}" -m steptrace.cli "$@" 2>&-'
    done = subprocess.run(
        ["sh", "-c", command, "sh", *arguments], cwd=tmp_path, stdout=subprocess.PIPE, check=False, timeout=1500
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_command_says_so_in_one_line(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom steptrace import cli\nfrom steptrace.commands import doctor\n"
        "doctor.run = lambda _: os.kill(os.getpid(), signal.SIGINT) or 0\n"
        "sys.exit(cli.main(['doctor']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, check=False, timeout=1500)
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, b"steptrace: error: interrupted\n")


def test_a_pipe_is_not_waited_for(tmp_path: Path, trace: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(SteptraceError, match="is a pipe"):
        find_traces([tmp_path / "pipe.json"])
    (tmp_path / "pipe.json").rename(trace.with_name("pipe-trace.json"))
    assert find_traces([trace.parent]) == [trace]  # a folder's pipes do not count


def test_progress_is_said_while_there_is_some_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("steptrace.commands.console.time.monotonic", lambda: now)
    progress = Progress("traces read")
    for done in range(1, 2001):
        now += 0.5
        progress(done, 2000)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 199
    assert figures_in(lines[99]) == [1000, 2000, 8]


def test_minutes_are_warned_of_at_once_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr("steptrace.commands.console.time.monotonic", lambda: now)
    for total, warned in ((2_000, 1), (100, 0)):
        progress = Progress("traces read", shorter="name fewer")
        now += 60  # a process starts; the others do not take so long
        for done in range(1, total + 1):
            now += 0.5
            progress(done, total)
            if done == 5:
                assert capsys.readouterr().err.count("name fewer") == warned
        assert "name fewer" not in capsys.readouterr().err


def test_json_of_a_name_that_is_no_text_can_be_written(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"path": os.fsdecode(b"\xff")})
