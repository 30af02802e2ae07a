"""Finds branches on a step counter, such as `if step % 10 == 0`, and their periods.

A program that logs every 50th step looks like one that never logs, to whoever follows four of its steps. The condition
itself is evaluated in each step, though, taken or not. So while a few steps run, each line that compares a remainder
is watched: what is divided must grow by as much from each step to the next, and then the divisor says after how many
steps the branch comes round. Divisors are read where the program has them, as in `args.log_interval`.

Other forms stand for remainders: a mask (`step & 63`), `divmod`, a remainder that is given a name first, a counter that
begins anew (`if count == 10: count = 0`), and a threshold that moves on (`if step >= next_log: next_log += 10`). The
last two are looked for in the program's own files alone. Where a setting of the program stands before the condition
and rules it out (`args.verbose and step % 10 == 0`), there is no branch. What goes by the clock is not seen.

A counter may also be awaited: by a number (`step == 1000`, `step >= 1000`), by a list (`step in milestones`), or by an
iterator that gives flags (`if next(flags)`). Such a branch has no period. Where the followed steps end before it is
taken for the first time, that is said, with its line.

Plain Python, by its tracing hook. A debugger or a coverage tool that uses the hook is left alone.
"""

import ast
import linecache
import math
import operator
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dis import _nb_ops, get_instructions, opmap  # type: ignore[attr-defined]
from inspect import CO_OPTIMIZED
from itertools import islice, pairwise
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

from steptrace.engine.frames import LOOK_PAST, is_library, is_python_s_own, trace_file_name

#: Whether `frame.f_locals` of a function is a copy of its variables, which stays with the function.
_COPIES_VARIABLES: Final = sys.version_info < (3, 13)
#: References to such a copy that are not the program's: of its frame, of a variable here, and of an argument.
_OWN_REFERENCES: Final = 3
#: Three steps give two differences, which must be equal.
LEAST_STEPS: Final = 3
_BINARY: Final = opmap["BINARY_OP"]
#: The arguments of that instruction for `%` and `%=`.
_REMAINDERS: Final = tuple(number for number, (_, sign) in enumerate(_nb_ops) if sign in ("%", "%=", "&", "&="))
_COMPARE: Final = opmap["COMPARE_OP"]
_CONTAINS: Final = opmap["CONTAINS_OP"]
#: A longer list of awaited numbers is not read in each step.
_MOST_NUMBERS: Final = 10_000
#: The instructions of functions that only look something up, so that one more call does no harm.
_LOOKUPS: Final = frozenset(
    (
        *("RESUME", "COPY_FREE_VARS", "NOP", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_ATTR", "LOAD_CONST", "LOAD_GLOBAL"),
        *("LOAD_DEREF", "BINARY_SUBSCR", "RETURN_VALUE", "RETURN_CONST"),
    )
)
#: Functions without side effects that a condition may call on whole numbers, or on objects with a length.
_CALLS: Final[Mapping[str, Callable[..., Any]]] = {"int": int, "len": len, "max": max, "min": min, "round": round}
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ARITHMETIC: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
    ast.FloorDiv: int.__floordiv__,
    ast.Mod: int.__mod__,
}


class StepBranch(NamedTuple):
    """A line at which the program branches on a step counter. It branches in the same way after `every` steps."""

    file: str
    line: int
    every: int


class AwaitedBranch(NamedTuple):
    """A line that waits for the step counter, and whose branch no followed step has taken.

    Attributes:
        file: the source file; `line` is its line there.
        awaits: what the counter is compared with: a `number`, a `list`, or an `iterator`.
        in_steps: it is taken in so many steps after the last one that was seen; None where that is not known.
    """

    file: str
    line: int
    awaits: str
    in_steps: int | None


class _Guard(NamedTuple):
    """A condition that stands before another one, and whether it must be true for Python to ask the other one."""

    condition: ast.expr
    must_be: bool


class _Remainder(NamedTuple):
    """A comparison of a remainder in a source file.

    Attributes:
        file: the source file; `line` and `column` are its place there.
        left: what is divided; `right` is what divides it.
        is_mask: whether the right side is a mask of the left one's bits.
        guards: the conditions before it: in `verbose and step % 10 == 0` the second one may never be asked.
    """

    file: str
    line: int
    column: int
    left: ast.expr
    right: ast.expr
    is_mask: bool = False
    guards: tuple[_Guard, ...] = ()


