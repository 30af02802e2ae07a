"""Finds the conditions in source files that may branch on a step counter, such as `if step % 10 == 0`.

Remainders (`step % 10`), and what stands for them: a mask (`step & 63`), `divmod`, a remainder that is given a name
first, a counter that begins anew (`if count == 10: count = 0`), and a threshold that moves on
(`if step >= next_log: next_log += 10`). The last two are looked for in the program's own files alone.

Also conditions for which a counter is awaited: a number (`step == 1000`), a list (`step in milestones`), or an iterator
that gives flags (`if next(flags)`).

Nothing runs here: files are parsed, and a function's instructions are read.
"""

import ast
import linecache
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dis import _nb_ops, opmap  # type: ignore[attr-defined]
from types import CodeType
from typing import Final, NamedTuple

from steptrace.engine.frames import LOOK_PAST, is_library, is_python_s_own

_BINARY: Final = opmap["BINARY_OP"]
#: The arguments of that instruction for `%` and `%=`.
_REMAINDERS: Final = tuple(number for number, (_, sign) in enumerate(_nb_ops) if sign in ("%", "%=", "&", "&="))
_COMPARE: Final = opmap["COMPARE_OP"]
_CONTAINS: Final = opmap["CONTAINS_OP"]


class Precondition(NamedTuple):
    """A condition that stands before another one, and whether it must be true for Python to ask the other one."""

    condition: ast.expr
    must_be: bool


class Remainder(NamedTuple):
    """A comparison of a remainder in a source file.

    Attributes:
        file: the source file; `line` and `column` are its place there.
        left: the dividend; `right` is the divisor.
        is_mask: whether the right side is a mask of the left one's bits.
        guards: the conditions before it: in `verbose and step % 10 == 0` the second one may never be asked.
    """

    file: str
    line: int
    column: int
    left: ast.expr
    right: ast.expr
    is_mask: bool = False
    guards: tuple[Precondition, ...] = ()


class Span(NamedTuple):
    """The lines and columns from the beginning to behind the end of a piece of code."""

    line: int
    column: int
    end_line: int
    end_column: int

    def holds(self, other: "Span") -> bool:
        """Whether another piece lies in it."""
        return self[:2] <= other[:2] and other[2:] <= self[2:]


class AwaitingCondition(NamedTuple):
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
    body: Span | None = None
    guards: tuple[Precondition, ...] = ()


_kinds: dict[int, tuple[bool, CodeType]] = {}


def has_conditions(code: CodeType) -> bool:
    """Whether a function outside of PyTorch and Python has a line with such a condition."""
    entry = _kinds.get(id(code))
    if entry is None:
        file = code.co_filename
        words = code.co_code
        pairs = [(words[at], words[at + 1]) for at in range(0, len(words), 2)]
        divides = "divmod" in code.co_names or any(op == _BINARY and sign in _REMAINDERS for op, sign in pairs)
        may_count = divides or (any(op == _COMPARE for op, _ in pairs) and not is_library(file))
        looked_past = file.startswith(LOOK_PAST) or is_python_s_own(file)
        by_line: set[int] = set()
        if may_count and not looked_past:
            by_line.update(remainders_in(file))
        asks = "next" in code.co_names or any(op in (_COMPARE, _CONTAINS) for op, _ in pairs)
        if asks and not looked_past and not is_library(file):
            by_line.update(awaiting_in(file))
        # With the code itself: otherwise another code could get the same identity later.
        entry = any(line in by_line for *_, line in code.co_lines()), code
        _kinds[id(code)] = entry
    return entry[0]


_of_files: dict[str, dict[int, list[Remainder]]] = {}
_awaited_of_files: dict[str, dict[int, list[AwaitingCondition]]] = {}


def remainders_in(file: str) -> dict[int, list[Remainder]]:
    """The comparisons of remainders in a source file, by line; none if the file cannot be read."""
    if file not in _of_files:
        by_line: dict[int, list[Remainder]] = defaultdict(list)
        _of_files[file] = by_line
        tree = _parsed(file)
        for remainder in () if tree is None else _found_in(tree, file):
            by_line[remainder.line].append(remainder)
    return _of_files[file]


