"""Tolerant JSON: finds the ends of values without decoding them, and repairs known mistakes of Kineto's."""

import re
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from steptrace.errors import TraceError

Value = TypeVar("Value")

# Possessive, so that long strings take no memory; an unclosed string is one token, so that nothing is read twice.
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+(?:"|(?P<open>\\?\Z))'
_STRINGS = re.compile(_STRING, re.DOTALL)
_TOKEN = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_BARE_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)-?(?:nan|inf|infinity)\b", re.IGNORECASE)


class Scan:
    """The result of a scan over text from within an array.

    `last_gap` is the position of the last `}` that ended an element and was followed by another; `end_of_array` that
    of the `]` that closes the array; the rest is the state at the end of the text.
    """

    def __init__(self) -> None:
        self.last_gap: int | None = None
        self.end_of_array: int | None = None
        self.open_brackets = 0
        self.open_string = False


def scan(text: bytes) -> Scan:
    """Scan text from within an array to the array's end, or to the text's."""
    result = Scan()
    depth, closed = 0, None
    for match in _TOKEN.finditer(text):
        first = text[match.start()]
        if first == 0x22:
            result.open_string = match.lastgroup == "open"
        elif first in b"{[":
            if depth == 0 and closed is not None:
                result.last_gap = closed
            depth += 1
        else:
            depth -= 1
            if depth < 0:
                result.end_of_array = match.start()
                return result
            if depth == 0:
                closed = match.start()
    result.open_brackets = depth
    return result


def repair(text: bytes) -> bytes:
    """Repair Kineto's known mistakes: bare `nan` and `inf` become null, invalid UTF-8 becomes U+FFFD."""
    text = text.decode("utf-8", errors="replace").encode()
    parts, position = [], 0
    for string in _STRINGS.finditer(text):
        parts.append(_BARE_NUMBER.sub(rb"\1null", text[position : string.start()]))
        parts.append(string.group())
        position = string.end()
    parts.append(_BARE_NUMBER.sub(rb"\1null", text[position:]))
    return b"".join(parts)


def decode_leniently(decoder: msgspec.json.Decoder[Value], text: bytes) -> Value:
    """Decode a text, repaired if needed.

    Raises:
        msgspec.DecodeError: it is not JSON even after repair, or nested too deep.
        msgspec.ValidationError: it is JSON of another type than the decoder's.
    """
    try:
        try:
            return decoder.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return decoder.decode(repair(text))
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deep") from error


_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


def decode_object(text: bytes) -> dict[str, Any] | None:
    """The JSON object in a text, None without one."""
    try:
        return decode_leniently(_OBJECT, text)
    except msgspec.DecodeError:
        return None


class Event(msgspec.Struct, gc=False):
    """An event of a trace, its times in microseconds with all their digits."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)
    args: dict[str, msgspec.Raw] | None = None


_TEXTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT: Final = msgspec.json.Decoder(Event)


def decode_events(chunk: bytes, path: Path) -> list[tuple[Event, bytes]]:
    """The events of a chunk, each with its text, made valid JSON where it is not.

    Raises:
        TraceError: it is not JSON, or not a list of events.
    """
    try:
        # msgspec checks UTF-8 only in strings that it decodes.
        texts = decode_leniently(_TEXTS, chunk.decode(errors="replace").encode())
        return [(_EVENT.decode(text), bytes(text)) for text in texts]
    except msgspec.ValidationError as error:
        raise TraceError(
            f"valid JSON, but not a trace: {error}", where=path, expected="events as torch.profiler writes them"
        ) from error
    except msgspec.DecodeError as error:
        raise TraceError(f"invalid JSON among the events ({error})", where=path) from error