class _Span(NamedTuple):
    """The lines and columns from the beginning to behind the end of a piece of code."""

    line: int
    column: int
    end_line: int
    end_column: int

    def holds(self, other: "_Span") -> bool:
        """Whether another piece lies in it."""
        return self[:2] <= other[:2] and other[2:] <= self[2:]


class _Awaited(NamedTuple):
    """A condition in a source file that a counter meets at some step, and not again after whole periods.

    Attributes:
        file: the source file; `line` and `column` are its place there.
        awaits: as in `AwaitedBranch`.
        counter: what grows; `target` is the number or the collection of numbers that it grows to. None of an iterator.
        beyond: 1 if the counter must be above the number, else 0.
        body: where the code stands that runs if it is met.
        guards: the conditions before it.
    """

    file: str
    line: int
    column: int
    awaits: str
    counter: ast.expr | None
    target: ast.expr | None
    beyond: int = 0
    body: _Span | None = None
    guards: tuple[_Guard, ...] = ()


class _UnknownError(Exception):
    """The value of an expression cannot be found without running the program's code."""


class StepCounters:
    """Watches the lines that compare remainders, in the thread that calls `watch`.

    Args:
        aside: makes a context in which conditions are evaluated: that may read properties of the program's objects.

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
        #: The counter and its target, at the last evaluation of each condition in each step.
        self._awaited: list[dict[_Awaited, tuple[int, tuple[int, ...]]]] = [{}]
        #: The conditions on an iterator that were evaluated, and whether any was met.
        self._iterators: dict[_Awaited, bool] = {}
        #: The functions with these conditions, by the identity of their code: its hash takes long.
        self._asking: dict[int, CodeType] = {}
        #: The number of steps that have ended, in all and when `watch` was called.
        self._ended = self._first_step = 0
        self._watching = False
        self._counters_known = False
        self._copy: dict[str, Any] | None = None

    def watch(self) -> None:
        """Begin to watch, also in functions that already run. Does nothing if another tool traces the program."""
        if sys.gettrace() is not None:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_trace is None and _has_remainders(frame.f_code):
                frame.f_trace = self._line
            frame = frame.f_back
        sys.settrace(self._call)
        self._watching = True
        self._first_step = self._ended

    def step_ends(self) -> None:
        """Say that a step has ended and the next one begins."""
        self._ended += 1
        self._free_copy()
        if not self._watching:
            return
        if not self._counters_known:
            self._steps.append({})
            self._awaited.append({})
        elif all(self._iterators.values()):
            self.stop()

    @property
    def sees_any(self) -> bool:
        """Whether the program has compared any remainder so far."""
        return any(self._steps)

    @property
    def watched_enough(self) -> bool:
        """Whether enough steps were watched to know the branches on a counter."""
        return len(self._steps) > LEAST_STEPS

    def counters_known(self) -> None:
        """Stop to watch counters. Go on to watch iterators that have not let the program branch so far.

        Python then still reports each call of a function, but lines only in functions that ask such an iterator.
        """
        self._counters_known = True
        if all(self._iterators.values()):
            self.stop()

    def stop(self) -> None:
        """Stop to watch, unless another tool traces the program by now."""
        if self._watching:
            if sys.gettrace() == self._call:
                sys.settrace(None)
            self._leave(sys._getframe(1))
        self._watching = False

    def _leave(self, frame: FrameType | None) -> None:
        """Leave the functions that run, so that they can be watched again."""
        self._free_copy()
        while frame is not None:
            if frame.f_trace == self._line:
                del frame.f_trace
            frame = frame.f_back

    def _free_copy(self) -> None:
        """Empty the copy of a function's variables that Python made for the latest conditions.

        It would keep the tensors of that line alive while the program goes on. Python must not be about to write the
        copy back, as it does at the end of a line's tracing. A copy that the program holds, by `locals()`, is its own.
        """
        copy, self._copy = self._copy, None
        if copy is not None and sys.getrefcount(copy) <= _OWN_REFERENCES:
            copy.clear()

    def branches(self) -> list[StepBranch]:
        """The branches on a counter that grows with the steps, by file and line, without those of each step."""
        whole = [step for step in self._steps if step]
        periods: dict[tuple[str, int], int] = {}
        for remainder in {remainder: None for step in whole for remainder in step}:
            steps = _period_of([step[remainder] for step in whole if remainder in step])
            if steps > 1:
                place = trace_file_name(remainder.file), remainder.line
                periods[place] = math.lcm(periods.get(place, 1), steps)
        return [StepBranch(file, line, steps) for (file, line), steps in sorted(periods.items())]

    def awaited(self) -> list[AwaitedBranch]:
        """The branches for which a counter is awaited, and that were not taken so far, by file and line."""
        seen = {condition for step in self._awaited for condition in step}
        found: dict[tuple[str, int], AwaitedBranch] = {}
        periodic = {(branch.file, branch.line) for branch in self.branches()}
        for condition in sorted(seen, key=lambda condition: (condition.file, condition.line, condition.column)):
            steps = _steps_until([step.get(condition) for step in self._awaited], condition.beyond)
            # Watching may have ended before the last step did.
            left = 0 if steps is None else steps + len(self._awaited) - (self._ended - self._first_step)
            place = trace_file_name(condition.file), condition.line
            if left > 0 and place not in periodic:
                found.setdefault(place, AwaitedBranch(*place, condition.awaits, left))
        for condition, is_met in self._iterators.items():
            place = trace_file_name(condition.file), condition.line
            if not is_met:
                found.setdefault(place, AwaitedBranch(*place, condition.awaits, None))
        return [branch for _, branch in sorted(found.items())]

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        is_watched = id(frame.f_code) in self._asking if self._counters_known else _has_remainders(frame.f_code)
        return self._line if is_watched else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:
        """Python calls this before a line runs: evaluate the line's conditions."""
        self._free_copy()
        if event == "line":
            file, line = frame.f_code.co_filename, frame.f_lineno
            remainders = () if self._counters_known else _remainders(file).get(line, ())
            for remainder in remainders:
                with self._evaluating():
                    if all(_lets_pass(guard, frame) for guard in remainder.guards):
                        left, right = _number(remainder.left, frame), _number(remainder.right, frame)
                        bits = 1 << right.bit_length() if remainder.is_mask else right
                        self._steps[-1][remainder] = left, bits
            awaited = _awaited_in(file).get(line, ())
            for condition in awaited:
                if condition.counter is None:
                    self._asks_iterator(condition, frame)
                elif not self._counters_known:
                    self._awaits(condition, frame)
            if _COPIES_VARIABLES and (remainders or awaited) and frame.f_code.co_flags & CO_OPTIMIZED:
                self._copy = frame.f_locals
        elif event == "opcode":
            self._runs(frame)
        return self._line

    def _asks_iterator(self, condition: _Awaited, frame: FrameType) -> None:
        """Note that the condition is asked, or that its body runs, whose first line this may be."""
        assert condition.body is not None
        met = self._iterators.get(condition, False)
        self._asking[id(frame.f_code)] = frame.f_code
        if condition.body.line != condition.line:
            self._iterators[condition] = met or frame.f_lineno == condition.body.line
            return
        self._iterators[condition] = met
        if not met and not frame.f_trace_opcodes:
            # Lines do not tell whether a body on the same line runs. Python 3.12 heeds this only when tracing begins.
            frame.f_trace_opcodes = True
            sys.settrace(sys.gettrace())

    def _runs(self, frame: FrameType) -> None:
        """Python calls this before an instruction runs, in functions where a condition and its body are on one line."""
        line, end_line, column, end_column = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
        if line is None or column is None or end_line is None or end_column is None:
            return
        instruction = _Span(line, column, end_line, end_column)
        for condition in _awaited_in(frame.f_code.co_filename).get(frame.f_lineno, ()):
            if condition.body is not None and condition in self._iterators and condition.body.holds(instruction):
                self._iterators[condition] = True

    def _awaits(self, condition: _Awaited, frame: FrameType) -> None:
        """Record the counter and its target."""
        assert condition.counter is not None
        assert condition.target is not None
        with self._evaluating():
            if all(_lets_pass(guard, frame) for guard in condition.guards):
                counter = _number(condition.counter, frame)
                if condition.awaits == "list":
                    targets = _numbers(condition.target, frame)
                else:
                    targets = (_number(condition.target, frame),)
                self._awaited[-1][condition] = counter, targets

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """A context in which a condition is evaluated. A property of the program may raise anything."""
        try:
            with self._aside():
                yield
        except Exception:
            return


