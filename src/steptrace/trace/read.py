"""Kineto's JSON to columns, in one pass, without the whole file in memory."""

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
from steptrace.trace.kinds import KINDS, LISTS
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


#: Categories of complete events that are not needed: other events have the same information.
_NOT_NEEDED = frozenset({"Trace", "gpu_user_annotation", "cuda_sync", "overhead", "ac2g", "external_correlation"})


def _is_profilers_stop(columns: dict[str, dict[str, NDArray[Any]]], names: list[str]) -> bool:
    """Whether the only event is the wait at the profiler's end: exported in the wait or warm-up of a schedule."""
    calls = [names[place] for place in columns["call"]["name"].tolist()[: _STOPS + 1]]
    others = sum(len(columns[kind]["ts"]) for kind in ("op", "gpu", "label"))
    return not others and 0 < len(calls) <= _STOPS and all(name.endswith("DeviceSynchronize") for name in calls)


def _unknown_categories(counts: dict[str, int]) -> list[str]:
    """A note on the categories of complete events that are not read."""
    unknown = {name: counts[name] for name in counts.keys() - {"", *KINDS, *_NOT_NEEDED}}
    names = fmt.clipped(plain_text(", ".join(sorted(unknown))), 100)
    return [f"{fmt.plural(sum(unknown.values()), 'event')} of other categories left out: {names}"] if unknown else []


def _plain_names(columns: dict[str, dict[str, NDArray[Any]]], written: list[str]) -> list[str]:
    """The names as `plain_text`, sorted; the columns then hold their indices."""
    coded = [(c, key) for c in columns.values() for key in ("name", "category", *LISTS) if key in c]
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


def read_raw(path: Path, *, chunk: int = CHUNK) -> RawTrace:
    """Read one trace file (`.json` or `.json.gz`) of any size into columns, `chunk` bytes at a time.

    Raises:
        TraceError: the file is missing, empty, damaged, no JSON, or no trace.
        TruncatedTraceError: its end is missing.
    """
    stream, scanner = EventStream(path, chunk=chunk), ChunkScanner(path)
    stream.read(scanner.take)
    notes: list[str] = []
    read = {kind: {name: column.array() for name, column in of.items()} for kind, of in scanner.columns.items()}
    columns = within_bounds(read, scanner.names.values, notes, path)
    names = _plain_names(columns, scanner.names.values)
    starts = [c["ts"].min() for kind, c in columns.items() if len(c["ts"]) and kind != "memory"]
    counts = scanner.counts("X")
    if not starts and counts and not counts.keys() & {*KINDS, *_NOT_NEEDED}:
        raise TraceError(
            "not a trace of PyTorch's profiler: none of its events has one of the profiler's categories",
            where=path,
            expected="events of the categories cpu_op, cuda_runtime, kernel, ...",
            next_step="record with torch.profiler and its export_chrome_trace",
        )
    if not starts or _is_profilers_stop(columns, names):
        raise TraceError(
            "a trace without any operator, call or GPU activity",
            where=path,
            expected="events of a profiled program",
            next_step="check the profiler's schedule: training must reach the active steps; the schedule then "
            "starts again, so export in on_trace_ready, or set repeat=1",
        )
    base = int(min(starts))
    notes += _unknown_categories(counts)
    for c in columns.values():
        c["ts"] -= base
    if not any(int((c["ts"] + c["dur"]).max()) for c in columns.values() if len(c["ts"])):
        raise TraceError("none of its events takes any time", where=path, expected="a recorded program")
    return RawTrace(
        path=path,
        columns=columns,
        names=names,
        threads=scanner.threads.values,
        thread_names=scanner.thread_names,
        metadata=stream.metadata,
        base_ns=base,
        collectives=scanner.collectives.values,
        notes=notes,
    )
