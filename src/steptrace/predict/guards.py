"""Recompilations of compiled code: which calls differ in what its guards look at.

Dynamo says what it guards, and which sizes are dynamic, each time that it follows a call (`Frame`). The values are
noted in the program itself, and are compared at later calls. A call that fits none of the noted ones is compiled again.
"""

import builtins
import enum
import gc
import importlib
import inspect
import math
import pickle
import sys
import traceback
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import CodeType, NoneType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from steptrace import foreign_messages as messages
from steptrace.documents.compilations import GuardKind, Recompiled
from steptrace.documents.compiled import GraphBreak
from steptrace.engine.compilations import kind_of_value, shortened
from steptrace.engine.frames import LOOK_PAST, trace_file_name
from steptrace.predict.backend import DEVICE_TYPE
from steptrace.torch_names import private

pytree: Any = private("torch.utils._pytree")

#: Dynamo's kinds of guards whose values are compared, and which part of a value is compared.
_LENGTHS: Final = ("SEQUENCE_LENGTH", "DICT_LENGTH")
_CONSTANTS: Final = ("CONSTANT_MATCH", "EQUALS_MATCH")
_IDENTITIES: Final = ("ID_MATCH", "FUNCTION_MATCH", "BUILTIN_MATCH", "CLASS_MATCH")
_CONTAINS: Final = ("DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS", "SET_NOT_CONTAINS")
_TENSOR, _TYPE, _CLOSURE, _KEYS, _PRESENT, _SAME = (
    "TENSOR_MATCH", "TYPE_MATCH", "CLOSURE_MATCH", "DICT_KEYS_MATCH", "NOT_NONE_MATCH", "DUPLICATE_INPUT",
)  # fmt: skip
_COMPARED: Final = frozenset(
    (*_LENGTHS, *_CONSTANTS, *_IDENTITIES, *_CONTAINS, _TENSOR, _TYPE, _CLOSURE, _KEYS, _PRESENT, _SAME)
)
#: Dynamo's name of all conditions on sizes, and a name for which tensors are the same.
SHAPES: Final = "SHAPE_ENV"
ALIASES: Final = "aliases"
#: Beginnings of the names of objects that a program can change: arguments and closures, and its own globals.
_LOCAL, _GLOBAL = "L[", "G["
#: Names that Dynamo makes up for modules of PyTorch.
_MADE_UP: Final = "__"
#: Attributes with the dimensions of a tensor that `mark_dynamic` marks.
_DYNAMIC: Final = ("_dynamo_dynamic_indices", "_dynamo_unbacked_indices")


#: Places of the compiled function, and of the object whose method it is, among the arguments of a call.
TARGET, OWNER = -1, -2
#: A compiled function, and the arguments of its call by position and by name.
Call = tuple[Any, Sequence[Any], Mapping[str, Any]]


class _Missing(enum.Enum):
    """What stands for a value that cannot be read, in any process."""

    MISSING = enum.auto()


_MISSING: Final = _Missing.MISSING


class Guard(NamedTuple):
    """Something that compiled code depends on.

    Attributes:
        kind: Dynamo's name of the guard.
        name: an expression for the object that it looks at, with the arguments in `L` and the globals in `G`.
        of_module: whether the object is a module's attribute, which PyTorch does not make dynamic.
        file: file of the line that needs it; None if no line of the program does.
        line: that line.
        code: its text.
        key: of a guard on what a dictionary or set contains, that; of one on two arguments that are the same object,
            the expression for the other one.
    """

    kind: str
    name: str
    of_module: bool
    file: str | None
    line: int | None
    code: str | None
    key: str | int | None = None


def guards_of(guards: Iterable[Any]) -> list[Guard]:
    """The guards of a function that Dynamo has followed, as far as they are compared.

    Args:
        guards: Dynamo's own, `torch._guards.Guard`.
    """
    compared = [guard for guard in guards if guard.create_fn_name() in _COMPARED and _may_change(guard.name)]
    return [_read(guard) for guard in sorted(compared) if not isinstance(_key(guard), _Missing)]


def _may_change(name: str) -> bool:
    """Whether a program can change an object of this name between two calls."""
    return name.startswith(_LOCAL) or (name.startswith(_GLOBAL) and not name[len(_GLOBAL) + 1 :].startswith(_MADE_UP))


