"""Traces of strangers: whatever a file holds, the outcome is figures and a page, or an error that names the file."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import hostile
from steptrace import cli
from steptrace.documents.note import Note, note
from steptrace.errors import TraceError
from steptrace.trace import event_stream
from steptrace.trace.link import read_trace
from steptrace.trace.read import read_raw


def _outcome(path: Path, out: Path) -> int:
    """The exit code of `analyze`: nothing is raised, and what is written is JSON with finite numbers."""
    code = cli.main(["analyze", str(path), "--out", str(out)])
    if code == 0:
        msgspec.json.decode((out / "summary.json").read_bytes())
        assert b"\0" not in (out / "report.html").read_bytes()
    return code


@pytest.mark.parametrize("name", hostile.CASES)
def test_a_hostile_trace_gives_figures_or_an_error(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(hostile.CASES[name])
    code = _outcome(path, tmp_path / "out")
    written = capsys.readouterr()
    assert "\x1b" not in written.out + written.err
    assert code == 0 or (code == 2 and str(path) in written.err)


def test_what_is_left_out_is_counted_in_a_warning(tmp_path: Path) -> None:
    def notes(name: str) -> list[Note]:
        path = tmp_path / "trace.json"
        path.write_bytes(hostile.CASES[name])
        return read_raw(path).notes

    def beyond(kind: str) -> Note:
        return note("impossible_events", events=1, kind=kind)

    assert notes("times near 9e15") == [beyond("call"), beyond("gpu")]
    assert notes("lengths 0 in a step") == [beyond("label")]
    assert len(notes("hundreds of categories")) == 1


@pytest.mark.parametrize("name", ["args nested 100,000 deep", "tail nested 100,000 deep"])
def test_what_is_nested_too_deep_is_left_out(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(hostile.CASES[name])
    assert "parts_left_out" in {note.code for note in read_trace(path).meta.notes}


def test_a_device_or_a_pipe_is_an_error_and_is_never_read() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb") as file:
        file.write(b"{}")
        file.flush()
        for path in (Path("/dev/zero"), Path(f"/dev/fd/{reading}")):
            with pytest.raises(TraceError, match="pipe or a device"):
                read_raw(path)


@pytest.mark.parametrize("start", [b"{", b"[", b'{"traceEvents": [', b'{"traceEvents": [{"ph": "', b'{"a": "'])
def test_text_without_end_is_refused_early(tmp_path: Path, start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte of spaces, or of one string, packs into a megabyte: here 20 MiB are not read to their end."""
    monkeypatch.setattr(event_stream, "LARGEST_TEXT", 1 << 20)
    path = tmp_path / "trace.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(start)
        for _ in range(20):
            file.write(b" " * (1 << 20))
    read: list[int] = []
    plain = event_stream.EventStream._read

    def counting(self: event_stream.EventStream, file: object) -> bytes:
        read.append(1)
        return plain(self, file)  # type: ignore[arg-type]

    monkeypatch.setattr(event_stream.EventStream, "_read", counting)
    with pytest.raises(TraceError, match=r"is longer than 1\.00 MiB"):
        read_raw(path, chunk=1 << 18)
    assert len(read) < 12


def test_a_name_that_is_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/tr\xffce.json"))
    path.write_bytes(hostile.events(hostile.KERNEL))
    assert _outcome(path, tmp_path / "out") == 0
    assert "tr\ufffdce.json" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    capsys.readouterr()


@pytest.mark.parametrize("stdout", ["full", "closed"])
def test_standard_output_that_takes_nothing(tmp_path: Path, stdout: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(hostile.events(hostile.KERNEL))
    to = ">/dev/full" if stdout == "full" else ">&-"
    command = f'"$0" -m steptrace.cli analyze "$1" --out "$2" {to}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, str(path), str(tmp_path / "out")], capture_output=True, text=True
    )
    assert done.returncode == (2 if stdout == "full" else 0)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
