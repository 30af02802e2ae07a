"""The line that executed an operator of a trace, from the same operator in a watched step.

Operators are counted by name, label and calling function: the k-th one has the k-th recorded line of a watched step
with equally many. Without such a step, a line is assigned only if it is the same for all. The same goes for calls that
wait and are no operators (`torch.cuda.synchronize`), without their label.

`executing_lines` makes the whole object: what was recorded (`_Recorded`), and the trace's operators numbered in the
same way (`_Numbers`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from steptrace.intervals import Ints
from steptrace.trace.columns import has_ancestor, map_names, nearest, row_numbers, take, texts
from steptrace.trace.model import Trace
from steptrace.trace.names import Frame, parse_frame
from steptrace.trace.source_lines import same_file

#: The last operator in creating a tensor from Python values. Earlier ones, such as the copy to the GPU, run outside any
#: dispatch mode.
_CREATED: Final = "aten::lift_fresh"
#: Converts an operator's arguments under autocast.
_CAST: Final = "aten::to"

#: A function's name and, if the file's text is recorded, its first line: two classes may both have a `forward`.
_Function = tuple[str, int | None]
#: Matches recorded operators with a trace's: operator, label, whether in the backward pass, and the calling function
#: with the last part of its file's name.
_Key = tuple[str, str | None, bool, tuple[str, _Function] | None]


def _recorded_frame(row: Any) -> Frame:
    program = None if pd.isna(row.program_file) else (str(row.program_file), int(row.program_line))
    return Frame(str(row.file), int(row.line), str(row.function), program)


class _Position(NamedTuple):
    """An operator's index among those with the same key in its step, for each of its keys, the narrower one first."""

    step: int
    numbers: tuple[tuple[_Key, int], ...]


class _Recorded(NamedTuple):
    """The lines of one key: in order, for each watched step with any, and the only one if all are the same."""

    steps: list[list[Frame | None]]
    only: Frame | None


class _Keys:
    """The keys by which operators of a watched step and of the trace are matched.

    Args:
        begins: returns the first line of a frame's function, None if unknown.
        has_frames: whether the trace has Python frames.
    """

    def __init__(self, begins: Callable[[Frame], int | None], *, has_frames: bool) -> None:
        self._has_frames = has_frames
        self._function: Callable[[Frame], _Function] = cache(
            lambda frame: (frame.function.split(".")[-1], begins(frame))
        )

    def keys_of(self, op: str, label: str | None, *, backward: bool, frame: Frame | None) -> tuple[_Key, ...]:
        """The keys of an operator, the narrower one first; on a GPU the backward pass runs outside the labels."""
        shown = None if backward else label
        called = () if frame is None else ((op, shown, backward, (frame.file.split("/")[-1], self._function(frame))),)
        return (*called, (op, shown, backward, None))

    def agreed(self, line: Frame, frame: Frame | None, *, backward: bool) -> Frame | None:
        """A recorded line under the names of the trace's frame; None if the two contradict each other."""
        if frame is None:
            return line if backward or not self._has_frames else None
        name, begins = self._function(line)
        other_name, other_begins = self._function(frame)
        same_begin = begins is None or other_begins is None or begins == other_begins  # unknown in an edited file
        if not (same_file(line.file, frame.file) and name == other_name and same_begin):
            return None
        return replace(line, file=frame.file, function=frame.function)


@dataclass(frozen=True)
class _Numbers:
    """The operators of a trace, numbered within their steps.

    Attributes:
        visible: for each operator the row of the one that a recorder would have seen: itself, or one around it; or -1.
        places: the position of each of these.
        counts: how many operators have a key in a step.
    """

    visible: Ints
    places: Mapping[int, _Position]
    counts: Mapping[tuple[_Key, int], int]