def _read(guard: Any) -> Guard:
    file, line, code = _place(guard.user_stack or ())
    return Guard(
        kind=guard.create_fn_name(),
        name=guard.name,
        of_module=bool(guard.originating_source.guard_source.is_unspecialized_nn_module()),
        file=file,
        line=line,
        code=code,
        key=_key(guard),
    )


def _key(guard: Any) -> Any:
    """What a dictionary or set has to contain, or the name of the other argument that is the same object.

    None for a guard of another kind; `_MISSING` if the key is an object.
    """
    kind = guard.create_fn_name()
    arguments = guard.create_fn.keywords if isinstance(guard.create_fn, partial) else {}
    if kind == _SAME:
        return getattr(arguments.get("source_b"), "name", _MISSING)
    if kind not in _CONTAINS:
        return None
    key = arguments.get("key", _MISSING)
    return key if isinstance(key, str | int) else _MISSING


def _place(stack: Iterable[traceback.FrameSummary]) -> tuple[str | None, int | None, str | None]:
    """File, number and text of the innermost line of the program."""
    frame = next((one for one in reversed(list(stack)) if not one.filename.startswith(LOOK_PAST)), None)
    return (None, None, None) if frame is None else (trace_file_name(frame.filename), frame.lineno, frame.line)


class _Scope(NamedTuple):
    """What the names of guards refer to, for one call."""

    arguments: Mapping[str, Any]
    globals: Mapping[str, Any]

    def value_of(self, name: str) -> Any:
        """The value of an expression; `_MISSING` where there is no such object."""
        names = {"L": self.arguments, "G": self.globals, "__builtins__": builtins}
        try:
            return eval(_expression(name), names)
        except Exception:  # the object is gone, or the name needs a function of Dynamo's
            return _MISSING


@cache
def _expression(name: str) -> CodeType:
    return compile(name, "<guard>", "eval")


