"""What no file should hold, wherever a file is read: an error with the file's name, never a traceback, never a wait."""

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import steptrace
from steptrace.cli import main
from steptrace.documents.base import is_present, read
from steptrace.documents.comparison import Comparison
from steptrace.documents.run import RunRecord, capture_of
from steptrace.documents.summary import Summary
from steptrace.errors import SteptraceError
from steptrace.estimate import gpus
from steptrace.files import read_versioned
from steptrace.launch import capture
from steptrace.run_folder import read_sources, read_status, read_table
from steptrace.snapshot.kind import is_snapshot
from steptrace.snapshot.read import read_snapshot
from steptrace.tasks import Task
from steptrace.workflow.made import state_of

#: More than any reader descends to.
DEEP = 200_000

CONTENTS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: path.write_bytes(b""),
    "random bytes": lambda path: path.write_bytes(random.Random(0).randbytes(1000)),
    "lists too deep": lambda path: path.write_text("[" * DEEP),
    "lists in a value too deep": lambda path: path.write_text('{"a": ' + "[" * DEEP + "]" * DEEP + "}"),
    "objects too deep": lambda path: path.write_text('{"a":' * DEEP + "1" + "}" * DEEP),
    "lists in TOML": lambda path: path.write_text("a = " + "[" * DEEP),
    "a number of many digits": lambda path: path.write_text('{"schema_version": ' + "9" * 6000 + "}"),
    "a named pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path),
}
#: Those that raise an error of steptrace, or of files and values where it is documented.
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a comparison": ("comparison.json", lambda path: read(path, Comparison)),
    "a summary": ("summary.json", lambda path: read(path, Summary)),
    "a run": ("run.json", lambda path: read(path, RunRecord)),
    "a status": ("status.json", lambda path: read_status(path.parent)),
    "its version": ("summary.json", lambda path: is_present(path, Summary)),
    "a table": ("steps.parquet", read_table),
    "sources": ("sources.json", read_sources),
    "a list of files": (".steptrace.json", read_versioned),
    "GPUs": ("gpus.toml", gpus._read),
    "a request": ("request.json", capture._read),
    "a capture": ("capture0.json", lambda path: capture_of(path.with_name("trace0.json.gz"))),
    "a task's record": ("made.json", lambda path: state_of(Task(name="t", key="", attempt=1, outputs=(str(path),)))),
    "what kind of file": ("snapshot.pickle", is_snapshot),
    "a snapshot": ("snapshot.pickle", read_snapshot),
    "load_trace": ("trace.json", steptrace.load_trace),
    "load_study": ("comparison.json", steptrace.load_study),
}
COMMANDS = {
    "analyze": ["analyze", "FILE", "--out", "OUT"],
    "diff": ["diff", "FILE", "FILE", "--out", "OUT"],
    "compare": ["compare", "FILE", "FILE", "--out", "OUT"],
    "predict": ["predict", "FILE"],
}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_says_what_is_wrong(reader: str, content: str, tmp_path: Path) -> None:
    name, load = READERS[reader]
    CONTENTS[content](tmp_path / name)
    with contextlib.suppress(SteptraceError, OSError, ValueError):
        load(tmp_path / name)


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_the_file(
    command: str, content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file.json"
    out = tmp_path / "out"
    CONTENTS[content](file)
    words = {"FILE": str(file), "OUT": str(out)}
    assert main([words.get(word, word) for word in COMMANDS[command]]) == 2
    said = capsys.readouterr()
    assert (said.out, str(file) in said.err) == ("", True)
    assert not out.exists()
