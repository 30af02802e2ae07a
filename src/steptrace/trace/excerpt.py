"""One step of a trace as a separate trace, small enough to keep and to open anywhere.

Each event's text is the file's own; spans that are cut get a new `ts` and `dur`. The header is the file's, with a note
under `steptraceExcerpt`.

Kept whole are the calls in the step or with GPU work in it, and the GPU work in the step or launched in it. A copy's
call is kept with the next call of its thread, since a copy and a wait for it are one synchronisation. So are each GPU's
last work before the step and its first launched after it: the idle time between them and the step's own work is part
of the cost of the step's waits. All this is the excerpt's extent. Operators, labels, Python frames and other spans that
overlap the step are kept, and cut to the extent; other steps are not. So the step's figures are those of the full
trace: its time and the GPU's in it, syncs with their cost, operators, kernels. Figures of the whole excerpt are not
the trace's.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pandas as pd

from steptrace.documents.summary import TraceExcerpt
from steptrace.errors import ConfigError, TraceError
from steptrace.files import replace_atomically
from steptrace.trace import names as naming
from steptrace.trace.columns import Mask, map_names, row_numbers, start_end, take
from steptrace.trace.decode import repair
from steptrace.trace.events import MISSING, ns_to_us, to_ns
from steptrace.trace.find import EXCERPT_FILE
from steptrace.trace.kinds import KINDS
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace, launched_at, median_step
from steptrace.trace.plain import Event, decode_events
from steptrace.trace.stream import EventStream

#: Bytes from which an excerpt is written without Python frames and the allocator's events.
MAX_BYTES: Final = 1_000_000
_LARGE: Final = ("python_function", "cpu_instant_event")
_GPU_SPANS: Final = frozenset({"gpu_user_annotation", "cuda_sync"})
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Excerpt:
    """A written excerpt: its step, events and bytes, and the categories that were left out."""

    path: Path
    step: int
    left_out: tuple[str, ...]
    events: int
    size: int


def write_excerpt(trace: Path, out: Path, step: int | None = None) -> Excerpt:
    """Write one step of a trace file (`.json` or `.json.gz`, any size) to `out` (`.json.gz`).

    Args:
        trace: the trace file.
        out: the file to write.
        step: the step's number; by default the median step by time.

    Raises:
        TraceError: the trace cannot be read, or has no such step.
        ConfigError: `out` has another suffix, or is the trace.
    """
    if not out.name.endswith(".json.gz"):
        raise ConfigError("not the name of an excerpt", where=out, expected="a name ending in .json.gz")
    if out.exists() and trace.exists() and out.samefile(trace):
        raise ConfigError("the excerpt would replace its trace", where=out, next_step="name another file")
    selection = _select(read_trace(trace), step)
    made: list[Excerpt] = []

    def write(temporary: Path) -> None:
        for left_out in ((), _LARGE):
            events = _write(trace, selection, left_out, temporary)
            made.append(Excerpt(out, selection.step, left_out, events, temporary.stat().st_size))
            if made[-1].size <= MAX_BYTES:
                break

    replace_atomically(out, write)
    return made[-1]


def excerpt_of_run(trace: Path, tables: Path) -> TraceExcerpt:
    """Write `excerpt.json.gz` into the folder of a run's tables and return what summary.json says of it.

    Raises:
        TraceError: the trace cannot be read, or has no steps.
    """
    made = write_excerpt(trace, tables / EXCERPT_FILE)
    return TraceExcerpt(
        file=f"{tables.name}/{EXCERPT_FILE}", bytes=made.size, step=made.step, left_out=tuple(made.left_out)
    )


@dataclass(frozen=True)
class _Selection:
    """The content of an excerpt, in ns of the file's clock.

    `host` and `gpu` are the step's span on the host and with its GPU work, `correlations` the numbers of the calls and
    GPU activities to keep, and `extent` the span to which others are cut.
    """

    step: int
    host: tuple[int, int]
    gpu: tuple[int, int]
    extent: tuple[int, int]
    correlations: frozenset[int]

    def keeps(self, event: Event) -> bool:
        """Whether an event belongs to the excerpt."""
        start = to_ns(event.ts)
        end = start + max(to_ns(event.dur), 0)
        in_step, with_gpu = _within(start, end, self.host), _within(start, end, self.gpu)
        if start == MISSING:
            return False
        if event.ph in ("s", "t", "f"):
            return _integer(event.id) in self.correlations if event.cat == "ac2g" else in_step
        if event.ph != "X":
            return event.ph == "M" or (in_step and event.ph in ("i", "I", "R")) or (with_gpu and event.ph == "C")
        kind = KINDS.get(event.cat or "")
        if kind in ("gpu", "call"):
            number = _integer((event.args or {}).get("correlation", b""))
            return number in self.correlations or (number <= 0 and (with_gpu if kind == "gpu" else in_step))
        if not (with_gpu if event.cat in _GPU_SPANS else in_step):
            return False
        return naming.step_index(event.name) in (None, self.step)

    def written(self, event: Event, text: bytes) -> bytes:
        """An event's text; a span to be cut gets the part of its time within the extent."""
        if event.ph != "X" or KINDS.get(event.cat or "") in ("gpu", "call"):
            return text
        low, high = self.extent
        start = to_ns(event.ts)
        end = start + max(to_ns(event.dur), 0)
        if low <= start and end <= high:
            return text
        start, end = max(start, low), min(end, high)
        fields = {key: bytes(value) for key, value in _FIELDS.decode(text).items()}
        fields |= {"ts": ns_to_us(start).encode(), "dur": ns_to_us(end - start).encode()}
        return b"{" + b", ".join(msgspec.json.encode(key) + b": " + value for key, value in fields.items()) + b"}"