@dataclass(frozen=True)
class ExecutingLines:
    """Finds the line that executed an operator, by its index in the step's order of operators.

    `_numbers` is None where nothing was recorded.
    """

    _trace: Trace
    _keys: _Keys
    _recorded: Mapping[_Key, _Recorded]
    _numbers: _Numbers | None

    def places(
        self,
        frame: Ints,
        exact_op: Ints,
        op: Ints,
        definition: Callable[[Frame], Frame],
        waits: Sequence[tuple[str, int] | None],
    ) -> tuple[list[Frame], Ints]:
        """The distinct lines of some events, and for each event the index of its line, -1 if unknown.

        An event's line is the one that executed `exact_op` or the wait. If that is unknown, it is the `definition` of
        its frame, and if that is unknown, too, the line of `op`.

        Args:
            frame: the row of each event's frame, -1 for none.
            exact_op: the row of the operator that the event belongs to, -1 for none.
            op: the row of the operator around it, -1 for none.
            definition: returns the first line of a frame's function.
            waits: name and step of an event that is a wait without an operator, None of other events.
        """
        code, by_code = _parsed(self._trace, frame)
        defined = {number: named and definition(named) for number, named in by_code.items()}
        index: dict[Frame, int] = {}
        if not self._recorded:
            place = np.full(len(self._trace.frames["name"].cat.categories) + 1, -1, dtype=np.int64)
            for number, line in defined.items():
                place[number] = -1 if line is None else index.setdefault(line, len(index))
            return list(index), place[code]
        indices = []
        lines_of_waits = self._lines_of_waits(waits, [by_code[number] for number in code.tolist()])
        for row, number in enumerate(code.tolist()):
            line = (
                self.line_of(exact_op[row], by_code[number])
                or lines_of_waits[row]
                or defined[number]
                or self.line_of(op[row], None)
            )
            indices.append(-1 if line is None else index.setdefault(line, len(index)))
        return list(index), np.array(indices, dtype=np.int64)

    def line_of(self, op: int, frame: Frame | None) -> Frame | None:
        """The line that executed operator `op`, None if it is unknown or contradicts `frame`."""
        if self._numbers is None or op < 0:
            return None
        place = self._numbers.places.get(int(self._numbers.visible[op]))
        if place is None:
            return None
        for key, number in place.numbers:
            line = self._recorded_line(key, number, self._numbers.counts[key, place.step])
            if line is None:
                continue
            agreed = self._keys.agreed(line, frame, backward=key[2])
            if agreed is not None:
                return agreed
        return None

    def _recorded_line(self, key: _Key, number: int, count: int) -> Frame | None:
        """The line of one of `count` operators with a key in a step, by its number among them."""
        recorded = self._recorded.get(key)
        if recorded is None:
            return None
        lines = {step[number] for step in recorded.steps if len(step) == count}
        if not lines:
            return recorded.only
        if len(lines) == 1:
            return lines.pop()
        return None

    def _lines_of_waits(
        self, waits: Sequence[tuple[str, int] | None], frames: list[Frame | None]
    ) -> list[Frame | None]:
        """The line of each wait, None of other events."""
        keys = [
            None
            if wait is None or frame is None
            else (self._keys.keys_of(wait[0], None, backward=False, frame=frame)[0], wait[1])
            for wait, frame in zip(waits, frames, strict=True)
        ]
        counts = Counter(keys)
        before = Counter[object]()
        lines: list[Frame | None] = []
        for key, frame in zip(keys, frames, strict=True):
            line = None if key is None else self._recorded_line(key[0], before[key], counts[key])
            lines.append(None if line is None else self._keys.agreed(line, frame, backward=False))
            before[key] += 1
        return lines


def executing_lines(
    trace: Trace,
    begins: Callable[[Frame], int | None],
    op_lines: pd.DataFrame | None,
    labels: Callable[[], Ints],
    callers: Callable[[], Ints],
) -> ExecutingLines:
    """The object that finds the lines of a trace's operators.

    Args:
        trace: the trace.
        begins: returns the first line of a frame's function, None if unknown.
        op_lines: the operators of the watched steps with their lines; None where nothing was recorded.
        labels: returns the row of the label of each operator of the trace, -1 for none.
        callers: returns the row of the frame that called each, of a backward operator's forward operator; -1 for none.
    """
    keys = _Keys(begins, has_frames=len(trace.frames) > 0)
    if op_lines is None or not len(trace.ops):
        return ExecutingLines(trace, keys, {}, None)
    visible = _visible(trace, set(op_lines["op"]))
    numbers = _numbered(trace, keys, visible, texts(trace.labels["name"], labels()).tolist(), callers())
    return ExecutingLines(trace, keys, _recorded(op_lines, keys), numbers)


