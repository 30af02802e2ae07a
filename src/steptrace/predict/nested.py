"""Nested tensors of the strided layout: how a program makes them.

What they are on the device, `steptrace.predict.tensor` says; which operators on them are covered, `sync_rules`.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.backend import Replacements, cuda_device
from steptrace.predict.pytorch import aten, substitute_table
from steptrace.predict.tensor import is_virtual

_FROM_LIST: Final[Any] = aten("_nested_tensor_from_tensor_list")


def replacements() -> Replacements:
    """The replacement of `torch.nested.nested_tensor` while a prediction is active."""
    return {(torch.nested, "nested_tensor"): _making(torch.nested.nested_tensor)}


def _making(nested_tensor: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.nested.nested_tensor`, whose C++ makes one of the strided layout past all modes."""

    @wraps(nested_tensor)
    def made(tensor_list: Any, *, device: Any = None, layout: Any = None, **named: Any) -> Any:
        on_cuda = any(map(is_virtual, tensor_list)) if device is None else torch.device(device).type == "cuda"
        if layout not in (None, torch.strided) or not on_cuda:
            return nested_tensor(tensor_list, device=device, layout=layout, **named)
        return _of_copies(tensor_list, cuda_device(device), **named)

    return made


def _of_copies(
    parts: Any,
    device: torch.device,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,  # noqa: FBT001, FBT002 - torch's own
    pin_memory: bool = False,  # noqa: ARG001, FBT001, FBT002 - memory of a GPU is not pinned
) -> Tensor:
    """A nested tensor of copies of tensors, or of numbers in lists."""
    copies = [
        part.detach().to(device=device, dtype=dtype, copy=True)
        if isinstance(part, Tensor)
        else torch.tensor(part, device=device, dtype=dtype)
        for part in parts
    ]
    nested: Tensor = torch.nested.as_nested_tensor(copies)
    return nested.requires_grad_(requires_grad)


def _from_list(parts: list[Tensor], dtype: torch.dtype | None = None, *_: Any, **__: Any) -> Tensor:
    """What makes one of tensors. A call may name the device by position; the operator of the CPU gets none."""
    nested: Tensor = _FROM_LIST(parts, dtype)
    return nested


SUBSTITUTES: Final = substitute_table(("_nested_tensor_from_tensor_list", _from_list))
