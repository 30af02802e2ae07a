"""Opens a trace file and unpacks it: plain, gzipped, or the only trace in a zip archive. Its content says which."""

import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from isal import igzip, isal_zlib

from steptrace import format as fmt
from steptrace.errors import TraceError
from steptrace.files import open_file
from steptrace.trace.decode import path_text
from steptrace.trace.text import Utf8

#: The key of the events. No string can hold this text, since its quotation marks would be escaped.
EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
#: Bytes at the beginning of a file in which the key of its events is looked for.
SEARCHED: Final = 1 << 20
DAMAGED: tuple[type[Exception], ...] = (
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    cast(type[Exception], isal_zlib.error),
    zlib.error,
)
UNREADABLE: tuple[type[Exception], ...] = (OSError, EOFError, TraceError, *DAMAGED)
_UNPACKABLE: tuple[type[Exception], ...] = (*UNREADABLE, NotImplementedError, RuntimeError)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file as text in UTF-8, and unpack it, by its content and not by its name."""
    try:
        file = open_file(path)
    except FileNotFoundError as error:
        raise TraceError("no such file", where=path_text(path)) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise TraceError(f"cannot be opened ({why})", where=path_text(path)) from error
    with file:
        try:
            file.seek(0)  # fails for a pipe, from which a read might wait for ever
            beginning = file.read(4)
            file.seek(0)
        except OSError as error:  # a pipe cannot be read from its start again
            raise TraceError(f"cannot be read ({error.strerror or error})", where=path) from error
        if beginning not in (b"PK\x03\x04", b"PK\x05\x06"):
            with _unpacked(file, beginning) as unpacked:
                yield cast(BinaryIO, Utf8(unpacked))
            return
        with _only_trace(file, path) as member:
            peeked = io.BufferedReader(cast(io.RawIOBase, member))
            with _unpacked(cast(BinaryIO, peeked), peeked.peek(4)) as unpacked:
                yield cast(BinaryIO, Utf8(unpacked))


@contextmanager
def _unpacked(file: BinaryIO, beginning: bytes) -> Iterator[BinaryIO]:
    """A file, unpacked if it is gzipped."""
    if not beginning.startswith(b"\x1f\x8b"):
        yield file
        return
    with cast(BinaryIO, igzip.open(file, "rb")) as unpacked:  # type: ignore[no-untyped-call]
        try:
            beginning = unpacked.read(2)
            unpacked.seek(0)
        except UNREADABLE:
            beginning = b""  # the reader of the trace reports why
        if beginning != b"\x1f\x8b":
            yield unpacked
            return
        # Packed once more, as some web servers do.
        with cast(BinaryIO, igzip.open(unpacked, "rb")) as inner:  # type: ignore[no-untyped-call]
            yield inner


@contextmanager
def _only_trace(file: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    """The one trace in a zip archive.

    Raises:
        TraceError: it is damaged, or holds no trace or several.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if _is_file(name)]
            inside = [name for name in names if name.endswith((".json", ".json.gz"))]
            # Perfetto and others keep a trace under a name without an ending.
            inside = inside or [name for name in names if "." not in name.rsplit("/", 1)[-1]]
            if len(inside) > 1:
                inside = [name for name in inside if _holds_events(archive, name)] or inside
            if len(inside) != 1:
                held = fmt.plural(len(inside), "file") if inside else "no file"
                raise TraceError(
                    f"a zip archive with {held} that may be a trace",
                    where=path,
                    expected="one that ends in .json or .json.gz",
                    next_step="unpack it and name the trace, or the folder of all ranks' traces",
                )
            with archive.open(inside[0]) as member:
                yield cast(BinaryIO, member)
    except (
        zipfile.BadZipFile,
        zlib.error,
        NotImplementedError,
        RuntimeError,
    ) as error:  # packed or locked in other ways
        raise TraceError(f"a zip archive that cannot be read ({error})", where=path, next_step="unpack it") from error


def _is_file(name: str) -> bool:
    """Whether a name in an archive belongs to a file that the user packed: macOS adds hidden files."""
    file = name.rsplit("/", 1)[-1]
    return bool(file) and not file.startswith(".") and not name.startswith("__MACOSX/")


def _holds_events(archive: zipfile.ZipFile, name: str) -> bool:
    """Whether the first megabyte of a file in an archive holds the events' key."""
    try:
        with archive.open(name) as member:
            peeked = io.BufferedReader(cast(io.RawIOBase, member))
            with _unpacked(cast(BinaryIO, peeked), peeked.peek(4)) as unpacked:
                return EVENTS_KEY.search(unpacked.read(SEARCHED)) is not None
    except _UNPACKABLE:
        return False
