"""Recompilations of compiled code: which calls differ in what its guards look at.

Dynamo says what it guards while it follows a call (`guards_of`). The values are noted in the program itself, and are
compared at later calls. A call that fits none of the noted ones is compiled again. PyTorch makes a size or a number of
the program dynamic at its second value, and then no further value is a reason.
"""

import builtins
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from steptrace.documents.compilations import Recompiled
from steptrace.engine.compilations import guard_of, shortened
from steptrace.engine.frames import LOOK_PAST, trace_file_name

#: Dynamo's kinds of guards whose values are compared, and which part of a value is compared.
_LENGTHS: Final = ("SEQUENCE_LENGTH", "DICT_LENGTH")
_CONSTANTS: Final = ("CONSTANT_MATCH", "EQUALS_MATCH")
_IDENTITIES: Final = ("ID_MATCH", "FUNCTION_MATCH")
_TENSOR, _TYPE, _CLOSURE, _KEYS, _PRESENT = (
    "TENSOR_MATCH", "TYPE_MATCH", "CLOSURE_MATCH", "DICT_KEYS_MATCH", "NOT_NONE_MATCH",
)  # fmt: skip
_COMPARED: Final = frozenset((*_LENGTHS, *_CONSTANTS, *_IDENTITIES, _TENSOR, _TYPE, _CLOSURE, _KEYS, _PRESENT))
#: Beginnings of the names of objects that a program can change: arguments and closures, and its own globals.
_LOCAL, _GLOBAL = "L[", "G["
#: Names that Dynamo makes up for modules of PyTorch.
_MADE_UP: Final = "__"
#: Values of a dynamic size that are constants all the same.
_SPECIAL: Final = (0, 1)
#: Attributes with the dimensions of a tensor that `mark_dynamic` or `maybe_mark_dynamic` marks, and `mark_static`.
_DYNAMIC: Final = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices")
_STATIC: Final = "_dynamo_static_indices"
_MISSING: Final = object()


class Guard(NamedTuple):
    """Something that compiled code depends on.

    Attributes:
        kind: Dynamo's name of the guard.
        name: an expression for the object that it looks at, with the arguments in `L` and the globals in `G`.
        of_module: whether the object is a module's attribute, which PyTorch does not make dynamic.
        file: file of the line that needs it; None if no line of the program does.
        line: that line.
        code: its text.
    """

    kind: str
    name: str
    of_module: bool
    file: str | None
    line: int | None
    code: str | None


def guards_of(guards: Iterable[Any]) -> list[Guard]:
    """The guards of a function that Dynamo has followed, as far as they are compared.

    Args:
        guards: Dynamo's own, `torch._guards.Guard`.
    """
    return [_read(guard) for guard in sorted(guards) if guard.create_fn_name() in _COMPARED and _may_change(guard.name)]


def _may_change(name: str) -> bool:
    """Whether a program can change an object of this name between two calls."""
    return name.startswith(_LOCAL) or (name.startswith(_GLOBAL) and not name[len(_GLOBAL) + 1 :].startswith(_MADE_UP))


def _read(guard: Any) -> Guard:
    frames: Sequence[traceback.FrameSummary] = guard.user_stack or ()
    frame = next((one for one in reversed(frames) if not one.filename.startswith(LOOK_PAST)), None)
    return Guard(
        kind=guard.create_fn_name(),
        name=guard.name,
        of_module=bool(guard.originating_source.guard_source.is_unspecialized_nn_module()),
        file=None if frame is None else trace_file_name(frame.filename),
        line=None if frame is None else frame.lineno,
        code=None if frame is None else frame.line,
    )


class _Scope(NamedTuple):
    """What the names of guards refer to, for one call."""

    arguments: Mapping[str, Any]
    globals: Mapping[str, Any]


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
    """A guard, or a global setting, whose value has changed: the old and the new one, and of a size the dimension."""

    guard: "Guard | str"
    value: Any
    other: Any
    dimension: int | None


class Compiled(NamedTuple):
    """One compilation of a piece of code.

    Attributes:
        values: of its guards, and the global settings.
        variant: compilations of one variant differ in sizes and numbers alone.
    """

    values: "dict[Guard | str, Any]"
    variant: int


