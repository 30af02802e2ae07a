"""Evaluates the conditions of a program that runs, without running any of its code that may have effects.

Names, attributes, items and arithmetic on whole numbers are read where the program has them. What only a call of the
program's own code could tell is unknown.
"""

import ast
import operator
from collections.abc import Callable, Mapping
from dis import get_instructions
from types import CodeType, FrameType
from typing import Any, Final

from steptrace.engine.step_conditions import Precondition

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


class UnknownValueError(Exception):
    """The value of an expression cannot be found without running the program's code."""


def lets_pass(guard: Precondition, frame: FrameType) -> bool:
    """Whether Python evaluates what follows a condition; True if only the program's own code could tell."""
    try:
        return _truth(guard.condition, frame) is guard.must_be
    except UnknownValueError:
        return True


def _truth(node: ast.expr, frame: FrameType) -> bool:
    """Whether a condition holds.

    Raises:
        UnknownValueError: finding out would call the program's code, or wait for the GPU if it is a tensor.
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
        raise UnknownValueError
    return bool(_plain(node, frame))


def _plain(node: ast.expr, frame: FrameType) -> Any:
    """A setting: a flag, a text or None, which compares without any code of the program.

    Raises:
        UnknownValueError: it is none of these, such as a number, which may grow until the condition holds.
    """
    value = _value(node, frame)
    if type(value) not in (bool, str, type(None)):
        raise UnknownValueError
    return value


def number_of(node: ast.expr, frame: FrameType) -> int:
    """The value of an expression that is a whole number.

    Raises:
        UnknownValueError: it is another value, or only a call of the program's code would tell it.
    """
    value = _value(node, frame)
    if type(value) is not int:
        raise UnknownValueError
    return value


def numbers_of(node: ast.expr, frame: FrameType) -> tuple[int, ...]:
    """The whole numbers in a collection, ascending.

    Raises:
        UnknownValueError: it is no collection, or it holds other kinds of values.
    """
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return tuple(sorted(number_of(item, frame) for item in node.elts))
    value = _value(node, frame)
    if type(value) not in (list, tuple, set, frozenset, dict, range) or not value or len(value) > _MOST_NUMBERS:
        raise UnknownValueError
    if any(type(item) is not int for item in value):
        raise UnknownValueError
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
        owner = _value(node.value, frame)
        key = _value(node.slice, frame)
        if isinstance(owner, Mapping) or (isinstance(owner, list | tuple) and type(key) is int):
            return owner[key]
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](number_of(node.left, frame), number_of(node.right, frame))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -number_of(node.operand, frame)
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
            return function(*(number_of(argument, frame) for argument in node.args))
    raise UnknownValueError
