"""One step of a trace, or of the traces of all ranks, as a small trace that can be opened anywhere.

The excerpt of one trace holds the events of the step, back to the launches of the GPU work that runs in it and to the
work before it, and on to the first work launched after it, since the idle time between these is part of the cost of the
step's waits. Spans that reach beyond are cut, other events keep their text; other steps are not marked. So the step's
figures are those of the full trace, except `length_ns`: it counts from the end of the work of the step before, which is
not in the excerpt. Figures of the whole excerpt are not the trace's.

The excerpt of several ranks holds the same of each rank, on the clock of the first one. Its processes are numbered
anew, since ranks on several hosts may have the same process ids. It is for a trace viewer and cannot be analysed.

Marks, such as the parts of the critical path, stand on a track of their own. An analysis passes them over.
"""

import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import msgspec
import numpy as np

from steptrace.compiled import compiled
from steptrace.errors import ConfigError, TraceError
from steptrace.files import replace_atomically
from steptrace.trace import names as naming
from steptrace.trace.columns import start_end
from steptrace.trace.decode import Event, decode_event, ns_to_us, path_text, repair, to_ns
from steptrace.trace.event_stream import EventStream
from steptrace.trace.files import EXCERPT_KEY
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace, launched_at, median_step

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


#: The category of marks. `steptrace.trace.read` knows it.
MARK_CATEGORY: Final = "steptrace_mark"
#: Key of the metadata of a file with several ranks.
RANKS_KEY: Final = "steptraceRanks"
#: The name of the process that holds the marks in a trace viewer.
_MARKS_PROCESS: Final = "Critical path"
#: Ranks follow each other in a trace viewer; of one rank no trace has as many processes.
_PROCESSES_OF_RANK: Final = 1000
#: Phases of events that have a time.
_TIMED: Final = frozenset("XBEbenSTpFisftCNODPR")


class Mark(NamedTuple):
    """A span on the track of marks: its start and length in ns of the trace's clock, and its text."""

    ts: int
    dur: int
    name: str


#: The marks of a step, by the trace and the step's row; none by default.
Marks = Callable[[Trace, int], Sequence[Mark]]


class RankFile(NamedTuple):
    """The trace file of one rank, and its clock's offset in ns (`steptrace.documents.ranks.RankWait`)."""

    path: Path
    rank: int
    clock_offset_ns: int


@dataclass(frozen=True)
class Excerpt:
    """A written excerpt: its step, events and bytes."""

    path: Path
    step: int
    events: int
    size: int


def no_marks(trace: Trace, row: int) -> Sequence[Mark]:  # noqa: ARG001 - a function of the type `Marks`
    """No marks."""
    return ()


def write_excerpt(trace: Path, out: Path, step: int | None = None, *, marks: Marks = no_marks) -> Excerpt:
    """Write one step of a trace file (`.json` or `.json.gz`, any size) to `out` (`.json.gz`).

    Args:
        trace: the trace file.
        out: the file to write.
        step: the step's number; by default the median step by time.
        marks: what to mark in the step.

    Raises:
        TraceError: the trace cannot be read, or has no such step.
        ConfigError: `out` has another suffix, or is the trace.
    """
    _check_out(out, [trace])
    part = _Part.from_trace(read_trace(trace), step, marks)
    kept = []

    def write(temporary: Path) -> None:
        with _Writer(temporary) as writer:
            tail = _copy(trace, part, writer, head=_head({"of": path_text(trace.name), "step": part.step}))
            writer.add(_marked(mark, part.file_base_ns, _MARKS_PROCESS) for mark in part.marks)
            writer.write(b"\n]" + tail)
            kept.append(writer.events)

    replace_atomically(out, write)
    return Excerpt(out, part.step, kept[0], out.stat().st_size)


def write_ranks_excerpt(
    ranks: Sequence[RankFile], out: Path, step: int | None = None, *, marks: Marks = no_marks
) -> Excerpt:
    """Write one step of every rank to one trace `out` (`.json.gz`), on the clock of the first rank.

    Args:
        ranks: the traces, the first one with an offset of 0.
        out: the file to write.
        step: the step's number; by default the first rank's median step by time.
        marks: what to mark in the step of each rank.

    Raises:
        TraceError: a trace cannot be read, or has no such step.
        ConfigError: `out` has another suffix, or is one of the traces.
    """
    _check_out(out, [rank.path for rank in ranks])
    parts: list[_Part] = []
    for rank in ranks:
        parts.append(_Part.from_trace(read_trace(rank.path), parts[0].step if parts else step, marks))
    # Offsets are added to times since an epoch if all traces have one, or to times since the trace's start.
    based = all(part.base_ns is not None for part in parts)
    bases = [(part.base_ns or 0) if based else 0 for part in parts]
    clocks = [start + rank.clock_offset_ns for start, rank in zip(bases, ranks, strict=True)]
    base = parts[0].file_base_ns
    written = []

    def write(temporary: Path) -> None:
        with _Writer(temporary) as writer:
            note = {"of": [path_text(rank.path.name) for rank in ranks], "step": parts[0].step}
            writer.write(_head(note) + b'"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": [')
            for place, (rank, part, clock) in enumerate(zip(ranks, parts, clocks, strict=True)):
                start = base + clock - clocks[0]  # the trace's start in the file of all ranks
                moved = _Moved(rank.rank, place, start - part.file_base_ns)
                _copy(rank.path, part, writer, moved=moved)
                process = moved.process(_MARKS_PROCESS)
                writer.add(_marked(mark, start, process) for mark in part.marks)
                writer.add(moved.names())
            writer.write(b'\n],\n"%s": %d}\n' % (RANKS_KEY.encode(), len(ranks)))
            written.append(writer.events)

    replace_atomically(out, write)
    return Excerpt(out, parts[0].step, written[0], out.stat().st_size)


