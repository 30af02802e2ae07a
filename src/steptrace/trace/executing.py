"""The line that executed an operator of a trace, from the same operator in a watched step.

Operators are counted by name, label and calling function: the k-th one has the k-th recorded line of a watched step
with equally many. Without such a step, a line is assigned only if it is the same for all. The same goes for calls that
wait and are no operators (`torch.cuda.synchronize`), without their label.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from steptrace.intervals import Ints
from steptrace.trace.columns import has_ancestor, map_names, nearest, row_numbers, take, texts
from steptrace.trace.model import Trace
from steptrace.trace.names import Frame, parse_frame

#: The last operator in creating a tensor from Python values. Earlier ones, such as the copy to the GPU, run outside any
#: dispatch mode.
_CREATED = "aten::lift_fresh"
#: Converts an operator's arguments under autocast.
_CAST = "aten::to"

#: A function's name and, if the file's text is recorded, its first line: two classes may both have a `forward`.
_Function = tuple[str, int | None]
#: Matches recorded operators with a trace's: operator, label, whether in the backward pass, and the calling function
#: with the last part of its file's name.
_Key = tuple[str, str | None, bool, tuple[str, _Function] | None]


def same_file(one: str, other: str) -> bool:
    """Whether two names can be of one file: equal, or one is the end of the other."""
    a, b = one.split("/"), other.split("/")
    shared = min(len(a), len(b))
    return a[-shared:] == b[-shared:]


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


class ExecutingLines:
    """Finds the line that executed an operator, by its index in the step's order of operators.

    Args:
        trace: the trace.
        begins: returns the first line of a frame's function, None if unknown.
    """

    def __init__(self, trace: Trace, begins: Callable[[Frame], int | None]) -> None:
        self._trace = trace
        self._recorded: dict[_Key, _Recorded] = {}
        self._function: Callable[[Frame], _Function] = cache(lambda f: (f.function.split(".")[-1], begins(f)))

    def learn(self, op_lines: pd.DataFrame, labels: Ints, callers: Ints) -> None:
        """Add the lines of the watched steps.

        Args:
            op_lines: their operators with their lines.
            labels: the row of the label of each operator of the trace, -1 for none.
            callers: the row of the frame that called each, of a backward operator's forward operator; -1 for none.
        """
        recorded: defaultdict[_Key, defaultdict[int, list[Frame | None]]] = defaultdict(lambda: defaultdict(list))
        for order in op_lines.itertuples():
            place = None if pd.isna(order.file) else _recorded_frame(order)  # type: ignore[arg-type]
            label = None if pd.isna(order.label) else str(order.label)  # type: ignore[arg-type]
            for key in self._keys(str(order.op), label, backward=str(order.phase) == "backward", frame=place):
                recorded[key][int(order.step)].append(place)  # type: ignore[arg-type]
        for key, steps in recorded.items():
            distinct = {line for step in steps.values() for line in step}
            self._recorded[key] = _Recorded([*steps.values()], distinct.pop() if len(distinct) == 1 else None)
        self._find_visible(set(op_lines["op"]))
        self._number_ops(texts(self._trace.labels["name"], labels).tolist(), callers)

    def _find_visible(self, recorded: set[str]) -> None:
        """For each operator itself or the recorded one around it, or -1.

        The recorder sees only outermost operators, not those that they call. Of a tensor's creation it sees the last
        operator, and under autocast the operator that is called again after the casts.
        """
        ops, frames = self._trace.ops, self._trace.frames
        parent, frame = row_numbers(ops["parent"]), row_numbers(ops["frame"])
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
        self._visible = np.where(within >= 0, within, nearest(parent, listed & ~has_ancestor(parent, listed)))

    def _number_ops(self, labels: list[str | None], callers: Ints) -> None:
        """Set each operator's keys, and its index among the operators with each key in its step."""
        ops = self._trace.ops
        code, by_code = self._parsed(callers)
        step = row_numbers(ops["step"]).tolist()
        names, backward = ops["name"].astype(object).tolist(), ops["backward"].tolist()
        self._counts: Counter[tuple[_Key, int]] = Counter()
        self._place: dict[int, _Position] = {}
        for row in np.argsort(ops["ts"].to_numpy(), kind="stable").tolist():
            if self._visible[row] == row and step[row] >= 0:
                keys = self._keys(names[row], labels[row], backward=backward[row], frame=by_code[code[row]])
                within = step[row]
                self._place[row] = _Position(within, tuple((key, self._counts[key, within]) for key in keys))
                for key in keys:
                    self._counts[key, within] += 1

    def places(
        self,
        frame: Ints,
        exact_op: Ints,
        op: Ints,
        definition: Callable[[Frame], Frame],
        waits: Sequence[tuple[str, int] | None],
    ) -> tuple[list[Frame], Ints]:
        """The distinct lines of some events, and for each event the index of its line, -1 if unknown.

        An event's line is the one that executed `exact_op` or the wait, or else the `definition` of its frame, or else
        the line of `op`. `waits`: name and step of an event that is a wait without an operator, else None.
        """
        code, by_code = self._parsed(frame)
        defined = {c: frame_of and definition(frame_of) for c, frame_of in by_code.items()}
        number: dict[Frame, int] = {}
        if not self._recorded:
            place = np.full(len(self._trace.frames["name"].cat.categories) + 1, -1, dtype=np.int64)
            for c, line in defined.items():
                place[c] = -1 if line is None else number.setdefault(line, len(number))
            return list(number), place[code]
        numbers = []
        of_waits = self._of_waits(waits, [by_code[c] for c in code.tolist()])
        for row, c in enumerate(code.tolist()):
            line = self.of(exact_op[row], by_code[c]) or of_waits[row] or defined[c] or self.of(op[row], None)
            numbers.append(-1 if line is None else number.setdefault(line, len(number)))
        return list(number), np.array(numbers, dtype=np.int64)

    def _parsed(self, frames: Ints) -> tuple[Ints, dict[int, Frame | None]]:
        """A number for the name of each frame, -1 for none, and the parsed name of each number."""
        names = self._trace.frames["name"]
        code = take(names.cat.codes.to_numpy().astype(np.int64), frames)
        return code, {int(c): parse_frame(str(names.cat.categories[c])) if c >= 0 else None for c in np.unique(code)}

    def of(self, op: int, frame: Frame | None) -> Frame | None:
        """The line that executed operator `op`, None if it is unknown or contradicts `frame`."""
        place = self._place.get(int(self._visible[op])) if op >= 0 else None
        if place is None:
            return None
        for key, number in place.numbers:
            line = self._recorded_line(key, number, self._counts[key, place.step])
            if line is not None and (agreed := self._agreed(line, frame, backward=key[2])) is not None:
                return agreed
        return None

    def _recorded_line(self, key: _Key, number: int, count: int) -> Frame | None:
        """The line of one of `count` operators with a key in a step, by its number among them."""
        recorded = self._recorded.get(key)
        if recorded is None:
            return None
        lines = {step[number] for step in recorded.steps if len(step) == count}
        return recorded.only if not lines else lines.pop() if len(lines) == 1 else None

    def _of_waits(self, waits: Sequence[tuple[str, int] | None], frames: list[Frame | None]) -> list[Frame | None]:
        """The line of each wait, None of other events."""
        keys = [
            None
            if wait is None or frame is None
            else (self._keys(wait[0], None, backward=False, frame=frame)[0], wait[1])
            for wait, frame in zip(waits, frames, strict=True)
        ]
        counts, before = Counter(keys), Counter[object]()
        lines: list[Frame | None] = []
        for key, frame in zip(keys, frames, strict=True):
            line = None if key is None else self._recorded_line(key[0], before[key], counts[key])
            lines.append(None if line is None else self._agreed(line, frame, backward=False))
            before[key] += 1
        return lines

    def _agreed(self, line: Frame, frame: Frame | None, *, backward: bool) -> Frame | None:
        if frame is None:
            return line if len(self._trace.frames) == 0 or backward else None
        (name, begins), (own_name, own_begins) = self._function(line), self._function(frame)
        same_begin = begins is None or own_begins is None or begins == own_begins  # unknown where a file was edited
        agrees = same_file(line.file, frame.file) and name == own_name and same_begin
        return replace(line, file=frame.file, function=frame.function) if agrees else None

    def _keys(self, op: str, label: str | None, *, backward: bool, frame: Frame | None) -> tuple[_Key, ...]:
        """The keys of an operator; on a GPU the backward pass runs outside the labels."""
        shown = None if backward else label
        called = () if frame is None else ((op, shown, backward, (frame.file.split("/")[-1], self._function(frame))),)
        return (*called, (op, shown, backward, None))
