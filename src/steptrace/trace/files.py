"""Trace files: which ones some paths name, and the events and metadata of one as a stream.

A file is plain, gzipped, or the only trace in a zip archive. Kineto writes one JSON object,
`{..., "traceEvents": [{"ph": ...}, ...], ...}`; Chrome's format also allows the bare array. A file is never in memory
as a whole.
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
from steptrace.files import open_file
from steptrace.trace.decode import decode_object, is_truncated, path_text, plain_text, why_no_event
from steptrace.trace.foreign import Foreign, foreign, foreign_json
from steptrace.trace.mend import mend
from steptrace.trace.salvage import salvage_events, salvage_object


def find_traces(paths: Iterable[str | Path]) -> list[Path]:
    """The trace files that files and folders stand for, in the order of the paths; those of a folder by name.

    A folder stands for its `.json` and `.json.gz` files that hold `traceEvents` near their beginning, or have "trace"
    in their name. Excerpts of traces are passed over, unless it holds nothing else. Sub-folders are not searched. Each
    file is listed once.

    Raises:
        TraceError: a path does not exist; a folder holds no trace; or it holds only excerpts, and a sub-folder holds
            traces.
    """
    files: dict[Path, Path] = {}
    for path in map(Path, paths):
        if _kind(path) == "folder":
            traces = _inside(path)
            whole = [p for p in traces if not is_excerpt(p)]
            below = None if whole else _below(path)
            if not traces or below is not None:
                raise TraceError(
                    "a folder with excerpts of traces only" if traces else "a folder without traces",
                    where=path,
                    expected="whole traces" if traces else 'files ending in .json or .json.gz that hold "traceEvents"',
                    next_step=below,
                )
            files.update({p.resolve(): p for p in whole or traces if p.resolve() not in files})
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
    """`folder`, `file`, or `other` (such as a pipe); None if there is nothing, or if the system rejects the name."""
    try:
        if path.is_dir():
            return "folder"
        return "file" if path.is_file() else "other" if path.exists() else None
    except (OSError, ValueError):
        return None


def _inside(folder: Path) -> list[Path]:
    """The trace files of a folder by name, without hidden ones, such as the list of what a command wrote."""
    names = sorted(p for p in folder.iterdir() if p.name.endswith((".json", ".json.gz")) and p.is_file())
    return [p for p in names if not p.name.startswith(".") and looks_like_trace(p)]


def _below(path: Path) -> str | None:
    """The next step for a folder with traces only in its sub-folders, such as one of several captures."""
    try:
        folders = [p for p in sorted(path.iterdir()) if p.is_dir() and not all(map(is_excerpt, _inside(p)))]
    except OSError:
        return None
    if not folders:
        return None
    more = f" ({len(folders)} folders in all)" if len(folders) > 1 else ""
    return f"name a sub-folder, as in {folders[-1]}{more}"


#: Bytes read at a time. Larger chunks need more memory, and are slower, since they exceed the processor's cache.
CHUNK = 1 << 20
#: Most bytes of one event, and of the metadata before or after the events: each of them must be in memory at once.
LARGEST_TEXT: Final = 32 << 20

#: The first key of an excerpt's file. Its value says which step of which trace the excerpt holds.
EXCERPT_KEY: Final = "steptraceExcerpt"

_DAMAGED: tuple[type[Exception], ...] = (
    gzip.BadGzipFile,
    zipfile.BadZipFile,
    cast(type[Exception], isal_zlib.error),
    zlib.error,
)
_UNREADABLE: tuple[type[Exception], ...] = (OSError, EOFError, TraceError, *_DAMAGED)
_UNPACKABLE: tuple[type[Exception], ...] = (*_UNREADABLE, NotImplementedError, RuntimeError)
#: The key of the events. No string can hold this text, since its quotation marks would be escaped.
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
#: Members of the object behind the events, up to its end.
_MORE_METADATA: Final = re.compile(rb'\s*+,\s*+".*\}\s*\Z', re.DOTALL)
#: So many bytes of a file that is no JSON are shown.
_BEGIN: Final = 16
#: Most bytes of that key, with room for spaces.
_KEY_BYTES: Final = 64
#: What stands between events.
_SEPARATORS: Final = b" \t\r\n,"
#: A value that stands in an event's place and is no event.
_NO_EVENT: Final = re.compile(
    rb'(?:null|true|false|-?\d[-+.\deE]*+|"(?:[^"\\]|\\.)*+"|\[\s*+\])(?=\s*+[,\]])', re.DOTALL
)
#: So many zero bytes in a row are no text, but a part of a file that was never written.
_HOLE: Final = b"\0" * 16
#: A text with at least two events.
_SEVERAL: Final = re.compile(rb'"ph"\s*+:.*?"ph"\s*+:', re.DOTALL)


class EventStream:
    """The events and metadata of one trace file.

    Attributes:
        metadata: the other keys of the object.
        head: the text up to and with the opening bracket of the events.
        tail: the text after the closing bracket.
        bare_array: whether the file is an array of events, without metadata.
        mended: how many strings were invalid JSON and could be repaired.
        salvaged: how many events, or objects of metadata, lost a part that could not.

    They are complete once `read` has returned.

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
        self.bare_array = False
        self.mended = 0
        self.salvaged = 0
        self._not_mended = 0

    def read(self, take: Callable[[bytes], tuple[int, bool]]) -> None:
        """Hand the events to `take`, a piece of text at a time.

        Args:
            take: gets the text of the array from where it stopped before. It returns how many bytes it took, which end
                with an event, and whether the array has ended.
        """
        with _open(self.path) as file:
            buffer, begun = self._skip_to_events(file), False
            while True:
                taken, ended = take(buffer)
                buffer = buffer[taken:]
                begun = begun or taken > 0
                if not ended and (tidied := _without_strays(buffer, after_event=begun)) is not None:
                    buffer, others = tidied
                    self.salvaged += others
                    continue
                if not ended and _HOLE in buffer:
                    raise self._with_hole()
                if not ended and len(buffer) >= self._not_mended and _SEVERAL.search(buffer):
                    # Several events are left, so the first one is damaged: it does not only lack its end.
                    if (mended := self._mend(buffer)) is not None:
                        buffer = mended
                        continue
                    if (why := why_no_event(buffer)) is not None:
                        if (salvaged := self._salvage(buffer)) is not None:
                            buffer = salvaged
                            continue
                        raise self._damaged(buffer, why)
                    self._not_mended = 2 * len(buffer)
                more = self._read(file)
                if ended:
                    break
                if not more and (mended := self._mend(buffer) or self._salvage(buffer, whole=True)) is not None:
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

    def _salvage(self, buffer: bytes, *, whole: bool = False) -> bytes | None:
        text, count = salvage_events(buffer, whole=whole)
        self.salvaged += count
        return text if count and text != buffer else None

    def copy_with(self, events: Iterable[bytes], out: BinaryIO) -> None:
        """Copy the file's text to `out`, with `events` (JSON objects) before its events; it must have at least one."""
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

    def _foreign(self, kind: Foreign) -> TraceError:
        return TraceError(kind.what, where=self.path, expected="a Kineto trace (JSON)", next_step=kind.next_step)

    def _damaged(self, rest: bytes, why: str) -> TraceError:
        if rest.lstrip(_SEPARATORS)[:1] == b"[":
            return TraceError(
                "an array in an event's place",
                where=self.path,
                expected='"traceEvents": [{"ph": ...}, ...], an array of objects',
                next_step="if it holds arrays of events, make them one array (`jq '.traceEvents |= flatten'`); "
                "else record with torch.profiler and its export_chrome_trace",
            )
        return TraceError(
            why,
            where=self.path,
            expected="a Kineto trace (JSON)",
            next_step="if a name in it has quotation marks or other characters that were not escaped, they are of a "
            "Python frame: profile with with_stack=False, or with a newer PyTorch",
        )

    def _with_hole(self) -> TraceError:
        return TraceError(
            "zero bytes among the events: a part of the file was never written",
            where=self.path,
            expected="a Kineto trace (JSON)",
            next_step="copy or record the trace again (a full disk, or a process that was killed, leaves such files)",
        )

    def _too_long(self) -> TraceError:
        return self._error(f"an event, or the text around the events, is longer than {fmt.size_bytes(LARGEST_TEXT)}")

    def _skip_to_events(self, file: BinaryIO) -> bytes:
        """Read up to the first event, keep the metadata before it, return the text from there."""
        buffer = self._read(file).removeprefix(codecs.BOM_UTF8)
        start = buffer.lstrip()
        if not start:
            raise self._error("the file is empty")
        if start[:1] not in (b"{", b"[") or b"\0" in start[:4]:
            if (kind := foreign(self.path, start)) is not None:
                raise self._foreign(kind)
            raise TraceError(
                f"not JSON: it begins with {plain_text(start[:_BEGIN].decode(errors='replace'))!r}, neither {{ nor [",
                where=self.path,
                expected="a Kineto trace (JSON)",
                next_step="record with torch.profiler and its export_chrome_trace, or copy the file itself",
            )
        if not _EVENTS_KEY.search(buffer) and (kind := foreign_json(start)) is not None:
            raise self._foreign(kind)
        if start[:1] == b"[":
            self.bare_array, self.head = True, b"["
            return start[1:] or b" "
        searched = 0
        while (key := _EVENTS_KEY.search(buffer, searched)) is None:
            searched = max(0, len(buffer) - _KEY_BYTES)
            more = self._read(file)
            if not more:
                raise self._no_events(buffer)
            buffer = self._append(buffer, more)
        header = self._metadata(buffer[: key.start()] + b'"traceEvents": null}')
        if header is None:
            raise self._error("invalid JSON")
        self._keep(header)
        self.head = buffer[: key.end()]
        return buffer[key.end() :] or b" "

    def _metadata(self, text: bytes) -> dict[str, Any] | None:
        """The object in a text, without members that are no JSON; None without any other."""
        metadata = decode_object(text)
        if metadata is None and (members := salvage_object(text.decode(errors="replace"))).keys() > {"traceEvents"}:
            self.salvaged += 1
            metadata = members
        return metadata

    def _keep(self, metadata: dict[str, Any]) -> None:
        metadata.pop("traceEvents", None)
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
            members = content.get("traceEvents", ...)
            return TraceError(
                "valid JSON, but not a trace: it has no list of traceEvents"
                if members is ...
                else f"valid JSON, but not a trace: its traceEvents are {_json_type(members)}, not a list",
                where=self.path,
                expected='an object with "traceEvents": [...], as torch.profiler\'s export_chrome_trace writes it',
            )
        if is_truncated(buffer):
            return TruncatedTraceError("the JSON ends too early, before any event", where=self.path)
        return self._error("invalid JSON")

    def _stopped(self, rest: bytes, *, at_end: bool) -> None:
        """Raise an error that says why the rest holds no event; return if there may be one once more is read."""
        why = why_no_event(rest)
        if why is not None:
            raise self._damaged(rest, why)
        if not at_end:
            raise self._too_long()
        raise TruncatedTraceError(
            "the JSON ends too early, within the events",
            where=self.path,
            next_step="copy or record the trace again (export can be cut by a full disk or a killed process)",
        )

    def _finish(self, rest: bytes) -> None:
        """Keep the text after the events and the metadata in it; raise an error if it is cut or invalid.

        A file that was given its room before it was written ends with zero bytes.
        """
        rest = rest.rstrip(b"\0")
        self.tail = rest
        if self.bare_array:
            if rest.strip():
                raise TraceError(
                    "text follows the array of events",
                    where=self.path,
                    expected="one JSON array a file",
                    next_step="split it, if traces were appended to each other; else copy or record it again",
                )
            return
        text = b'{"traceEvents": null' + rest
        tail = decode_object(text)
        if tail is None and is_truncated(text):
            raise TruncatedTraceError(
                "the JSON ends too early, after the events",
                where=self.path,
                next_step="copy or record the trace again (export can be cut by a full disk or a killed process)",
            )
        if tail is None and _MORE_METADATA.match(rest) and not _EVENTS_KEY.search(rest):
            self.salvaged += 1
            tail = salvage_object(text.decode(errors="replace"))
        if tail is None:
            raise TraceError(
                "the text after the events is invalid JSON",
                where=self.path,
                expected="one JSON object a file",
                next_step="split it, if traces were appended to each other; else copy or record it again",
            )
        self._keep(tail)


