"""Tolerant JSON: repairs known mistakes of Kineto's, and says what is wrong with a text."""

import re
from decimal import Decimal
from typing import Any, Final, TypeVar

import msgspec

from steptrace.trace.bounds import plain_text

Value = TypeVar("Value")

#: Bytes of a text that an error shows.
_SHOWN: Final = 200

# Possessive, so that long strings take no memory; an unclosed string is one token, so that nothing is read twice.
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_BARE_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)-?(?:nan|inf|infinity)\b", re.IGNORECASE)


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


_EVENT: Final = msgspec.json.Decoder(Event)


def decode_event(text: bytes) -> tuple[Event, bytes]:
    """An event, and its text, made valid JSON where it is not.

    Raises:
        msgspec.DecodeError: it is no event.
    """
    # msgspec checks UTF-8 only in strings that it decodes.
    text = text.decode(errors="replace").encode()
    try:
        return _EVENT.decode(text), text
    except (msgspec.DecodeError, RecursionError):
        text = repair(text)
        return decode_leniently(_EVENT, text), text


def is_truncated(text: bytes) -> bool:
    """Whether a text is the beginning of a JSON value."""
    try:
        decode_leniently(_OBJECT, text)
    except msgspec.DecodeError as error:
        return "truncated" in str(error)
    return False


def why_no_event(text: bytes) -> str | None:
    """Why no event begins a text that follows the events of an array; None if the text ends too early."""
    text = repair(text.lstrip().removeprefix(b",")).lstrip()
    if not text or is_truncated(text):
        return None
    in_one_line = " ".join(text[:_SHOWN].decode(errors="replace").split())
    return f"an event that cannot be read: {plain_text(in_one_line)}"
