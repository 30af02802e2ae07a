"""Writes chosen events of a trace file as a trace file, their text as it is."""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from steptrace.trace.decode import event_texts
from steptrace.trace.events import ns_to_us
from steptrace.trace.excerpt_index import EventIndex
from steptrace.trace.excerpt_select import Selection
from steptrace.trace.json_text import repair
from steptrace.trace.stream import EventStream

_LEVEL: Final = 6
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Source:
    """A trace with its index, where events of it go, and the most bytes that may take."""

    trace: Path
    index: EventIndex
    out: Path
    max_bytes: int


@dataclass(frozen=True)
class Written:
    """Whether the events fit; the file's bytes, and those of the events' text. What does not fit is left unfinished."""

    fits: bool
    size: int
    text: int


def write_events(source: Source, selection: Selection, note: bytes) -> Written:
    """Write a selection, gzipped, with `note` (`, "key": value`) in the header unless the file is a bare array."""
    head, tail = _around(source.index)
    row, text, stop = 0, 0, int(np.flatnonzero(selection.keep)[-1])
    with source.out.open("wb") as raw:
        # Neither a name nor the time of writing: they would make equal excerpts differ.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as file:
            file.write(head)
            between = b"\n"
            for chunk in EventStream(source.trace):
                texts = event_texts(chunk)
                for place in np.flatnonzero(selection.keep[row : row + len(texts)]).tolist():
                    event = bytes(texts[place])
                    if selection.cut[row + place]:
                        event = _cut(event, source.index, row + place, selection.extent)
                    file.write(between + event)
                    text += len(event)
                    between = b",\n"
                row += len(texts)
                if row > stop or raw.tell() > source.max_bytes:
                    break
            file.write(b"\n]" + (note if head.startswith(b"{") else b"") + tail)
        size = raw.tell()
    return Written(size <= source.max_bytes, size, text)


def _around(index: EventIndex) -> tuple[bytes, bytes]:
    """The text before and after the events, made valid JSON where it is not."""
    head, tail = index.head.lstrip(b"\xef\xbb\xbf \t\r\n"), index.tail
    try:
        (head + b"]" + tail).decode()
        msgspec.json.decode(head + b"]" + tail)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return repair(head), repair(tail)
    return head, tail


def _cut(text: bytes, index: EventIndex, row: int, extent: tuple[int, int]) -> bytes:
    """The text of a span with the part of its time that lies in the extent; every other value as it is."""
    start, end = max(int(index.ts[row]), extent[0]), min(int(index.end[row]), extent[1])
    fields = {key: bytes(value) for key, value in _FIELDS.decode(text).items()}
    fields |= {"ts": ns_to_us(start).encode(), "dur": ns_to_us(end - start).encode()}
    return b"{" + b", ".join(msgspec.json.encode(key) + b": " + value for key, value in fields.items()) + b"}"