@dataclass(eq=False)
class CompiledKinds:
    """The calls for which a piece of code was compiled.

    Attributes:
        function: name of the compiled function.
        file: its file.
        line: the line that it begins at.
        dynamic: the argument `dynamic` of `torch.compile`.
        compiled: the compilations.
        recompilations: the guards that have failed.
        first: where the kernels of the first compilation are kept (`Syncs.codes`).
    """

    function: str
    file: str
    line: int
    dynamic: bool | None
    compiled: list[Compiled] = field(default_factory=list)
    recompilations: dict[object, Recompiled] = field(default_factory=dict)
    first: int | None = None
    _guards: dict[Guard, Callable[[_Scope], Any]] = field(default_factory=dict)
    #: Names of numbers, and of tensors with the dimension, that have had a second value.
    _varying: set[tuple[str, int | None]] = field(default_factory=set)

    @classmethod
    def of_target(cls, target: Any, dynamic: bool | None) -> "CompiledKinds":  # noqa: FBT001 - as PyTorch's
        """No compilations yet of this module or function."""
        code = code_of(target)
        if not isinstance(code, CodeType):
            return cls(function=type(target).__name__, file="", line=0, dynamic=dynamic)
        file = trace_file_name(code.co_filename)
        return cls(function=code.co_name, file=file, line=code.co_firstlineno, dynamic=dynamic)

    def add_guards(self, guards: Iterable[Guard]) -> None:
        """Compare these guards from now on."""
        self._guards |= {guard: _reader(guard) for guard in guards if guard not in self._guards}

    def fitting(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple["Compiled | None", "Failed | None"]:
        """The compilation that a call can use, and the guard that keeps it from the latest one; None each for none."""
        now = self._state(target, args, kwargs)
        failed: Failed | None = None
        for compiled in reversed(self.compiled):
            difference = self._first_difference(compiled.values, now)
            if difference is None:
                return compiled, failed
            failed = failed or difference
        return None, failed

    def compile(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], failed: "Failed | None", variant: int
    ) -> None:
        """Note that the code is compiled for a call; `failed` is the reason if it was compiled before."""
        if failed is not None:
            self._note(failed)
        self.compiled.append(Compiled(self._state(target, args, kwargs), variant))

    def variant_of(self, failed: "Failed | None") -> int:
        """The variant of the next compilation: the latest one's if only a size or a number has changed."""
        if not self.compiled:
            return 0
        latest = self.compiled[-1].variant
        changes_code = failed is None or (failed.dimension is None and type(failed.value) not in (int, float))
        return latest + 1 if changes_code else latest

    def _state(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[Guard | str, Any]:
        scope = _scope(target, args, kwargs)
        return {**_global_state(), **{guard: read(scope) for guard, read in self._guards.items()}}

    def _first_difference(self, before: Mapping[Guard | str, Any], now: Mapping[Guard | str, Any]) -> "Failed | None":
        for guard, value in before.items():
            other = now[guard]
            if value is _MISSING or (type(value) is type(other) and value == other):
                continue
            if isinstance(value, _OfTensor) and isinstance(other, _OfTensor):
                difference = self._tensors_differ(guard, value, other)
                if difference is not None:
                    return Failed(guard, value, other, difference[1])
            elif not self._may_vary(guard, value, other):
                return Failed(guard, value, other, None)
        return None

    def _tensors_differ(self, guard: Any, value: "_OfTensor", other: "_OfTensor") -> tuple[str, int | None] | None:
        if value.fixed != other.fixed:
            return "fixed", None
        is_dynamic = False
        for dimension, (size, now) in enumerate(zip(value.sizes, other.sizes, strict=True)):
            varies = (guard.name, dimension) in self._varying or dimension in other.marked or self.dynamic is True
            varies = varies and dimension not in other.fixed_sizes
            is_dynamic = is_dynamic or varies
            if size != now and not (varies and size not in _SPECIAL and now not in _SPECIAL):
                return "size", dimension
        for dimension, (stride, now) in enumerate(zip(value.strides, other.strides, strict=True)):
            if stride != now and not is_dynamic:
                return "stride", dimension
        return None

    def _may_vary(self, guard: Guard | str, value: Any, other: Any) -> bool:
        """Whether a number that was compiled in is dynamic by now."""
        if not isinstance(guard, Guard) or guard.of_module or type(value) is not type(other):
            return False
        return type(value) in (int, float) and (self.dynamic is True or (guard.name, None) in self._varying)

    def _note(self, failed: "Failed") -> None:
        guard, value, other, dimension = failed
        text = _in_pytorchs_words(guard, value, other, dimension)
        _, kind, what, number = guard_of(text)
        file, line, code = self.file, self.line, None
        if isinstance(guard, Guard):
            if self.dynamic is not False and kind != "learning_rate" and (dimension is not None or not guard.of_module):
                self._varying.add((guard.name, dimension))
            if guard.of_module and kind == "value":
                kind = "module_value"
            if guard.file is not None and guard.line is not None:
                file, line, code = guard.file, guard.line, guard.code
        key = kind, what, number, file, line
        known = self.recompilations.get(key)
        found = known or Recompiled(
            file=file,
            line=line,
            function=self.function,
            code=code,
            compiled_file=self.file,
            compiled_line=self.line,
            kind=kind,
            value=shortened(what),
            dimension=number,
            guard=shortened(text),
            recompilations=0,
        )
        self.recompilations[key] = replace(found, recompilations=found.recompilations + 1)


class _OfTensor(NamedTuple):
    """What a guard compares of a tensor."""

    fixed: tuple[object, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    marked: frozenset[int]
    fixed_sizes: frozenset[int]

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> "_OfTensor":
        marked = frozenset(part for name in _DYNAMIC for part in getattr(tensor, name, ()) or ())
        fixed_sizes = frozenset(getattr(tensor, _STATIC, ()) or ())
        strides = tuple(map(int, tensor.stride())) if tensor.layout is torch.strided else ()
        fixed = tensor.dtype, str(tensor.device), tensor.requires_grad, tensor.dim(), tensor.layout
        return cls(fixed, tuple(map(int, tensor.shape)), strides, marked, fixed_sizes)


def _reader(guard: Guard) -> Callable[[_Scope], Any]:
    """A function that reads what a guard compares; it returns `_MISSING` where there is no such object."""
    try:
        expression = compile(guard.name, "<guard>", "eval")
    except SyntaxError:
        return lambda _scope: _MISSING

    def read(scope: _Scope) -> Any:
        names = {"L": scope.arguments, "G": scope.globals, "__builtins__": builtins}
        try:
            return _compared(guard.kind, eval(expression, names))
        except Exception:  # the object is gone, or the name needs a function of Dynamo's
            return _MISSING

    return read


def _compared(kind: str, value: Any) -> Any:
    if kind == _TENSOR:
        return _OfTensor.from_tensor(value) if isinstance(value, Tensor) else type(value)
    if kind in _LENGTHS:
        return len(value)
    if kind in _IDENTITIES:
        return _Identity(value)
    if kind == _CLOSURE:
        return _Identity(getattr(value, "__code__", value))
    if kind == _TYPE:
        return type(value)
    if kind == _KEYS:
        return tuple(value)
    if kind == _PRESENT:
        return value is not None
    return _MISSING if isinstance(value, Tensor) else value


class _Identity:
    """An object that equals itself alone, and is kept alive, so that its identity is not another one's later."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


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


def _in_pytorchs_words(guard: Guard | str, value: Any, other: Any, dimension: int | None) -> str:
    """A failed guard as PyTorch writes it."""
    if isinstance(guard, str):
        return f"GLOBAL_STATE changed: {guard} "
    name = guard.name
    if isinstance(value, _OfTensor) and isinstance(other, _OfTensor):
        return f"tensor '{name}' {_tensor_words(value, other, dimension)}"
    if guard.kind in _LENGTHS:
        return f"len({name}) == {value}"
    if guard.kind == _KEYS:
        return f"len({name}) == {len(value)}"
    if guard.kind in (*_IDENTITIES, _CLOSURE):
        return f"___check_obj_id({name}, {id(value.value)})"
    if guard.kind in (_TYPE, _TENSOR):
        return f"___check_type_id({name}, {id(value)})"
    if guard.kind == _PRESENT:
        return f"{name} is not None"
    return f"{name} is None" if value is None else f"{name} == {value!r}"


def _tensor_words(value: _OfTensor, other: _OfTensor, dimension: int | None) -> str:
    if dimension is not None:
        is_size = value.sizes[dimension] != other.sizes[dimension]
        what, pair = ("size", (value.sizes, other.sizes)) if is_size else ("stride", (value.strides, other.strides))
        return f"{what} mismatch at index {dimension}. expected {pair[0][dimension]}, actual {pair[1][dimension]}"
    names = "dtype", "Tensor device index", "requires_grad", "rank", "dispatch key set"
    place = next(k for k, (one, two) in enumerate(zip(value.fixed, other.fixed, strict=True)) if one != two)
    return f"{names[place]} mismatch. expected {value.fixed[place]}, actual {other.fixed[place]}"
