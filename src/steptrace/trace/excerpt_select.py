"""Which events of a trace belong to an excerpt of it, and how they are written: their text as it is.

Kept whole are the calls that lie in the window or launched GPU work of it, and the GPU work that lies in the window or
was launched in it. A copy's call brings the next call of its thread: whether that one waits for the copy decides what
is one synchronisation. Each GPU's last work before the window and its first that was launched after it come too: the
idle time between them and the window's own work is part of what the window's waits cost. All this is the excerpt's
extent.

Operators, labels, Python frames and other spans that reach into the window are kept, and those that reach beyond the
extent are cut to it; a nesting cut at both ends is still a nesting. A training step is kept only whole: part of one
would pass for a short one. Arrows need a beginning and an end at kept events that were not cut.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from steptrace.trace.columns import Ints, Mask
from steptrace.trace.decode import event_texts, repair
from steptrace.trace.events import ns_to_us
from steptrace.trace.excerpt_index import (
    CALL,
    COUNTER,
    FRAME,
    GPU,
    GPU_SPAN,
    INSTANT,
    MEMORY,
    METADATA,
    SPAN,
    EventIndex,
)
from steptrace.trace.stream import EventStream


@dataclass(frozen=True)
class Window:
    """From when to when an excerpt reaches, in ns of the file's clock: of the host's events, and of the GPU's."""

    host: tuple[int, int]
    gpu: tuple[int, int]


@dataclass(frozen=True)
class Selection:
    """The events of an excerpt: a mask over the index, which of them are cut, the extent to cut them to, in ns."""

    keep: Mask
    cut: Mask
    extent: tuple[int, int]
    size: int
    events: int


def select(index: EventIndex, window: Window, without: frozenset[int] = frozenset()) -> Selection:
    """The events of the excerpt that shows `window`, those of the kinds `without` left out.

    `events` counts the spans, so 0 is an excerpt of nothing; `size` is the bytes of all texts.
    """
    whole = _calls_and_work(index, window)
    # What is cut begins before the window, and so in no step that begins with it.
    low = min([*window.host, *window.gpu, *index.ts[whole]]) - 1
    high = max([*window.host, *window.gpu, *index.end[whole]])
    spans = _spans(index, window)
    cut = spans & ((index.ts < low) | (index.end > high))
    keep = whole | spans | _points(index, window)
    keep &= ~np.isin(index.kind, list(without))
    events = int((keep & (whole | spans)).sum())
    keep |= _arrows(index, keep & (whole | spans) & ~cut)
    keep |= _metadata(index, keep)
    return Selection(keep, cut & keep, (low, high), int(index.size[keep].sum()), events)


def _within(index: EventIndex, span: tuple[int, int]) -> Mask:
    """Whether each event has time in common with a span, or begins in it."""
    inside: Mask = (index.ts < span[1]) & ((index.end > span[0]) | (index.ts >= span[0]))
    return inside


def _calls_and_work(index: EventIndex, window: Window) -> Mask:
    call, work = index.kind == CALL, index.kind == GPU
    calls = call & _within(index, window.host)
    done = work & (_within(index, window.gpu) | _linked(index, calls))
    done |= _last_work(index, window.gpu[0]) | _next_work(index, window.host[1])
    calls |= call & _linked(index, done)
    brought = _after_copies(index, calls)
    whole: Mask = calls | done | brought | (work & _linked(index, brought))
    return whole


def _linked(index: EventIndex, chosen: Mask) -> Mask:
    """Whether each event has the correlation of a chosen one; 0 is none."""
    known = index.correlation[chosen]
    found: Mask = np.isin(index.correlation, known[known > 0])
    return found


def _last_work(index: EventIndex, before: int) -> Mask:
    """The last activity of each GPU to end of those that end at `before` or earlier."""
    rows = np.flatnonzero((index.kind == GPU) & (index.end <= before))
    return _first_of_each_gpu(index, rows[np.argsort(-index.end[rows], kind="stable")])


def _next_work(index: EventIndex, after: int) -> Mask:
    """The first activity of each GPU to start of those launched at `after` or later."""
    rows = np.flatnonzero((index.kind == GPU) & (index.launched >= after))
    return _first_of_each_gpu(index, rows[np.argsort(index.ts[rows], kind="stable")])


