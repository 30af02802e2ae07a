"""Private names of PyTorch that several modules here use, each with a substitute for a PyTorch that lacks it.

`steptrace.torch_names` says what each name is for, and what is lost without it.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import torch

from steptrace.torch_names import owner_of, private

#: The class of PyTorch's C++ that has the properties of a tensor; `torch.Tensor` inherits them.
TensorBase: Final[Any] = private("torch._C.TensorBase") or torch.Tensor
#: The running autograd node, None outside of a backward pass.
current_node: Final[Callable[[], Any]] = private("torch._C._current_autograd_node") or (lambda: None)
#: A context in which the modes of `__torch_function__` are off.
functions_off: Final[Callable[[], Any]] = private("torch._C.DisableTorchFunction") or nullcontext
#: The base class of modes that see operators.
DispatchMode: Final[Any] = private("torch.utils._python_dispatch.TorchDispatchMode") or object
#: Whether an operator, by its name, has a kernel for a dispatch key, by that name.
has_kernel: Final[Callable[[str, str], bool]] = private("torch._C._dispatch_has_kernel_for_dispatch_key") or (
    lambda _operator, _key: False
)
_DISPATCH_KEYS: Final = private("torch._C.DispatchKey")
_KEY_SET: Final[Any] = private("torch._C.DispatchKeySet")
_HAS_CDATA: Final = private("torch.UntypedStorage._cdata") is not None


def dispatch_key(name: str) -> Any:
    """The dispatch key of a name; None if PyTorch has no such key."""
    return getattr(_DISPATCH_KEYS, name, None)


def dispatch_keys(*names: str) -> Any:
    """A set of dispatch keys; None if PyTorch lacks one of them."""
    keys = [dispatch_key(name) for name in names]
    if _KEY_SET is None or None in keys:
        return None
    joined = _KEY_SET(keys[0])
    for key in keys[1:]:
        joined = joined.add(key)
    return joined


def is_uninitialized(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a lazy module's that has no shape yet."""
    return isinstance(tensor, torch.nn.parameter.UninitializedParameter | torch.nn.parameter.UninitializedBuffer)


def storage_key(storage: Any) -> int:
    """A number that a storage has for as long as it lives."""
    return int(storage._cdata) if _HAS_CDATA else id(storage)


def overload_name(func: Any) -> str:
    """The name of an operator's overload: the part after the dot, or "default"."""
    return func.name().partition(".")[2] or "default"


def substitute_table(*rows: tuple[str, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """The functions that run in place of operators, by operator. Operators that this PyTorch lacks are left out.

    Args:
        rows: the name of an operator of ATen (with its overload, unless that is the default), and the function.
    """
    return {operator: function for name, function in rows if (operator := aten(name)) is not None}


def aten(name: str) -> Any:
    """The overload of an operator of ATen with a name such as "mm" or "mm.dtype"; None if PyTorch lacks it."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def replacing(path: str, new: Callable[[Any], Any]) -> dict[tuple[Any, str], Any]:
    """The replacement of a private name, by owner and name; empty if PyTorch lacks the name.

    Args:
        path: the name, as in `steptrace.torch_names`.
        new: makes the replacement from the present value.
    """
    before = private(path)
    if before is None:
        return {}
    return {(owner_of(path), path.rpartition(".")[2]): new(before)}
