"""How often a program does something else: its branches on a step counter, such as `if step % 10 == 0`.

A program that logs every 50th step looks like one that never logs, to whoever follows four of its steps. The condition
itself is evaluated in each step, though, taken or not. So while a few steps run, each line that compares a remainder
is watched: what is divided must grow by as much from each step to the next, and then the divisor says after how many
steps the branch comes round. Divisors are read where the program has them, as in `args.log_interval`.

Plain Python, by its tracing hook. A debugger or a coverage tool that uses the hook is left alone.
"""

import ast
import linecache
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dis import _nb_ops, opmap  # type: ignore[attr-defined]
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from steptrace.engine.frames import LOOK_PAST, is_python_s_own, trace_file_name

#: Two differences from step to step that are equal: three steps.
LEAST_STEPS: Final = 3
_BINARY: Final = opmap["BINARY_OP"]
#: The arguments of that instruction for `%` and `%=`.
_REMAINDERS: Final = tuple(number for number, (_, sign) in enumerate(_nb_ops) if sign in ("%", "%="))
#: Functions without side effects that a condition may call on whole numbers, or on what has a length.
_CALLS: Final[Mapping[str, Callable[..., Any]]] = {"int": int, "len": len, "max": max, "min": min, "round": round}
_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
    ast.FloorDiv: int.__floordiv__,
    ast.Mod: int.__mod__,
}


class StepBranch(NamedTuple):
    """A line at which the program branches on a step counter; `every` so many steps it does so in the same way."""

    file: str
    line: int
    every: int


class _Remainder(NamedTuple):
    """A comparison of a remainder in a source file."""

    file: str
    line: int
    column: int
    left: ast.expr
    right: ast.expr


class _UnknownError(Exception):
    """An expression whose value cannot be had without running the program's code."""


class StepCounters:
    """Watches the lines that compare remainders, in the thread that calls `watch`.

    Args:
        aside: entered while conditions are evaluated, which may read properties of the program's objects.

    Example:
        counters = StepCounters()
        counters.watch()
        for _ in range(LEAST_STEPS):
            train_step()
            counters.step_ends()
        counters.stop()
        print(counters.branches())
    """

    def __init__(self, aside: Callable[[], AbstractContextManager[object]] = nullcontext) -> None:
        self._aside = aside
        #: Dividend and divisor at the last evaluation of each comparison in each step.
        self._steps: list[dict[_Remainder, tuple[int, int]]] = [{}]
        self._watching = False

    def watch(self) -> None:
        """Begin, also in the functions that are running; without effect where somebody else traces the program."""
        if sys.gettrace() is not None:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_trace is None and _has_remainders(frame.f_code):
                frame.f_trace = self._line
            frame = frame.f_back
        sys.settrace(self._call)
        self._watching = True

    def step_ends(self) -> None:
        """A step ends, and the next one begins."""
        if self._watching:
            self._steps.append({})

    @property
    def watched_enough(self) -> bool:
        """Whether so many steps were watched that the branches are known."""
        return len(self._steps) > LEAST_STEPS

    def stop(self) -> None:
        """End, unless somebody else traces the program since."""
        if self._watching and sys.gettrace() == self._call:
            sys.settrace(None)
        self._watching = False

    def branches(self) -> list[StepBranch]:
        """The branches on a counter that grows with the steps, by file and line; those of every step are left out."""
        whole = [step for step in self._steps if step]
        found: dict[tuple[str, int], int] = {}
        for remainder in {remainder: None for step in whole for remainder in step}:
            every = _steps_to_come_round([step[remainder] for step in whole if remainder in step])
            if every > 1:
                place = trace_file_name(remainder.file), remainder.line
                found[place] = math.lcm(found.get(place, 1), every)
        return [StepBranch(file, line, every) for (file, line), every in sorted(found.items())]

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        return self._line if _has_remainders(frame.f_code) else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        """A line is about to run."""
        if event == "line":
            for remainder in _remainders(frame.f_code.co_filename).get(frame.f_lineno, ()):
                try:
                    with self._aside():
                        sides = _number(remainder.left, frame), _number(remainder.right, frame)
                except Exception:  # whatever the program's own properties raise
                    continue
                self._steps[-1][remainder] = sides
        return self._line


