"""Kineto's JSON to columns, in one pass, without the whole file in memory; several files in parallel processes.

Events with impossible times or sizes are left out, and counted in notes.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import numpy as np

from steptrace.documents.note import Note, note
from steptrace.errors import TraceError
from steptrace.format import enumeration, plural
from steptrace.machine import cpu_count
from steptrace.processes import die_with
from steptrace.trace.columns import Columns
from steptrace.trace.decode import (
    LARGEST,
    LATEST_NS,
    LONGEST_NS,
    MISSING,
    MOST_DEVICES,
    CollectiveArgs,
    plain_text,
    to_ns,
    within,
)
from steptrace.trace.event_stream import CHUNK, EventStream
from steptrace.trace.files import EXCERPT_KEY
from steptrace.trace.foreign import other_producer
from steptrace.trace.names import is_label, is_of_npu, is_stream_of_npu, runtime_of, step_index
from steptrace.trace.profiler_log import lost_by_log
from steptrace.trace.scan import KINDS, LISTS, ChunkScanner, Thread
from steptrace.trace.unpack import opened
from steptrace.words.notes import unread_events

#: Most waits for the device at the profiler's own end.
_STOPS: Final = 2
#: Bytes at a file's beginning that name its processes.
_BEGINNING: Final = 1 << 16
#: Most processes that a message names.
_MOST_PROCESSES: Final = 3


@dataclass
class RawTrace:
    """The columns of a trace before linking.

    `columns[kind][name]` is an array; kinds are `op`, `call`, `gpu`, `frame`, `label`, `memory`. Missing integers are
    `MISSING`. `ts` and `dur` are ns; `ts` counts from `base_ns`. The column `collective` of operators and GPU
    activities holds indices in `collectives`, -1 for others. `runtimes` are those of the calls: `cuda`, `xpu`, ...
    `waits` are CUPTI's records of waits (`cuda_sync`): their names, and the calls that they are of (`correlation`).
    """

    path: Path
    columns: dict[str, Columns]
    names: list[str]
    threads: list[Thread]
    thread_names: dict[Thread, str]
    metadata: dict[str, Any]
    base_ns: int
    collectives: list[CollectiveArgs]
    runtimes: frozenset[str] = frozenset()
    waits: Columns = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)


#: Categories of complete events that are not needed: other events have the same information.
_NOT_NEEDED = frozenset(
    {
        "Trace",
        "gpu_user_annotation",
        "cuda_event",  # records of events on a stream, which are no work
        "xpu_sync",
        "overhead",
        "ac2g",
        "external_correlation",
        "graph_event_node",  # an event that a graph records: no work
        "steptrace_mark",  # what `steptrace.trace.excerpt` marks
    }
)
#: Phases of events that take time, besides complete ones (`X`): the begin and the end of an event, and of one that may
#: cross others, in Chrome's format today and before.
_IN_PARTS = frozenset("BEbenSTpF")


def _is_profilers_stop(columns: dict[str, Columns], names: list[str]) -> bool:
    """Whether the only event is the wait at the profiler's end: exported in the wait or warm-up of a schedule."""
    calls = [names[place] for place in columns["call"]["name"].tolist()[: _STOPS + 1]]
    other_events = sum(len(columns[kind]["ts"]) for kind in ("op", "gpu", "label"))
    return not other_events and 0 < len(calls) <= _STOPS and all(name.endswith("DeviceSynchronize") for name in calls)


#: The phase of metadata.
_METADATA: Final = "M"
#: The category of the arrows to a device (`cpu_to_cuda`) of the profiler before Kineto, whose other events have none.
_LEGACY_ARROWS: Final = "cpu_to_"


def _is_known(category: str) -> bool:
    return category in KINDS or category in _NOT_NEEDED or runtime_of(category) is not None


