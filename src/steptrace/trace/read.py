"""Kineto's JSON to columns, in one pass and without holding the file.

Each chunk of events is decoded into typed structs that keep only the fields used here, and those go straight into
integer columns. Kineto writes times as decimal microseconds; they become integer nanoseconds without passing through
a float that could not hold them.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from steptrace.errors import TraceError
from steptrace.trace.names import GPU_CATEGORIES
from steptrace.trace.stream import CHUNK, EventStream, repair

Ints = NDArray[np.int64]

#: Stands for "not given" in integer columns while reading; the tables carry null.
MISSING = -(1 << 63)

#: From here a float64 of microseconds no longer tells nanoseconds apart.
_FLOAT_LIMIT_US = float(1 << 43)

#: Kineto's times count from 1970 or from the machine's start: real ones lie beyond the first ten seconds.
_FAR_FROM_ZERO_NS = 10_000_000_000

_Loose = int | str | float | list[Any] | None


class _Args(msgspec.Struct, gc=False):
    """The arguments of an event that anything here uses. Tools write some of them as text."""

    external_id: _Loose = msgspec.field(name="External id", default=MISSING)
    sequence: _Loose = msgspec.field(name="Sequence number", default=MISSING)
    forward_thread: _Loose = msgspec.field(name="Fwd thread id", default=MISSING)
    python_id: _Loose = msgspec.field(name="Python id", default=MISSING)
    python_parent: _Loose = msgspec.field(name="Python parent id", default=MISSING)
    correlation: _Loose = MISSING
    device: _Loose = MISSING
    stream: _Loose = MISSING
    bytes: _Loose = MISSING
    blocks_per_sm: _Loose = msgspec.field(name="blocks per SM", default=None)
    grid: _Loose = None
    name: _Loose = None
    device_type: _Loose = msgspec.field(name="Device Type", default=MISSING)
    device_id: _Loose = msgspec.field(name="Device Id", default=MISSING)
    address: _Loose = msgspec.field(name="Addr", default=MISSING)
    size: _Loose = msgspec.field(name="Bytes", default=MISSING)
    allocated: _Loose = msgspec.field(name="Total Allocated", default=MISSING)
    reserved: _Loose = msgspec.field(name="Total Reserved", default=MISSING)


_NO_ARGS = _Args()


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: _Args | None = None


class _ExactEvent(msgspec.Struct, gc=False):
    """As `_Event`, for files whose times need more digits than a float has."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)
    args: _Args | None = None


class Names:
    """Distinct strings, numbered in order of appearance."""

    def __init__(self) -> None:
        # A missing value gets the next number: looking up and numbering are one step, without a Python call.
        self._codes: defaultdict[Any, int] = defaultdict(count().__next__)

    def code(self, values: Iterable[Any]) -> NDArray[np.int32]:
        """The number of each value, int32."""
        return np.array(list(map(self._codes.__getitem__, values)), dtype=np.int32)

    @property
    def values(self) -> list[Any]:
        """The distinct values, by number."""
        return list(self._codes)


@dataclass
class RawTrace:
    """The columns of a trace before anything is linked.

    `columns[kind][name]` is one array per kind of event: `op`, `call`, `gpu`, `frame`, `label`, `memory`. Integers
    that were not given are `MISSING`. `ts` and `dur` are ns; `ts` counts from `base_ns`.
    """

    path: Path
    columns: dict[str, dict[str, NDArray[Any]]]
    names: list[str]
    threads: list[tuple[int | str | None, int | str | None]]
    thread_names: dict[tuple[int | str | None, int | str | None], str]
    metadata: dict[str, Any]
    events: dict[str, int]
    base_ns: int
    notes: list[str] = field(default_factory=list)


def _us_to_ns(values: Sequence[float]) -> Ints:
    """Microseconds to integer ns: whole part and rest apart, so that no digit is lost below 2^43 us."""
    us = np.array(values, dtype=np.float64)
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def _exact_to_ns(values: Sequence[Decimal]) -> Ints:
    thousand = Decimal(1000)
    return np.array([int(value * thousand) for value in values], dtype=np.int64)


def _integers(values: Sequence[Any]) -> Ints:
    """The int64 column of loosely typed values; what is no integer becomes `MISSING`."""
    try:
        column = np.array(values)
    except ValueError:  # ragged lists among them
        column = np.empty(0, dtype=object)
    if column.dtype == np.int64 and column.shape == (len(values),):
        return column
    return np.array([_integer(value) for value in values], dtype=np.int64)


