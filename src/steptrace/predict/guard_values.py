"""The guards of compiled code: Dynamo's guards, the objects that they name, and the values to compare."""

import builtins
import enum
import inspect
import math
import pickle
import traceback
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from types import CodeType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from steptrace.documents.compilations import GuardKind
from steptrace.engine.frames import LOOK_PAST, trace_file_name
from steptrace.predict.backend import DEVICE_TYPE
from steptrace.predict.pytorch import is_uninitialized

#: Dynamo's kinds of guards whose values are compared, and which part of a value is compared.
LENGTHS: Final = ("SEQUENCE_LENGTH", "DICT_LENGTH")
CONSTANT: Final = "CONSTANT_MATCH"
_CONSTANTS: Final = (CONSTANT, "EQUALS_MATCH")
_IDENTITIES: Final = ("ID_MATCH", "FUNCTION_MATCH", "BUILTIN_MATCH", "CLASS_MATCH")
CONTAINS: Final = ("DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS", "SET_NOT_CONTAINS")
TENSOR: Final = "TENSOR_MATCH"
TYPE: Final = "TYPE_MATCH"
_CLOSURE: Final = "CLOSURE_MATCH"
KEYS: Final = "DICT_KEYS_MATCH"
#: Guards on whether an object has an attribute: at all, or of its own, beside those of its class.
_HAS: Final = "HASATTR"
_OWN: Final = "NOT_PRESENT_IN_GENERIC_DICT"
ATTRIBUTES: Final = (_HAS, _OWN)
#: Guards on where an iterator stands.
_ITERATORS: Final = ("RANGE_ITERATOR_MATCH", "COUNT_ITERATOR_MATCH", "TUPLE_ITERATOR_LEN")
PRESENT: Final = "NOT_NONE_MATCH"
SAME: Final = "DUPLICATE_INPUT"
_COMPARED: Final = frozenset(
    (
        *LENGTHS,
        *_CONSTANTS,
        *_IDENTITIES,
        *CONTAINS,
        *ATTRIBUTES,
        *_ITERATORS,
        TENSOR,
        TYPE,
        _CLOSURE,
        KEYS,
        PRESENT,
        SAME,
    )
)
#: Dynamo's name of all conditions on sizes, and a name for which tensors are the same.
SHAPES: Final = "SHAPE_ENV"
ALIASES: Final = "aliases"
#: Beginnings of the names of objects that a program can change: arguments and closures, and its own globals.
_LOCAL: Final = "L["
_GLOBAL: Final = "G["
#: Beginnings of the names of attributes of such an object's class.
_OF_CLASS: Final = (f"dict(type({_LOCAL}", f"dict(type({_GLOBAL}")
#: Names that Dynamo makes up for modules of PyTorch.
_MADE_UP: Final = "__"
#: Attributes with the dimensions of a tensor that `mark_dynamic` marks.
_UNBACKED: Final = "_dynamo_unbacked_indices"
_DYNAMIC: Final = ("_dynamo_dynamic_indices", _UNBACKED)


class _Missing(enum.Enum):
    """The placeholder for a value that cannot be read. It is the same in every process."""

    MISSING = enum.auto()


MISSING: Final = _Missing.MISSING