def _unread(counts: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """The counts of the events that take time and are not read, by phase and category."""
    return {
        (phase, category): count
        for (phase, category), count in counts.items()
        if phase in _IN_PARTS or (phase == "X" and not _is_known(category))
    }


def _unread_notes(unread: Mapping[tuple[str, str], int]) -> Iterable[Note]:
    """Notes on the events that were not read, by phase and category, complete events first."""
    for complete in (True, False):
        counts = {key: count for key, count in unread.items() if (key[0] == "X") is complete}
        if not counts:
            continue
        yield note(
            "events_not_read",
            events=sum(counts.values()),
            phases=[] if complete else sorted({phase for phase, _ in counts}),
            categories=sorted({plain_text(category) for _, category in counts if category}),
            without_category=any(not category for _, category in counts),
        )


def _raise_merged(ops: Columns, threads: Sequence[Thread], path: Path) -> None:
    """Say that a file holds several processes, such as ranks whose traces were merged for a trace viewer.

    Their ids are not told apart (correlation, external id), so that work would be linked to another rank's launches.

    Raises:
        TraceError: the operators are of several processes.
    """
    processes = list(dict.fromkeys(threads[number][0] for number in np.unique(ops["thread"]).tolist()))
    if len(processes) < 2:
        return
    names = ", ".join(map(str, processes[:_MOST_PROCESSES]))
    raise TraceError(
        f"operators of {len(processes)} processes ({names}{', ...' if len(processes) > _MOST_PROCESSES else ''}) in "
        "one file, such as the traces of several ranks merged for a trace viewer",
        where=path,
        expected="the trace of one rank",
        next_step="analyse the ranks' own traces: steptrace analyze RANK0 RANK1 ... --out DIR",
    )


def _raise_unread(
    unread: Mapping[tuple[str, str], int],
    counts: Mapping[tuple[str, str], int],
    metadata: Mapping[str, Any],
    path: Path,
) -> None:
    """Say which events there are, if none of them is read.

    Raises:
        TraceError: there are events besides metadata, and none of them is of a kind that is read.
    """
    if any(phase == "X" and _is_known(category) for phase, category in counts):
        return
    # Events that take time are named; without any, all events but metadata are.
    found = unread or {key: count for key, count in counts.items() if key[0] != _METADATA}
    if not found:
        return
    if not any(phase for phase, _ in found):
        raise TraceError(
            f"an array of {plural(sum(found.values()), 'object')}, none of which is an event",
            where=path,
            expected='events with a phase: {"ph": "X", ...}',
            next_step="if each is a trace, write it to a file of its own; otherwise look into the file: it may be the "
            "output of another tool",
        )
    with opened(path) as file:
        beginning = file.read(_BEGINNING)
    if (producer := other_producer(metadata, (category for _, category in counts), beginning)) is not None:
        raise TraceError(
            producer.what, where=path, expected="a trace of PyTorch's profiler", next_step=producer.next_step
        )
    named = enumeration([unread_events(**note.figures) for note in _unread_notes(found)])
    raise TraceError(
        f"{_nothing_read_text(found)}: the file has only {named}",
        where=path,
        expected="complete events (phase X) of PyTorch's profiler: cpu_op, cuda_runtime, kernel, ...",
        next_step="record with torch.profiler and its export_chrome_trace",
    )


def _nothing_read_text(unread: Iterable[tuple[str, str]]) -> str:
    """Why nothing of a trace was read, by the phases and categories of its events."""
    if any(category and _is_known(category) for _, category in unread):
        return "no event of this trace can be read"
    return "not a trace of PyTorch's profiler"


def _runtimes(counts: Iterable[tuple[str, str]], unread_threads: Iterable[str]) -> frozenset[str]:
    """The runtimes whose calls there are.

    The runtime of Ascend's devices is among them, although its calls have no category and are not read. Without its
    queue of tasks only the streams of the device tell that the trace is of one.

    Args:
        counts: the phases and categories of the events.
        unread_threads: the names of the threads without any event that is read.
    """
    runtimes = {runtime for phase, category in counts if phase == "X" and (runtime := runtime_of(category))}
    of_npu = any(is_of_npu(category) for _, category in counts)
    if of_npu or (("X", "") in counts and any(map(is_stream_of_npu, unread_threads))):
        runtimes.add("npu")
    return frozenset(runtimes)


def _with_collectives(columns: dict[str, Columns], scanner: ChunkScanner) -> dict[str, Columns]:
    """The columns with collectives among the kernels, and a column of the GPU's work that says which these are.

    oneCCL's events of that category are calls of the host, beside the operators of PyTorch that make them: they are
    left out.
    """
    gpu = columns["gpu"]
    collective, kernel = scanner.names.code(["collective", "kernel"]).tolist()
    is_collective = gpu["category"] == collective
    gpu = gpu | {"is_collective": is_collective}
    if is_collective.any():
        threads = scanner.threads.values
        of_host = {threads[number][0] for kind in ("op", "call") for number in np.unique(columns[kind]["thread"])}
        on_host = np.array([process in of_host for process, _ in threads], dtype=bool)[gpu["thread"]] & is_collective
        gpu["category"] = np.where(is_collective, kernel, gpu["category"])
        gpu = {name: values[~on_host] for name, values in gpu.items()}
    return columns | {"gpu": gpu}


def _marks(columns: Columns, rows: Any) -> Iterable[tuple[int, ...]]:
    return zip(*(columns[key][rows].tolist() for key in ("name", "thread", "ts", "dur")), strict=True)


def _with_labels(columns: dict[str, Columns], names: Sequence[str]) -> dict[str, Columns]:
    """The columns with labels among the labels: PyTorch 1.8 to 1.11 wrote its own as operators."""
    ops = columns["op"]
    labels = columns["label"]
    used = np.unique(ops["name"])
    chosen = [code for code in used.tolist() if is_label(names[code])]
    if not chosen:
        return columns
    moved = np.isin(ops["name"], chosen)
    rows = np.flatnonzero(moved)
    written = set(_marks(labels, slice(None)))
    new = [row for row, mark in zip(rows.tolist(), _marks(ops, rows), strict=True) if mark not in written]
    return columns | {
        "op": {key: values[~moved] for key, values in ops.items()},
        "label": {key: np.concatenate([values, ops[key][new]]) for key, values in labels.items()},
    }


def _plain_names(columns: dict[str, Columns], written: list[str]) -> list[str]:
    """The names as `plain_text`, sorted; the columns then hold their indices."""
    coded: list[tuple[Columns, str]] = [
        (c, key) for c in columns.values() for key in ("name", "category", *LISTS) if key in c
    ]
    coded += [(c, "annotation") for c in columns.values() if "annotation" in c]
    used = np.zeros(len(written), dtype=bool)
    for c, key in coded:
        used[c[key][c[key] >= 0]] = True
    plain = {code: plain_text(written[code]) for code in np.flatnonzero(used).tolist()}
    names = sorted(set(plain.values()))
    place = {name: number for number, name in enumerate(names)}
    number = np.full(len(written), -1, dtype=np.int32)
    number[used] = [place[name] for name in plain.values()]
    number = np.append(number, np.int32(-1))  # an activity without an annotation has -1
    for c, key in coded:
        c[key] = number[c[key]]
    return names


def read_raw(path: Path, *, chunk: int = CHUNK) -> RawTrace:
    """Read one trace file (`.json` or `.json.gz`) of any size into columns, `chunk` bytes at a time.

    Raises:
        TraceError: the file is missing, empty, damaged, no JSON, or no trace.
        TruncatedTraceError: its end is missing.
    """
    stream = EventStream(path, chunk=chunk)
    scanner = ChunkScanner(path)
    stream.read(scanner.take)
    notes: list[Note] = []
    if "steptraceRanks" in stream.metadata:
        raise TraceError(
            "one step of several ranks in one file, which is made for a trace viewer",
            where=path,
            expected="the trace of one rank",
            next_step="analyse the ranks' own traces",
        )
    read = {
        kind: {name: column.array() for name, column in by_name.items()} for kind, by_name in scanner.columns.items()
    }
    waits = read.pop("wait")
    read = _with_collectives(_with_labels(read, scanner.names.values), scanner)
    columns = within_bounds(read, scanner.names.values, notes, path)
    names = _plain_names({**columns, "wait": waits}, scanner.names.values)
    starts = [c["ts"].min() for kind, c in columns.items() if len(c["ts"]) and kind != "memory"]
    counts = scanner.counts()
    unread = _unread(counts)
    if not starts:
        _raise_without_events(stream, counts, unread, notes, path)
    threads = scanner.threads.values
    _raise_merged(columns["op"], threads, path)
    if _is_profilers_stop(columns, names):
        raise _nothing_ran(path)
    base = int(min(starts))
    if stream.mended:
        notes.append(note("texts_repaired", texts=stream.mended))
    if stream.salvaged:
        notes.append(note("parts_left_out", events=stream.salvaged))
    notes += _unread_notes(unread)
    if isinstance(excerpt := stream.metadata.get(EXCERPT_KEY), dict):
        notes.append(_note_of_excerpt(excerpt))
    if (lost := lost_by_log(stream.metadata)) is not None:
        notes.append(lost)
    for c in columns.values():
        c["ts"] -= base
    if not any(int((c["ts"] + c["dur"]).max()) for c in columns.values() if len(c["ts"])):
        raise TraceError("none of its events takes any time", where=path, expected="a recorded program")
    return RawTrace(
        path=path,
        columns=columns,
        names=names,
        threads=threads,
        thread_names=scanner.thread_names,
        metadata=stream.metadata,
        base_ns=base,
        collectives=scanner.collectives.values,
        runtimes=_runtimes(counts, (name for thread, name in scanner.thread_names.items() if thread not in threads)),
        waits=waits,
        notes=notes,
    )


def _note_of_excerpt(excerpt: Mapping[str, Any]) -> Note:
    """A note that a file is an excerpt, and how many of the step's events it leaves out."""
    events, of_events = (within(excerpt.get(key), 0, LARGEST) for key in ("events", "of_events"))
    missing = 0 if events is None or of_events is None else max(of_events - events, 0)
    return note("excerpt", of=plain_text(str(excerpt.get("of", ""))), missing=missing, events=of_events)


def _raise_without_events(
    stream: EventStream,
    counts: Mapping[tuple[str, str], int],
    unread: Mapping[tuple[str, str], int],
    notes: Sequence[Note],
    path: Path,
) -> NoReturn:
    """Raise the error that says best why a file has no operator, call or GPU activity.

    Args:
        stream: the file's events, which have been read.
        counts: the number of events by phase and category.
        unread: the events of other programs and devices.
        notes: what was found so far.
        path: the file.
    """
    if any(category.startswith(_LEGACY_ARROWS) for _, category in counts):
        raise TraceError(
            "a trace of PyTorch's profiler before Kineto (`torch.autograd.profiler`, use_kineto=False), which has "
            "neither launches nor names of kernels",
            where=path,
            expected="a trace of torch.profiler",
            next_step="record with torch.profiler and its export_chrome_trace",
        )
    _raise_unread(unread, counts, stream.metadata, path)
    if any(found.code == "impossible_events" for found in notes):
        events = sum(found.figures["events"] for found in notes if found.code == "impossible_events")
        times = _first_times(path)
        such_as = ", ".join(f'"{key}": {value}' for key, value in times.items())
        raise TraceError(
            f"none of its {plural(events, 'event')} has a time and a length that can be read"
            f"{', such as ' if such_as else ''}{such_as}",
            where=path,
            expected='numbers of microseconds as "ts" and "dur"',
            next_step="divide its times by 1000: they seem to be nanoseconds"
            if _are_nanoseconds(times.get("ts"))
            else "look at these in the file: a tool that rewrote it may have changed them",
        )
    if not counts and stream.salvaged:
        raise TraceError(
            f"an array of {plural(stream.salvaged, 'value')}, none of which is an event",
            where=path,
            expected="events of a profiled program",
            next_step="look into the file: it may be the output of another tool",
        )
    raise _nothing_ran(path)


def _first_times(path: Path) -> dict[str, str]:
    """The first "ts" and the first "dur" of a file, by key, as they are written."""
    with opened(path) as file:
        text = file.read(_BEGINNING).decode(errors="replace")
    found = (re.search(rf'"{key}"\s*:\s*("[^"]{{0,40}}"|[^\s,}}"]{{1,40}})', text) for key in ("ts", "dur"))
    return {key: plain_text(value[1]) for key, value in zip(("ts", "dur"), found, strict=True) if value is not None}


def _are_nanoseconds(time: str | None) -> bool:
    """Whether a time would be later than any in microseconds, and not in nanoseconds."""
    text = (time or "").strip('"')
    return text.isdecimal() and to_ns(Decimal(text)) == MISSING and int(text) < LATEST_NS


def _nothing_ran(path: Path) -> TraceError:
    return TraceError(
        "a trace without any operator, call or GPU activity",
        where=path,
        expected="events of a profiled program",
        next_step="check the profiler's schedule: training must reach the active steps; the schedule then "
        "starts again, so export in on_trace_ready, or set repeat=1",
    )


def within_bounds(
    columns: dict[str, Columns], names: Sequence[str], notes: list[Note], path: Path
) -> dict[str, Columns]:
    """The events of each kind with possible times and sizes; a note for each kind with others.

    An event is left out if it has no time, a negative length, or one of more than a day, if it is further than a day
    from the others, if it is a step without a length, or an allocation without a size.

    Raises:
        TraceError: there are more GPUs than a process can have, or the events' lengths add up to more than an int64.
    """
    starts = np.concatenate([c["ts"][c["ts"] != MISSING] for c in columns.values()])
    middle = int(starts[0]) if len(starts) else 0
    if len(starts) and int(starts.max()) - int(starts.min()) > LONGEST_NS:
        middle = int(np.partition(starts, len(starts) // 2)[len(starts) // 2])
    return {kind: _within(kind, c, middle, names, notes, path) for kind, c in columns.items()}


def _within(kind: str, columns: Columns, middle: int, names: Sequence[str], notes: list[Note], path: Path) -> Columns:
    start, length = columns["ts"], columns["dur"]
    wrong = (start == MISSING) | (length < 0) | (length > LONGEST_NS)
    wrong |= np.abs(np.where(wrong, middle, start) - middle) > LONGEST_NS
    if kind == "label":
        empty = np.flatnonzero(length == 0)
        is_step = [step_index(names[name]) is not None for name in columns["name"][empty]]
        wrong[empty] |= np.array(is_step, dtype=bool)
    if kind == "gpu":  # a record that the profiler has not filled in
        wrong |= (start == 0) & (length == 0)
    if kind == "memory":
        wrong |= (columns["size"] <= -LARGEST) | (columns["size"] >= LARGEST)
    if wrong.any():
        notes.append(note("impossible_events", events=int(wrong.sum()), kind=kind))
        columns = {name: values[~wrong] for name, values in columns.items()}
    for name in {"bytes", "allocated", "reserved"} & columns.keys():
        possible = (columns[name] >= 0) & (columns[name] < LARGEST)
        columns[name] = np.where(possible, columns[name], MISSING)
    if kind == "gpu" and (devices := len(np.unique(columns["device"]))) > MOST_DEVICES:
        raise TraceError(f"GPU work on {devices} GPUs", where=path, expected=f"at most {MOST_DEVICES}")
    if float(columns["dur"].astype(np.float64).sum()) >= LATEST_NS:
        raise TraceError(f"the lengths of its events ({kind}) add up to more than a century", where=path)
    return columns


Result = TypeVar("Result")

#: Below this many bytes in all (packed ones count ten times) starting processes takes longer than reading.
_WORTH_PROCESSES = 200 << 20
_PACKED = 10
#: The time of a small trace, as that of this many bytes: it has some thirty tables, however few rows they have.
_SMALLEST = 5 << 20
#: Memory of a process that reads and analyses a trace: a constant, and a multiple of the trace's text.
_PROCESS = 160 << 20
_TIMES_TEXT = 1.25


def read_undamaged(
    read: Callable[[Path], Result],
    paths: Sequence[Path],
    *,
    named: Iterable[str | Path],
    progress: Callable[[int, int], object] = lambda done, total: None,  # noqa: ARG005 - their names are its meaning
) -> list[Result | TraceError]:
    """What `read_each` returns, with an error in place of a trace that cannot be read and that the user has not named.

    Args:
        read: as for `read_each`.
        paths: the files.
        named: the files and folders that the user has named; the files of a folder are not named.
        progress: as for `read_each`.

    Raises:
        TraceError: a file that the user has named cannot be read.
    """
    files = frozenset(Path(path).resolve() for path in named if not Path(path).is_dir())
    return read_each(partial(_unless_damaged, read=read, named=files), paths, progress=progress)


def _unless_damaged(path: Path, *, read: Callable[[Path], Result], named: frozenset[Path]) -> Result | TraceError:
    try:
        return read(path)
    except TraceError as error:
        if path.resolve() in named:
            raise
        return error


def whole_and_damaged(
    paths: Sequence[Path], outcomes: Sequence[Result | TraceError]
) -> tuple[list[Result], dict[Path, TraceError]]:
    """The results of the traces that were read, and the error of each other one.

    Args:
        paths: the files.
        outcomes: what `read_undamaged` returned of each.

    Raises:
        TraceError: none was read, and there is one that cannot be.
    """
    damaged = {path: error for path, error in zip(paths, outcomes, strict=True) if isinstance(error, TraceError)}
    done = [outcome for outcome in outcomes if not isinstance(outcome, TraceError)]
    if not done and damaged:
        raise next(iter(damaged.values()))
    return done, damaged


def read_each(
    read: Callable[[Path], Result],
    paths: Sequence[Path],
    *,
    workers: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,  # noqa: ARG005 - their names are its meaning
) -> list[Result]:
    """`read(path)` of every path, in order; in processes of their own if there is enough to read.

    Args:
        read: a function of a module, so that a fresh process can import it; its result must be picklable.
        workers: number of processes; by default none for little data, else as many as the available processors and
            free memory allow.
        progress: called after each path, with the number of those read and of all.

    Raises:
        SteptraceError: the error of the first path for which `read` fails.
    """
    if workers is None:
        sizes = [_text_bytes(path) for path in paths if path.exists()]
        worth = sum(max(size, _SMALLEST) for size in sizes) >= _WORTH_PROCESSES
        workers = _workers(max(sizes)) if worth else 1
    workers = min(workers, len(paths))
    if workers < 2:
        return _counted(map(read, paths), len(paths), progress)
    from concurrent.futures import ProcessPoolExecutor  # most calls need no processes, nor the time to import them
    from multiprocessing import get_context

    # A forked child would inherit locks of threads; a spawned one does not.
    # None goes on when this process is killed.
    spawn = get_context("spawn")
    parent = os.getpid()
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=die_with, initargs=(parent,)) as pool:
        return _counted(pool.map(read, paths), len(paths), progress)


def _counted(results: Iterable[Result], total: int, progress: Callable[[int, int], object]) -> list[Result]:
    done = []
    for result in results:
        done.append(result)
        progress(len(done), total)
    return done


def _text_bytes(path: Path) -> int:
    return path.stat().st_size * (_PACKED if path.suffix in {".gz", ".zip"} else 1)


def _workers(largest: int) -> int:
    import psutil  # few calls need it

    room = psutil.virtual_memory().available // (_PROCESS + int(_TIMES_TEXT * largest))
    return max(1, min(cpu_count(), room))
