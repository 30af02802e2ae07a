"""Trace files: which lie behind paths, and one as a stream of metadata and events, plain, gzipped or in a zip archive.

Kineto writes one JSON object, `{..., "traceEvents": [{"ph": ...}, ...], ...}`; Chrome's format also allows the bare
array. Neither is ever in memory whole.
"""

import codecs
import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from isal import igzip, isal_zlib

from steptrace import format as fmt
from steptrace.documents.kinds import kind_of
from steptrace.errors import TraceError, TruncatedTraceError
from steptrace.trace.decode import decode_object, is_truncated, path_text, why_no_event
from steptrace.trace.foreign import foreign
from steptrace.trace.mend import mend


def find_traces(paths: Iterable[str | Path]) -> list[Path]:
    """The trace files behind files and folders, in the order given; those of a folder by name.

    A folder's `.json` and `.json.gz` files count if they hold `traceEvents` near their beginning or have "trace" in
    their name; sub-folders are not searched. Each file is listed once.

    Raises:
        TraceError: a path does not exist, or a folder holds no trace.
    """
    files: dict[Path, Path] = {}
    for path in map(Path, paths):
        if _kind(path) == "folder":
            names = sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz")) and p.is_file())
            inside = [p for p in names if not p.name.startswith(".")]  # such as the list of what a command wrote
            traces = [p for p in inside if looks_like_trace(p)]
            if not traces:
                raise TraceError(
                    "a folder without traces",
                    where=path,
                    expected='files ending in .json or .json.gz that hold "traceEvents"',
                    next_step=_below(path),
                )
            files.update({p.resolve(): p for p in traces if p.resolve() not in files})
        elif _kind(path) == "other":
            raise TraceError(
                "is a pipe or a device, not a file",
                where=path_text(path),
                expected="a trace file, which is read more than once",
                next_step="write it to a file first",
            )
        elif _kind(path) == "file":
            files.setdefault(path.resolve(), path)
        else:
            raise TraceError(
                "there is no such file or folder", where=path_text(path), expected="a trace file, or a folder of them"
            )
    return list(files.values())


def _kind(path: Path) -> str | None:
    """`folder`, `file`, `other` such as a pipe, or None, also for a name that the system rejects."""
    try:
        if path.is_dir():
            return "folder"
        return "file" if path.is_file() else "other" if path.exists() else None
    except (OSError, ValueError):
        return None


def _below(path: Path) -> str | None:
    """The next step for a folder with traces only in its sub-folders, such as one of several captures."""
    files = (file for end in (".json", ".json.gz") for file in sorted(path.glob(f"*/*{end}")))
    folders = sorted({str(file.parent) for file in files if looks_like_trace(file)})
    if not folders:
        return None
    more = f" ({len(folders)} folders in all)" if len(folders) > 1 else ""
    return f"name a sub-folder, as in {folders[-1]}{more}"


#: Bytes read at a time. Larger chunks need more memory, and are slower, since they exceed the processor's cache.
CHUNK = 1 << 20
#: Most bytes of an event, and of the metadata before or after the events, which must be in memory at once.
LARGEST_TEXT: Final = 32 << 20

_DAMAGED: tuple[type[Exception], ...] = (
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    cast(type[Exception], isal_zlib.error),
    zlib.error,
)
_UNREADABLE: tuple[type[Exception], ...] = (OSError, EOFError, TraceError, *_DAMAGED)
#: The events' key; strings cannot hold this, since the quotation mark would be escaped.
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
#: Bytes of it, with room for spaces.
_KEY_BYTES: Final = 64
#: Two events.
_SEVERAL: Final = re.compile(rb'"ph"\\s*+:.*?"ph"\\s*+:', re.DOTALL)