class Guard(NamedTuple):
    """Something that compiled code depends on.

    Attributes:
        kind: Dynamo's name of the guard.
        name: an expression for the object that it looks at, with the arguments in `L` and the globals in `G`.
        of_module: whether the object is a module's attribute, which PyTorch does not make dynamic.
        file: file of the line that needs it; None if no line of the program does.
        line: that line.
        code: its text.
        key: of a guard on what a dictionary or set contains, that; of one on an attribute, its name; of one on two
            arguments that are the same object, the expression for the other one.
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
    compared = [guard for guard in guards if guard.create_fn_name() in _COMPARED and _may_change(guard)]
    return [_read(guard) for guard in sorted(compared) if not isinstance(_key(guard), _Missing)]


def _may_change(guard: Any) -> bool:
    """Whether a program can change the object of a guard between two calls."""
    name: str = guard.name
    if name.startswith(_OF_CLASS):  # methods of classes stay
        return guard.create_fn_name() in (*_CONSTANTS, *LENGTHS)
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
    """What a dictionary or set has to contain, an attribute, or the name of the other argument that is the same object.

    None for a guard of another kind; `MISSING` if the key is an object.
    """
    kind = guard.create_fn_name()
    arguments = guard.create_fn.keywords if isinstance(guard.create_fn, partial) else {}
    if kind == SAME:
        return getattr(arguments.get("source_b"), "name", MISSING)
    if kind in ATTRIBUTES:
        return arguments.get("attr", MISSING)
    if kind not in CONTAINS:
        return None
    key = arguments.get("key", MISSING)
    return key if isinstance(key, str | int) else MISSING


def _place(stack: Iterable[traceback.FrameSummary]) -> tuple[str | None, int | None, str | None]:
    """File, number and text of the innermost line of the program."""
    frame = next((line for line in reversed(list(stack)) if not line.filename.startswith(LOOK_PAST)), None)
    return (None, None, None) if frame is None else (trace_file_name(frame.filename), frame.lineno, frame.line)


class Scope(NamedTuple):
    """What the names of guards refer to, for one call.

    Attributes:
        arguments: the local names.
        globals: the global ones.
        stands_for: the identity of the program's tensor, by the identity of its fake tensor.
    """

    arguments: Mapping[str, Any]
    globals: Mapping[str, Any]
    stands_for: Mapping[int, int] = {}

    def value_of(self, name: str) -> Any:
        """The value of an expression; `MISSING` where there is no such object."""
        names = {"L": self.arguments, "G": self.globals, "__builtins__": builtins}
        try:
            return eval(_expression(name), names)
        except Exception:  # the object is gone, or the name needs a function of Dynamo's
            return MISSING


@cache
def _expression(name: str) -> CodeType:
    return compile(name, "<guard>", "eval")


def scope_of(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Scope:
    """The local and global names of a call. Dynamo calls modules of PyTorch by a function of its own."""
    function = target.forward if isinstance(target, nn.Module) else target
    owner = getattr(function, "__self__", None)
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    bound: dict[str, Any] = {"fn": target, "args": tuple(args), "kwargs": dict(kwargs)}
    if not isinstance(getattr(function, "__code__", None), CodeType):
        return Scope(bound, {})
    code: CodeType = function.__code__
    bound |= dict(zip(code.co_freevars, map(_content, function.__closure__ or ()), strict=False))
    try:
        arguments = inspect.signature(function).bind(*(() if owner is None else (owner,)), *args, **kwargs)
    except (TypeError, ValueError):
        return Scope(bound, function.__globals__)
    arguments.apply_defaults()
    return Scope({**bound, **arguments.arguments}, function.__globals__)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


#: The properties in `TensorValue.fixed`. PyTorch reports another layout as it does another device.
_OF_TENSORS: Final[tuple[GuardKind, ...]] = ("type", "dtype", "device", "requires_grad", "rank", "device")


class TensorValue(NamedTuple):
    """What a guard compares of a tensor.

    Attributes:
        fixed: the properties in `_OF_TENSORS`.
        sizes: of its dimensions.
        strides: of its dimensions, in elements; empty for a layout without strides.
        marked: the dimensions that the program has marked as dynamic.
        unbacked: those of them that code is compiled for without looking at their size.
    """

    fixed: tuple[object, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    marked: frozenset[int]
    unbacked: frozenset[int] = frozenset()

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> "TensorValue":
        """The properties of a tensor as they are now."""
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
        unbacked = frozenset(getattr(tensor, _UNBACKED, ()) or ())
        return cls(fixed, tuple(map(_number, tensor.shape)), strides, marked, unbacked)

    def changed(self, other: "TensorValue", dimension: int | None) -> tuple[GuardKind, str, str]:
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

    def difference(self, other: "TensorValue", name: str, dynamic: Collection[str]) -> tuple[str, int | None] | None:
        """What differs in another tensor, and in which dimension, apart from dynamic sizes; `name` is the tensor's."""
        if self.fixed != other.fixed:
            return "fixed", None
        is_dynamic = False
        for dimension, (size, now) in enumerate(zip(self.sizes, other.sizes, strict=True)):
            varies = dimension in self.unbacked or f"{name}.size()[{dimension}]" in dynamic
            is_dynamic = is_dynamic or varies
            if (size != now and not varies) or (dimension in other.marked and dimension not in self.marked):
                return "size", dimension
        differs = self._stride_that_differs(other, name, dynamic, is_dynamic=is_dynamic)
        return None if differs is None else ("stride", differs)

    def _stride_that_differs(
        self, other: "TensorValue", name: str, dynamic: Collection[str], *, is_dynamic: bool
    ) -> int | None:
        """The first dimension whose stride is not as code is compiled for.

        Where sizes are dynamic, a stride may be the size of another dimension times its stride, as it was for the first
        tensor.
        """
        made_of = self._dimensions_that_strides_are_made_of() if is_dynamic else {}
        for dimension, (stride, now) in enumerate(zip(self.strides, other.strides, strict=True)):
            if stride == now or f"{name}.stride()[{dimension}]" in dynamic:
                continue
            inner = made_of.get(dimension)
            if inner is None or now != other.sizes[inner] * other.strides[inner]:
                return dimension
        return None

    def _dimensions_that_strides_are_made_of(self) -> dict[int, int]:
        """By dimension the one whose size times stride is its stride, as PyTorch finds them: smallest strides first."""
        found: dict[int, int] = {}
        by_extent: dict[int, int] = {}
        last = len(self.strides) - 1
        for stride, dimension in sorted((stride, -dimension) for dimension, stride in enumerate(self.strides)):
            dimension = -dimension
            follows = dimension != last and stride == self.sizes[dimension + 1] * self.strides[dimension + 1]
            if (stride not in (0, 1) or follows) and stride in by_extent:
                found[dimension] = by_extent[stride]
            by_extent[self.sizes[dimension] * stride] = dimension
        return found


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


