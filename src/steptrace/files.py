"""Files that are there whole or not at all, and JSON with equal bytes for equal values.

A file is written beside its place and then renamed, so that a killed process leaves the old file or the new one.
"""

import errno
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from steptrace.errors import RecordError, SteptraceError

#: The key of a file's version. A file without it has version 1.
VERSION_KEY: Final = "schema_version"
#: Of files without a document of their own (`documents.base.File`).
_VERSION: Final = 1

_TEMPORARY: Final = ".steptrace."
#: In indented JSON; a text holds no line break, so this cannot be found inside one.
_LIST_OF_NUMBERS: Final = re.compile(r"\[\n\s+(-?\d[-+.,\deE\s]*?)\n\s*\]")


def working_directory() -> str | None:
    """This process's working directory; None if somebody has removed it."""
    try:
        return os.getcwd()  # noqa: PTH109 - as text
    except OSError:
        return None


def open_file(path: Path) -> BufferedReader:
    """Open a file to read its bytes. A named pipe without a writer is refused, where `open` would wait for ever.

    Raises:
        OSError: it is missing, a folder, a pipe or a device, or cannot be opened.
    """
    name = os.fspath(path)
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        if not stat.S_ISREG(mode):
            raise OSError(errno.ESPIPE, "it is a pipe or a device, not a file", name)
        return open(descriptor, "rb")  # noqa: PTH123 - a descriptor, which the caller closes
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path) -> bytes:
    """The bytes of a file; `OSError` as by `open_file`."""
    with open_file(path) as file:
        return file.read()


def decode_json(content: bytes) -> Any:
    """The value that JSON in UTF-8 holds, where NaN and infinities are numbers; `ValueError` if it is no such JSON."""
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def write_json(path: Path, value: Any) -> Path:
    """Write `value` as indented UTF-8 JSON in one step: equal values give equal bytes, keys keep their order.

    A list of numbers stands on one line, so that a series takes no line a value.
    NaN and infinity are refused (`RecordError`): they are not valid JSON, and what was not measured is None.
    """
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        text = _LIST_OF_NUMBERS.sub(_on_one_line, text)
    except (TypeError, ValueError) as error:
        raise RecordError(f"value cannot be written as JSON ({error})", where=path, expected="plain data") from error
    write_text(path, text)
    return path


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 in one step; undecodable bytes of a command line become `?`."""
    replace_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8", errors="replace"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` in one step, so that nobody reads half of it."""
    replace_atomically(path, lambda temporary: temporary.write_bytes(content))


def read_json(path: Path) -> Any:
    """The JSON value in `path`; `RecordError` if the file is missing or is not JSON."""
    try:
        return decode_json(read_bytes(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise missing_file(path) from error
    except (OSError, ValueError) as error:
        raise RecordError(f"file is not readable JSON ({error})", where=path) from error


def write_versioned(path: Path, content: Mapping[str, Any], version: int = _VERSION) -> Path:
    """`write_json` of a JSON object without a document of its own, with the version of such files."""
    return write_json(path, versioned(content, version))


def versioned(content: Mapping[str, Any], version: int = _VERSION) -> dict[str, Any]:
    """A JSON object with the version of files that have no document of their own."""
    return {VERSION_KEY: version, **content}


def read_versioned(path: Path, version: int = _VERSION) -> dict[str, Any]:
    """What `write_versioned` wrote, without its version.

    Raises:
        RecordError: the file is missing, is no JSON object, or of another version.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise RecordError("file holds no JSON object", where=path)
    check_version(content.pop(VERSION_KEY, 1), path, version)
    return content


def check_version(version: object, path: Path, expected: int = _VERSION, again: str = "make the file again") -> None:
    """Refuse a file of another version than this steptrace reads.

    Args:
        version: what the file says.
        path: the file, for the message.
        expected: what is read.
        again: how to make the file again.

    Raises:
        RecordError: it is not `expected`.
    """
    if type(version) is int and version == expected:
        return
    is_newer = type(version) is int and version > expected
    raise RecordError(
        f"file has version {str(version)[:20]}, but this steptrace reads version {expected}",
        where=path,
        next_step=f"update steptrace, which is older than the file; or {again}"
        if is_newer
        else f"{again}; or read it with the steptrace that wrote it",
    )


def replace_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then rename it to `path`. The folder is made if missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        temporary = temporary_file(path.parent)
        try:
            write(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an `OSError` the name of the file that is being written: a full disk's has none, or a temporary one."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # it holds a text alone, which a name would replace
            raise OSError(errno.EIO, str(error), str(path)) from error
        if error.filename is None or Path(os.fsdecode(error.filename)).name.startswith(_TEMPORARY):
            error.filename = str(path)
            error.filename2 = None
        raise


def temporary_file(folder: Path) -> Path:
    """A new empty file in `folder`, under a name that nobody can guess, so nobody can plant a file or link there.

    Its permissions are those of any new file, so that it can be renamed to a result.
    """
    path = folder / f"{_TEMPORARY}{os.urandom(8).hex()}.tmp"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    return path


def scratch_folder(inside: Path | None = None) -> "tempfile.TemporaryDirectory[str]":
    """A new folder that only this user can enter, removed with all that is in it at the end of a `with` block.

    Args:
        inside: where it is made; default: where TMPDIR says.
    """
    return tempfile.TemporaryDirectory(
        prefix=".steptrace-" if inside else "steptrace-", dir=inside, ignore_cleanup_errors=True
    )


def remove_tree(folder: Path) -> None:
    """Remove a folder of our own with all that is in it; what cannot be removed stays. A symlink is not followed."""
    shutil.rmtree(folder, ignore_errors=True)


def user_folder() -> Path:
    """This user's folder for locks and what processes ask each other, the same in every shell and job.

    The variable STEPTRACE_FOLDER may name another one.

    Neither TMPDIR nor XDG_RUNTIME_DIR is used: they differ between a login shell, a cluster job and a service, and the
    latter is removed at logout, which a training outlives.

    Raises:
        SteptraceError: somebody else has made it, or may enter it.
    """
    return private_folder(Path(os.environ.get("STEPTRACE_FOLDER") or f"/tmp/steptrace-{os.geteuid()}"))


def private_folder(folder: Path) -> Path:
    """Make `folder` with mode 0700 if it is missing, and return it.

    Raises:
        SteptraceError: it is a link, another user's, or open to others.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        expected = "a folder that you own, with mode 0700"
        raise SteptraceError("folder is not private", where=folder, expected=expected, next_step="correct or remove it")
    return folder


def _on_one_line(match: re.Match[str]) -> str:
    return f"[{' '.join(match[1].split())}]"


def missing_file(path: Path) -> RecordError:
    """What to raise where a run's file is not there."""
    return RecordError(
        "file is missing",
        where=path,
        next_step=f"remove {path.parent} and run the study again, or read its log for why",
    )