class EventStream:
    """The events and metadata of one trace file.

    `metadata` holds the object's other keys; `head` is the text up to the array's opening bracket, `tail` what follows
    its closing one. All three are complete once `read` is. `mended` counts the texts that were no JSON and could be
    repaired.

    Raises:
        TraceError: the file is missing, empty, damaged, no JSON, or JSON that is no trace.
        TruncatedTraceError: the file ends before its JSON (or its gzip stream) does.
    """

    def __init__(self, path: Path, *, chunk: int = CHUNK) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self._chunk = chunk
        self.head = b""
        self.tail = b""
        self._bare_array = False
        self.mended = 0
        self._not_mended = 0

    def read(self, take: Callable[[bytes], tuple[int, bool]]) -> None:
        """Hand the events to `take`, a piece of text at a time.

        `take` gets the text of the array from where it stopped before, and returns how much of that it took, up to the
        end of an event, and whether the array has ended.
        """
        with _open(self.path) as file:
            buffer = self._skip_to_events(file)
            while True:
                taken, ended = take(buffer)
                buffer = buffer[taken:]
                if not ended and len(buffer) >= self._not_mended and _SEVERAL.search(buffer):
                    # Several events are left, so the first one is damaged: it does not only lack its end.
                    if (mended := self._mend(buffer)) is not None:
                        buffer = mended
                        continue
                    if (why := why_no_event(buffer)) is not None:
                        raise self._damaged(why)
                    self._not_mended = 2 * len(buffer)
                more = self._read(file)
                if ended:
                    break
                if not more and (mended := self._mend(buffer)) is not None:
                    buffer = mended
                    continue
                if not more or len(buffer) > self._longest:
                    self._stopped(buffer, at_end=not more)
                buffer += more
            while more:
                buffer = self._append(buffer, more)
                more = self._read(file)
            self._finish(buffer)

    def _mend(self, buffer: bytes) -> bytes | None:
        text, count = mend(buffer, whole=False)
        self.mended += count
        return text if count else None

    def copy_with(self, events: Iterable[bytes], out: BinaryIO) -> None:
        """Copy the file's text to `out` with `events` (JSON objects) before its own, of which it has some; a stream."""
        with _open(self.path) as file:
            more = self._skip_to_events(file)
            out.write(self.head)
            for event in events:
                out.write(event + b",\n")
            while more:
                out.write(more)
                more = self._read(file)

    def _read(self, file: BinaryIO) -> bytes:
        try:
            return file.read(self._chunk)
        except EOFError as error:
            raise TruncatedTraceError(
                "the gzip stream ends too early", where=self.path, next_step="copy or record the trace again"
            ) from error
        except _DAMAGED as error:
            raise TraceError(f"damaged gzip file ({error})", where=self.path) from error
        except OSError as error:
            raise TraceError(f"cannot be read ({error.strerror or error})", where=self.path) from error

    def _append(self, buffer: bytes, more: bytes) -> bytes:
        if len(buffer) > self._longest:
            raise self._too_long()
        return buffer + more

    @property
    def _longest(self) -> int:
        return max(LARGEST_TEXT, 4 * self._chunk)

    def _error(self, what: str) -> TraceError:
        return TraceError(what, where=self.path, expected="a Kineto trace (JSON)")

    def _damaged(self, why: str) -> TraceError:
        return TraceError(
            why,
            where=self.path,
            expected="a Kineto trace (JSON)",
            next_step="if a name in it has quotation marks or other characters that were not escaped, they are of a "
            "Python frame: profile with with_stack=False, or with a newer PyTorch",
        )

    def _too_long(self) -> TraceError:
        return self._error(f"an event, or the text around the events, is longer than {fmt.size_bytes(LARGEST_TEXT)}")

    def _skip_to_events(self, file: BinaryIO) -> bytes:
        """Read up to the first event, keep the metadata before it, return the text from there."""
        buffer = self._read(file).removeprefix(codecs.BOM_UTF8)
        start = buffer.lstrip()
        if not start:
            raise self._error("the file is empty")
        if start[:1] == b"[":
            self._bare_array, self.head = True, b"["
            return start[1:] or b" "
        if start[:1] != b"{":
            if (kind := foreign(self.path, buffer)) is not None:
                raise TraceError(kind.what, where=self.path, expected="a Kineto trace (JSON)", next_step=kind.next_step)
            raise self._error("not JSON: it begins with neither { nor [")
        searched = 0
        while (key := _EVENTS_KEY.search(buffer, searched)) is None:
            searched = max(0, len(buffer) - _KEY_BYTES)
            more = self._read(file)
            if not more:
                raise self._no_events(buffer)
            buffer = self._append(buffer, more)
        header = decode_object(buffer[: key.start()] + b'"traceEvents": null}')
        if header is None:
            raise self._error("invalid JSON")
        self._keep(header)
        self.head = buffer[: key.end()]
        return buffer[key.end() :] or b" "

    def _keep(self, metadata: dict[str, Any]) -> None:
        del metadata["traceEvents"]
        self.metadata.update(metadata)

    def _no_events(self, buffer: bytes) -> TraceError:
        content = decode_object(buffer)
        if content is not None and "traceEvents" not in content and (found := kind_of(content)) is not None:
            return TraceError(
                f"not a trace: it holds {found.holds} ({found.name})",
                where=self.path,
                expected="a trace of the PyTorch profiler, or a folder with traces",
                next_step=found.next_step,
            )
        if content is not None:
            return TraceError(
                "valid JSON, but not a trace: it has no list of traceEvents",
                where=self.path,
                expected='an object with "traceEvents": [...], as torch.profiler\'s export_chrome_trace writes it',
            )
        if is_truncated(buffer):
            return TruncatedTraceError("the JSON ends too early, before any event", where=self.path)
        return self._error("invalid JSON")

    def _stopped(self, rest: bytes, *, at_end: bool) -> None:
        """Raise why no event can be taken from what is left; nothing if there may be one once more of it is read."""
        why = why_no_event(rest)
        if why is not None:
            raise self._damaged(why)
        if not at_end:
            raise self._too_long()
        raise TruncatedTraceError(
            "the JSON ends too early, within the events",
            where=self.path,
            next_step="copy or record the trace again (export can be cut by a full disk or a killed process)",
        )

    def _finish(self, rest: bytes) -> None:
        """Keep the text after the events, and the metadata in it; raise if it is not whole."""
        self.tail = rest
        if self._bare_array:
            if rest.strip():
                raise TraceError("text follows the array of events", where=self.path)
            return
        text = b'{"traceEvents": null' + rest
        tail = decode_object(text)
        if tail is None and is_truncated(text):
            raise TruncatedTraceError("the JSON ends too early, after the events", where=self.path)
        if tail is None:
            raise TraceError("the text after the events is invalid JSON", where=self.path)
        self._keep(tail)