def _json_type(value: Any) -> str:
    """The type of a JSON value in words."""
    names = {dict: "an object", str: "a text", type(None): "null"}
    return names.get(type(value), "a number")


def _without_strays(buffer: bytes, *, after_event: bool) -> tuple[bytes, int] | None:
    """The text of events without stray commas and values at its beginning, and the number of values; None without any.

    Tools that merge or cut traces leave several commas, `null` or other values between events. Trace viewers accept
    them.
    """
    rest, others = buffer.lstrip(_SEPARATORS), 0
    while (value := _NO_EVENT.match(rest)) is not None:
        rest, others = rest[value.end() :].lstrip(_SEPARATORS), others + 1
    if not others and rest[:1] not in (b"{", b"]"):
        return None
    comma = b"," if after_event and rest[:1] != b"]" else b""
    stray = buffer[: len(buffer) - len(rest)].count(b",") > len(comma)
    return (comma + rest, others) if others or stray else None


def looks_like_trace(path: Path) -> bool:
    """Whether the first megabyte of a file holds `traceEvents`, or its name holds "trace"."""
    if "trace" in path.name.lower():
        return True
    try:
        with _open(path) as file:
            return _EVENTS_KEY.search(file.read(1 << 20)) is not None
    except _UNREADABLE:
        return False


def is_excerpt(path: Path) -> bool:
    """Whether a file is an excerpt that steptrace wrote: its first key is `EXCERPT_KEY`."""
    begin = b'{"%s":' % EXCERPT_KEY.encode()
    try:
        with _open(path) as file:
            return file.read(len(begin)) == begin
    except _UNREADABLE:
        return False


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a file and unpack it, by its content and not by its name."""
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
        try:
            beginning = unpacked.read(2)
            unpacked.seek(0)
        except _UNREADABLE:
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
                return _EVENTS_KEY.search(unpacked.read(1 << 20)) is not None
    except _UNPACKABLE:
        return False