def awaiting_in(file: str) -> dict[int, list[AwaitingCondition]]:
    """The conditions in a program's source file for which a counter is awaited, by line."""
    if file not in _awaited_of_files:
        by_line: dict[int, list[AwaitingCondition]] = defaultdict(list)
        _awaited_of_files[file] = by_line
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


def _awaited_below(tree: ast.AST, file: str) -> Iterator[AwaitingCondition]:
    """The conditions below a node for which a counter is awaited, without those that only end a loop."""
    guards = _guards_in(tree)
    flags = _flags_in(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.IfExp) or (isinstance(node, ast.If) and _only_ends(node.body)):
            continue
        first = node.body if isinstance(node, ast.IfExp) else node.body[0]
        parts = [node.test, *(part for value in ast.walk(node.test) for part in _parts(value))]
        for part in parts:
            at = file, part.lineno, part.col_offset
            before = guards.get(part, ())
            for awaits, counter, target, beyond in _awaiting(part):
                yield AwaitingCondition(*at, awaits, counter, target, beyond, guards=before)
            if _is_next(part) or (isinstance(part, ast.Name) and part.id in flags):
                yield AwaitingCondition(*at, "iterator", None, None, 0, _span_of(first), before)


def _span_of(node: ast.expr | ast.stmt) -> Span:
    return Span(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or sys.maxsize)


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


def _found_in(tree: ast.AST, file: str) -> Iterator[Remainder]:
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


def _guards_in(tree: ast.AST) -> dict[ast.AST, tuple[Precondition, ...]]:
    """By expression below a node the conditions that stand before it in an `and` or an `or`."""
    guards: dict[ast.AST, tuple[Precondition, ...]] = {}
    for node in ast.walk(tree):  # from the outside to the inside
        outer = guards.get(node, ())
        if isinstance(node, ast.BoolOp):
            must_be = isinstance(node.op, ast.And)
            for number, value in enumerate(node.values):
                guards[value] = (*outer, *(Precondition(before, must_be) for before in node.values[:number]))
        elif outer:
            guards.update((child, outer) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))
    return guards


def _remainder(part: ast.expr, file: str) -> Iterator[Remainder]:
    """A remainder, if an expression is one: `a % b`, `a & b`, `divmod(a, b)` or `divmod(a, b)[1]`."""
    at = file, part.lineno, part.col_offset
    if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Call):
        part = part.value
    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod | ast.BitAnd):
        yield Remainder(*at, part.left, part.right, isinstance(part.op, ast.BitAnd))
    elif isinstance(part, ast.Call) and ast.unparse(part.func) == "divmod" and len(part.args) == 2:
        yield Remainder(*at, part.args[0], part.args[1])


def _begun_anew(node: ast.If | ast.While, test: ast.Compare, file: str) -> Iterator[Remainder]:
    """A remainder for a condition that resets its counter, or that moves its threshold on."""
    left = test.left
    compares = test.ops[0]
    right = test.comparators[0]
    at = file, test.lineno, test.col_offset
    for statement in node.body:
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
            for threshold, counter in ((left, right), (right, left)):
                if _is_same(statement.target, threshold):
                    yield Remainder(*at, counter, statement.value)
        elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            value = statement.value
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):  # `next_log = step + 10`
                for threshold, counter in ((left, right), (right, left)):
                    if _is_same(target, threshold) and _is_same(value.left, counter):
                        yield Remainder(*at, counter, value.right)
            elif _is_same(target, left) and isinstance(value, ast.Constant) and value.value == 0:
                over = ast.Constant(1 if isinstance(compares, ast.Gt) else 0)
                yield Remainder(*at, left, ast.BinOp(right, ast.Add(), over))
            elif _is_same(target, left) and isinstance(right, ast.Constant) and right.value == 0:  # it counts down
                yield Remainder(*at, ast.UnaryOp(ast.USub(), left), value)


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
