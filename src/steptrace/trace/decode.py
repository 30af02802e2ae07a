"""JSON, whatever slips it has: where values end, without decoding them, and what a decoder does not take made valid."""

import re
from typing import Any, Final, TypeVar

import msgspec

from steptrace.trace.bounds import DEEPEST

Value = TypeVar("Value")

# Possessive, so that a string of any length takes no memory; an open one is one token, so that nothing is read twice.
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+(?:"|(?P<open>\\?\Z))'
_STRINGS = re.compile(_STRING, re.DOTALL)
_TOKEN = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_COLON = re.compile(rb"\s*:\s*")
_SPACES = re.compile(rb"\s*\Z")
_BARE_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)-?(?:nan|inf|infinity)\b", re.IGNORECASE)


class Scan:
    """What a walk over text from within an array found.

    `last_gap` is the position of the last `}` that ended an element and was followed by another; `end_of_array` that
    of the `]` that closes the array; the rest says what was still open at the end.
    """

    def __init__(self) -> None:
        self.last_gap: int | None = None
        self.end_of_array: int | None = None
        self.open_brackets = 0
        self.open_string = False


def scan(text: bytes) -> Scan:
    """Walk over text from within an array to its end, or to the text's."""
    found = Scan()
    depth, closed = 0, None
    for match in _TOKEN.finditer(text):
        first = text[match.start()]
        if first == 0x22:
            found.open_string = match.lastgroup == "open"
        elif first in b"{[":
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
    return found


class KeyFinder:
    """Looks for a key of the outermost object in text that comes piece by piece, and reads no piece twice."""

    def __init__(self, key: bytes) -> None:
        self._key = b'"%b"' % key
        self._depth = 0
        self._position = 0

    def find(self, text: bytes) -> tuple[int, int] | None:
        """Where the key starts and its value, if that has begun; `text` is what was given before, and more."""
        for match in _TOKEN.finditer(text, self._position):
            first = text[match.start()]
            if first == 0x22:
                if match.lastgroup == "open":
                    return None  # from its beginning again, once there is more of it
                if self._depth == 1 and match.group() == self._key:
                    colon = _COLON.match(text, match.end())
                    if colon and colon.end() < len(text):
                        return match.start(), colon.end()
                    if colon or _SPACES.match(text, match.end()):
                        return None
            else:
                self._depth += 1 if first in b"{[" else -1
            self._position = match.end()
        return None


def repair(text: bytes) -> bytes:
    """Kineto's known slips made valid JSON: bare `nan` and `inf` become null, broken UTF-8 becomes U+FFFD."""
    text = text.decode("utf-8", errors="replace").encode()
    parts, position = [], 0
    for string in _STRINGS.finditer(text):
        parts.append(_BARE_NUMBER.sub(rb"\1null", text[position : string.start()]))
        parts.append(string.group())
        position = string.end()
    parts.append(_BARE_NUMBER.sub(rb"\1null", text[position:]))
    return b"".join(parts)


def prune(text: bytes) -> tuple[bytes, int]:
    """The text with null for what is nested deeper than `DEEPEST`, which no decoder follows; and how often."""
    parts: list[bytes] = []
    depth = position = count = 0
    for match in _TOKEN.finditer(text):
        first = text[match.start()]
        if first == 0x22:
            continue
        if first in b"{[":
            depth += 1
            if depth == DEEPEST + 1:
                parts.append(text[position : match.start()])
        else:
            if depth == DEEPEST + 1:
                parts.append(b"null")
                position, count = match.end(), count + 1
            depth -= 1
    if depth <= DEEPEST:
        parts.append(text[position:])
    return b"".join(parts), count


def decode_leniently(decoder: msgspec.json.Decoder[Value], text: bytes) -> tuple[Value, int]:
    """What a decoder makes of a text, of one with known slips too; and how many values were nested too deep.

    Raises:
        msgspec.DecodeError: no repair makes it JSON.
        msgspec.ValidationError: it is JSON of another type than the decoder's.
    """
    error: Exception = msgspec.DecodeError("nested too deep")
    for repaired in (False, True):
        given, left_out = repair(text) if repaired else text, 0
        for _ in range(2):
            try:
                return decoder.decode(given), left_out
            except RecursionError:
                given, left_out = prune(given)
            except (msgspec.DecodeError, UnicodeDecodeError) as why:
                error = why
                break
    raise error


_ANY: Final = msgspec.json.Decoder(Any)


def decode_object(text: bytes) -> tuple[dict[str, Any] | None, int]:
    """The JSON object in a text, None if it holds none; and how many values were left out as nested too deep."""
    try:
        value, left_out = decode_leniently(_ANY, text)
    except msgspec.DecodeError:
        return None, 0
    return (value if isinstance(value, dict) else None), left_out
