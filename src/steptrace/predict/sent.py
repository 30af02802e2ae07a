"""Tensors on the GPU that a program sends to another process, by queues and arguments of `torch.multiprocessing`.

On CUDA the other process gets a handle, and both see the same memory. Here both see the same memory of the host. A
tensor without values arrives without values. In a process that is not followed it arrives on the host.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

import torch
from torch import Tensor, nn

from steptrace.predict.backend import Replacements
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import VirtualStorage, VirtualTensor

#: How a type is sent to another process: by a function for it. PyTorch adds its types to Python's own.
_REDUCERS: Final[dict[Any, Any]] = getattr(ForkingPickler, "_extra_reducers", {})
#: The types that tensors of the device count as.
_SENT: Final = (Tensor, nn.Parameter)


@contextmanager
def followed(_recorder: Syncs) -> Iterator[Replacements]:
    """Send tensors of the device, too, while a prediction is active."""
    before = {kind: _REDUCERS[kind] for kind in _SENT if kind in _REDUCERS}
    for kind, reduce in before.items():
        _REDUCERS[kind] = _sending(reduce)
    try:
        yield {}
    finally:
        for kind, reduce in before.items():
            _REDUCERS[kind] = reduce


def _sending(reduce: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def sent(tensor: Tensor) -> Any:
        is_refused = tensor.requires_grad and not tensor.is_leaf
        if not isinstance(tensor, VirtualTensor) or is_refused or tensor.layout is not torch.strided:
            return reduce(tensor)
        inner = tensor._inner.detach()
        content = (
            (_without_values, (inner.size(), inner.stride(), inner.dtype)) if inner.is_meta else _shared(reduce, inner)
        )
        return _arrived, (*content, tensor.gpu, tensor.requires_grad, isinstance(tensor, nn.Parameter))

    return sent


def _shared(reduce: Callable[[Tensor], Any], inner: Tensor) -> Any:
    """What PyTorch sends of a tensor of the host, as whose memory that of the device counts meanwhile."""
    storage: Any = inner.untyped_storage()
    kind = type(storage)
    if kind is not VirtualStorage:
        return reduce(inner)
    storage.__class__ = torch.UntypedStorage
    try:
        return reduce(inner)
    finally:
        storage.__class__ = kind


def _without_values(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="meta")


def _arrived(
    rebuild: Callable[..., Tensor],
    args: Any,
    gpu: int,
    requires_grad: bool,  # noqa: FBT001 - pickle passes no names
    is_parameter: bool,  # noqa: FBT001
) -> Tensor:
    """The tensor in the other process."""
    inner = rebuild(*args)
    if Syncs.active is None:
        tensor: Tensor = torch.zeros_like(inner, device="cpu") if inner.is_meta else inner
    else:
        tensor = VirtualTensor(inner, gpu)
    return nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)
