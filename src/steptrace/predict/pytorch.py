"""Private names of PyTorch that several modules here use, each with what stands in where PyTorch has none.

`steptrace.torch_names` says what each is for, and what is lost without it.
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
_HAS_CDATA: Final = private("torch.UntypedStorage._cdata") is not None


def dispatch_key(name: str) -> Any:
    """A dispatch key by its name; None where PyTorch has none."""
    return getattr(_DISPATCH_KEYS, name, None)


def storage_key(storage: Any) -> int:
    """A number that a storage has for as long as it lives."""
    return int(storage._cdata) if _HAS_CDATA else id(storage)


def overload_name(func: Any) -> str:
    """The name of an operator's overload: "default", or what stands behind the dot."""
    return func.name().partition(".")[2] or "default"


def substitute_table(*rows: tuple[str, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """By operator, what runs in its place; an operator of ATen that this PyTorch does not have is left out.

    Args:
        rows: the operator's name, with its overload behind a dot unless that is the default one; and what runs.
    """
    return {operator: function for name, function in rows if (operator := aten(name)) is not None}


def aten(name: str) -> Any:
    """An overload of an operator of ATen by its name, such as "mm" or "mm.dtype"; None where PyTorch has none."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def replacing(path: str, new: Callable[[Any], Any]) -> dict[tuple[Any, str], Any]:
    """What stands in for a private name, by owner and name; nothing where PyTorch does not have the name.

    Args:
        path: the name, as `steptrace.torch_names` has it.
        new: makes the replacement from what is there.
    """
    before = private(path)
    if before is None:
        return {}
    return {(owner_of(path), path.rpartition(".")[2]): new(before)}