def _within(start: int, end: int, span: tuple[int, int]) -> bool:
    """Whether an event overlaps a span, or begins in it."""
    return start < span[1] and (end > span[0] or start >= span[0])


def _integer(text: bytes) -> int:
    """An integer in JSON text, also one in quotation marks; 0 for other text."""
    text = bytes(text).strip(b'"')
    return int(text) if text.isdigit() and len(text) < 20 else 0


def _select(trace: Trace, wanted: int | None) -> _Selection:
    row = _row_of(trace, wanted)
    index, ts, host_dur, dur = (int(trace.steps[name].iloc[row]) for name in ("index", "ts", "host_dur", "dur"))
    launches, kernels = trace.launches, trace.kernels
    launched_by = row_numbers(kernels["launch"])
    calls = _rows_within(launches, ts, ts + host_dur)
    work = _rows_within(kernels, ts, ts + dur) | _launched(calls, launched_by)
    work |= _around(trace, ts, ts + host_dur)
    calls[launched_by[work & (launched_by >= 0)]] = True
    calls |= _after_copies(launches, calls)
    work |= _launched(calls, launched_by)
    numbers = np.concatenate([row_numbers(launches["correlation"][calls]), row_numbers(kernels["correlation"][work])])
    starts, ends = (
        np.concatenate(both)
        for both in zip(([ts], [ts + dur]), start_end(launches[calls]), start_end(kernels[work]), strict=True)
    )
    base = trace.meta.file_base_ns
    return _Selection(
        step=index,
        host=(base + ts, base + ts + host_dur),
        gpu=(base + ts, base + ts + dur),
        # A cut span begins before the step, and must stay outside it.
        extent=(base + int(starts.min()) - 1, base + int(ends.max())),
        correlations=frozenset(numbers[numbers > 0].tolist()),
    )


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
    if step is None:
        return median_step(trace) or 0
    rows = np.flatnonzero(numbers == step)
    if len(rows) == 0:
        raise TraceError(
            f"the trace has no step {step}",
            where=trace.meta.path,
            expected=f"one of its steps: {', '.join(map(str, numbers))}",
        )
    return int(rows[0])


def _rows_within(table: pd.DataFrame, start: int, end: int) -> Mask:
    ts, stop = start_end(table)
    inside: Mask = (ts < end) & ((stop > start) | (ts >= start))
    return inside


def _launched(calls: Mask, launched_by: Any) -> Mask:
    """A mask of the GPU activities launched by the calls."""
    single: Mask = take(calls.astype(np.int64), launched_by) == 1
    return single


def _around(trace: Trace, start: int, end: int) -> Mask:
    """Each GPU's last activity that ends at `start` or earlier, and its first that is launched at `end` or later."""
    ts, stop = start_end(trace.kernels)
    device, chosen = trace.kernels["device"].to_numpy(), np.zeros(len(ts), dtype=bool)
    for gpu in trace.devices:
        before = np.flatnonzero((device == gpu) & (stop <= start))
        after = np.flatnonzero((device == gpu) & (launched_at(trace) >= end))
        chosen[before[np.argsort(stop[before], kind="stable")[-1:]]] = True
        chosen[after[np.argsort(ts[after], kind="stable")[:1]]] = True
    return chosen


def _after_copies(launches: pd.DataFrame, calls: Mask) -> Mask:
    """The next call after each chosen copy, and further ones while these copy, too; rows are in order of thread."""
    copies = map_names(launches["name"], naming.is_async_copy)
    thread, after = launches["thread"].to_numpy(), np.zeros(len(launches), dtype=bool)
    for row in np.flatnonzero(calls & copies).tolist():
        while copies[row] and row + 1 < len(thread) and thread[row + 1] == thread[row]:
            row += 1
            after[row] = True
    return after


def _write(trace: Path, selection: _Selection, left_out: tuple[str, ...], out: Path) -> int:
    """Write a selection, gzipped, without some categories of events; returns the number of events."""
    stream, count, head = EventStream(trace), 0, b""
    note = {"of": trace.name, "step": selection.step, "left_out": left_out}
    # Without file name and time in the gzip header: equal excerpts are equal files.
    with out.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as file:
        for chunk in stream:
            if not head:
                head = repair(stream.head.lstrip(b"\xef\xbb\xbf \t\r\n"))
                file.write(head)
            for event, text in decode_events(chunk, trace):
                if event.cat not in left_out and selection.keeps(event):
                    file.write((b",\n" if count else b"\n") + selection.written(event, text))
                    count += 1
        is_object = head.startswith(b"{")
        file.write(b"\n]" + (b',\n"steptraceExcerpt": ' + msgspec.json.encode(note) if is_object else b""))
        file.write(repair(stream.tail))
    return count