def whole_periods(branches: Iterable[StepBranch], *, least: int, most: int) -> int:
    """The number of steps to follow: at least `least`, and whole periods of the branches.

    Periods above `most` steps are ignored. If the common period of all branches is longer than that, the longest single
    period that is not decides.
    """
    periods = sorted({branch.every for branch in branches if branch.every <= most})
    together = math.lcm(*periods)
    period = together if together <= most else max(periods, default=1)
    return math.ceil(least / period) * period


def _period_of(sides: list[tuple[int, int]]) -> int:
    """The number of steps after which a remainder is the same again; 1 if the dividend does not count steps.

    Args:
        sides: dividend and divisor in each step.
    """
    divisor = sides[-1][1]
    distances = {after[0] - before[0] for before, after in pairwise(sides)}
    grows = [distance for distance in distances if distance >= 0]  # a counter may start anew with each epoch
    if len(sides) < LEAST_STEPS or len(grows) != 1 or divisor < 1:
        return 1
    if any(other != divisor for _, other in sides):  # as in `step & (step - 1)`
        return 1
    return divisor // math.gcd(divisor, grows[0])  # 1 if the counter stands still


def _steps_until(seen: Sequence[tuple[int, tuple[int, ...]] | None], beyond: int) -> int | None:
    """The number of steps after the last one until a counter meets its target; None if it does not grow, or has met it.

    Args:
        seen: the counter and its targets in each step; None where the program did not ask.
        beyond: 1 if the counter must be above the target, else 0.
    """
    asked = [(number, *comparison) for number, comparison in enumerate(seen) if comparison is not None]
    if len(asked) < LEAST_STEPS or len({targets for *_, targets in asked}) > 1:
        return None
    last, counter, targets = asked[-1]
    grows = {(after[1] - before[1]) / (after[0] - before[0]) for before, after in pairwise(asked)}
    if len(grows) != 1 or (by := grows.pop()) <= 0:
        return None
    if any(value >= target + beyond for _, value, _ in asked for target in targets[-1:]):
        return None  # the last of them is behind us
    ahead = [target + beyond for target in targets if target + beyond > counter]
    if len(ahead) < len(targets) and any(value in targets for _, value, _ in asked):
        return None  # the branch was taken
    return last + math.ceil((min(ahead) - counter) / by) - (len(seen) - 1)