def whole_periods(branches: Iterable[StepBranch], *, least: int, most: int) -> int:
    """How many steps to follow: at least so many, and whole periods of the branches, up to periods of `most` steps.

    Of branches that come round together only after more than that, the rarest one that fits decides.
    """
    periods = sorted({branch.every for branch in branches if branch.every <= most})
    together = math.lcm(*periods)
    period = together if together <= most else max(periods, default=1)
    return math.ceil(least / period) * period


def _steps_to_come_round(sides: list[tuple[int, int]]) -> int:
    """After how many steps a remainder is the same again; 1 where what is divided is no counter of steps."""
    (_, divisor), distances = sides[-1], {after[0] - before[0] for before, after in pairwise(sides)}
    grows = [distance for distance in distances if distance >= 0]  # a counter may begin anew, with an epoch
    if len(sides) < LEAST_STEPS or len(grows) != 1 or divisor < 1:
        return 1
    return divisor // math.gcd(divisor, grows[0])  # 1 where it stands still


_kinds: dict[int, tuple[bool, CodeType]] = {}


def _has_remainders(code: CodeType) -> bool:
    """Whether a function outside of PyTorch and Python compares remainders."""
    known = _kinds.get(id(code))
    if known is None:
        file, words = code.co_filename, code.co_code
        divides = any(words[at] == _BINARY and words[at + 1] in _REMAINDERS for at in range(0, len(words), 2)) and not (
            file.startswith(LOOK_PAST) or is_python_s_own(file)
        )
        # Beside the code, which its identity must outlive.
        known = _kinds[id(code)] = divides and bool(_remainders(file)), code
    return known[0]


_of_files: dict[str, dict[int, list[_Remainder]]] = {}


def _remainders(file: str) -> dict[int, list[_Remainder]]:
    """The comparisons of remainders in a source file, by line; none where it cannot be read."""
    if file not in _of_files:
        by_line = _of_files[file] = defaultdict(list)
        try:
            tree = ast.parse("".join(linecache.getlines(file)))
        except (SyntaxError, ValueError, RecursionError):
            return by_line
        for node in ast.walk(tree):
            for part in _conditions(node):
                if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                    at = part.lineno, part.col_offset
                    by_line[part.lineno].append(_Remainder(file, *at, part.left, part.right))
    return _of_files[file]


def _conditions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions right inside a node that decide something."""
    if isinstance(node, ast.Compare):
        yield node.left
        yield from node.comparators
    elif isinstance(node, ast.BoolOp):
        yield from node.values
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield node.test
    elif isinstance(node, ast.comprehension):
        yield from node.ifs


def _number(node: ast.expr, frame: FrameType) -> int:
    """The whole number that an expression stands for.

    Raises:
        _UnknownError: it is none, or only a call of the program's code would tell.
    """
    value = _value(node, frame)
    if type(value) is not int:
        raise _UnknownError
    return value


def _value(node: ast.expr, frame: FrameType) -> Any:
    """The value of a name, an attribute, an item, or whole numbers in arithmetic."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals):
            if node.id in names:
                return names[node.id]
    elif isinstance(node, ast.Attribute):
        return getattr(_value(node.value, frame), node.attr)
    elif isinstance(node, ast.Subscript):
        owner, key = _value(node.value, frame), _value(node.slice, frame)
        if isinstance(owner, Mapping) or (isinstance(owner, list | tuple) and type(key) is int):
            return owner[key]
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_number(node.left, frame), _number(node.right, frame))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(node.operand, frame)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = _CALLS.get(node.func.id)
        if function is len and len(node.args) == 1:
            return len(_value(node.args[0], frame))
        if function is not None:
            return function(*(_number(argument, frame) for argument in node.args))
    raise _UnknownError
