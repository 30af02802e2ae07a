"""Nested tensors of the strided layout: how a program makes them.

PyTorch joins the parts where they are, and then copies the whole to another device or type at once.

What nested tensors are on the device, `steptrace.predict.tensor` says; which operators on them are covered,
`sync_rules`.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.backend import Replacements
from steptrace.predict.pytorch import aten, replacing, substitute_table
from steptrace.predict.tensor import is_virtual

_FROM_LIST: Final[Any] = aten("_nested_tensor_from_tensor_list")


def replacements() -> Replacements:
    """The replacements of the functions that make nested tensors while a prediction is active."""
    return {
        (torch.nested, "nested_tensor"): _making(torch.nested.nested_tensor),
        **replacing("torch._nested_tensor_from_tensor_list", _joining),
    }


def _making(nested_tensor: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.nested.nested_tensor`, whose C++ makes one of the strided layout past all modes."""

    @wraps(nested_tensor)
    def nested_of_list(tensor_list: Any, *, device: Any = None, layout: Any = None, **named: Any) -> Any:
        names_cuda = device is not None and torch.device(device).type == "cuda"
        on_cuda = isinstance(tensor_list, list) and (names_cuda or any(map(is_virtual, tensor_list)))
        if layout not in (None, torch.strided) or not on_cuda:
            return nested_tensor(tensor_list, device=device, layout=layout, **named)
        return _of_copies(tensor_list, device, **named)

    return nested_of_list


def _joining(from_list: Callable[..., Any]) -> Callable[..., Any]:
    """`torch._nested_tensor_from_tensor_list`, which `torch.nested.as_nested_tensor` calls."""

    @wraps(from_list)
    def joined(parts: Any, dtype: Any = None, layout: Any = None, device: Any = None, pin_memory: Any = None) -> Any:
        if device is None and dtype is None:
            return from_list(parts, dtype, layout, device, pin_memory)
        return from_list(parts, None, layout, None, None).to(device=device, dtype=dtype)

    return joined


def _of_copies(
    parts: Any,
    device: Any,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,  # noqa: FBT001, FBT002 - torch's own
    pin_memory: bool = False,  # noqa: ARG001, FBT001, FBT002 - memory of a GPU is not pinned
) -> Tensor:
    """A nested tensor of copies of tensors, or of numbers in lists."""
    copies = [part.detach() if isinstance(part, Tensor) else torch.tensor(part, dtype=dtype) for part in parts]
    nested: Tensor = torch.nested.as_nested_tensor(copies, dtype=dtype, device=device)
    return nested.requires_grad_(requires_grad)


def _from_list(parts: list[Tensor], dtype: torch.dtype | None = None, *_: Any, **__: Any) -> Tensor:
    """What makes one of tensors. A call may name the device by position; the operator of the CPU gets none."""
    nested: Tensor = _FROM_LIST(parts, dtype)
    return nested


SUBSTITUTES: Final = substitute_table(("_nested_tensor_from_tensor_list", _from_list))
