"""Puts fake tensors in the place of a program's tensors, wherever compiled code can reach them."""

import collections
import operator
import types
import weakref
from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, Final

import torch
from torch import Tensor, nn

from steptrace.predict import backend
from steptrace.predict.cuda_classes import GeneratorOfTorch, GpuGenerator
from steptrace.predict.fake_fallback import fake_from
from steptrace.predict.tensor import is_virtual
from steptrace.torch_names import private

FakeTensor: Any = private("torch._subclasses.fake_tensor.FakeTensor")
FakeTensorMode: Any = private("torch._subclasses.fake_tensor.FakeTensorMode")
#: The method of optimizers that makes their state at the first step.
_FIRST: Final = "_init_group"
#: Beginnings of the names of attributes that `mark_dynamic` and its like set on a tensor.
_MARKS: Final = ("_dynamo_", "_has_dynamo_", "_specialize")
#: Values without tensors in them.
_ATOMS: Final = (type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, torch.dtype, torch.device)
#: How many levels of attributes and elements are searched for tensors.
_DEEPEST: Final = 12
#: Parts of PyTorch whose objects hold tensors of the program, or the optimizer that does.
_WITH_TENSORS: Final = ("torch.amp.", "torch.distributions.", "torch.nn.", "torch.optim.", "torch.utils.data.")
#: Beginnings of the names of modules whose objects hold none of the program's tensors, except those in `_WITH_TENSORS`.
OF_NO_PROGRAM: Final = (
    "torch.",
    "steptrace.",
    "builtins",
    "collections",
    "logging",
    "threading",
    "numpy",
    "multiprocessing",
)
#: Attributes of modules that are looked at by themselves.
_OF_MODULES: Final = ("_parameters", "_buffers", "_modules")


def fake_of(value: Any, mode: FakeTensorMode, fakes: dict[int, Tensor]) -> Any:
    """A fake tensor on the device of a tensor, one for each tensor; any other value stays as it is."""
    if isinstance(value, GpuGenerator):
        return GeneratorOfTorch()  # Dynamo knows this class alone, and fake tensors take any generator
    if not isinstance(value, Tensor) or isinstance(value, FakeTensor):
        return value
    if id(value) not in fakes:
        if value.is_nested:
            raise NotImplementedError(
                "a jagged tensor is an argument; only those that the code makes itself are followed"
            )
        inside: Tensor = getattr(value, "_inner", value)
        device = backend.device(getattr(value, "gpu", 0)) if is_virtual(value) else value.device
        if inside.layout is not torch.strided:
            fakes[id(value)] = fake_from(mode, inside, device)
            return fakes[id(value)]
        empty = torch.empty_strided(inside.shape, inside.stride(), dtype=inside.dtype, device="meta")
        fake: Tensor = FakeTensor(mode, empty, device)
        if isinstance(value, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=value.requires_grad)
        elif value.requires_grad:
            fake.requires_grad_()
        vars(fake).update((name, mark) for name, mark in vars(value).items() if name.startswith(_MARKS))
        fakes[id(value)] = fake
    return fakes[id(value)]


