"""The source line behind a host synchronisation.

The site is the first Python frame that is neither PyTorch's nor the pipeline's own. A synchronisation of the backward
pass belongs to the line of the forward operator whose gradient it computes, unless the user's own `backward` runs it.

A trace knows only the line of a function's `def`. Traces that steptrace records have two files beside them:
`op_lines.parquet`, the line that executed each operator of one step, and `sources.json`, the files' text as it was.
The k-th operator of a name under a label in a step then has the k-th line, if function and file agree with the trace.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace import schema
from steptrace.errors import RecordError, TraceError
from steptrace.intervals import Ints
from steptrace.record import SOURCES_FILE, read_sources
from steptrace.trace.columns import (
    counted,
    has_ancestor,
    innermost,
    marks_steps,
    nearest,
    pick,
    row_numbers,
    take,
    texts,
)
from steptrace.trace.frames import Frame, parse_frame, site_frames
from steptrace.trace.model import Trace, on_training

#: What names a site, in this order.
SITE_COLUMNS = ("file", "line", "function", "op", "label", "phase", "code")

OP_LINES_FILE = "op_lines.parquet"

_PHASES = frozenset({"data", "forward", "loss", "backward", "optimizer"})


@dataclass(frozen=True)
class SourceLines:
    """What was recorded beside a trace: the `op_lines` table, and each file's text. Either may be absent.

    `folders` are those that the user has named: no other file of this machine is read, whatever a trace calls it.
    """

    op_lines: pd.DataFrame | None = None
    sources: dict[str, str] = field(default_factory=dict, repr=False)
    folders: tuple[Path, ...] = ()

    def code(self, file: str, line: int) -> str | None:
        """The text of a line as it was when recorded, or else of the Python file in one of the folders."""
        text = next((text for name, text in self.sources.items() if same_file(name, file)), None)
        if text is None:
            text = next((text for folder in self.folders if (text := _text_in(folder, file)) is not None), None)
        lines = text.splitlines() if text is not None else []
        return lines[line - 1].strip() if 0 < line <= len(lines) else None


def _text_in(folder: Path, file: str) -> str | None:
    """The text of a Python file that lies in the folder, links followed; None without one."""
    try:
        path = (folder / file).resolve()
        inside = file.endswith(".py") and path.is_relative_to(folder.resolve()) and path.is_file()
        return path.read_text(encoding="utf-8") if inside else None
    except (OSError, ValueError):
        return None


def load_source_lines(trace: Path, folders: tuple[Path, ...] = ()) -> SourceLines:
    """Read `op_lines.parquet` and `sources.json` from the folder of a trace file, as far as they are there.

    Args:
        trace: the trace file.
        folders: where else source lines may be read from.

    Raises:
        TraceError: one of them is there and cannot be read.
    """
    op_lines, recorded = None, {}
    path = trace.parent / OP_LINES_FILE
    try:
        if path.is_file():
            op_lines = schema.validate(schema.read_table(path), schema.OP_LINES).sort_values("order")
        path = trace.parent / SOURCES_FILE
        if path.is_file():
            recorded = read_sources(path)
    except RecordError as error:
        raise TraceError(error.what, where=path, next_step="delete it or repeat the run") from error
    except (OSError, ValueError) as error:
        raise TraceError(f"cannot be read ({error})", where=path, next_step="delete it or repeat the run") from error
    return SourceLines(op_lines, recorded, folders)


def same_file(one: str, other: str) -> bool:
    """Whether two names can mean one file: equal, or one the end of the other."""
    a, b = one.split("/"), other.split("/")
    shared = min(len(a), len(b))
    return a[-shared:] == b[-shared:]


def sites_of(trace: Trace, events: pd.DataFrame, lines: SourceLines | None = None) -> pd.DataFrame:
    """The site of each of some host events (`thread`, `ts`, `op`): the columns of `SITE_COLUMNS`, null where unknown.

    `op` is the innermost operator, `label` the innermost `record_function` label, `phase` is `backward` for work of
    the backward pass and otherwise the outermost label if that is one of a training step's parts.
    """
    lines = lines or SourceLines()
    op = row_numbers(events["op"])
    frame, forward = _frames_of(trace, events, op)
    label, phase = _labels_of(trace, events, op)
    executing = _ExecutingLines(trace, lines.op_lines)
    places, place = executing.places(frame, np.where(forward >= 0, forward, op), op)
    return pd.DataFrame(
        {
            "file": pick(_objects(_shown(p.file) for p in places), place),
            "line": counted(take(np.array([p.line for p in places], dtype=np.int64), place)),
            "function": pick(_objects(p.function for p in places), place),
            "op": texts(trace.ops["name"], op),
            "label": pd.Series(label, dtype=object),
            "phase": pd.Series(phase, dtype=object),
            "code": pick(_objects(lines.code(p.file, p.line) for p in places), place),
        },
        columns=list(SITE_COLUMNS),
    )


def _objects(values: Iterable[str | None]) -> NDArray[Any]:
    return np.array([*values, None], dtype=object)[:-1]


def _shown(file: str) -> str:
    """A file's name relative to the current folder, if it lies in it."""
    try:
        return Path(file).relative_to(Path.cwd()).as_posix() if file.startswith("/") else file
    except ValueError:
        return file