def _check_out(out: Path, traces: Iterable[Path]) -> None:
    """Raise if an excerpt cannot have this name."""
    if not out.name.endswith(".json.gz"):
        raise ConfigError("not the name of an excerpt", where=out, expected="a name ending in .json.gz")
    for trace in traces:
        if out.exists() and trace.exists() and out.samefile(trace):
            raise ConfigError("the excerpt would replace its trace", where=out, next_step="name another file")


def _row_of(trace: Trace, step: int | None) -> int:
    """The row of a step by its number, or of the median one."""
    numbers = trace.steps["index"].to_numpy()
    if len(numbers) == 0:
        raise TraceError(
            "an excerpt needs a step, but this trace has none",
            where=trace.meta.path,
            expected="a trace with steps (ProfilerStep#N)",
            next_step="call profiler.step() after each training step",
        )
    rows = np.flatnonzero(numbers == step) if step is not None else [median_step(trace) or 0]
    if len(rows) == 0:
        raise TraceError(
            f"the trace has no step {step}",
            where=trace.meta.path,
            expected=f"one of its steps: {', '.join(map(str, numbers))}",
        )
    return int(rows[0])


def _extent(trace: Trace, row: int) -> tuple[int, int]:
    """The time that the excerpt of a step covers, in ns of the file's clock."""
    ts, dur, host_dur = (int(trace.steps[name].iloc[row]) for name in ("ts", "dur", "host_dur"))
    start, end = start_end(trace.kernels)
    on_device = (trace.kernels["device"] == trace.device).to_numpy()
    launched = launched_at(trace)
    running = (start < ts + dur) & (end > ts) & (launched >= 0)
    earlier, later = np.flatnonzero(on_device & (end <= ts)), np.flatnonzero(on_device & (launched >= ts + host_dur))
    low = min([ts, *launched[running], *start[earlier[np.argsort(end[earlier])[-1:]]]])
    high = max([ts + dur, *end[later[np.argsort(start[later])[:1]]]])
    # A cut span begins before the step, and must stay outside it.
    return trace.meta.file_base_ns + int(low) - 1, trace.meta.file_base_ns + int(high)


def _written(event: Event, text: bytes, step: int, extent: tuple[int, int]) -> bytes | None:
    """An event's text, cut to the extent; None if it is not part of the excerpt."""
    start = to_ns(event.ts)
    end = start + max(to_ns(event.dur), 0)
    low, high = extent
    if event.ph == "M":
        return text
    if start >= high or (end <= low and start < low) or naming.step_index(event.name) not in (None, step):
        return None
    if event.ph != "X" or (low <= start and end <= high):
        return text
    fields = {key: bytes(value) for key, value in _FIELDS.decode(text).items()}
    start, end = max(start, low), min(end, high)
    fields |= {"ts": ns_to_us(start).encode(), "dur": ns_to_us(end - start).encode()}
    return b"{" + b", ".join(msgspec.json.encode(key) + b": " + value for key, value in fields.items()) + b"}"


@dataclass(frozen=True)
class _Part:
    """The part of a trace to copy: a step, its extent in ns of the file's clock, and its marks.

    `file_base_ns` is the file's time at the start of the trace, `base_ns` the time since the epoch, if it is known.
    """

    step: int
    extent: tuple[int, int]
    marks: Sequence[Mark]
    file_base_ns: int
    base_ns: int | None

    @classmethod
    def from_trace(cls, trace: Trace, step: int | None, marks: Marks) -> Self:
        """The part of a trace for one of its steps, by default the median one."""
        row = _row_of(trace, step)
        meta = trace.meta
        number = int(trace.steps["index"].iloc[row])
        return cls(number, _extent(trace, row), marks(trace, row), meta.file_base_ns, meta.base_ns)


