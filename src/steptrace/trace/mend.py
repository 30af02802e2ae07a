"""Repairs events whose texts were not escaped, or whose arguments are not an object, so that they are valid JSON.

The name of a Python frame can hold anything: Windows paths with single backslashes, line breaks, quotation marks.
Versions of PyTorch differ in what they escape. A string is damaged if it is not a JSON string, or if neither a key nor
the end of its object follows it. A damaged string is read up to the first quotation mark that a key or the end of the
object follows. After an event's name only the keys of an event count, since a name may hold JSON.
"""

import json
import re
from typing import Final

_KEY: Final = rb'"(?:[^"\\]|\\.){0,200}+"\s*+:'
#: Keys that an event of Chrome's format may have.
_EVENT_KEY: Final = (
    rb'"(?:ph|cat|name|pid|tid|ts|dur|args|id|id2|bp|s|cname|tts|tdur|sf|esf|scope|local|global|bind_id)"\s*+:'
)
#: The end of the object of an event's own text, and of an object inside.
_EVENT_END: Final = rb"\}\s*+(?:\}\s*+)?(?:,\s*+(?:\{|" + _EVENT_KEY + rb")|\]%b)"
_INNER_END: Final = rb"\}\s*+(?:[,}\]]%b)"
#: What may follow a text: a key, or the end of its object. `own` is a text of the event itself, not of its arguments.
_GOOD_END: Final = rb"\s*+(?:,\s*+" + _KEY + rb"|(?(own)" + _EVENT_END + rb"|[}\]]))"
_BAD_END: Final = (
    rb"\s*+(?(own)(?:,\s*+" + _EVENT_KEY + rb"|" + _EVENT_END + rb")|(?:,\s*+" + _KEY + rb"|" + _INNER_END + rb"))"
)
#: A key with a text. The text is good if it is a JSON string and such an end follows. Else it reaches to the first
#: quotation mark that may end it, and not into the next event.
_TEXT: Final = (
    rb'"(?P<key>(?P<own>name|cat)|(?:[^"\\]|\\.){0,200}+)"(?P<colon>\s*+:\s*+)"(?:'
    rb'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"(?=' + _GOOD_END + rb")"
    rb'|(?P<bad>(?:[^"]|"(?!(?:ph|traceEvents)"\s*+:)){0,4096}?)"(?=' + _BAD_END + rb"))"
)
_IN_WHOLE: Final = re.compile(_TEXT.replace(b"%b", rb"|\Z"), re.DOTALL)
_IN_PART: Final = re.compile(_TEXT.replace(b"%b", b""), re.DOTALL)
#: Arguments that are not an object. Some tools write them; nothing is read from them.
_ARGS: Final = re.compile(
    rb'"args"\s*+:\s*+(?:\[(?:[^][{}"]|"(?:[^"\\]|\\.)*+")*+\]|"(?:[^"\\]|\\.)*+"|null|true|false|-?\d[^,}\]\s]*+)'
    rb"(?=\s*+[,}])",
    re.DOTALL,
)
#: A list of texts, such as an operator's `Concrete Inputs`, up to a bracket behind which its object goes on or ends.
_LIST: Final = re.compile(
    rb'(?P<key>"[^"\\\x00-\x1f]{1,60}"\s*+:\s*+)(?P<list>\[\s*+".{0,8192}?"\s*+\])(?=\s*+(?:,\s*+"[^"]{1,60}"\s*+:|\}))',
    re.DOTALL,
)
#: The standard library's: a program that is measured may have no other.
_DECODER: Final = json.JSONDecoder()
#: In a text without quotation marks around it: an escape, a lone backslash, a quotation mark, a control character.
_PIECE: Final = re.compile(rb'\\\\|\\"|\\(?:[/bfnrt]|u[0-9a-fA-F]{4})|\\|"|[\x00-\x1f]', re.DOTALL)
#: A Windows path with single backslashes, each of which looks like an escape, up to the line of its frame.
_RAW_PATH: Final = re.compile(rb'[^"\\]*(?:\\[bfnrt][^"\\]*)+\.pyw?\(\d+\)')


def mend(text: bytes, *, whole: bool = True) -> tuple[bytes, int]:
    """A text of JSON objects with its damaged strings escaped, and the number of these strings.

    `whole`: whether the last object ends with the text; else a text that is cut off there stays as it is.
    """
    count = 0

    def escaped(match: re.Match[bytes]) -> bytes:
        nonlocal count
        bad = match["bad"]
        if bad is None:
            return match[0]
        count += 1
        return b'"%b"%b"%b"' % (match["key"], match["colon"], escape(bad))

    def readable(match: re.Match[bytes]) -> bytes:
        nonlocal count
        try:
            # A list that ends earlier is no damaged one: the match then reaches into what follows it.
            _DECODER.raw_decode(match["list"].decode(errors="replace"))
        except ValueError:
            count += 1
            return match["key"] + b"[]"  # nothing says which of its quotation marks end a text
        return match[0]

    text = _LIST.sub(readable, text)
    text, without_args = _ARGS.subn(b'"args": {}', text)
    return (_IN_WHOLE if whole else _IN_PART).sub(escaped, text), count + without_args


def is_raw_path(text: bytes) -> bool:
    """Whether a JSON string's inside is a frame of Windows whose backslashes happen to be escapes."""
    return b"\\" in text and _RAW_PATH.match(text) is not None


def escape(text: bytes) -> bytes:
    r"""A damaged text as the inside of a JSON string.

    If one of its backslashes escapes nothing, none does: it is a path of Windows, and `\t` begins a folder's name. Two
    are one, and one before a quotation mark belongs to that.
    """
    pieces = _PIECE.findall(text)
    raw = b"\\" in pieces or is_raw_path(text)

    def piece(match: re.Match[bytes]) -> bytes:
        piece = match[0]
        if piece == b'"':
            return b'\\"'
        if len(piece) == 1 and piece != b"\\":
            return b"\\u%04x" % piece[0]
        if piece in (b"\\\\", b'\\"') or not raw:
            return piece
        return b"\\" + piece

    return _PIECE.sub(piece, text)