def _integer(value: Any) -> int:
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (TypeError, ValueError, OverflowError):
        return MISSING
    return number if -(1 << 63) <= number < 1 << 63 else MISSING


def _floats(values: Sequence[Any]) -> NDArray[np.float64]:
    """The float64 column of loosely typed values; what is no number becomes NaN."""
    out = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if isinstance(value, int | float):
            out[row] = value
    return out


def _blocks(args: Sequence[_Args]) -> NDArray[np.float64]:
    """Thread blocks of the launch grid `[x, y, z]` where blocks per multiprocessor are not given; else NaN."""
    out = np.full(len(args), np.nan)
    for row, arg in enumerate(args):
        if arg.blocks_per_sm is None and isinstance(grid := arg.grid, list):
            sides = [side for side in grid if isinstance(side, int)]
            out[row] = math.prod(sides) if len(sides) == len(grid) == 3 else np.nan
    return out


#: The kind of event each of Kineto's categories is, old spellings included. The others are only counted.
_KINDS = {
    "cpu_op": "op",
    "Operator": "op",
    "cuda_runtime": "call",
    "cuda_driver": "call",
    "Runtime": "call",
    "python_function": "frame",
    "user_annotation": "label",
    "cpu_instant_event": "memory",
    **dict.fromkeys(GPU_CATEGORIES, "gpu"),
}

#: The integer arguments kept of each kind.
_INTEGER_ARGS = {
    "op": ("external_id", "sequence", "forward_thread"),
    "call": ("external_id", "correlation"),
    "gpu": ("correlation", "device", "stream", "bytes"),
    "frame": ("python_id", "python_parent"),
    "label": ("external_id",),
    "memory": ("device_type", "device_id", "address", "size", "allocated", "reserved"),
}


