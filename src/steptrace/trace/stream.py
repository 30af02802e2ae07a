"""A trace file as a stream: its metadata, and its events in chunks of a few megabytes, plain or gzipped.

Kineto writes one JSON object, `{..., "traceEvents": [{"ph": ...}, ...], ...}`; Chrome's format also allows the bare
array. Neither is ever held whole. The text is cut where one event ends and the next begins, `}, {"ph"`: a pattern that
no string inside can hold, since its quotation mark would be escaped there. Where events begin with another key, a
scanner that follows strings and brackets finds the cut instead, more slowly.
"""

import codecs
import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
from isal import igzip, isal_zlib

from steptrace.errors import TraceError, TruncatedTraceError

#: Bytes read at a time. Larger chunks are no faster and cost memory.
CHUNK = 4 << 20

_DAMAGED: tuple[type[Exception], ...] = (gzip.BadGzipFile, cast(type[Exception], isal_zlib.error), zlib.error)
_NOT_JSON = "begins with neither { nor ["
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*')
_BEFORE_EVENT = re.compile(rb"\}\s*,\s*\{\s*\Z")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_BARE_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)-?(?:nan|inf|infinity)\b", re.IGNORECASE)
#: How often a `"ph"` that begins no event may be met before the scanner takes over.
_TRIES = 64


class EventStream:
    """The events and metadata of one trace file.

    Iterating yields each chunk of events once, as the JSON text of an array. `metadata` holds the object's other keys;
    `head` is the text up to the array's opening bracket, `tail` what follows its closing one. All three are complete
    when the iteration is.

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

    def __iter__(self) -> Iterator[bytes]:
        with _open(self.path) as file:
            buffer = more = self._skip_to_events(file)
            while more:
                cut = _find_cut(buffer)
                if cut is None and len(buffer) > 2 * self._chunk:
                    cut = _scan(buffer).last_gap
                if cut is not None:
                    # A view: the text, megabytes of it, is copied once and not twice.
                    yield b"".join((b"[", memoryview(buffer)[: cut + 1], b"]"))
                    buffer = buffer[buffer.index(b"{", cut) :]
                more = self._read(file)
                buffer = buffer + more
            yield from self._finish(buffer)

    def copy_with(self, events: Iterable[bytes], out: BinaryIO) -> None:
        """Write the file's text to `out` as it is, with `events` (JSON objects) put before its own; nothing is held."""
        with _open(self.path) as file:
            more = self._skip_to_events(file)
            out.write(self.head)
            between = b""
            for event in events:
                out.write(between + event)
                between = b",\n"
            while more and not more.strip():
                more = self._read(file)
            if more.lstrip().startswith(b"]"):
                between = b""  # it had no events of its own
            out.write(between)
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

    def _skip_to_events(self, file: BinaryIO) -> bytes:
        """Read up to the first event, keep the metadata before it, return the text from there."""
        buffer = self._read(file)
        start = buffer.lstrip(b"\xef\xbb\xbf \t\r\n")
        if not start:
            raise TraceError("the file is empty", where=self.path, expected="a Kineto trace (JSON)")
        if start[:1] == b"[":
            self._bare_array, self.head = True, b"["
            return start[1:] or b" "
        if start[:1] != b"{":
            raise TraceError(f"no JSON: it {_NOT_JSON}", where=self.path, expected="a Kineto trace (JSON)")
        searched = 0
        while True:
            for match in _EVENTS_KEY.finditer(buffer, searched):
                if match.end() == len(buffer):
                    break
                header = _decode_object(buffer[: match.start()] + b'"traceEvents": null}')
                if header is not None:
                    return self._enter_events(header, buffer, match)
            searched = max(0, len(buffer) - 64)
            more = self._read(file)
            if not more:
                raise self._no_events(buffer)
            buffer += more

    def _enter_events(self, header: dict[str, Any], buffer: bytes, match: re.Match[bytes]) -> bytes:
        if buffer[match.end() : match.end() + 1] != b"[":
            raise self._no_trace("its traceEvents is no array")
        del header["traceEvents"]
        self.metadata.update(header)
        self.head = buffer[: match.end() + 1]
        return buffer[match.end() + 1 :] or b" "

    def _no_events(self, buffer: bytes) -> TraceError:
        if _decode_object(buffer) is not None:
            return self._no_trace("it has no traceEvents")
        scan = _scan(buffer)
        if scan.open_brackets or scan.open_string:
            return TruncatedTraceError("the JSON ends too early, before any event", where=self.path)
        if buffer.startswith(codecs.BOM_UTF8):
            return TraceError(
                "no valid JSON: the file begins with a byte order mark (UTF-8 BOM)",
                where=self.path,
                expected="a Kineto trace (JSON) in UTF-8 without the mark",
                next_step="save it without one: tail -c +4 FILE (of the unpacked file) leaves the mark out",
            )
        return TraceError("no valid JSON", where=self.path, expected="a Kineto trace (JSON)")

    def _no_trace(self, why: str) -> TraceError:
        return TraceError(
            f"JSON, but no trace: {why}",
            where=self.path,
            expected='an object with "traceEvents": [...], as torch.profiler\'s export_chrome_trace writes it',
        )

    def _finish(self, buffer: bytes) -> Iterator[bytes]:
        """Split the last events from what follows them; complain if what follows is missing."""
        end = _scan(buffer).end_of_array
        if end is None:
            raise TruncatedTraceError(
                "the JSON ends too early, within the events",
                where=self.path,
                next_step="copy or record the trace again (export can be cut by a full disk or a killed process)",
            )
        events, rest = buffer[:end], buffer[end + 1 :]
        self.tail = rest
        if self._bare_array:
            if rest.strip():
                raise TraceError("text follows the array of events", where=self.path)
        else:
            tail = _decode_object(b'{"traceEvents": null' + rest)
            if tail is None:
                if rest.rstrip().endswith(b"}") and not _scan(b"{" + rest).open_brackets:
                    raise TraceError("the text after the events is no valid JSON", where=self.path)
                raise TruncatedTraceError("the JSON ends too early, after the events", where=self.path)
            del tail["traceEvents"]
            self.metadata.update(tail)
        if events.strip():
            yield b"[" + events + b"]"