_kinds: dict[int, tuple[bool, CodeType]] = {}


def _has_remainders(code: CodeType) -> bool:
    """Whether a function outside of PyTorch and Python compares remainders."""
    entry = _kinds.get(id(code))
    if entry is None:
        file, words = code.co_filename, code.co_code
        pairs = [(words[at], words[at + 1]) for at in range(0, len(words), 2)]
        divides = "divmod" in code.co_names or any(op == _BINARY and sign in _REMAINDERS for op, sign in pairs)
        may_count = divides or (any(op == _COMPARE for op, _ in pairs) and not is_library(file))
        looked_past = file.startswith(LOOK_PAST) or is_python_s_own(file)
        by_line: set[int] = set()
        if may_count and not looked_past:
            by_line.update(_remainders(file))
        asks = "next" in code.co_names or any(op in (_COMPARE, _CONTAINS) for op, _ in pairs)
        if asks and not looked_past and not is_library(file):
            by_line.update(_awaited_in(file))
        # With the code itself: otherwise another code could get the same identity later.
        entry = _kinds[id(code)] = any(line in by_line for *_, line in code.co_lines()), code
    return entry[0]


_of_files: dict[str, dict[int, list[_Remainder]]] = {}
_awaited_of_files: dict[str, dict[int, list[_Awaited]]] = {}


def _remainders(file: str) -> dict[int, list[_Remainder]]:
    """The comparisons of remainders in a source file, by line; none if the file cannot be read."""
    if file not in _of_files:
        by_line = _of_files[file] = defaultdict(list)
        tree = _parsed(file)
        for remainder in () if tree is None else _found_in(tree, file):
            by_line[remainder.line].append(remainder)
    return _of_files[file]


def _awaited_in(file: str) -> dict[int, list[_Awaited]]:
    """The conditions in a program's source file for which a counter is awaited, by line."""
    if file not in _awaited_of_files:
        by_line = _awaited_of_files[file] = defaultdict(list)
        tree = None if is_library(file) else _parsed(file)
        for condition in () if tree is None else _awaited_below(tree, file):
            by_line[condition.line].append(condition)
            if condition.body is not None and condition.body.line != condition.line:
                by_line[condition.body.line].append(condition)
    return _awaited_of_files[file]