class _Reader:
    """Gathers the columns of one file, chunk by chunk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self.thread_names: dict[tuple[int | str | None, int | str | None], str] = {}
        self._names = Names()
        self._threads = Names()
        self._parts: dict[str, dict[str, list[NDArray[Any]]]] = {kind: defaultdict(list) for kind in _INTEGER_ARGS}
        self._fast = msgspec.json.Decoder(list[_Event])
        self._exact = msgspec.json.Decoder(list[_ExactEvent])
        self._needs_exact = False

    def add(self, chunk: bytes) -> None:
        """Decode one chunk of events and append its rows."""
        groups: defaultdict[str | None, list[Any]] = defaultdict(list)
        for event in self._decode(chunk):
            groups[event.cat].append(event)
        for category, events in groups.items():
            for phase, number in Counter(map(attrgetter("ph"), events)).items():
                self.counts[f"{phase} {category}" if category else phase] += number
            kind = _KINDS.get(category or "")
            if kind is not None:
                self._add_rows(kind, category or "", events)
            elif category is None:
                self._add_thread_names(events)

    def _decode(self, chunk: bytes) -> list[Any]:
        if self._needs_exact:
            return self._decoded(self._exact, chunk)
        events = self._decoded(self._fast, chunk)
        times = np.array([event.ts for event in events])
        if ((times > _FLOAT_LIMIT_US) & (times % 1.0 > 0)).any():
            self._needs_exact = True
            return self._decoded(self._exact, chunk)
        return events

    def _decoded(self, decoder: Any, chunk: bytes) -> list[Any]:
        try:
            return decoder.decode(chunk)  # type: ignore[no-any-return]
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass
        try:
            events = msgspec.json.decode(repair(chunk))
        except msgspec.DecodeError as error:
            raise TraceError(f"invalid JSON among the events ({error})", where=self.path) from error
        try:
            return msgspec.convert(events, decoder.type, strict=False)  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            raise TraceError(
                f"JSON, but no trace: {error}", where=self.path, expected="events as torch.profiler writes them"
            ) from error

    def _add_rows(self, kind: str, category: str, events: list[Any]) -> None:
        phase = "i" if kind == "memory" else "X"
        rows = [event for event in events if event.ph == phase]
        if kind == "memory":
            rows = [event for event in rows if event.name == "[memory]"]
        if not rows:
            return
        to_ns = _exact_to_ns if self._needs_exact else _us_to_ns
        part = self._parts[kind]
        part["ts"].append(to_ns([event.ts for event in rows]))
        part["dur"].append(to_ns([event.dur for event in rows]))
        part["thread"].append(self._threads.code(map(attrgetter("pid", "tid"), rows)))
        part["name"].append(self._names.code(map(attrgetter("name"), rows)))
        args = [event.args or _NO_ARGS for event in rows]
        for name in _INTEGER_ARGS[kind]:
            part[name].append(_integers(list(map(attrgetter(name), args))))
        if kind == "gpu":
            part["category"].append(np.full(len(rows), self._names.code([GPU_CATEGORIES[category]])[0]))
            part["blocks_per_sm"].append(_floats([a.blocks_per_sm for a in args]))
            part["blocks"].append(_blocks(args))

    def _add_thread_names(self, events: list[Any]) -> None:
        for event in events:
            if event.ph == "M" and event.name == "thread_name" and event.args and isinstance(event.args.name, str):
                self.thread_names[event.pid, event.tid] = event.args.name

    def finish(self, metadata: dict[str, Any]) -> RawTrace:
        """The whole file's columns, with times from the first event on."""
        notes: list[str] = []
        columns = {kind: _without_lost_times(kind, self._join(kind), notes) for kind in _INTEGER_ARGS}
        starts = [c["ts"].min() for kind, c in columns.items() if len(c["ts"]) and kind != "memory"]
        if not starts:
            raise TraceError(
                "a trace without any operator, call or GPU activity",
                where=self.path,
                expected="events of a profiled program",
                next_step="check the profiler's schedule: the active steps must be reached",
            )
        base = int(min(starts))
        notes += _unknown_categories(self.counts)
        for kind, c in columns.items():
            c["ts"] -= base
            if negative := int((c["dur"] < 0).sum()):
                notes.append(f"{negative} events ({kind}) have a negative length; it is taken as 0")
                c["dur"] = np.maximum(c["dur"], 0)
        return RawTrace(
            path=self.path,
            columns=columns,
            names=self._names.values,
            threads=self._threads.values,
            thread_names=self.thread_names,
            metadata=metadata,
            events=dict(sorted(self.counts.items())),
            base_ns=base,
            notes=notes,
        )

    def _join(self, kind: str) -> dict[str, NDArray[Any]]:
        parts = self._parts[kind]
        names = ("ts", "dur", "thread", "name", *_INTEGER_ARGS[kind])
        if kind == "gpu":
            names += ("category", "blocks_per_sm", "blocks")
        # One column at a time, so that parts and whole never both stand in memory for long.
        return {name: _concatenate(parts.pop(name, [])) for name in names}


#: Complete events that are known and not needed: what they say, other events say too.
_NOT_NEEDED = frozenset({"Trace", "gpu_user_annotation", "cuda_sync", "overhead", "ac2g", "external_correlation"})


def _unknown_categories(counts: Counter[str]) -> list[str]:
    """A note for each category of complete events that nothing here reads."""
    known = {f"X {category}" for category in (*_KINDS, *_NOT_NEEDED)} | {"X"}
    return [
        f"{number} events of the category '{name.removeprefix('X ')}' are not read"
        for name, number in sorted(counts.items())
        if name.startswith("X") and name not in known
    ]


def _without_lost_times(kind: str, columns: dict[str, NDArray[Any]], notes: list[str]) -> dict[str, NDArray[Any]]:
    """Leave out events at time 0 among later ones: the profiler lost their times, and they would stretch the trace."""
    ts = columns["ts"]
    lost = ts == 0
    if not lost.any() or int(ts.max()) < _FAR_FROM_ZERO_NS:
        return columns
    notes.append(f"{int(lost.sum())} events ({kind}) have no time and are left out")
    return {name: values[~lost] for name, values in columns.items()}


def _concatenate(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def read_raw(path: Path, *, chunk: int = CHUNK) -> RawTrace:
    """Read one trace file (`.json` or `.json.gz`) of any size into columns, `chunk` bytes at a time.

    Raises:
        TraceError: the file is missing, empty, damaged, no JSON, or no trace.
        TruncatedTraceError: its end is missing.
    """
    stream = EventStream(path, chunk=chunk)
    reader = _Reader(path)
    for events in stream:
        reader.add(events)
    return reader.finish(stream.metadata)
