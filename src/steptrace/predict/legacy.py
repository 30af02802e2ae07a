"""`torch.cuda.FloatTensor` and the like: constructors, `isinstance`, `.type()`, default type."""

from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from steptrace.predict.tensor import CUDA_TYPE_NAMES, is_virtual

_SET_DEFAULT = torch.set_default_tensor_type


class _LegacyType(type):
    """Metaclass of these types: it answers `isinstance`, and a type has the properties of its tensors."""

    dtype: torch.dtype
    is_cuda = True
    is_sparse = False
    layout = torch.strided

    def __instancecheck__(cls, value: object) -> bool:
        return is_virtual(value) and value.dtype == cls.dtype and value.layout is torch.strided  # type: ignore[attr-defined]

    def __call__(cls, *args: Any, device: Any = "cuda") -> Tensor:
        """A tensor of a size, given as numbers or torch.Size; of data; or of a tensor of this type."""
        if len(args) == 1 and isinstance(args[0], Tensor):
            if not isinstance(args[0], cls):
                raise TypeError(f"expected {cls.__name__} (got {args[0].type()})")
            return args[0].detach()
        if args and not isinstance(args[0], Integral | torch.Size):
            return torch.tensor(args[0], dtype=cls.dtype, device=device)
        return torch.empty(*(args or (0,)), dtype=cls.dtype, device=device)


#: The types, by their names in `torch.cuda`.
TYPES = {
    f"{name}Tensor": _LegacyType(f"{name}Tensor", (), {"dtype": dtype, "__module__": "torch.cuda"})
    for dtype, name in CUDA_TYPE_NAMES.items()
}


def set_default_tensor_type(kind: Any) -> None:
    """Let factories make tensors of this type by default, on the device that it names."""
    of_cuda = as_type(kind)
    if of_cuda is None:
        torch.set_default_device(None)
        _SET_DEFAULT(kind)
    else:
        torch.set_default_dtype(of_cuda.dtype)
        torch.set_default_device("cuda")


def as_type(kind: Any) -> _LegacyType | None:
    """The legacy type of CUDA tensors that is named or given; None for anything else."""
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        kind = TYPES.get(kind.removeprefix("torch.cuda."))
    return kind if isinstance(kind, _LegacyType) else None
