"""What code of the program gets where it runs between two graphs, on fake tensors.

It reads, compares, copies and moves tensors there, and nothing is computed. A number that it reads counts as 1, and a
condition on tensors holds, unless the program's own code raises an error then: the call is followed anew, and the last
condition does not hold.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor, nn

from steptrace.predict.cuda_classes import Generator, GeneratorOfTorch
from steptrace.predict.fake_fallback import on_host
from steptrace.predict.fake_state import fake_of
from steptrace.predict.kernel_calls import ASSUMED_VALUE
from steptrace.predict.tensor import is_virtual
from steptrace.torch_names import private

FakeTensor: Any = private("torch._subclasses.fake_tensor.FakeTensor")
pytree: Any = private("torch.utils._pytree")
#: An operator has no form for fake tensors, or none that knows sizes which depend on values.
_UNSUPPORTED: Any = tuple(
    error
    for name in ("UnsupportedOperatorException", "DynamicOutputShapeException")
    if (error := private(f"torch._subclasses.fake_tensor.{name}")) is not None
)
_Mode: Any = private("torch.utils._python_dispatch.TorchDispatchMode") or object
#: Operators whose result is a condition on values of tensors.
_CONDITIONS: Final = ("aten.equal.default", "aten.allclose.default", "aten.is_nonzero.default")
_READ: Final = "aten._local_scalar_dense.default"
#: How often a condition on a tensor holds. Then it does not, so that a loop that waits for it ends.
_MOST_TRUE: Final = 16

#: The distance of two addresses: more than any tensor takes, and a multiple of the alignment that CUDA's allocator has.
_ALIGNED: Final = 1 << 44
#: The addresses of the storages whose address the code has read, by identity. The process is a child that ends soon.
_ADDRESSES: Final[dict[int, int]] = {}


class ReadsBetweenGraphs(_Mode):  # type: ignore[misc]
    """Answers what fake tensors cannot: a value that is read between two graphs.

    A tensor of the program that nothing led to, such as one of a scripted module or of an iterator, is fake from its
    first operator on. An operator without a form for fake tensors runs on the CPU.

    Args:
        number: stands for each number of type float.
        mode: the mode of the fake tensors.
        fakes: the fake tensors, by the identity of the program's.
        fails: by their order, the conditions that do not hold.
        ran: is called for each operator that has run, with its arguments and its result.
    """

    def __init__(
        self,
        number: float,
        mode: Any,
        fakes: dict[int, Tensor],
        fails: frozenset[int] = frozenset(),
        ran: Callable[[Any, Any, Any, Any], None] | None = None,
    ) -> None:
        super().__init__()
        self._ran = ran
        self._mode = mode
        self._fakes = fakes
        #: How many conditions have been read.
        self.conditions = 0
        self.number = number
        self._fails = fails

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Yes: it does not keep code from being compiled."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        args, kwargs = pytree.tree_map(self._as_fake, (tuple(args), dict(kwargs or {})))
        if name in _CONDITIONS:
            return self._holds()
        if name == _READ:
            if args[0].dtype == torch.bool:
                return self._holds()
            return self.number if args[0].dtype.is_floating_point else ASSUMED_VALUE
        try:
            result = func(*args, **kwargs)
        except _UNSUPPORTED:
            result = on_host(self._mode, func, args, kwargs)
        result = pytree.tree_map(lambda value: _with_known_sizes(value, args), result)
        if self._ran is not None:
            self._ran(func, args, kwargs, result)
        return result

    def _as_fake(self, value: Any) -> Any:
        return fake_of(value, self._mode, self._fakes) if is_virtual(value) else value

    def _holds(self) -> bool:
        self.conditions += 1
        return self.conditions <= _MOST_TRUE and self.conditions not in self._fails


def _with_known_sizes(value: Any, args: Any) -> Any:
    """A tensor between two graphs whose sizes depend on values, as after `nonzero`: there its sizes are numbers."""
    if not isinstance(value, FakeTensor) or not any(isinstance(size, torch.SymInt) for size in value.shape):
        return value
    most = min((int(arg.numel()) for arg in pytree.tree_leaves(args) if isinstance(arg, Tensor)), default=1)
    sizes = [size if isinstance(size, int) else most for size in value.shape]
    return FakeTensor(value.fake_mode, torch.empty(sizes, dtype=value.dtype, device="meta"), value.fake_device)


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """`copy.deepcopy` of a fake tensor."""
    if id(tensor) not in memo:
        copy = tensor.detach().clone()
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = (
            nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy.requires_grad_(tensor.requires_grad)
        )
    result: Tensor = memo[id(tensor)]
    return result


def _formatted(tensor: Tensor, spec: str) -> str:
    """The text of a value that the code formats."""
    return format(float(ASSUMED_VALUE), spec) if not tensor.dim() else repr(tensor)


def _address(tensor: Tensor) -> int:
    """The address of a tensor on the device, the same for tensors that share memory, and aligned as CUDA aligns it."""
    if not tensor.numel():
        return 0
    storage = _ADDRESSES.setdefault(tensor.untyped_storage()._cdata, _ALIGNED * (len(_ADDRESSES) + 1))
    return storage + int(tensor.storage_offset()) * tensor.element_size()


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _generator_of_cpu(_kind: type, _device: Any = "cpu", **_: Any) -> Any:
    return GeneratorOfTorch()


class _WithoutReferences:
    """In place of the module `weakref` where two tensors are swapped: Dynamo refers to each tensor that it meets."""

    @staticmethod
    def getweakrefs(_: object) -> list[object]:
        return []


@contextmanager
def answered(reads: ReadsBetweenGraphs) -> Iterator[None]:
    """A context in which the program's code can read, copy and move fake tensors."""
    dynamo: Any = importlib.import_module("torch._dynamo")
    utils: Any = importlib.import_module("torch.utils")
    # Dynamo follows each Python function that is called between two graphs, and must not follow these.
    methods: dict[str, Callable[..., Any]] = {
        "__deepcopy__": dynamo.disable(_copied),
        "__format__": _formatted,
        "data_ptr": dynamo.disable(_address),
        "share_memory_": dynamo.disable(_itself),  # does nothing on a GPU
    }
    with ExitStack() as stack:
        for name, method in methods.items():
            method.__name__ = name  # Dynamo takes a method of another name for code of the program
            stack.enter_context(mock.patch.object(FakeTensor, name, method, create=True))
        stack.enter_context(mock.patch.object(utils, "weakref", _WithoutReferences))
        # Dynamo knows PyTorch's own class alone.
        stack.enter_context(mock.patch.object(Generator, "__new__", _generator_of_cpu))
        dispatch = dynamo.disable(ReadsBetweenGraphs.__torch_dispatch__)
        stack.enter_context(mock.patch.object(ReadsBetweenGraphs, "__torch_dispatch__", dispatch))
        stack.enter_context(reads)
        yield