def _frames_of(trace: Trace, events: pd.DataFrame, op: Ints) -> tuple[Ints, Ints]:
    """For each event the row of its site's frame, and of the forward operator it belongs to; -1 for none."""
    from_event = site_frames(trace, innermost(trace.frames, events))
    forward = take(row_numbers(trace.ops["forward"]), op)
    # The outermost operator of the backward pass around the event: what runs within it is a user's own backward.
    parent = row_numbers(trace.ops["parent"])
    backward = trace.ops["backward"].to_numpy()
    enters = backward & ((parent < 0) | ~backward[parent])
    engine = take(nearest(parent, enters), op)
    within = (from_event >= 0) & (engine >= 0)
    within &= take(trace.frames["ts"].to_numpy(), from_event) >= take(trace.ops["ts"].to_numpy(), engine)
    from_forward = site_frames(trace, take(row_numbers(trace.ops["frame"]), forward))
    of_forward = (from_forward >= 0) & ~within
    return np.where(of_forward, from_forward, from_event), np.where(within, -1, forward)


def label_rows(trace: Trace, events: pd.DataFrame) -> Ints:
    """Row of the innermost label around each event (`thread`, `ts`), the profiler's step marks aside; -1 for none.

    On a GPU the backward pass runs in a thread of its own, which carries no labels: there the label counts that the
    step's own thread is in at that time.
    """
    labels = trace.annotations
    proper = nearest(row_numbers(labels["parent"]), ~marks_steps(labels))
    own = take(proper, innermost(labels, events))
    if len(trace.steps) == 0:
        return own
    on_step_thread = events[["ts"]].assign(thread=int(trace.steps["thread"].iloc[0]))
    other = np.where(on_training(trace, events), take(proper, innermost(labels, on_step_thread)), -1)
    return np.where(own >= 0, own, other)


def _labels_of(trace: Trace, events: pd.DataFrame, op: Ints) -> tuple[list[str | None], list[str | None]]:
    """The innermost label of each event, and the phase of the step it is in."""
    rows = label_rows(trace, events)
    labels = trace.annotations
    parent = row_numbers(labels["parent"])
    is_step = marks_steps(labels)
    outermost_of = nearest(parent, (parent < 0) | is_step[parent] if len(parent) else np.empty(0, dtype=bool))
    backward = trace.ops["backward"].to_numpy()
    outermost = texts(labels["name"], take(outermost_of, rows))
    in_backward = (op >= 0) & (backward[op] if len(backward) else False)
    phases = [
        "backward" if b else name if name in _PHASES else None for b, name in zip(in_backward, outermost, strict=True)
    ]
    return texts(labels["name"], rows).tolist(), phases