def _parsed(file: str) -> ast.AST | None:
    """The tree of a source file; None if the file cannot be read."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _awaited_below(tree: ast.AST, file: str) -> Iterator[_Awaited]:
    """The conditions below a node for which a counter is awaited, without those that only end a loop."""
    guards, flags = _guards_in(tree), _flags_in(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.IfExp) or (isinstance(node, ast.If) and _only_ends(node.body)):
            continue
        first = node.body if isinstance(node, ast.IfExp) else node.body[0]
        parts = [node.test, *(part for value in ast.walk(node.test) for part in _parts(value))]
        for part in parts:
            at = file, part.lineno, part.col_offset
            before = guards.get(part, ())
            for awaits, counter, target, beyond in _awaiting(part):
                yield _Awaited(*at, awaits, counter, target, beyond, guards=before)
            if _is_next(part) or (isinstance(part, ast.Name) and part.id in flags):
                yield _Awaited(*at, "iterator", None, None, 0, _span_of(first), before)


def _span_of(node: ast.expr | ast.stmt) -> _Span:
    return _Span(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or sys.maxsize)


def _flags_in(tree: ast.AST) -> set[str]:
    """The names that are assigned the values of an iterator, as in `flag = next(flags)`."""
    return {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_next(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_next(part: ast.expr) -> bool:
    return isinstance(part, ast.Call) and ast.unparse(part.func) == "next"


def _parts(node: ast.AST) -> Sequence[ast.expr]:
    """The conditions that a condition joins."""
    return node.values if isinstance(node, ast.BoolOp) else ()


def _only_ends(body: Sequence[ast.stmt]) -> bool:
    """Whether statements end the loop or the program, as `if step == most: break` does."""
    last = body[-1]
    return isinstance(last, ast.Break | ast.Raise) or (isinstance(last, ast.Return) and last.value is None)


def _awaiting(part: ast.expr) -> Iterator[tuple[str, ast.expr, ast.expr, int]]:
    """The kind of the wait, the counter, its target, and whether the counter must be beyond the target."""
    if not isinstance(part, ast.Compare) or len(part.ops) != 1:
        return
    left = part.left
    compare = part.ops[0]
    right = part.comparators[0]
    if isinstance(compare, ast.In):
        yield "list", left, right, 0
    elif isinstance(compare, ast.Eq):
        yield "number", left, right, 0
        yield "number", right, left, 0
    elif isinstance(compare, ast.Gt | ast.GtE):
        yield "number", left, right, int(isinstance(compare, ast.Gt))
    elif isinstance(compare, ast.Lt | ast.LtE):
        yield "number", right, left, int(isinstance(compare, ast.Lt))


def _found_in(tree: ast.AST, file: str) -> Iterator[_Remainder]:
    """The comparisons of remainders below a node, in all forms."""
    compared = {part.id for node in ast.walk(tree) for part in _conditions(node) if isinstance(part, ast.Name)}
    guards = _guards_in(tree)
    for node in ast.walk(tree):
        for part in _conditions(node):
            before = guards.get(part, guards.get(node, ()))
            yield from (remainder._replace(guards=before) for remainder in _remainder(part, file))
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            # `divmod` returns the remainder second.
            if isinstance(names[-1], ast.Name) and names[-1].id in compared:
                yield from _remainder(node.value, file)
        if isinstance(node, ast.If | ast.While) and isinstance(node.test, ast.Compare) and len(node.test.ops) == 1:
            yield from _begun_anew(node, node.test, file)


def _guards_in(tree: ast.AST) -> dict[ast.AST, tuple[_Guard, ...]]:
    """By expression below a node the conditions that stand before it in an `and` or an `or`."""
    guards: dict[ast.AST, tuple[_Guard, ...]] = {}
    for node in ast.walk(tree):  # from the outside to the inside
        outer = guards.get(node, ())
        if isinstance(node, ast.BoolOp):
            must_be = isinstance(node.op, ast.And)
            for number, value in enumerate(node.values):
                guards[value] = (*outer, *(_Guard(before, must_be) for before in node.values[:number]))
        elif outer:
            guards.update((child, outer) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
    return guards


def _remainder(part: ast.expr, file: str) -> Iterator[_Remainder]:
    """A remainder, if an expression is one: `a % b`, `a & b`, `divmod(a, b)` or `divmod(a, b)[1]`."""
    at = file, part.lineno, part.col_offset
    if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Call):
        part = part.value
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod | ast.BitAnd):
        yield _Remainder(*at, part.left, part.right, isinstance(part.op, ast.BitAnd))
    elif isinstance(part, ast.Call) and ast.unparse(part.func) == "divmod" and len(part.args) == 2:
        yield _Remainder(*at, part.args[0], part.args[1])


def _begun_anew(node: ast.If | ast.While, test: ast.Compare, file: str) -> Iterator[_Remainder]:
    """A remainder for a condition that resets its counter, or that moves its threshold on."""
    left = test.left
    compares = test.ops[0]
    right = test.comparators[0]
    at = file, test.lineno, test.col_offset
    for statement in node.body:
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            for threshold, counter in ((left, right), (right, left)):
                if _is_same(statement.target, threshold):
                    yield _Remainder(*at, counter, statement.value)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):  # `next_log = step + 10`
                for threshold, counter in ((left, right), (right, left)):
                    if _is_same(target, threshold) and _is_same(value.left, counter):
                        yield _Remainder(*at, counter, value.right)
            elif _is_same(target, left) and isinstance(value, ast.Constant) and value.value == 0:
                over = ast.Constant(1 if isinstance(compares, ast.Gt) else 0)
                yield _Remainder(*at, left, ast.BinOp(right, ast.Add(), over))
            elif _is_same(target, left) and isinstance(right, ast.Constant) and right.value == 0:  # it counts down
                yield _Remainder(*at, ast.UnaryOp(ast.USub(), left), value)


def _is_same(target: ast.expr, other: ast.expr) -> bool:
    """Whether the variable or attribute that a statement sets is the one that an expression reads."""
    return isinstance(target, ast.Name | ast.Attribute) and ast.unparse(target) == ast.unparse(other)


def _conditions(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions directly inside a node that decide a branch."""
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