def _scope(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Scope:
    """The local and global names of a call. Dynamo calls modules of PyTorch by a function of its own."""
    function = target.forward if isinstance(target, nn.Module) else target
    owner = getattr(function, "__self__", None)
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    bound: dict[str, Any] = {"fn": target, "args": tuple(args), "kwargs": dict(kwargs)}
    if not isinstance(getattr(function, "__code__", None), CodeType):
        return _Scope(bound, {})
    code: CodeType = function.__code__
    bound |= dict(zip(code.co_freevars, map(_content, function.__closure__ or ()), strict=False))
    try:
        given = inspect.signature(function).bind(*(() if owner is None else (owner,)), *args, **kwargs)
    except (TypeError, ValueError):
        return _Scope(bound, function.__globals__)
    given.apply_defaults()
    return _Scope({**bound, **given.arguments}, function.__globals__)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def code_of(target: Any) -> object:
    """What Dynamo counts compilations of: the code of a function, which modules of one class share."""
    function = target.forward if isinstance(target, nn.Module) else target
    function = inspect.unwrap(function)
    return getattr(getattr(function, "__func__", function), "__code__", None) or id(target)


class Failed(NamedTuple):
    """A guard, or a global setting, whose value has changed.

    Attributes:
        guard: the guard; the name of a global setting; `ALIASES` for which tensors are the same.
        value: what it was when the code was compiled; `_MISSING` of a condition on sizes.
        other: what it is now.
        dimension: of a tensor's size or stride, the dimension that differs.
    """

    guard: "Guard | str"
    value: Any
    other: Any
    dimension: int | None

    def recompiled(self, compiled: "Frame") -> Recompiled:
        """The guard as predictions hold it, with no recompilation counted yet. `compiled` is the compiled function."""
        figures = _figures(self)
        guard = self.guard
        file, line, code = compiled.file, compiled.line, None
        if isinstance(guard, Guard) and guard.file is not None and guard.line is not None:
            file, line, code = guard.file, guard.line, guard.code
        return Recompiled(
            file=file,
            line=line,
            function=compiled.function,
            code=code,
            compiled_file=compiled.file,
            compiled_line=compiled.line,
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
        ((first, second), *_) = value ^ other
        return _Figures("alias", f"{second} is {'' if value - other else 'not '}{first}")
    if isinstance(guard, str):
        return _Figures("global_state", guard, None, _text(value), _text(other))
    if guard.kind == SHAPES:
        return _Figures("value" if dimension is None else "size", guard.name, dimension)
    if isinstance(value, _OfTensor) and isinstance(other, _OfTensor):
        kind, before, now = value.changed(other, dimension)
        return _Figures(kind, guard.name, dimension, before, now)
    if guard.kind == _SAME:
        return _Figures("alias", f"{guard.key} is {guard.name}")
    if guard.kind in _CONTAINS:
        return _Figures("other", f"{guard.key!r} in {guard.name}", None, _text(value), _text(other))
    if guard.kind in _LENGTHS:
        (of_type, length), (now_of_type, now) = value, other if isinstance(other, tuple) else (other, _MISSING)
        if of_type != now_of_type:
            return _Figures("type", guard.name, None, _text(of_type), _text(now_of_type))
        return _Figures("length", guard.name, None, _text(length), _text(now))
    if guard.kind == _KEYS:
        return _Figures(
            "length", guard.name, None, repr(len(value)), repr(len(other)) if type(other) is tuple else None
        )
    if guard.kind == _PRESENT:
        return _Figures("type", guard.name)
    if isinstance(value, _Identity):
        is_type = guard.kind in (_TYPE, _TENSOR)
        return _Figures("type" if is_type else "object", guard.name, None, _text(value), _text(other))
    if value is None:
        return _Figures("type", guard.name, None, _text(value), _text(other))
    kind, name = kind_of_value(guard.name, of_module=guard.of_module)
    return _Figures(kind, name, None, _text(value), _text(other))


def _text(value: Any) -> str | None:
    """A guard's value as Python writes it; None for an object that has no short text, and for a missing one."""
    if isinstance(value, _Identity):
        return value.name
    return None if value is _MISSING else repr(value)


class Symbol(NamedTuple):
    """A dynamic size, or a number, of compiled code.

    Attributes:
        symbol: its name in conditions.
        sources: expressions for the sizes that it stands for, which are equal to each other.
        low: the least value that the code is compiled for.
        high: the greatest.
    """

    symbol: Any
    sources: tuple[str, ...]
    low: float
    high: float


class Condition(NamedTuple):
    """A condition on dynamic sizes that a branch of the code or an operator has asked about.

    Attributes:
        expression: in `sympy`, of the symbols.
        text: the same in PyTorch's words.
        file: the name of the file, without its folder, of the line that asks; None if no line of the program does.
        line: that line.
        code: its text.
    """

    expression: Any
    text: str
    file: str | None
    line: int | None
    code: str | None


class DynamicSizes(NamedTuple):
    """What compiled code depends on of its dynamic sizes."""

    symbols: tuple[Symbol, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def of_shapes(cls, shapes: Any) -> "DynamicSizes":
        """By PyTorch's own account of them, a `ShapeEnv`."""
        named = {symbol: tuple(source.name for source in sources) for symbol, sources in shapes.var_to_sources.items()}
        symbols = []
        for symbol, sources in named.items():
            limits = shapes.var_to_range.get(symbol)
            if limits is not None and limits.is_int:
                low, high = (_limit(limits.lower, -math.inf), _limit(limits.upper, math.inf))
                symbols.append(Symbol(symbol, sources, low, high))
        conditions = []
        for guard in shapes.guards:
            text = str(guard.expr)
            for symbol in guard.expr.free_symbols:
                text = text.replace(str(symbol), named.get(symbol, (str(symbol),))[0])
            asked = messages.DYNAMO_LINE_OF_SIZE.find(guard.sloc.maybe_user_loc or "")
            place = (None, None, None) if asked is None else (asked["file"], int(asked["line"]), asked["code"])
            conditions.append(Condition(guard.expr, text, *place))
        return cls(tuple(symbols), tuple(conditions))

    @property
    def sources(self) -> frozenset[str]:
        """Expressions for all dynamic sizes and numbers."""
        return frozenset(source for symbol in self.symbols for source in symbol.sources)


def _limit(value: Any, unlimited: float) -> float:
    return float(value) if getattr(value, "is_finite", None) and value.is_number else unlimited


def _bound(limit: float) -> str:
    """A limit of a size or a number as PyTorch writes it."""
    return str(int(limit)) if limit.is_integer() else str(limit)


class Reference(NamedTuple):
    """An object that another process can find again.

    Attributes:
        argument: which one of the call's arguments it is, in the order of `pytree`; `TARGET` and `OWNER` for the
            compiled function, and for the object whose method that is.
        identity: of another object.
        parts: of a container, which the call may have made, by their place or key.
        container: its type.
    """

    argument: int | None = None
    identity: int | None = None
    parts: "tuple[tuple[Any, Reference], ...]" = ()
    container: type | None = None

    @classmethod
    def to_value(cls, value: Any, arguments: Mapping[int, int]) -> "Reference":
        """To an object of this process; `arguments` has the places of the call's arguments by their identity."""
        if id(value) in arguments:
            return cls(argument=arguments[id(value)])
        if type(value) in (tuple, list):
            parts = tuple((place, cls.to_value(part, arguments)) for place, part in enumerate(value))
            return cls(parts=parts, container=type(value))
        if type(value) is dict and all(type(key) is str for key in value):
            parts = tuple((key, cls.to_value(part, arguments)) for key, part in value.items())
            return cls(parts=parts, container=dict)
        return cls(identity=id(value))

    def found(self, objects: Mapping[int, Any], leaves: Mapping[int, Any]) -> Any:
        """The object, among those of this process by identity, and the call's arguments by their place."""
        if self.argument is not None:
            return leaves.get(self.argument, _MISSING)
        if self.container is None:
            return objects.get(self.identity or 0, _MISSING)
        parts = {key: part.found(objects, leaves) for key, part in self.parts}
        return parts if self.container is dict else self.container(parts.values())

    def identities(self) -> Iterator[int]:
        """Of all objects that it is made of."""
        if self.identity is not None:
            yield self.identity
        for _, part in self.parts:
            yield from part.identities()


@dataclass(frozen=True, kw_only=True)
class Frame:
    """What Dynamo says of one function that it has compiled: the followed one, another one, or the rest behind a break.

    Attributes:
        function: its name.
        file: its file.
        line: the line that it begins at.
        module: the name of its module.
        guards: what its code depends on.
        sizes: its dynamic sizes.
        state: the values of its guards, as `Compiled.values`, where it was compiled.
        graphs: how many graphs it makes, 0 or 1.
        locals: what its local names are, as far as another process can find them again.
    """

    function: str
    file: str
    line: int
    module: str
    guards: tuple[Guard, ...]
    sizes: DynamicSizes
    state: "dict[Guard | str, Any]"
    graphs: int
    locals: "dict[str, Reference]"

    @property
    def key(self) -> tuple[str, int, str]:
        """Frames with equal keys have the same code."""
        return self.file, self.line, self.function


@dataclass(eq=False)
class Compiled:
    """One compilation of a function.

    Attributes:
        values: of its guards, and the global settings.
        sizes: its dynamic sizes.
    """

    values: "dict[Guard | str, Any]"
    sizes: DynamicSizes = field(default_factory=DynamicSizes)

    def difference(self, now: Mapping[Guard | str, Any], scope: "_Scope") -> Failed | None:
        """The first guard that fails for a call; None if this compilation fits it."""
        dynamic = self.sizes.sources
        for guard, value in self.values.items():
            other = now.get(guard, _MISSING)
            if value is _MISSING or _is_same(value, other):
                continue
            if isinstance(value, _OfTensor) and isinstance(other, _OfTensor):
                difference = value.difference(other, guard.name if isinstance(guard, Guard) else "", dynamic)
                if difference is not None:
                    return Failed(guard, value, other, difference[1])
            elif not isinstance(guard, Guard) or guard.name not in dynamic:
                return Failed(guard, value, other, None)
        return self._size_that_fails(now, scope)

    def _size_that_fails(self, now: Mapping[Guard | str, Any], scope: "_Scope") -> Failed | None:
        values: dict[Any, Any] = {}
        for symbol, sources, low, high in self.sizes.symbols:
            sizes = [size for size in map(scope.value_of, sources) if isinstance(size, int)]
            if not sizes:
                continue
            values[symbol] = sizes[0]
            if not low <= sizes[0] <= high or any(size != sizes[0] for size in sizes):
                return self._failed_size(sources[0], f"{_bound(low)} <= {sources[0]} <= {_bound(high)}", now)
        for condition in self.sizes.conditions:
            holds = condition.expression.xreplace(values)
            if holds in (False, sympy_false()):
                symbols = condition.expression.free_symbols
                source = next(one.sources[0] for one in self.sizes.symbols if one.symbol in symbols)
                return self._failed_size(source, condition.text, now, condition)
        return None

    def _failed_size(
        self, source: str, text: str, now: Mapping[Guard | str, Any], condition: Condition | None = None
    ) -> Failed:
        """A condition on a size that does not hold, as a guard on its tensor."""
        found = messages.DYNAMO_SIZE.find(source)
        name = source if found is None else found["tensor"]
        dimension = None if found is None else int(found["dimension"])
        of_tensor = next((guard for guard in now if isinstance(guard, Guard) and guard.name == name), None)
        file, line, code = (None,) * 3 if of_tensor is None else (of_tensor.file, of_tensor.line, of_tensor.code)
        if condition is not None and condition.file is not None and (file or "").endswith(condition.file):
            line, code = condition.line, condition.code
        return Failed(Guard(SHAPES, text, False, file, line, code), None, None, dimension)


def sympy_false() -> Any:
    """The constant of `sympy`, which only programs with dynamic sizes import."""
    return importlib.import_module("sympy").false


@dataclass(eq=False)
class Followed:
    """A call that was followed.

    Attributes:
        parts: the functions that Dynamo has compiled for it, with the values of their guards as read here.
        kind: its kind of arguments, where guards are not known.
        places: by the sizes of such calls, where the kernels are kept (`Syncs.codes`).
    """

    parts: "list[tuple[Frame, Compiled]]"
    kind: object
    places: dict[object, int] = field(default_factory=dict)


@dataclass(eq=False)
class CompiledKinds:
    """The calls for which a piece of code was compiled.

    Attributes:
        function: name of the compiled function.
        file: its file.
        line: the line that it begins at.
        followed: the calls that were followed.
        frames: the compilations of each function, with values as Dynamo's own process reads them.
        recompilations: the guards that have failed.
        lowered: by kind of arguments and their number of elements, where kernels are kept (`Syncs.codes`).
        limited: where the code stands for calls that come after PyTorch's limit; None if there are none.
        first: where the code of the first compilation is kept; it holds all recompilations.
        refused: by call what PyTorch says of code that must be one graph and is not, and the break.
    """

    function: str
    file: str
    line: int
    followed: list[Followed] = field(default_factory=list)
    frames: dict[tuple[str, int, str], list[Compiled]] = field(default_factory=dict)
    recompilations: dict[object, Recompiled] = field(default_factory=dict)
    lowered: dict[object, dict[int, int]] = field(default_factory=dict)
    limited: int | None = None
    first: int | None = None
    refused: dict[object, tuple[str | None, GraphBreak]] = field(default_factory=dict)
    #: Objects that locals of the functions are, by the identity that they had.
    _objects: weakref.WeakValueDictionary[int, Any] = field(default_factory=weakref.WeakValueDictionary)

    @classmethod
    def of_target(cls, target: Any) -> "CompiledKinds":
        """No compilations yet of this module or function."""
        code = code_of(target)
        if not isinstance(code, CodeType):
            return cls(function=type(target).__name__, file="", line=0)
        return cls(function=code.co_name, file=trace_file_name(code.co_filename), line=code.co_firstlineno)

    @property
    def compilations(self) -> int:
        """How often the function was compiled that was compiled most often, for PyTorch's limit."""
        return max([len(compiled) for compiled in self.frames.values()] or [len(self.followed)])

    def fitting(self, call: Call, kind: object) -> Followed | None:
        """The earlier call whose compiled code a call can use; None for none."""
        for followed in reversed(self.followed):
            if all(
                compiled.difference(state_of(scope, compiled.values), scope) is None
                for scope, compiled in ((self._scope(call, frame), compiled) for frame, compiled in followed.parts)
            ) and (followed.parts or followed.kind == kind):
                return followed
        return None

    def add(
        self, call: Call, kind: object, frames: Sequence[Frame], compiled: Mapping[int, "Failed | None"]
    ) -> Followed:
        """Note a call that was followed.

        Args:
            call: the function, and its arguments by position and by name.
            kind: its kind of arguments, for calls of which Dynamo says nothing.
            frames: the functions of it; empty if that is not known.
            compiled: by place among them, those that were compiled for it, with the guard that has failed.
        """
        wanted = {one for frame in frames for local in frame.locals.values() for one in local.identities()}
        if wanted:
            for one in gc.get_objects():
                if id(one) in wanted:
                    with suppress(TypeError):  # it cannot be referred to weakly
                        self._objects[id(one)] = one
        parts = []
        for frame in frames:
            scope = self._scope(call, frame)
            parts.append((frame, Compiled(state_of(scope, frame.guards), frame.sizes)))
        for place, failed in compiled.items():
            frame = frames[place]
            if failed is not None:
                self._note(failed, frame)
            self.frames.setdefault(frame.key, []).append(Compiled(frame.state, frame.sizes))
        self.followed.append(Followed(parts, kind))
        return self.followed[-1]

    def _scope(self, call: Call, frame: Frame) -> "_Scope":
        """The local and global names of one function of a call."""
        target, args, kwargs = call
        leaves = dict(enumerate(pytree.tree_leaves((list(args), dict(kwargs)))))
        leaves |= {TARGET: target, OWNER: getattr(target, "__self__", None)}
        found = {name: reference.found(self._objects, leaves) for name, reference in frame.locals.items()}
        known = {name: value for name, value in found.items() if value is not _MISSING}
        if (frame.file, frame.line) == (self.file, self.line):
            scope = _scope(target, args, kwargs)
            return _Scope({**known, **scope.arguments}, scope.globals)
        module = sys.modules.get(frame.module)
        return _Scope(known, {} if module is None else vars(module))

    def _note(self, failed: "Failed", compiled: Frame) -> None:
        found = failed.recompiled(compiled)
        key = found.kind, found.value, found.dimension, found.file, found.line
        known = self.recompilations.get(key, found)
        self.recompilations[key] = replace(known, recompilations=known.recompilations + 1)


#: The properties in `_OfTensor.fixed`. PyTorch reports another layout as it does another device.
_OF_TENSORS: Final[tuple[GuardKind, ...]] = ("type", "dtype", "device", "requires_grad", "rank", "device")


class _OfTensor(NamedTuple):
    """What a guard compares of a tensor."""

    fixed: tuple[object, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    marked: frozenset[int]

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> "_OfTensor":
        marked = frozenset(part for name in _DYNAMIC for part in getattr(tensor, name, ()) or ())
        strides = tuple(map(_number, tensor.stride())) if tensor.layout is torch.strided else ()
        fixed = (
            nn.Parameter.__name__ if isinstance(tensor, nn.Parameter) else Tensor.__name__,
            tensor.dtype,
            _device(tensor),
            tensor.requires_grad,
            tensor.dim(),
            str(tensor.layout),
        )
        return cls(fixed, tuple(map(_number, tensor.shape)), strides, marked)

    def changed(self, other: "_OfTensor", dimension: int | None) -> tuple[GuardKind, str, str]:
        """The property that differs in another tensor, its value here, and its value there.

        Args:
            other: the other tensor.
            dimension: the dimension whose size or stride differs; None if another property does.
        """
        if dimension is None:
            kind, before, now = next(
                (kind, before, now)
                for kind, before, now in zip(_OF_TENSORS, self.fixed, other.fixed, strict=True)
                if before != now
            )
            return kind, str(before), str(now)
        if self.sizes[dimension] != other.sizes[dimension] or not self.strides:
            return "size", str(self.sizes[dimension]), str(other.sizes[dimension])
        return "stride", str(self.strides[dimension]), str(other.strides[dimension])

    def difference(self, other: "_OfTensor", name: str, dynamic: Collection[str]) -> tuple[str, int | None] | None:
        """What differs in another tensor, and in which dimension, but for dynamic sizes; `name` is the tensor's."""
        if self.fixed != other.fixed:
            return "fixed", None
        is_dynamic = False
        for dimension, (size, now) in enumerate(zip(self.sizes, other.sizes, strict=True)):
            varies = f"{name}.size()[{dimension}]" in dynamic
            is_dynamic = is_dynamic or varies
            if (size != now and not varies) or (dimension in other.marked and dimension not in self.marked):
                return "size", dimension
        for dimension, (stride, now) in enumerate(zip(self.strides, other.strides, strict=True)):
            if stride != now and not is_dynamic:
                return "stride", dimension
        return None


def _device(tensor: Tensor) -> str:
    """A tensor's device as the program names it."""
    device = tensor.device
    return f"cuda:{device.index}" if device.type == DEVICE_TYPE else str(device)


def _number(size: Any) -> int:
    """A size; of a dynamic one the value that it has in this call."""
    node = getattr(size, "node", None)
    if node is None:
        return int(size)
    hint = getattr(node, "hint", None)  # the lengths of a jagged tensor have none
    return -1 if hint is None else int(hint)


def frame_of(code: CodeType, output: Any, *, graphs: int, arguments: Mapping[int, int]) -> Frame:
    """What Dynamo says of a function that it has compiled.

    Args:
        code: the function's code.
        output: Dynamo's `OutputGraph`.
        graphs: how many graphs it makes.
        arguments: by the identity of an argument of the call, its place.
    """
    guards = tuple(guards_of(output.guards))
    scope = _Scope(output.local_scope, output.global_scope)
    return Frame(
        function=code.co_name,
        file=trace_file_name(code.co_filename),
        line=code.co_firstlineno,
        module=str(output.global_scope.get("__name__", "")),
        guards=guards,
        sizes=DynamicSizes.of_shapes(output.shape_env),
        state={guard: _sendable(value) for guard, value in state_of(scope, guards).items()},
        graphs=graphs,
        locals={
            name: Reference.to_value(value, arguments)
            for name, value in output.local_scope.items()
            if not isinstance(value, int | float | str | NoneType)
        },
    )


def fits(known: Sequence[Compiled], output: Any) -> tuple[bool, Failed | None]:
    """Whether earlier compilations of a function do for this call, and the guard that keeps it from the latest one."""
    scope = _Scope(output.local_scope, output.global_scope)
    failed: Failed | None = None
    for compiled in reversed(known):
        difference = compiled.difference(state_of(scope, compiled.values), scope)
        if difference is None:
            return True, None
        failed = failed or difference
    return False, failed


def _is_same(value: Any, other: Any) -> bool:
    """Whether a guard that has seen one value holds for another one; NaN is the same as NaN."""
    if type(value) is not type(other):
        return False
    return bool(value == other) or (isinstance(value, float) and math.isnan(value) and math.isnan(other))


def state_of(scope: "_Scope", guards: Iterable[Guard | str]) -> dict[Guard | str, Any]:
    """The values of guards and of the global settings, for one call."""
    state = _global_state()
    same: dict[int, str] = {}
    pairs = set()
    for guard in guards:
        if isinstance(guard, str):
            continue
        value = scope.value_of(guard.name)
        try:
            if guard.kind == _SAME and value is not _MISSING:
                state[guard] = value is scope.value_of(str(guard.key))
            else:
                state[guard] = _MISSING if value is _MISSING else _compared(guard, value)
        except TypeError:  # an object of another kind, without a length or keys
            state[guard] = _Identity(type(value))
        if guard.kind == _TENSOR and isinstance(value, Tensor):
            first = same.setdefault(id(value), guard.name)
            if first != guard.name:
                pairs.add((first, guard.name))
    state[ALIASES] = frozenset(pairs)
    return state


def _compared(guard: Guard, value: Any) -> Any:
    kind = guard.kind
    if kind in _CONTAINS:
        return guard.key in value
    if kind == _TENSOR:
        return _OfTensor.from_tensor(value) if isinstance(value, Tensor) else _Identity(type(value))
    if kind in _LENGTHS:  # Dynamo compares the type as well
        return _Identity(type(value)), len(value)
    if kind in _IDENTITIES:
        return _Identity(value)
    if kind == _CLOSURE:
        return _Identity(getattr(value, "__code__", value))
    if kind == _TYPE:
        return _Identity(type(value))
    if kind == _KEYS:
        return tuple(key if isinstance(key, str | int) else _Identity(key) for key in value)
    if kind == _PRESENT:
        return value is not None
    return _MISSING if isinstance(value, Tensor) else value


class _Identity:
    """An object that equals itself alone.

    It is kept alive, so that no later object gets its identity. Objects of another process are not kept.

    Attributes:
        name: of a type, function or module; None for other objects.
    """

    def __init__(self, value: object, identity: int | None = None, name: str | None = None) -> None:
        self.value = value
        self.identity = id(value) if identity is None else identity
        self.name: str | None = getattr(value, "__name__", None) if name is None else name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.identity == self.identity

    def __hash__(self) -> int:
        return self.identity

    def __reduce__(self) -> tuple[Any, ...]:
        return _Identity, (None, self.identity, self.name)


def _sendable(value: Any) -> Any:
    """A value that another process can read; `_MISSING` for any other."""
    try:
        pickle.dumps(value)
    except Exception:
        return _MISSING
    return value


def _global_state() -> dict[Guard | str, Any]:
    """PyTorch's settings that are compiled in, by the names that its reason for a recompilation has for them."""
    return {
        "grad_mode": torch.is_grad_enabled(),
        "autocast": (
            torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None,
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
        ),
        "default_dtype": torch.get_default_dtype(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
    }