class FakeState:
    """Puts fake tensors into all that a function can reach: modules, optimizers, closures, globals, objects.

    Nothing is put back: this process is a child that ends afterwards.
    """

    def __init__(self, mode: FakeTensorMode, fakes: dict[int, Tensor]) -> None:
        self._mode = mode
        self._fakes = fakes
        #: The objects that have been visited, by identity. They stay alive, so that no other object gets an identity.
        self._seen: dict[int, Any] = {}

    def faked(self, value: Any, depth: int = 0) -> Any:
        """The value with fake tensors: itself, changed in place, or a fake tensor or a tuple in place of it."""
        if isinstance(value, Tensor):
            self._seen[id(value)] = value
            # A tensor on the CPU is made fake where Dynamo meets it, and has its values where the program reads it.
            return fake_of(value, self._mode, self._fakes) if is_virtual(value) else value
        if isinstance(value, GpuGenerator):
            return fake_of(value, self._mode, self._fakes)
        if isinstance(value, _ATOMS) or depth > _DEEPEST:
            return value
        if isinstance(value, tuple):
            parts = [self.faked(part, depth + 1) for part in value]
            if all(map(operator.is_, parts, value)):
                return value
            return tuple.__new__(type(value), parts)  # a named tuple stays one
        if id(value) in self._seen:
            return value
        self._seen[id(value)] = value
        if isinstance(value, list | collections.deque):
            parts = [self.faked(part, depth + 1) for part in value]
            value.clear()
            value.extend(parts)
        elif isinstance(value, set):
            parts = [self.faked(part, depth + 1) for part in value]
            value.clear()
            value.update(parts)
        elif isinstance(value, weakref.ref):
            self.faked(value(), depth + 1)
        elif isinstance(value, dict):
            self._mapping(value, depth)
        elif isinstance(value, nn.Module):
            for part in value.modules():
                self._module(part, depth)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizer(value)
        elif isinstance(value, types.FunctionType):
            self._function(value, depth)
        elif isinstance(value, types.MethodType):
            self.faked(value.__self__, depth + 1)
            self.faked(value.__func__, depth + 1)
        elif isinstance(value, partial):
            args = self.faked(value.args, depth + 1)
            keywords = self.faked(value.keywords, depth + 1)
            state: Any = value
            state.__setstate__((self.faked(value.func, depth + 1), args, keywords, vars(value)))
        elif _may_hold_tensors(type(value)):
            self._mapping(getattr(value, "__dict__", {}), depth)
            self._slots(value, depth)
        return value

    def _slots(self, value: Any, depth: int) -> None:
        for name in _slots_of(type(value)):
            part = getattr(value, name, None)
            faked = self.faked(part, depth + 1)
            if faked is not part:
                object.__setattr__(value, name, faked)

    def _mapping(self, values: Any, depth: int) -> None:
        for name, part in list(values.items()):
            faked = self.faked(part, depth + 1)
            if faked is not part:
                values[name] = faked

    def _module(self, module: nn.Module, depth: int) -> None:
        attributes = vars(module)
        if id(attributes) in self._seen or isinstance(module, torch.jit.ScriptModule):
            return  # the tensors of a scripted module belong to C++
        self._seen[id(attributes)] = attributes
        for tensors in (attributes.get("_parameters", {}), attributes.get("_buffers", {})):
            self._seen.update((id(tensor), tensor) for tensor in tensors.values())
            for name, value in list(tensors.items()):
                tensors[name] = fake_of(value, self._mode, self._fakes)
        self._mapping({name: value for name, value in attributes.items() if name not in _OF_MODULES}, depth)
        for name, value in list(attributes.items()):
            if isinstance(value, Tensor | tuple):
                attributes[name] = self.faked(value, depth + 1)

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        mode = self._mode
        fakes = self._fakes
        for group in optimizer.param_groups:
            self._seen.update((id(value), value) for value in (*group["params"], *group.values()))
            group["params"] = [_fake_with_gradient(parameter, mode, fakes) for parameter in group["params"]]
            # A learning rate may be a tensor.
            group.update({name: fake_of(value, mode, fakes) for name, value in group.items()})
        # Dynamo calls this method as it is, and what it makes on the device has to be fake, too.
        first = getattr(optimizer, _FIRST, None)
        if first is not None:
            setattr(optimizer, _FIRST, _in_mode(first, mode))
        state = {
            fake_of(parameter, mode, fakes): {name: fake_of(value, mode, fakes) for name, value in values.items()}
            for parameter, values in optimizer.state.items()
        }
        self._seen[id(optimizer.state)] = dict(optimizer.state)
        optimizer.state.clear()
        optimizer.state.update(state)

    def _function(self, function: types.FunctionType, depth: int) -> None:
        if str(function.__module__).startswith(OF_NO_PROGRAM) and not function.__closure__:
            return
        for cell in function.__closure__ or ():
            if _filled(cell):
                cell.cell_contents = self.faked(cell.cell_contents, depth + 1)
        function.__defaults__ = self.faked(function.__defaults__, depth + 1)
        self.faked(function.__kwdefaults__, depth + 1)
        self._mapping(vars(function), depth)
        names = function.__globals__
        for name in _names_in(function.__code__):
            if name in names:
                names[name] = self.faked(names[name], depth + 1)


def _may_hold_tensors(kind: type) -> bool:
    """Whether objects of a class may hold tensors of the program."""
    return not f"{kind.__module__}.".startswith(OF_NO_PROGRAM) or f"{kind.__module__}.".startswith(_WITH_TENSORS)


def _slots_of(kind: type) -> Iterator[str]:
    """Names of attributes that objects of a class hold outside of a dictionary (`__slots__`)."""
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                # The class mangles private names.
                yield f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") else name


def _names_in(code: types.CodeType) -> Iterator[str]:
    """Names that a function and the functions in it use, globals among them."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _in_mode(function: Callable[..., Any], mode: FakeTensorMode) -> Callable[..., Any]:
    @wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return within


def _fake_with_gradient(parameter: Tensor, mode: FakeTensorMode, fakes: dict[int, Tensor]) -> Tensor:
    fake = fake_of(parameter, mode, fakes)
    assert isinstance(fake, Tensor)
    if parameter.grad is not None:
        fake.grad = fake_of(parameter.grad, mode, fakes)
    return fake


def _filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