def _recorded(op_lines: pd.DataFrame, keys: _Keys) -> dict[_Key, _Recorded]:
    """The lines of the watched steps by key."""
    by_key: defaultdict[_Key, defaultdict[int, list[Frame | None]]] = defaultdict(lambda: defaultdict(list))
    for order in op_lines.itertuples():
        place = None if pd.isna(order.file) else _recorded_frame(order)  # type: ignore[arg-type]
        label = None if pd.isna(order.label) else str(order.label)  # type: ignore[arg-type]
        for key in keys.keys_of(str(order.op), label, backward=str(order.phase) == "backward", frame=place):
            by_key[key][int(order.step)].append(place)  # type: ignore[arg-type]
    recorded: dict[_Key, _Recorded] = {}
    for key, steps in by_key.items():
        distinct = {line for step in steps.values() for line in step}
        recorded[key] = _Recorded([*steps.values()], distinct.pop() if len(distinct) == 1 else None)
    return recorded


def _visible(trace: Trace, recorded: set[str]) -> Ints:
    """For each operator itself or the recorded one around it, or -1.

    The recorder sees only outermost operators, not those that they call. Of a tensor's creation it sees the last
    operator, and under autocast the operator that is called again after the casts.
    """
    ops = trace.ops
    frames = trace.frames
    parent = row_numbers(ops["parent"])
    frame = row_numbers(ops["frame"])
    listed = ops["name"].isin(recorded).to_numpy()
    created = np.flatnonzero(listed & (ops["name"] == _CREATED).to_numpy() & (frame >= 0))
    created = created[map_names(frames["name"], lambda name: parse_frame(name) is None)[frame[created]]]
    creation = np.full(len(frames) + 1, -1, dtype=np.int64)
    creation[frame[created]] = created
    within = creation[frame]
    name = ops["name"].cat.codes.to_numpy()
    again = parent[(parent >= 0) & (name == name[parent])]
    casts = parent[(parent >= 0) & (ops["name"] == _CAST).to_numpy()]
    listed = listed & ((within < 0) | (within == np.arange(len(ops))))
    listed[np.intersect1d(again, casts)] = False
    visible: Ints = np.where(within >= 0, within, nearest(parent, listed & ~has_ancestor(parent, listed)))
    return visible


def _numbered(trace: Trace, keys: _Keys, visible: Ints, labels: list[str | None], callers: Ints) -> _Numbers:
    """Each visible operator's keys, and its index among the operators with each key in its step."""
    ops = trace.ops
    code, by_code = _parsed(trace, callers)
    step = row_numbers(ops["step"]).tolist()
    names = ops["name"].astype(object).tolist()
    backward = ops["backward"].tolist()
    counts = Counter[tuple[_Key, int]]()
    places: dict[int, _Position] = {}
    for row in np.argsort(ops["ts"].to_numpy(), kind="stable").tolist():
        if visible[row] == row and step[row] >= 0:
            operator_keys = keys.keys_of(names[row], labels[row], backward=backward[row], frame=by_code[code[row]])
            within = step[row]
            places[row] = _Position(within, tuple((key, counts[key, within]) for key in operator_keys))
            for key in operator_keys:
                counts[key, within] += 1
    return _Numbers(visible, places, counts)


def _parsed(trace: Trace, frames: Ints) -> tuple[Ints, dict[int, Frame | None]]:
    """A number for the name of each frame, -1 for none, and the parsed name of each number."""
    names = trace.frames["name"]
    code = take(names.cat.codes.to_numpy().astype(np.int64), frames)
    parsed = {int(c): parse_frame(str(names.cat.categories[c])) if c >= 0 else None for c in np.unique(code)}
    return code, parsed
