"""The source line behind a host sync.

The site is the first Python frame that is neither PyTorch's nor the pipeline's own. A sync of the backward
pass belongs to the line of the forward operator whose gradient it computes, unless the user's own `backward` runs it.

A trace has only the line of a function's `def`. Traces that steptrace records have two files beside them:
`op_lines.parquet`, the line that executed each operator of some steps (used by `executing.py`), and `sources.json`,
the files' text at that time.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace.documents.run import OpLine
from steptrace.documents.table import read_table, validate
from steptrace.errors import RecordError, TraceError
from steptrace.intervals import Ints
from steptrace.run_folder import OP_LINES_FILE, SOURCES_FILE, read_memory, read_sources
from steptrace.trace.columns import (
    Mask,
    counted,
    innermost,
    map_names,
    marks_steps,
    nearest,
    pick,
    row_numbers,
    take,
    texts,
)
from steptrace.trace.executing import executing_lines
from steptrace.trace.model import Trace, on_training
from steptrace.trace.names import HOST_PARTS, PIPELINE, SKIP, STDLIB, USER, frame_role
from steptrace.trace.source_lines import SourceLines

#: The columns of a site, in order.
SITE_COLUMNS = ("file", "line", "function", "op", "label", "phase", "code")
#: The columns of the program's line that leads to a site in a library, if it was recorded.
PROGRAM_COLUMNS = ("program_file", "program_line")


def load_source_lines(trace: Path) -> SourceLines:
    """Read `op_lines.parquet` and `sources.json` from the folder of a trace file, if they exist.

    Raises:
        TraceError: one of them cannot be read.
    """
    op_lines = None
    recorded = {}
    path = trace.parent / OP_LINES_FILE
    try:
        if path.is_file():
            op_lines = validate(read_table(path), OpLine).sort_values(["step", "order"])
        path = trace.parent / SOURCES_FILE
        if path.is_file():
            recorded = read_sources(path)
    except RecordError as error:
        raise TraceError(error.what, where=path, next_step="delete it or repeat the run") from error
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot be read ({error})", where=path, next_step="delete it or repeat the run") from error
    return SourceLines(op_lines, recorded)


def with_records(trace: Trace) -> Trace:
    """The trace with the records beside its file: source lines, and the memory held between two steps.

    Raises:
        TraceError: a file of source lines cannot be read.
    """
    try:
        memory = read_memory(trace.path.parent)
    except RecordError:
        memory = None  # another file of that name
    return replace(trace, lines=load_source_lines(trace.path), memory_record=memory)


def sites_of(trace: Trace, events: pd.DataFrame, lines: SourceLines | None = None) -> pd.DataFrame:
    """The site of each host event (`thread`, `ts`, `op`): the columns of `SITE_COLUMNS` and `PROGRAM_COLUMNS`,
    null if unknown.

    `op` is the innermost operator, `label` the innermost `record_function` label, `phase` is `backward` for work of
    the backward pass and otherwise the outermost label if that is one of a training step's parts.
    """
    lines = lines or SourceLines()
    op = row_numbers(events["op"])
    frame, forward = _frames_of(trace, events, op)
    label, phase = _labels_of(trace, events, op)
    executing = executing_lines(
        trace,
        lines.begins,
        lines.op_lines,
        labels=lambda: label_rows(trace, trace.ops),
        callers=lambda: _frames_of(trace, trace.ops, np.arange(len(trace.ops)))[0],
    )
    exact = np.where(forward >= 0, forward, op)
    places, place = executing.places(frame, exact, op, lines.definition, _waits(events, op))
    return pd.DataFrame(
        {
            "file": pick(_objects(_shown(p.file) for p in places), place),
            "line": counted(take(np.array([-1 if p.line is None else p.line for p in places], dtype=np.int64), place)),
            "function": pick(_objects(p.function for p in places), place),
            "op": texts(trace.ops["name"], op),
            "label": pd.Series(label, dtype=object),
            "phase": pd.Series(phase, dtype=object),
            "code": pick(_objects(map(lines.code, places)), place),
            "program_file": pick(_objects(p.program and _shown(p.program[0]) for p in places), place),
            "program_line": counted(
                take(np.array([p.program[1] if p.program else -1 for p in places], dtype=np.int64), place)
            ),
        },
        columns=[*SITE_COLUMNS, *PROGRAM_COLUMNS],
    )


def _waits(events: pd.DataFrame, op: Ints) -> list[tuple[str, int] | None]:
    """Name and step of each sync that is no operator's, None of any other event."""
    if "kind" not in events:
        return [None] * len(events)
    steps = row_numbers(events["step"]).tolist()
    return [None if o >= 0 else (kind, s) for o, kind, s in zip(op.tolist(), events["kind"], steps, strict=True)]