def looks_like_trace(path: Path) -> bool:
    """Whether the first megabyte of a file holds `traceEvents`, or its name holds "trace"."""
    if "trace" in path.name.lower():
        return True
    try:
        with _open(path) as file:
            return _EVENTS_KEY.search(file.read(1 << 20)) is not None
    except _UNREADABLE:
        return False


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a plain or gzipped file, by its content and not its name."""
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise TraceError("no such file", where=path_text(path)) from error
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise TraceError(f"cannot be opened ({why})", where=path_text(path)) from error
    with file:
        try:
            file.seek(0)  # before it is read: a pipe that holds fewer bytes would be waited for
            beginning = file.read(4)
            file.seek(0)
        except OSError as error:  # a pipe, for one, cannot be read from its start again
            raise TraceError(f"cannot be read ({error.strerror or error})", where=path) from error
        if beginning != b"PK\x03\x04":
            with _unpacked(file, beginning) as unpacked:
                yield unpacked
            return
        with _only_trace(file, path) as member:
            peeked = io.BufferedReader(cast(io.RawIOBase, member))
            with _unpacked(cast(BinaryIO, peeked), peeked.peek(4)) as unpacked:
                yield unpacked


@contextmanager
def _unpacked(file: BinaryIO, beginning: bytes) -> Iterator[BinaryIO]:
    """A file, unpacked if it is gzipped."""
    if not beginning.startswith(b"\x1f\x8b"):
        yield file
        return
    with cast(BinaryIO, igzip.open(file, "rb")) as unpacked:  # type: ignore[no-untyped-call]
        yield unpacked


@contextmanager
def _only_trace(file: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    """The one trace in a zip archive.

    Raises:
        TraceError: it is damaged, or holds no trace or several.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            inside = [name for name in archive.namelist() if _may_be_trace(name)]
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


def _may_be_trace(name: str) -> bool:
    """Whether a name in an archive is of a JSON file, and not one of macOS's own."""
    file = name.rsplit("/", 1)[-1]
    return file.endswith((".json", ".json.gz")) and not file.startswith(".") and not name.startswith("__MACOSX/")