def _first_of_each_gpu(index: EventIndex, rows: Ints) -> Mask:
    found = np.zeros(len(index.kind), dtype=bool)
    found[rows[np.unique(index.process[rows], return_index=True)[1]]] = True
    return found


def _after_copies(index: EventIndex, calls: Mask) -> Mask:
    """The calls that follow the chosen calls that copy, and so on while these copy too."""
    found = calls.copy()
    rows: Ints = np.flatnonzero(calls & index.is_copy)
    while len(rows):
        rows = index.next_call[rows]
        rows = rows[rows >= 0]
        rows = rows[~found[rows]]
        found[rows] = True
        rows = rows[index.is_copy[rows]]
    found &= ~calls
    return found


def _spans(index: EventIndex, window: Window) -> Mask:
    """The spans that are neither calls nor GPU work; the steps on the GPU's side go with those on the host's."""
    host = ((index.kind == SPAN) | (index.kind == FRAME)) & _within(index, window.host)
    host &= ~index.is_step | ((index.ts >= window.host[0]) & (index.end <= window.host[1]))
    steps = np.unique(index.name[host & index.is_step])
    gpu = (index.kind == GPU_SPAN) & _within(index, window.gpu)
    found: Mask = host | (gpu & (~index.is_step | np.isin(index.name, steps)))
    return found


def _points(index: EventIndex, window: Window) -> Mask:
    """The instants within the host's time, and the counters within the GPU's too."""
    instants = (index.kind == INSTANT) | (index.kind == MEMORY)
    low, high = min(window.host[0], window.gpu[0]), max(window.host[1], window.gpu[1])
    found: Mask = instants & (index.ts >= window.host[0]) & (index.ts < window.host[1])
    found |= (index.kind == COUNTER) & (index.ts >= low) & (index.ts < high)
    return found


def _arrows(index: EventIndex, spans: Mask) -> Mask:
    """The ends of arrows that stand at the start of a chosen span, where both sides of the arrow do."""
    rows = np.flatnonzero(index.flow >= 0)
    rows = rows[np.isin(index.place[rows], index.place[spans])]
    opens = index.opens[rows]
    both = np.intersect1d(index.flow[rows[opens]], index.flow[rows[~opens]])
    found = np.zeros(len(index.kind), dtype=bool)
    found[rows[np.isin(index.flow[rows], both)]] = True
    return found


def _metadata(index: EventIndex, keep: Mask) -> Mask:
    """What names the threads and processes of the chosen events."""
    of_threads = np.array([name.startswith("thread_") for name in index.names], dtype=bool)[index.name]
    thread = np.isin(index.thread, np.unique(index.thread[keep]))
    process = np.isin(index.process, np.unique(index.process[keep]))
    found: Mask = (index.kind == METADATA) & np.where(of_threads, thread, process)
    return found


_LEVEL: Final = 6
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def write_events(
    trace: Path, index: EventIndex, selection: Selection, note: bytes, out: Path, max_bytes: int
) -> tuple[int, int]:
    """Write a selection, gzipped, with `note` (`, "key": value`) in the header unless the file is a bare array.

    Returns the file's bytes, and those of the events' text. A file beyond `max_bytes` is left unfinished.
    """
    head, tail = _around(index)
    row, text, stop = 0, 0, int(np.flatnonzero(selection.keep)[-1])
    with out.open("wb") as raw:
        # Neither a name nor the time of writing: they would make equal excerpts differ.
        with gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=raw, mtime=0) as file:
            file.write(head)
            between = b"\n"
            for chunk in EventStream(trace):
                texts = event_texts(chunk)
                for place in np.flatnonzero(selection.keep[row : row + len(texts)]).tolist():
                    event = bytes(texts[place])
                    if selection.cut[row + place]:
                        event = _cut(event, index, row + place, selection.extent)
                    file.write(between + event)
                    text += len(event)
                    between = b",\n"
                row += len(texts)
                if row > stop or raw.tell() > max_bytes:
                    break
            file.write(b"\n]" + (note if head.startswith(b"{") else b"") + tail)
        return raw.tell(), text


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