def _objects(values: Iterable[str | None]) -> NDArray[Any]:
    return np.array([*values, None], dtype=object)[:-1]


def _shown(file: str) -> str:
    """A file's name relative to the current folder, if it is in there."""
    try:
        return Path(file).relative_to(Path.cwd()).as_posix() if file.startswith("/") else file
    except ValueError:
        return file


def _frames_of(trace: Trace, events: pd.DataFrame, op: Ints) -> tuple[Ints, Ints]:
    """For each event the row of its site's frame, and of the forward operator it belongs to; -1 for none."""
    from_event = site_frames(trace, innermost(trace.frames, events))
    forward = take(row_numbers(trace.ops["forward"]), op)
    # The outermost operator of the backward pass around the event: a user's own backward runs inside it.
    parent = row_numbers(trace.ops["parent"])
    backward = trace.ops["backward"].to_numpy()
    enters = backward & ((parent < 0) | ~backward[parent])
    engine = take(nearest(parent, enters), op)
    within = (from_event >= 0) & (engine >= 0)
    within &= take(trace.frames["ts"].to_numpy(), from_event) >= take(trace.ops["ts"].to_numpy(), engine)
    from_forward = site_frames(trace, take(row_numbers(trace.ops["frame"]), forward))
    of_forward = (from_forward >= 0) & ~within
    return np.where(of_forward, from_forward, from_event), np.where(within, -1, forward)


def site_frames(trace: Trace, innermost: Ints) -> Ints:
    """For each frame the first one, going outwards, that is neither PyTorch's nor ours; -1 without one.

    The search ends at the pipeline's own code: frames outside it only started it. A file with the name of a standard
    library module is used only as a last resort.
    """
    frames = trace.frames
    if len(frames) == 0:
        return np.full(len(innermost), -1, dtype=np.int64)
    parent = frames["parent"].to_numpy(dtype=np.int32, na_value=-1)
    role = map_names(frames["name"], frame_role, np.int8)

    def first(wanted: Mask, kind: int) -> Ints:
        frame = take(nearest(parent, wanted), innermost)
        return np.where((frame >= 0) & (role[frame] == kind), frame, -1)

    strict = first((role == USER) | (role == PIPELINE), USER)
    return np.where(strict >= 0, strict, first(role != SKIP, STDLIB))


def label_rows(trace: Trace, events: pd.DataFrame) -> Ints:
    """Row of the innermost label around each event (`thread`, `ts`), the profiler's step marks aside; -1 for none.

    On a GPU the backward pass runs in a thread without labels: it gets the label of the step's own thread at the time.
    """
    labels = trace.labels
    proper = nearest(row_numbers(labels["parent"]), ~marks_steps(labels))
    around = take(proper, innermost(labels, events))
    if len(trace.steps) == 0:
        return around
    on_step_thread = events[["ts"]].assign(thread=int(trace.steps["thread"].iloc[0]))
    other = np.where(on_training(trace, events), take(proper, innermost(labels, on_step_thread)), -1)
    return np.where(around >= 0, around, other)


def _labels_of(trace: Trace, events: pd.DataFrame, op: Ints) -> tuple[list[str | None], list[str | None]]:
    """The innermost label of each event, and the phase of the step it is in."""
    rows = label_rows(trace, events)
    labels = trace.labels
    parent = row_numbers(labels["parent"])
    is_step = marks_steps(labels)
    outermost_of = nearest(parent, (parent < 0) | is_step[parent] if len(parent) else np.empty(0, dtype=bool))
    backward = trace.ops["backward"].to_numpy()
    outermost = texts(labels["name"], take(outermost_of, rows))
    in_backward = (op >= 0) & (backward[op] if len(backward) else False)
    phases = [
        "backward" if b else name if name in HOST_PARTS else None
        for b, name in zip(in_backward, outermost, strict=True)
    ]
    return texts(labels["name"], rows).tolist(), phases