def is_same(value: Any, other: Any) -> bool:
    """Whether a guard that has seen one value holds for another one; NaN is the same as NaN."""
    if type(value) is not type(other):
        return False
    return bool(value == other) or (isinstance(value, float) and math.isnan(value) and math.isnan(other))


def state_of(scope: "Scope", guards: Iterable[Guard | str]) -> dict[Guard | str, Any]:
    """The values of guards and of the global settings, for one call."""
    state = _global_state()
    same: dict[int, str] = {}
    pairs = set()
    for guard in guards:
        if isinstance(guard, str):
            continue
        value = scope.value_of(guard.name)
        try:
            if guard.kind == SAME and value is not MISSING:
                state[guard] = value is scope.value_of(str(guard.key))
            else:
                state[guard] = MISSING if value is MISSING else _compared(guard, value, scope)
        except TypeError:  # an object of another kind, without a length or keys
            state[guard] = Identity(type(value))
        if guard.kind == TENSOR and isinstance(value, Tensor):
            first = same.setdefault(id(value), guard.name)
            if first != guard.name:
                pairs.add((first, guard.name))
    state[ALIASES] = frozenset(pairs)
    return state


def _compared(guard: Guard, value: Any, scope: "Scope") -> Any:
    kind = guard.kind
    if kind in CONTAINS:
        return guard.key in value
    if kind in _ITERATORS:
        return str(value.__reduce__()[1:])  # what is left of it
    if kind == _HAS:
        return hasattr(value, str(guard.key))
    if kind == _OWN:
        return guard.key in vars(value)
    if isinstance(value, Tensor) and is_uninitialized(value):
        return MISSING  # its first call gives it a shape, before Dynamo looks at it
    if kind == TENSOR:
        return TensorValue.from_tensor(value) if isinstance(value, Tensor) else Identity(type(value))
    if kind in LENGTHS:  # Dynamo compares the type as well
        return Identity(type(value)), len(value)
    if kind in _IDENTITIES:
        if isinstance(value, Tensor) and scope.stands_for and id(value) not in scope.stands_for:
            return MISSING  # made while the code is followed, as an optimizer's state is; the program has its own
        return Identity(value, scope.stands_for.get(id(value)))
    if kind == _CLOSURE:
        return Identity(getattr(value, "__code__", value))
    if kind == TYPE:
        return Identity(type(value))
    if kind == KEYS:
        return tuple(key if isinstance(key, str | int) else Identity(key) for key in value)
    if kind == PRESENT:
        return value is not None
    return MISSING if isinstance(value, Tensor) else value


class Identity:
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
        return isinstance(other, Identity) and other.identity == self.identity

    def __hash__(self) -> int:
        return self.identity

    def __reduce__(self) -> tuple[Any, ...]:
        return Identity, (None, self.identity, self.name)


def sendable(value: Any) -> Any:
    """A value that another process can read; `MISSING` for any other."""
    try:
        pickle.dumps(value)
    except Exception:
        return MISSING
    return value


def _global_state() -> dict[Guard | str, Any]:
    """PyTorch's settings that are compiled in, by the names that its reason for a recompilation has for them.

    PyTorch sees inference mode as another kind of tensors.
    """
    return {
        "grad_mode": torch.is_grad_enabled(),
        "autocast": (
            torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None,
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None,
        ),
        "default_device": str(torch.get_default_device()).replace(DEVICE_TYPE, "cuda"),
        "default_dtype": torch.get_default_dtype(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "inference_mode": torch.is_inference_mode_enabled(),
    }
