"""A guard of compiled code that has failed, as the facts that predictions hold."""

from typing import Any, NamedTuple

from steptrace import foreign_messages as messages
from steptrace.documents.compilations import GuardKind, Recompiled
from steptrace.engine.compilations import kind_of_value, shortened
from steptrace.predict.guard_values import (
    ALIASES,
    ATTRIBUTES,
    CONTAINS,
    KEYS,
    LENGTHS,
    MISSING,
    PRESENT,
    SAME,
    SHAPES,
    TENSOR,
    TYPE,
    Guard,
    Identity,
    TensorValue,
)


class Failed(NamedTuple):
    """A guard, or a global setting, whose value has changed.

    Attributes:
        guard: the guard; the name of a global setting; `ALIASES` for which tensors are the same.
        value: what it was when the code was compiled; `MISSING` of a condition on sizes.
        other: what it is now.
        dimension: of a tensor's size or stride, the dimension that differs.
    """

    guard: "Guard | str"
    value: Any
    other: Any
    dimension: int | None

    def recompiled(self, *, function: str, function_file: str, function_line: int) -> Recompiled:
        """The guard as predictions hold it, with no recompilation counted yet; the arguments are the function's."""
        figures = _figures(self)
        guard = self.guard
        file = function_file
        line = function_line
        code = None
        if isinstance(guard, Guard) and guard.file is not None and guard.line is not None:
            file = guard.file
            line = guard.line
            code = guard.code
        return Recompiled(
            file=file,
            line=line,
            function=function,
            code=code,
            compiled_file=function_file,
            compiled_line=function_line,
            kind=figures.kind,
            value=shortened(messages.DYNAMO_LOCAL.pattern.sub(r"\g<name>", figures.value)),
            dimension=figures.dimension,
            guard=None,
            before=None if figures.before is None else shortened(figures.before),
            now=None if figures.now is None else shortened(figures.now),
            recompilations=0,
        )


class _Figures(NamedTuple):
    """The facts about a guard that has failed; the fields are those of `Recompiled`."""

    kind: GuardKind
    value: str
    dimension: int | None = None
    before: str | None = None
    now: str | None = None


def _figures(failed: Failed) -> _Figures:
    guard, value, other, dimension = failed
    if guard == ALIASES:
        gone = value - other
        first, second = min(gone or other - value)  # of several the first by name, in every run
        return _Figures("alias", f"{second} is {'' if gone else 'not '}{first}")
    if isinstance(guard, str):
        return _Figures("global_state", guard, None, _text(value), _text(other))
    if guard.kind == SHAPES:
        return _Figures("value" if dimension is None else "size", guard.name, dimension)
    if isinstance(value, TensorValue) and isinstance(other, TensorValue):
        kind, before, now = value.changed(other, dimension)
        return _Figures(kind, guard.name, dimension, before, now)
    if guard.kind == SAME:
        return _Figures("alias", f"{guard.key} is {guard.name}")
    if guard.kind in ATTRIBUTES:
        return _Figures("other", f"{guard.name}.{guard.key}", None, _text(value), _text(other))
    if guard.kind in CONTAINS:
        return _Figures("other", f"{guard.key!r} in {guard.name}", None, _text(value), _text(other))
    if guard.kind in LENGTHS:
        of_type, length = value
        now_of_type, now = other if isinstance(other, tuple) else (other, MISSING)
        if of_type != now_of_type:
            return _Figures("type", guard.name, None, _text(of_type), _text(now_of_type))
        return _Figures("length", guard.name, None, _text(length), _text(now))
    if guard.kind == KEYS:
        return _figures_of_keys(guard.name, value, other)
    if guard.kind == PRESENT:
        return _Figures("type", guard.name)
    if isinstance(value, Identity):
        is_type = guard.kind in (TYPE, TENSOR)
        return _Figures("type" if is_type else "object", guard.name, None, _text(value), _text(other))
    if value is None:
        return _Figures("type", guard.name, None, _text(value), _text(other))
    kind, name = kind_of_value(guard.name, of_module=guard.of_module)
    return _Figures(kind, name, None, _text(value), _text(other))


def _figures_of_keys(name: str, keys: tuple[Any, ...], now: Any) -> _Figures:
    """Of a dictionary, whose keys are compared one by one if there are as many as before."""
    if type(now) is not tuple or len(now) != len(keys):
        return _Figures("length", name, None, repr(len(keys)), repr(len(now)) if type(now) is tuple else None)
    place = next(k for k, (key, other) in enumerate(zip(keys, now, strict=True)) if key != other)
    return _Figures("value", f"list(dict.keys({name}))[{place}]", None, _text(keys[place]), _text(now[place]))


def _text(value: Any) -> str | None:
    """A guard's value as Python writes it; None for an object that has no short text, and for a missing one."""
    if isinstance(value, Identity):
        return value.name
    return None if value is MISSING else repr(value)
