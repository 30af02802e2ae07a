"""The events and metadata of a trace file as a stream. A file is never in memory as a whole.

Kineto writes one JSON object, `{..., "traceEvents": [{"ph": ...}, ...], ...}`; Chrome's format also allows the bare
array.
"""

import codecs
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, Final

from steptrace import format as fmt
from steptrace.documents.kinds import kind_of
from steptrace.errors import TraceError, TruncatedTraceError
from steptrace.trace.decode import decode_object, is_truncated, plain_text, why_no_event
from steptrace.trace.foreign import Foreign, foreign, foreign_json
from steptrace.trace.mend import mend
from steptrace.trace.salvage import salvage_events, salvage_object
from steptrace.trace.text import (
    Lines,
    after_comments,
    begins_lines_of_events,
    event_without_comments,
    without_comments,
)
from steptrace.trace.unpack import DAMAGED, EVENTS_KEY, opened

#: Bytes read at a time. Larger chunks need more memory, and are slower, since they exceed the processor's cache.
CHUNK = 1 << 20
#: Most bytes of one event, and of the metadata before or after the events: each of them must be in memory at once.
LARGEST_TEXT: Final = 32 << 20
#: Members of the object behind the events, up to its end.
_MORE_METADATA: Final = re.compile(rb'\s*+,\s*+".*\}\s*\Z', re.DOTALL)
#: So many bytes of a file, at least, say what it is.
_LOOKED_AT: Final = 8_192
#: The number of bytes of a file that is not JSON that its error shows.
_BEGIN: Final = 16
#: Most bytes of the key of the events, with room for spaces.
_KEY_BYTES: Final = 64
#: What stands between events.
_SEPARATORS: Final = b" \t\r\n,"
#: A value that stands in an event's place and is no event.
_NO_EVENT: Final = re.compile(
    rb'(?:null|true|false|-?\d[-+.\deE]*+|"(?:[^"\\]|\\.)*+"|\[\s*+\])(?=\s*+[,\]])', re.DOTALL
)
#: Zero bytes in a row, this many of them, are a part of the file that was never written.
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
        self._lines: Lines | None = None

    def read(self, take: Callable[[bytes], tuple[int, bool]]) -> None:
        """Hand the events to `take`, a piece of text at a time.

        Args:
            take: gets the text of the array from where it stopped before. It returns how many bytes it took, which end
                with an event, and whether the array has ended.
        """
        with opened(self.path) as file:
            buffer = self._skip_to_events(file)
            begun = False
            while True:
                taken, ended = take(buffer)
                buffer = buffer[taken:]
                begun = begun or taken > 0
                if not ended and (repaired := self._repaired(buffer, after_event=begun)) is not None:
                    buffer = repaired
                    continue
                more = self._read(file)
                if ended:
                    break
                if not more and (repaired := self._repaired_at_end(buffer)) is not None:
                    buffer = repaired
                    continue
                if not more or len(buffer) > self._longest:
                    self._stopped(buffer, at_end=not more)
                buffer += more
            while more:
                buffer = self._append(buffer, more)
                more = self._read(file)
            self._finish(buffer)

    def _repaired(self, buffer: bytes, *, after_event: bool) -> bytes | None:
        """The text that could not be taken, repaired at its beginning; None if only its continuation may be missing.

        Args:
            buffer: the text.
            after_event: whether events were taken before it.

        Raises:
            TraceError: what stands there cannot be repaired.
        """
        if _begins_with_comment(buffer) and (cleaned := event_without_comments(buffer)) is not None:
            return cleaned
        if (tidied := _without_strays(buffer, after_event=after_event)) is not None:
            text, strays = tidied
            self.salvaged += strays
            return text
        if _HOLE in buffer:
            raise self._with_hole()
        if len(buffer) < self._not_mended or not _SEVERAL.search(buffer):
            return None
        # Several events are left, so the first one is damaged: it does not only lack its end.
        if (cleaned := event_without_comments(buffer)) is not None:
            return cleaned
        if (mended := self._mend(buffer)) is not None:
            return mended
        if (why := why_no_event(buffer)) is None:
            self._not_mended = 2 * len(buffer)
            return None
        if (salvaged := self._salvage(buffer)) is None:
            raise self._damaged(buffer, why)
        return salvaged

    def _repaired_at_end(self, buffer: bytes) -> bytes | None:
        """The last text of a file, repaired; None if nothing could be."""
        return event_without_comments(buffer) or self._mend(buffer) or self._salvage(buffer, whole=True)

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
        self._lines = None
        with opened(self.path) as file:
            more = self._skip_to_events(file)
            out.write(self.head)
            for event in events:
                out.write(event + b",\n")
            while more:
                out.write(more)
                more = self._read(file)

    def _read(self, file: BinaryIO) -> bytes:
        more = self._read_text(file)
        return more if self._lines is None else self._lines.joined(more)

    def _read_text(self, file: BinaryIO) -> bytes:
        try:
            return file.read(self._chunk)
        except EOFError as error:
            raise TruncatedTraceError(
                "the gzip stream ends too early", where=self.path, next_step="copy or record the trace again"
            ) from error
        except DAMAGED as error:
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
                "otherwise record with torch.profiler and its export_chrome_trace",
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
        buffer = self._read(file)
        while len(buffer) < _LOOKED_AT and (more := self._read(file)):
            buffer += more
        start = buffer = after_comments(buffer.removeprefix(codecs.BOM_UTF8))
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
        if not EVENTS_KEY.search(buffer) and begins_lines_of_events(start):
            self._lines = Lines()
            self.bare_array = True
            self.head = b"["
            return self._lines.joined(start) or b" "
        if not EVENTS_KEY.search(buffer) and (kind := foreign_json(start)) is not None:
            raise self._foreign(kind)
        if start[:1] == b"[":
            self.bare_array = True
            self.head = b"["
            return start[1:] or b" "
        buffer, key = self._find_events(file, buffer)
        header = self._metadata(buffer[: key.start()] + b'"traceEvents": null}')
        if header is None:
            raise self._error("invalid JSON")
        self._keep(header)
        self.head = buffer[: key.end()]
        return buffer[key.end() :] or b" "

    def _find_events(self, file: BinaryIO, buffer: bytes) -> tuple[bytes, re.Match[bytes]]:
        """The text as far as it is needed, and the place of the key of the events in it.

        Some tools begin the object with an empty list of events and write the real one behind it: the first list that
        is not empty counts.
        """
        searched = 0
        empty: re.Match[bytes] | None = None
        while True:
            key = EVENTS_KEY.search(buffer, searched)
            rest = buffer[key.end() :].lstrip() if key else b""
            if key and rest and rest[:1] != b"]":
                return buffer, key
            if key and rest:
                empty = empty or key
                searched = key.end()
                continue
            searched = key.start() if key else max(searched, len(buffer) - _KEY_BYTES)
            more = self._read(file)
            if not more:
                break
            buffer = self._append(buffer, more)
        last = key or empty
        if last is None:
            raise self._no_events(buffer)
        return buffer, last

    def _metadata(self, text: bytes) -> dict[str, Any] | None:
        """The object in a text, without members that are no JSON; None without any other."""
        metadata = decode_object(text) or decode_object(without_comments(text))
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
        if decode_object(buffer.partition(b"\n")[0]) is not None:
            return TraceError(
                "several JSON values, one a line, of which the first is no event",
                where=self.path,
                expected='one object with "traceEvents": [...], or one event a line',
                next_step="remove the lines that are no events, or write the events into one array",
            )
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
            if after_comments(rest, whole=True).strip():
                raise TraceError(
                    "text follows the array of events",
                    where=self.path,
                    expected="one JSON array a file",
                    next_step="split it if traces were appended to each other; otherwise copy or record it again",
                )
            return
        text = b'{"traceEvents": null' + rest
        tail = decode_object(text) or decode_object(without_comments(text))
        if tail is not None and tail.get("traceEvents"):
            raise TraceError(
                "two lists of traceEvents in one object",
                where=self.path,
                expected="one list",
                next_step="make them one list: parsers of JSON keep only one of them",
            )
        if tail is None and is_truncated(text):
            raise TruncatedTraceError(
                "the JSON ends too early, after the events",
                where=self.path,
                next_step="copy or record the trace again (export can be cut by a full disk or a killed process)",
            )
        if tail is None and _MORE_METADATA.match(rest) and not EVENTS_KEY.search(rest):
            self.salvaged += 1
            tail = salvage_object(text.decode(errors="replace"))
        if tail is None:
            raise TraceError(
                "the text after the events is invalid JSON",
                where=self.path,
                expected="one JSON object a file",
                next_step="split it if traces were appended to each other; otherwise copy or record it again",
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
    rest = _after_separators(buffer)
    values = 0
    while (value := _NO_EVENT.match(rest)) is not None:
        rest = _after_separators(rest[value.end() :])
        values += 1
    if not values and rest[:1] not in (b"{", b"]"):
        return None
    comma = b"," if after_event and rest[:1] != b"]" else b""
    skipped = buffer[: len(buffer) - len(rest)]
    stray = skipped.count(b",") > len(comma) or b"/" in skipped
    return (comma + rest, values) if values or stray else None


def _begins_with_comment(text: bytes) -> bool:
    """Whether a text of events begins with a comment behind separators; others are likely to follow."""
    return b"/" in text[:_KEY_BYTES] and text.lstrip(_SEPARATORS)[:1] == b"/"


def _after_separators(text: bytes) -> bytes:
    """A text of events without the separators and comments that it begins with."""
    rest = text.lstrip(_SEPARATORS)
    while rest[:1] == b"/" and (after := after_comments(rest)) != rest:
        rest = after.lstrip(_SEPARATORS)
    return rest
