"""The text of a trace's file, made what the reader expects: UTF-8, one JSON value, no comments.

PowerShell's `>` writes UTF-16. Some tools write one event a line (JSON Lines), or comments as in JavaScript.
"""

import codecs
import json
import re
from typing import BinaryIO, Final

from steptrace.trace.decode import decode_object

#: Marks of the byte order at the begin of a file, and the begin of an object or an array without one. UTF-32 comes
#: first, since its mark begins with that of UTF-16.
_ENCODINGS: Final[tuple[tuple[bytes, str], ...]] = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    *(
        (bracket.encode(encoding), encoding)
        for encoding in ("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be")
        for bracket in "{["
    ),
)
#: White space and whole comments, up to what follows them. The last comment of a file needs no line behind it.
_SKIPPED: Final = re.compile(rb"(?:[ \t\r\n]++|//[^\n]*+\n|/\*.*?\*/)*+", re.DOTALL)
_SKIPPED_TO_END: Final = re.compile(rb"(?:[ \t\r\n]++|//[^\n]*+(?:\n|\Z)|/\*.*?\*/)*+", re.DOTALL)
#: A string, which may be cut off by the end of the text, or a whole comment.
_STRING_OR_COMMENT: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|//[^\n]*+\n|/\*.*?\*/', re.DOTALL)
#: The same in a text that reaches to the end of its file.
_TO_END: Final = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|//[^\n]*+|/\*.*?\*/', re.DOTALL)
#: Bytes at a time where all are wanted.
_PIECE: Final = 1 << 20
#: Bytes of a first line that may be one event.
_LONGEST_LINE: Final = 1 << 16
_DECODER: Final = json.JSONDecoder(strict=False)


class Utf8:
    """A file whose text is read as UTF-8, whichever Unicode encoding it has."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._begun = False
        self._decoder: codecs.IncrementalDecoder | None = None

    def read(self, size: int = -1) -> bytes:
        """The next piece of text, of about `size` bytes, or all that is left; empty at the file's end.

        Bytes of a character that the file's end cuts are left out: the text is cut there, and not damaged.
        """
        if size < 0:
            return b"".join(iter(lambda: self.read(_PIECE), b""))
        while more := self._file.read(size):
            if not self._begun:
                self._begun = True
                encoding = next((name for begins, name in _ENCODINGS if more.startswith(begins)), None)
                if encoding is not None:
                    self._decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
            if self._decoder is None:
                return more
            if text := self._decoder.decode(more):
                return text.encode(errors="replace")
        return b""


class Lines:
    """JSON Lines as the elements of one array: a comma behind each line, and a bracket behind the last one.

    The bracket is missing if the last line is incomplete: then the file was cut off.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._ended = False

    def joined(self, more: bytes) -> bytes:
        """The next piece of the array's text, for the next piece of the file's; empty text is the file's end."""
        if self._ended:
            return b""
        text = self._rest + more
        if more:
            whole, newline, self._rest = text.rpartition(b"\n")
            if not newline:
                self._rest = text
                return b" "  # nothing is complete, and the file goes on
        else:
            whole = text
            self._ended = True
        lines = [stripped for line in whole.split(b"\n") if (stripped := line.strip(b" \t\r,"))]
        if self._ended and lines and decode_object(lines[-1]) is None:
            return b",\n".join(lines)
        return b"".join(line + b",\n" for line in lines) + (b"]" if self._ended else b" ")


def begins_lines_of_events(text: bytes) -> bool:
    """Whether a text begins with one event in its first line, and with another object in the second."""
    first, newline, rest = text.lstrip().partition(b"\n")
    if not newline or len(first) > _LONGEST_LINE or rest.lstrip()[:1] not in (b"{", b""):
        return False
    event = decode_object(first.rstrip(b" \t\r,"))
    return event is not None and isinstance(event.get("ph"), str)


def after_comments(text: bytes, *, whole: bool = False) -> bytes:
    """A text without the comments and the white space that it begins with.

    `whole`: whether the text reaches to the end of its file; else a comment that is cut off there stays.
    """
    skipped = (_SKIPPED_TO_END if whole else _SKIPPED).match(text)
    return text[skipped.end() :] if skipped else text


def without_comments(text: bytes, *, whole: bool = True) -> bytes:
    """A JSON text without comments; those in its strings stay.

    `whole`: whether the text reaches to the end of its file; else a comment that is cut off there stays.
    """
    pattern = _TO_END if whole else _STRING_OR_COMMENT
    return pattern.sub(lambda found: found[0] if found[0][:1] == b'"' else b" ", text)


def event_without_comments(text: bytes) -> bytes | None:
    """A text of events without comments, if that makes its first event valid JSON; else None.

    A string that was not escaped can look like a comment, so that the outcome counts.
    """
    if b"//" not in text and b"/*" not in text:
        return None
    cleaned = without_comments(text, whole=False)
    begin = cleaned.find(b"{")
    if cleaned == text or begin < 0 or cleaned[:begin].strip(b" \t\r\n,"):
        return None
    return cleaned if _begins_with_object(cleaned[begin:].decode(errors="replace")) else None


def _begins_with_object(text: str) -> bool:
    try:
        value, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict)
