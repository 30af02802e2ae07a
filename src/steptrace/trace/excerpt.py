"""One step of a trace as a separate trace, small enough to keep and to open anywhere.

It holds the events of the step, back to the launches of the GPU work that runs in it and to the work before it, and on
to the first work launched after it, since the idle time between these is part of the cost of the step's waits. Spans
that reach beyond are cut, other events keep their text; other steps are not marked. So the step's figures are those of
the full trace, except `length_ns`: it counts from the end of the work of the step before, which is not in the excerpt.
Figures of the whole excerpt are not the trace's.
"""

import gzip
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from steptrace.compiled import compiled
from steptrace.errors import ConfigError, TraceError
from steptrace.files import replace_atomically
from steptrace.trace import names as naming
from steptrace.trace.columns import start_end
from steptrace.trace.decode import Event, decode_event, ns_to_us, repair, to_ns
from steptrace.trace.files import EventStream
from steptrace.trace.link import read_trace
from steptrace.trace.model import Trace, launched_at, median_step

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Excerpt:
    """A written excerpt: its step, events and bytes."""

    path: Path
    step: int
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
    tables = read_trace(trace)
    row = _row_of(tables, step)
    number, extent = int(tables.steps["index"].iloc[row]), _extent(tables, row)
    events: list[int] = []
    replace_atomically(out, lambda temporary: events.append(_write(trace, number, extent, temporary)))
    return Excerpt(out, number, events[0], out.stat().st_size)


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
    own, launched = (trace.kernels["device"] == trace.device).to_numpy(), launched_at(trace)
    running = (start < ts + dur) & (end > ts) & (launched >= 0)
    earlier, later = np.flatnonzero(own & (end <= ts)), np.flatnonzero(own & (launched >= ts + host_dur))
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


def _write(trace: Path, step: int, extent: tuple[int, int], out: Path) -> int:
    """Write an excerpt, gzipped; returns the number of events."""
    stream, scanner, count, head = EventStream(trace), compiled.Scanner(0, []), 0, b""
    # Without file name and time in the gzip header: equal excerpts are equal files.
    with out.open("wb") as raw, gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=raw, mtime=0) as file:

        def copy(chunk: bytes) -> tuple[int, bool]:
            nonlocal count, head
            if not head:
                head = repair(stream.head.lstrip())
                file.write(head)
            _, texts, *_, taken, ended = scanner.scan(chunk)
            for begin, end in texts:
                if (written := _written(*decode_event(chunk[begin:end]), step, extent)) is not None:
                    file.write((b",\n" if count else b"\n") + written)
                    count += 1
            return taken, ended

        try:
            stream.read(copy)
        except msgspec.DecodeError as error:
            raise TraceError(f"an event that is no event ({error})", where=trace) from error
        note = b',\n"steptraceExcerpt": ' + msgspec.json.encode({"of": trace.name, "step": step})
        file.write(b"\n]" + (note if head.startswith(b"{") else b"") + repair(stream.tail))
    return count
