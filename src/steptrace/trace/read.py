"""Kineto's JSON to columns, in one pass, without the whole file in memory."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from steptrace import format as fmt
from steptrace.errors import TraceError
from steptrace.trace.bounds import plain_text
from steptrace.trace.columns_within import within_bounds
from steptrace.trace.events import CollectiveArgs
from steptrace.trace.kinds import COLUMNS, KINDS, LISTS, GrowingColumn
from steptrace.trace.scan import ChunkScanner, Thread
from steptrace.trace.stream import CHUNK, EventStream

#: Most waits for the device at the profiler's own end.
_STOPS: Final = 2


@dataclass
class RawTrace:
    """The columns of a trace before linking.

    `columns[kind][name]` is an array; kinds are `op`, `call`, `gpu`, `frame`, `label`, `memory`. Missing integers are
    `MISSING`. `ts` and `dur` are ns; `ts` counts from `base_ns`. The column `collective` of operators and GPU
    activities holds indices in `collectives`, -1 for others.
    """

    path: Path
    columns: dict[str, dict[str, NDArray[Any]]]
    names: list[str]
    threads: list[Thread]
    thread_names: dict[Thread, str]
    metadata: dict[str, Any]
    base_ns: int
    collectives: list[CollectiveArgs]
    notes: list[str] = field(default_factory=list)


class _Reader:
    """Gathers the columns of one file, chunk by chunk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self.thread_names: dict[Thread, str] = {}
        self._scanner = ChunkScanner(path)
        self._columns = {
            kind: {name: GrowingColumn(column.dtype) for name, column in columns.items()}
            for kind, columns in COLUMNS.items()
        }

    def add(self, chunk: bytes) -> tuple[int, bool]:
        """Append the rows of the whole events that a text begins with: see `EventStream.read`."""
        scanned = self._scanner.scan(chunk)
        for (phase, category), number in scanned.counts.items():
            self.counts[f"{phase} {category}" if category else phase] += number
        for kind, columns in scanned.columns.items():
            for name, values in columns.items():
                self._columns[kind][name].append(values)
        self.thread_names |= scanned.thread_names
        return scanned.taken, scanned.ended

    def finish(self, metadata: dict[str, Any]) -> RawTrace:
        """The whole file's columns, with times since the first event; `metadata`: the file's other keys."""
        notes: list[str] = []
        read = {kind: {name: column.array() for name, column in of.items()} for kind, of in self._columns.items()}
        columns = within_bounds(read, self._scanner.names.values, notes, self.path)
        names = self._plain_names(columns)
        starts = [c["ts"].min() for kind, c in columns.items() if len(c["ts"]) and kind != "memory"]
        recognised = any(f"X {category}" in self.counts for category in (*KINDS, *_NOT_NEEDED))
        if not starts and not recognised and any(name.startswith("X") for name in self.counts):
            raise TraceError(
                "not a trace of PyTorch's profiler: none of its events has one of the profiler's categories",
                where=self.path,
                expected="events of the categories cpu_op, cuda_runtime, kernel, ...",
                next_step="record with torch.profiler and its export_chrome_trace",
            )
        if not starts or _is_profilers_stop(columns, names):
            raise TraceError(
                "a trace without any operator, call or GPU activity",
                where=self.path,
                expected="events of a profiled program",
                next_step="check the profiler's schedule: training must reach the active steps; the schedule then "
                "starts again, so export in on_trace_ready, or set repeat=1",
            )
        base = int(min(starts))
        notes += _unknown_categories(self.counts)
        for c in columns.values():
            c["ts"] -= base
        if not any(int((c["ts"] + c["dur"]).max()) for c in columns.values() if len(c["ts"])):
            raise TraceError("none of its events takes any time", where=self.path, expected="a recorded program")
        return RawTrace(
            path=self.path,
            columns=columns,
            names=names,
            threads=self._scanner.threads.values,
            thread_names=self.thread_names,
            metadata=metadata,
            base_ns=base,
            collectives=self._scanner.collectives.values,
            notes=notes,
        )

    def _plain_names(self, columns: dict[str, dict[str, NDArray[Any]]]) -> list[str]:
        """The names as `plain_text`, sorted; the columns then hold their indices."""
        coded = [(c, key) for c in columns.values() for key in ("name", "category", *LISTS) if key in c]
        written = self._scanner.names.values
        used = np.zeros(len(written), dtype=bool)
        for c, key in coded:
            used[c[key]] = True
        plain = {code: plain_text(written[code]) for code in np.flatnonzero(used).tolist()}
        names = sorted(set(plain.values()))
        place = {name: number for number, name in enumerate(names)}
        number = np.full(len(written), -1, dtype=np.int32)
        number[used] = [place[name] for name in plain.values()]
        for c, key in coded:
            c[key] = number[c[key]]
        return names


#: Categories of complete events that are not needed: other events have the same information.
_NOT_NEEDED = frozenset({"Trace", "gpu_user_annotation", "cuda_sync", "overhead", "ac2g", "external_correlation"})


def _is_profilers_stop(columns: dict[str, dict[str, NDArray[Any]]], names: list[str]) -> bool:
    """Whether the only event is the wait at the profiler's end: exported in the wait or warm-up of a schedule."""
    calls = [names[place] for place in columns["call"]["name"].tolist()[: _STOPS + 1]]
    others = sum(len(columns[kind]["ts"]) for kind in ("op", "gpu", "label"))
    return not others and 0 < len(calls) <= _STOPS and all(name.endswith("DeviceSynchronize") for name in calls)


def _unknown_categories(counts: Counter[str]) -> list[str]:
    """A note on the categories of complete events that are not read."""
    recognised = {f"X {category}" for category in (*KINDS, *_NOT_NEEDED)} | {"X"}
    unknown = {name[2:]: number for name, number in counts.items() if name.startswith("X") and name not in recognised}
    names = fmt.clipped(plain_text(", ".join(sorted(unknown))), 100)
    return [f"{fmt.plural(sum(unknown.values()), 'event')} of other categories left out: {names}"] if unknown else []


def read_raw(path: Path, *, chunk: int = CHUNK) -> RawTrace:
    """Read one trace file (`.json` or `.json.gz`) of any size into columns, `chunk` bytes at a time.

    Raises:
        TraceError: the file is missing, empty, damaged, no JSON, or no trace.
        TruncatedTraceError: its end is missing.
    """
    stream = EventStream(path, chunk=chunk)
    reader = _Reader(path)
    stream.read(reader.add)
    return reader.finish(stream.metadata)
