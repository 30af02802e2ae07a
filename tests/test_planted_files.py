"""Machines that others use, too: what they put where steptrace keeps temporary or cached files changes nothing."""

import ast
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import steptrace
from builders import TraceBuilder, training_step
from steptrace.cli import main
from steptrace.files import replace_atomically, scratch_folder, temporary_file, write_text
from steptrace.report.page import markup
from steptrace.trace import written

PACKAGE = Path(steptrace.__file__).parent
USER = os.geteuid()
#: Names that could be guessed, in the folder for temporary files and beside a result.
SHARED = (f"_jinja2-cache-{USER}", f"steptrace-{USER}", "steptrace", "steptrace-")
BESIDE = tuple(
    name.format(result=result, pid=os.getpid())
    for result in ("summary.json", "report.html", "diff.json", "diff.html", "trace.json.gz", "tables")
    for name in (".{result}.{pid}.tmp", ".{pid}.{result}.part", ".{pid}.{result}.gz.part", ".{result}.{pid}")
)


def _as_link(place: Path, precious: Path) -> None:
    place.symlink_to(precious)


def _as_file(place: Path, _: Path) -> None:
    place.write_text("planted")
    place.chmod(0o400)


def _as_folder_of_another_user(place: Path, _: Path) -> None:
    place.mkdir(mode=0o700)
    if USER == 0:
        os.chown(place, 12345, 12345)


@pytest.mark.parametrize("plant", [_as_link, _as_file, _as_folder_of_another_user])
def test_pages_and_results_are_written_whatever_was_planted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, Path], None]
) -> None:
    shared = tmp_path / "tmp"
    out = tmp_path / "out"
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for folder in (shared, out):
        folder.mkdir()
    for place in (*(shared / name for name in SHARED), *(out / name for name in BESIDE)):
        plant(place, precious)
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    monkeypatch.setenv("STEPTRACE_FOLDER", str(shared / SHARED[1]))
    markup._environment.cache_clear()
    builder = TraceBuilder()
    training_step(builder, 0, 0)
    trace = builder.write(tmp_path / "in" / "trace.json")
    assert main(["analyze", str(trace), "--out", str(out)]) == 0
    assert main(["diff", str(trace), str(trace), "--out", str(out)]) == 0
    assert precious.read_text() == "mine"
    assert sorted(path.name for path in shared.iterdir()) == sorted(SHARED)  # nothing is left there


@pytest.mark.parametrize("plant", [_as_link, _as_file])
def test_a_trace_is_compressed_through_a_file_that_nobody_could_plant(
    tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    precious = tmp_path / "precious"
    plain = tmp_path / "plain.json"
    precious.write_text("mine")
    for name in BESIDE:
        plant(tmp_path / name, precious)
    plain.write_text('{"traceEvents": [], "traceName": "t"}')
    written.put_in_place(plain, tmp_path / "trace.json.gz")
    assert (tmp_path / "trace.json.gz").is_file()
    assert precious.read_text() == "mine"


def test_temporary_names_differ_and_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    first, second = temporary_file(tmp_path), temporary_file(tmp_path)
    (tmp_path / "other").write_text("")
    assert first != second
    assert first.stat().st_mode == (tmp_path / "other").stat().st_mode
    write_text(tmp_path / "result", "text")
    assert (tmp_path / "result").stat().st_mode == (tmp_path / "other").stat().st_mode
    with scratch_folder(tmp_path) as scratch:
        assert Path(scratch).stat().st_mode & 0o777 == 0o700


def test_a_name_of_255_bytes_can_be_written(tmp_path: Path) -> None:
    replace_atomically(tmp_path / ("x" * 255), lambda temporary: temporary.write_text("text"))
    assert [path.name for path in tmp_path.iterdir()] == ["x" * 255]


def test_temporary_files_are_made_in_one_place() -> None:
    """`files` alone; `tempfile` elsewhere, a cache of jinja2 or a name below /tmp would be a second way."""
    for path in PACKAGE.rglob("*.py"):
        if path == PACKAGE / "files.py" or "commands/init/files" in path.as_posix():
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert "tempfile" not in names, path
            text = node.value if isinstance(node, ast.Constant) else getattr(node, "attr", "")
            assert not str(text).startswith(("/tmp/", "/var/tmp/", "FileSystemBytecodeCache")), path