def repair(events: bytes) -> bytes:
    """Kineto's known slips made valid JSON: bare `nan` and `inf` become null, broken UTF-8 becomes U+FFFD."""
    text = events.decode("utf-8", errors="replace").encode()
    parts, position = [], 0
    for string in re.finditer(rb'"(?:[^"\\]|\\.)*"', text, re.DOTALL):
        parts.append(_BARE_NUMBER.sub(rb"\1null", text[position : string.start()]))
        parts.append(string.group())
        position = string.end()
    parts.append(_BARE_NUMBER.sub(rb"\1null", text[position:]))
    return b"".join(parts)


def looks_like_trace(path: Path) -> bool:
    """Whether the first megabyte of a file names `traceEvents`, or the file's own name says trace."""
    if "trace" in path.name.lower():
        return True
    try:
        with _open(path) as file:
            return _EVENTS_KEY.search(file.read(1 << 20)) is not None
    except (OSError, EOFError, TraceError):
        return False
    except _DAMAGED:
        return False


def _open(path: Path) -> BinaryIO:
    """Open a plain or gzipped file; the content decides, not the name."""
    if path.is_dir():
        raise TraceError("a folder, where one trace file is expected", where=path, next_step="name one of its files")
    try:
        with path.open("rb") as file:
            magic = file.read(2)
        if magic == b"\x1f\x8b":
            return cast(BinaryIO, igzip.open(path, "rb"))  # type: ignore[no-untyped-call]
        return path.open("rb")
    except FileNotFoundError as error:
        raise TraceError("there is no such file", where=path) from error
    except OSError as error:
        raise TraceError(f"cannot be opened ({error.strerror or error})", where=path) from error


def _decode_object(text: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            value = msgspec.json.decode(repair(text))
        except msgspec.DecodeError:
            return None
    return value if isinstance(value, dict) else None


def _find_cut(buffer: bytes) -> int | None:
    """Position of the `}` that ends the last event before one beginning with "ph"; None if there is none near."""
    end = len(buffer)
    for _ in range(_TRIES):
        end = buffer.rfind(b'"ph"', 0, end)
        if end < 0:
            return None
        match = _BEFORE_EVENT.search(buffer, max(0, end - 256), end)
        if match:
            return match.start()
    return None


class _Scan:
    """What a walk over text from within an array found.

    `last_gap` is the position of the last `}` that ended an element and was followed by another; `end_of_array` that
    of the `]` that closes the array; the rest says what was still open at the end.
    """

    def __init__(self) -> None:
        self.last_gap: int | None = None
        self.end_of_array: int | None = None
        self.open_brackets = 0
        self.open_string = False


def _scan(text: bytes) -> _Scan:
    found = _Scan()
    depth, closed, position = 0, None, 0
    for match in _TOKEN.finditer(text):
        token, position = match.group(), match.end()
        first = token[0]
        if first == 0x22:
            continue
        if first in b"{[":
            if depth == 0 and closed is not None:
                found.last_gap = closed
            depth += 1
        else:
            depth -= 1
            if depth < 0:
                found.end_of_array = match.start()
                return found
            if depth == 0:
                closed = match.start()
    found.open_brackets = depth
    found.open_string = b'"' in text[position:]
    return found
