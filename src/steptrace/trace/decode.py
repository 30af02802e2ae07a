"""JSON, whatever slips it has: where values end without decoding them, and chunks of a trace's events to structs."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from steptrace.errors import TraceError
from steptrace.trace.bounds import DEEPEST
from steptrace.trace.events import FLOAT_LIMIT_US, Event, ExactEvent, Ints, exact_to_ns, us_to_ns

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


def decode_object(text: bytes) -> tuple[dict[str, Any] | None, int]:
    """The JSON object in a text, None if it holds none; and how many values were left out as nested too deep."""
    left_out = 0
    for made in (lambda t: (t, 0), lambda t: (repair(t), 0), prune, lambda t: prune(repair(t))):
        try:
            given, left_out = made(text)
            value = msgspec.json.decode(given)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        return (value if isinstance(value, dict) else None), left_out
    return None, 0


_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])


class EventDecoder:
    """Decodes a file's chunks as lists of `Event`, and of `ExactEvent` from where floats lose nanoseconds on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fast, self._exact = msgspec.json.Decoder(list[Event]), msgspec.json.Decoder(list[ExactEvent])
        self._lenient: dict[Any, Any] = {
            self._fast: msgspec.json.Decoder(list[Event], strict=False),
            self._exact: msgspec.json.Decoder(list[ExactEvent], strict=False),
        }
        #: Whether floats would lose nanoseconds, from here on.
        self.needs_exact = False
        #: How many values were nested too deep to be read.
        self.left_out = 0

    def decode(self, chunk: bytes) -> list[Any]:
        """The structs of a chunk, the JSON text of an array.

        Raises:
            TraceError: it is no JSON, or holds other things than events.
        """
        if self.needs_exact:
            return self._decoded(self._exact, chunk)
        before = self.left_out
        events = self._decoded(self._fast, chunk)
        times = np.array([event.ts for event in events])
        if (np.isfinite(times) & (times > FLOAT_LIMIT_US) & (np.trunc(times) < times)).any():
            self.needs_exact, self.left_out = True, before
            return self._decoded(self._exact, chunk)
        return events

    def to_ns(self, times: Sequence[Any]) -> Ints:
        """Times of the structs that `decode` returned last, as integer ns."""
        return exact_to_ns(times) if self.needs_exact else us_to_ns(times)

    def _decoded(self, decoder: Any, chunk: bytes) -> list[Any]:
        try:
            return decoder.decode(chunk)  # type: ignore[no-any-return]
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        except RecursionError:
            chunk, left_out = prune(chunk)
            self.left_out += left_out
        try:
            return self._lenient[decoder].decode(repair(chunk))  # type: ignore[no-any-return]
        except RecursionError:
            chunk, left_out = prune(repair(chunk))
            self.left_out += left_out
            return self._decoded(decoder, chunk)
        except msgspec.ValidationError as error:
            raise TraceError(
                f"JSON, but no trace: {error}", where=self.path, expected="events as torch.profiler writes them"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise TraceError(f"invalid JSON among the events ({error})", where=self.path) from error


def event_texts(chunk: bytes) -> list[msgspec.Raw]:
    """The text of each event of a chunk that `EventDecoder.decode` has read: as written, where that is valid JSON."""
    try:
        chunk.decode()  # what is only passed over is not checked for it
        return _TEXTS.decode(chunk)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _TEXTS.decode(repair(chunk))
    except RecursionError:
        return event_texts(prune(chunk)[0])