class _ExecutingLines:
    """Finds the line that executed an operator, by its place in the step's order of operators."""

    def __init__(self, trace: Trace, op_lines: pd.DataFrame | None) -> None:
        self._trace = trace
        self._recorded: defaultdict[tuple[Any, ...], list[Frame | None]] = defaultdict(list)
        if op_lines is None or len(trace.ops) == 0:
            return
        for order in op_lines.itertuples():
            place = None if pd.isna(order.file) else Frame(str(order.file), int(order.line), str(order.function))  # type: ignore[arg-type]
            self._recorded[_key(str(order.op), order.label, backward=str(order.phase) == "backward")].append(place)
        self._number_ops(set(op_lines["op"]))

    def _number_ops(self, recorded: set[str]) -> None:
        """Give each operator its key and its place among those of its key in its step.

        The recorder sees an operator only where no recorded one is around it: once it runs, what it calls inside is
        out of sight.
        """
        ops = self._trace.ops
        parent = row_numbers(ops["parent"])
        listed = ops["name"].isin(recorded).to_numpy()
        self._visible = nearest(parent, listed & ~has_ancestor(parent, listed))
        labels = texts(self._trace.annotations["name"], label_rows(self._trace, ops))
        step = row_numbers(ops["step"])
        self._counts: Counter[tuple[Any, ...]] = Counter()
        self._place: dict[int, tuple[tuple[Any, ...], int, int]] = {}
        for row in np.argsort(ops["ts"].to_numpy(), kind="stable").tolist():
            if self._visible[row] == row and step[row] >= 0:
                key = _key(str(ops["name"].iloc[row]), labels[row], backward=bool(ops["backward"].iloc[row]))
                self._place[row] = (key, int(step[row]), self._counts[key, step[row]])
                self._counts[key, step[row]] += 1

    def places(self, frame: Ints, exact_op: Ints, op: Ints) -> tuple[list[Frame], Ints]:
        """The distinct lines of some events, and for each event the place of its own among them, -1 where unknown.

        An event's line is the one that executed `exact_op`, or else the frame's; without a frame `op` counts too.
        """
        names = self._trace.frames["name"]
        code = take(names.cat.codes.to_numpy().astype(np.int64), frame)
        number: dict[Frame, int] = {}
        by_code = {int(c): parse_frame(str(names.cat.categories[c])) if c >= 0 else None for c in np.unique(code)}
        if not self._recorded:
            place = np.full(len(names.cat.categories) + 1, -1, dtype=np.int64)
            for c, known in by_code.items():
                place[c] = -1 if known is None else number.setdefault(known, len(number))
            return list(number), place[code]
        found = []
        for row, c in enumerate(code.tolist()):
            known = by_code[c]
            line = self.of(exact_op[row], known) or known or self.of(op[row], None)
            found.append(-1 if line is None else number.setdefault(line, len(number)))
        return list(number), np.array(found, dtype=np.int64)

    def of(self, op: int, frame: Frame | None) -> Frame | None:
        """The line that executed operator `op`, None if it is not known or contradicts `frame`."""
        if not self._recorded or op < 0:
            return None
        place = self._place.get(int(self._visible[op]))
        if place is None:
            return None
        key, step, number = place
        candidates = self._recorded.get(key, [])
        if self._counts[key, step] == len(candidates):
            found = candidates[number]
        else:
            # Another number of them ran in the recorded step: only a single line for all leaves no doubt.
            found = candidates[0] if len(set(candidates)) == 1 else None
        if found is None or frame is None:
            return found if frame is None and (len(self._trace.frames) == 0 or key[-1]) else None
        agrees = same_file(found.file, frame.file) and found.function.split(".")[-1] == frame.function.split(".")[-1]
        return Frame(frame.file, found.line, frame.function) if agrees else None


def _key(op: str, label: Any, *, backward: bool) -> tuple[Any, ...]:
    """What the recorder and a trace can agree on: on a GPU the backward pass runs outside the labels."""
    return (op, None if backward or label is None or pd.isna(label) else str(label), backward)
