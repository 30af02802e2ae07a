"""A few milliseconds of a trace as a trace of its own, small enough to be kept and opened anywhere.

What belongs to it, `steptrace.trace.excerpt_select` says. Each event's text is the file's own, byte for byte; of spans
that are cut only `ts` and `dur` are written anew. The header is the file's, with a note under `steptraceExcerpt`.
Equal files and wishes give equal bytes.

Figures of a step that is in the excerpt whole are those of the full trace: its time and the GPU's in it, syncs with
their cost, operators, kernels. Figures of the whole excerpt are not to be taken for the trace's: at its edges it lacks
what ran beside the work that it keeps.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from steptrace.documents.summary import TraceExcerpt
from steptrace.errors import ConfigError, TraceError
from steptrace.files import replace_atomically
from steptrace.trace.columns import Ints
from steptrace.trace.excerpt_index import CALL, FRAME, MEMORY, SPAN, EventIndex, read_index
from steptrace.trace.excerpt_select import Selection, Window, select, write_events
from steptrace.trace.find import EXCERPT_FILE
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace, median_step

MAX_BYTES: Final = 1_000_000
_NS_PER_MS: Final = 1_000_000
#: What is left out until an excerpt fits, in this order, before it is shortened.
_CATEGORIES: Final = {FRAME: "python_function", MEMORY: "cpu_instant_event"}
#: A shortened excerpt aims at this share of what is allowed: the next part can compress worse than the last.
_AIM: Final = 0.9
#: How often a shortened excerpt is tried. Each try is at most this share of the one before.
_TRIES, _SHRINK = 16, 0.7
_SHORTEST_NS: Final = 1_000


@dataclass(frozen=True)
class Wanted:
    """What part of a trace an excerpt shows: a step by its number, or a time in ms since the trace's first event.

    Without either it is the median step by time; of a trace without steps the whole. `max_bytes` is the largest size of
    the compressed file; `stacks` says whether Python frames are kept where they fit.
    """

    step: int | None = None
    from_ms: float | None = None
    to_ms: float | None = None
    max_bytes: int = MAX_BYTES
    stacks: bool = True


@dataclass(frozen=True)
class Excerpt:
    """An excerpt as it was written: `span_ns` counts from the trace's first event, `size` is the file's, in bytes.

    `step` is the step shown, None for a time; `whole` is False if it had to be shortened. `left_out` names the
    categories of events that were left out.
    """

    path: Path
    step: int | None
    span_ns: tuple[int, int]
    whole: bool
    left_out: tuple[str, ...]
    events: int
    size: int


def write_excerpt(trace: Path, out: Path, wanted: Wanted | None = None) -> Excerpt:
    """Write the excerpt of a trace file (`.json` or `.json.gz`, any size) to `out` (`.json.gz`).

    If it is too large, Python frames are left out, then the allocator's instants; then it is shortened to the part with
    the most launches of GPU work (without any, the most operators).

    Raises:
        TraceError: the trace cannot be read, has no such step or time, or no part of it fits.
        ConfigError: step and time are both given, or `out` is no place for an excerpt.
    """
    wanted = wanted or Wanted()
    _check(trace, out, wanted)
    read = read_trace(trace)
    window, step = _window(read, wanted)
    base = read.meta.file_base_ns
    del read  # its tables are not needed while the text is read
    index, made = read_index(trace), list[Excerpt]()

    def write(temporary: Path) -> None:
        maker = _Maker(trace, index, temporary, wanted.max_bytes, base, step)
        made.append(maker.fit(window, stacks=wanted.stacks))

    replace_atomically(out, write)
    return replace(made[0], path=out)


def excerpt_of_run(trace: Path, tables: Path) -> TraceExcerpt:
    """Write `excerpt.json.gz` into the folder of a run's tables and return what summary.json says of it.

    Returns its file as seen from the run's folder, its size in bytes, the step it shows (None for a trace without
    steps), whether that is there whole, and which categories of events had to be left out.

    Raises:
        TraceError: the trace cannot be read, or no part of it fits.
    """
    made = write_excerpt(trace, tables / EXCERPT_FILE)
    return TraceExcerpt(
        file=f"{tables.name}/{EXCERPT_FILE}",
        bytes=made.size,
        step=made.step,
        whole=made.whole,
        left_out=tuple(made.left_out),
    )


def _check(trace: Path, out: Path, wanted: Wanted) -> None:
    if not out.name.endswith(".json.gz"):
        raise ConfigError("not the name of an excerpt", where=out, expected="a name ending in .json.gz")
    if out.exists() and trace.exists() and out.samefile(trace):
        raise ConfigError("the excerpt would replace its trace", where=out, next_step="name another file")
    if wanted.step is not None and (wanted.from_ms is not None or wanted.to_ms is not None):
        raise ConfigError("a step and a time are asked for", expected="one of them")


def _window(trace: Trace, wanted: Wanted) -> tuple[Window, int | None]:
    """The window asked for, and the number of the step it is."""
    base, steps = trace.meta.file_base_ns, trace.steps
    if wanted.from_ms is not None or wanted.to_ms is not None:
        low = 0 if wanted.from_ms is None else round(wanted.from_ms * _NS_PER_MS)
        high = trace.window[1] if wanted.to_ms is None else round(wanted.to_ms * _NS_PER_MS)
        if not (low < high and low < trace.window[1] and high > 0):
            raise TraceError(
                f"there is nothing from {low / _NS_PER_MS:g} to {high / _NS_PER_MS:g} ms",
                where=trace.meta.path,
                expected=f"a time between 0 and {trace.window[1] / _NS_PER_MS:g} ms, the later end last",
            )
        span = (base + max(low, 0), base + min(high, trace.window[1]))
        return Window(span, span), None
    row = median_step(trace) if wanted.step is None else _row_of(trace, wanted.step)
    if row is None:
        span = (base + trace.window[0], base + trace.window[1] + 1)  # ends are open, and the last event may be a point
        return Window(span, span), None
    index, ts, host_dur, dur = (int(steps[name].iloc[row]) for name in ("index", "ts", "host_dur", "dur"))
    return Window((base + ts, base + ts + host_dur), (base + ts, base + ts + dur)), index


def _row_of(trace: Trace, step: int) -> int:
    steps = trace.steps
    rows = np.flatnonzero(steps["index"].to_numpy() == step)
    if len(rows) == 0:
        raise TraceError(
            f"it has no step {step}",
            where=trace.meta.path,
            expected=f"one of its steps: {', '.join(map(str, steps['index']))}"
            if len(steps)
            else "a trace with steps (ProfilerStep#N)",
            next_step=None if len(steps) else "name a time: --from MS --to MS",
        )
    return int(rows[0])


@dataclass(frozen=True)
class _Maker:
    """Writes excerpts of a trace to `out` until one fits. `base` is the time of its first event, ns of its clock."""

    trace: Path
    index: EventIndex
    out: Path
    max_bytes: int
    base: int
    step: int | None

    def fit(self, window: Window, *, stacks: bool) -> Excerpt:
        """Write the largest excerpt of `window` that fits, as the order of what is left out has it."""
        without: frozenset[int] = frozenset() if stacks else frozenset({FRAME})
        for more in (frozenset[int](), frozenset({FRAME}), frozenset({FRAME, MEMORY})):
            if more and not np.isin(self.index.kind, list(more - without)).any():
                continue
            without |= more
            selection = select(self.index, window, without)
            if not selection.events:
                start, end = (time / _NS_PER_MS for time in self._span(window))
                raise TraceError(f"nothing happened from {start:g} to {end:g} ms", where=self.trace)
            made, text = self._write(window, without, selection, whole=True)
            if made.size <= self.max_bytes:
                return made
        return self._shortened(window, without, made.size, text)

    def _shortened(self, window: Window, without: frozenset[int], size: int, text: int) -> Excerpt:
        """Write the longest densest part of `window` that fits; all of it takes `size` bytes, its text `text`."""
        moments = _moments(self.index, window)
        length = window.host[1] - window.host[0]
        for _ in range(_TRIES):
            allowed = self.max_bytes / max(size, 1) * text * _AIM
            selection = None
            while selection is None or (selection.size > allowed and length >= _SHORTEST_NS and selection.events):
                length = int(length * _SHRINK)
                start = _densest(moments, window, length)
                part = Window((start, start + length), (start, start + length))
                selection = select(self.index, part, without)
            if length < _SHORTEST_NS or not selection.events:
                break
            made, text = self._write(part, without, selection, whole=False)
            if made.size <= self.max_bytes:
                return made
            size = made.size
        raise TraceError(
            f"no part of it fits into {self.max_bytes:,} bytes",
            where=self.trace,
            expected="more than its header and the names of its threads take "
            f"({len(self.index.head):,} bytes before compression)",
            next_step="allow more: --max-bytes N",
        )

    def _write(
        self, window: Window, without: frozenset[int], selection: Selection, *, whole: bool
    ) -> tuple[Excerpt, int]:
        """Write a selection with a note of what it is in its header; return what it is, and the bytes of its text."""
        span = self._span(window)
        left_out = tuple(
            name for kind, name in _CATEGORIES.items() if kind in without and (self.index.kind == kind).any()
        )
        note = {
            "of": self.trace.name,
            "step": self.step,
            "from_ms": span[0] / _NS_PER_MS,
            "to_ms": span[1] / _NS_PER_MS,
            "whole": whole,
            "left_out": left_out,
        }
        header = b',\n"steptraceExcerpt": ' + msgspec.json.encode(note)
        size, text = write_events(self.trace, self.index, selection, header, self.out, self.max_bytes)
        return Excerpt(self.out, self.step, span, whole, left_out, int(selection.keep.sum()), size), text

    def _span(self, window: Window) -> tuple[int, int]:
        """Its time in ns since the first event of the trace."""
        return window.host[0] - self.base, max(window.host[1], window.gpu[1]) - self.base


def _moments(index: EventIndex, window: Window) -> Ints:
    """When things begin that make a part of the window worth showing: GPU work's launches, or else operators."""
    inside = (index.ts >= window.host[0]) & (index.ts < window.host[1])
    found = np.unique(index.launched[(index.launched >= window.host[0]) & (index.launched < window.host[1])])
    for kind in (CALL, SPAN, FRAME):
        found = found if len(found) else np.unique(index.ts[inside & (index.kind == kind)])
    return found if len(found) else np.array([window.host[0]], dtype=np.int64)


def _densest(moments: Ints, window: Window, length: int) -> int:
    """The start of the first part of this length that holds the most of the moments."""
    counts = np.searchsorted(moments, moments + length) - np.arange(len(moments))
    return max(window.host[0], min(int(moments[np.argmax(counts)]), window.host[1] - length))