class _Writer:
    """A gzipped file of events, with commas between them. Equal excerpts are equal files: the header has no time."""

    def __init__(self, out: Path) -> None:
        self.events = 0
        self._raw = out.open("wb")
        self._file = gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=self._raw, mtime=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
        self._raw.close()

    def write(self, text: bytes) -> None:
        """Write a text as it is."""
        self._file.write(text)

    def add(self, events: Iterable[bytes]) -> None:
        """Write the texts of events."""
        for event in events:
            self._file.write((b",\n" if self.events else b"\n") + event)
            self.events += 1


@dataclass
class _Moved:
    """Moves the events of a rank to the first rank's clock, into processes of its own.

    `shift_ns` is added to times in the file. `place` is the rank's place among the ranks.
    """

    rank: int
    place: int
    shift_ns: int
    processes: dict[bytes, int] = field(default_factory=dict)
    named: dict[bytes, bytes] = field(default_factory=dict)

    def process(self, pid: int | str) -> int:
        """The number of a process in the file of all ranks."""
        return self._number(msgspec.json.encode(pid))

    def _number(self, pid: bytes) -> int:
        return self.processes.setdefault(pid, self.place * _PROCESSES_OF_RANK + len(self.processes) + 1)

    def event(self, event: Event, text: bytes) -> bytes | None:
        """The moved event's text; None for events that name or sort processes, which `names` replaces."""
        fields = {key: bytes(value) for key, value in _FIELDS.decode(text).items()}
        pid = fields.get("pid")
        if event.ph == "M" and event.name in ("process_name", "process_sort_index"):
            if event.name == "process_name" and pid is not None and event.args:
                self.named[pid] = bytes(event.args.get("name", b'""'))
            return None
        if pid is not None:
            fields["pid"] = str(self._number(pid)).encode()
        if "id" in fields:  # flows of different ranks must not meet
            fields["id"] = msgspec.json.encode(f"{self.rank}.{fields['id'].decode()}")
        if event.ph in _TIMED:
            fields["ts"] = ns_to_us(to_ns(event.ts) + self.shift_ns).encode()
        return b"{" + b", ".join(msgspec.json.encode(key) + b": " + value for key, value in fields.items()) + b"}"

    def names(self) -> Iterator[bytes]:
        """Events that name the rank's processes and order them."""
        for pid, number in self.processes.items():
            name = msgspec.json.decode(self.named.get(pid, pid))
            for kind, value in (
                ("name", {"name": f"rank {self.rank}: {name}"}),
                ("sort_index", {"sort_index": number}),
            ):
                yield msgspec.json.encode({"ph": "M", "name": f"process_{kind}", "pid": number, "args": value})


def _marked(mark: Mark, base_ns: int, process: int | str) -> bytes:
    """The event of a mark; `base_ns` is the file's time at the start of the trace's clock."""
    times = {"ts": msgspec.Raw(ns_to_us(base_ns + mark.ts).encode()), "dur": msgspec.Raw(ns_to_us(mark.dur).encode())}
    fixed = {"ph": "X", "cat": MARK_CATEGORY, "name": mark.name, "pid": process, "tid": _MARKS_PROCESS}
    return msgspec.json.encode({**fixed, **times})


def _head(note: dict[str, Any]) -> bytes:
    """The beginning of an excerpt's file, up to the next key: `is_excerpt` knows a file by it."""
    return b'{"%s": %s,\n' % (EXCERPT_KEY.encode(), msgspec.json.encode(note))


def _copy(
    trace: Path, part: _Part, writer: _Writer, *, moved: _Moved | None = None, head: bytes | None = None
) -> bytes:
    """Copy a step's events of a trace; returns the text that ends the new file.

    Args:
        trace: the file.
        part: what to copy of it.
        writer: where to.
        moved: moves the events.
        head: the beginning of the new file; the text before the events follows it. None to copy the events alone.
    """
    stream = EventStream(trace)
    scanner = compiled.Scanner(0, [])
    begun = head is None

    def kept(text: bytes) -> Iterator[bytes]:
        event, text = decode_event(text)
        cut = _written(event, text, part.step, part.extent)
        if cut is not None and moved is not None:
            cut = moved.event(decode_event(cut)[0], cut)
        if cut is not None:
            yield cut

    def copy(chunk: bytes) -> tuple[int, bool]:
        nonlocal begun
        if not begun and head is not None:
            before = repair(stream.head.lstrip())
            writer.write(head + (b'"traceEvents": [' if stream.bare_array else before.removeprefix(b"{")))
            begun = True
        _, texts, *_, taken, ended = scanner.scan(chunk)
        for begin, end in texts:
            writer.add(kept(chunk[begin:end]))
        return taken, ended

    try:
        stream.read(copy)
    except msgspec.DecodeError as error:
        raise TraceError(f"an event that is no event ({error})", where=trace) from error
    return b"}\n" if stream.bare_array else repair(stream.tail)