def _lets_pass(guard: _Guard, frame: FrameType) -> bool:
    """Whether Python evaluates what follows a condition; True if only the program's own code could tell."""
    try:
        return _truth(guard.condition, frame) is guard.must_be
    except _UnknownError:
        return True


def _truth(node: ast.expr, frame: FrameType) -> bool:
    """Whether a condition holds.

    Raises:
        _UnknownError: finding out would call the program's code, or wait for the GPU if it is a tensor.
    """
    if isinstance(node, ast.BoolOp):
        parts = [_truth(value, frame) for value in node.values]
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return not _truth(node.operand, frame)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        compare = _COMPARISONS.get(type(node.ops[0]))
        if compare is not None:
            return bool(compare(_plain(node.left, frame), _plain(node.comparators[0], frame)))
        raise _UnknownError
    return bool(_plain(node, frame))


def _plain(node: ast.expr, frame: FrameType) -> Any:
    """A setting: a flag, a text or None, which compares without any code of the program.

    Raises:
        _UnknownError: it is something else, such as a number, which may grow until the condition holds.
    """
    value = _value(node, frame)
    if type(value) not in (bool, str, type(None)):
        raise _UnknownError
    return value


def _number(node: ast.expr, frame: FrameType) -> int:
    """The value of an expression that is a whole number.

    Raises:
        _UnknownError: it is another value, or only a call of the program's code would tell it.
    """
    value = _value(node, frame)
    if type(value) is not int:
        raise _UnknownError
    return value


def _numbers(node: ast.expr, frame: FrameType) -> tuple[int, ...]:
    """The whole numbers in a collection, ascending.

    Raises:
        _UnknownError: it is no collection, or it holds other kinds of values.
    """
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return tuple(sorted(_number(item, frame) for item in node.elts))
    value = _value(node, frame)
    if type(value) not in (list, tuple, set, frozenset, dict, range) or not value or len(value) > _MOST_NUMBERS:
        raise _UnknownError
    if any(type(item) is not int for item in value):
        raise _UnknownError
    return tuple(sorted(value))


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
    elif isinstance(node, ast.Call) and not node.args and not node.keywords:
        function = _value(node.func, frame)
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if isinstance(code, CodeType) and all(instruction.opname in _LOOKUPS for instruction in get_instructions(code)):
            return function()
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        function = _CALLS.get(node.func.id)
        if function is len and len(node.args) == 1:
            return len(_value(node.args[0], frame))
        if function is not None:
            return function(*(_number(argument, frame) for argument in node.args))
    raise _UnknownError
