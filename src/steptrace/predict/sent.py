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
from steptrace.predict.operators import SPARSE_PARTS
from steptrace.predict.storages import VirtualStorage
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import VirtualTensor

#: The functions that send objects to another process, by type. PyTorch adds its types to Python's own.
_REDUCERS: Final[dict[Any, Any]] = getattr(ForkingPickler, "_extra_reducers", {})
#: The types that tensors of the device count as.
_SENT: Final = (Tensor, nn.Parameter)
_Reducer = Callable[[Any], Any]


@contextmanager
def followed(_recorder: Syncs) -> Iterator[Replacements]:
    """Send tensors of the device, too, while a prediction is active."""
    before = {kind: _REDUCERS[kind] for kind in _SENT if kind in _REDUCERS}
    of_storages = _REDUCERS.get(torch.UntypedStorage)
    for kind, reduce in before.items():
        _REDUCERS[kind] = _sending(reduce, of_storages)
    if of_storages is not None:
        _REDUCERS[VirtualStorage] = of_storages  # which refuses a storage of a GPU
    try:
        yield {}
    finally:
        _REDUCERS.update(before)
        _REDUCERS.pop(VirtualStorage, None)


def _sending(reduce: _Reducer, of_storages: _Reducer | None) -> _Reducer:
    def sent(tensor: Tensor) -> Any:
        is_refused = tensor.requires_grad and not tensor.is_leaf
        if not isinstance(tensor, VirtualTensor) or is_refused or of_storages is None:
            return reduce(tensor)
        inner = tensor._inner.detach()
        if inner.layout is not torch.strided:
            for part in SPARSE_PARTS[inner.layout]:
                _as_host_s(getattr(inner, part)().untyped_storage())
            content = reduce(inner)
        elif inner.is_meta:
            content = _without_values, (inner.size(), inner.stride(), inner.dtype)
        else:
            memory = _of_host(of_storages, inner.untyped_storage())
            view = inner.storage_offset(), inner.size(), inner.stride()
            content = _of_memory, (memory, inner.dtype, *view)
        return _arrived, (*content, tensor.gpu, tensor.requires_grad, isinstance(tensor, nn.Parameter))

    return sent


def _of_host(reduce: _Reducer, storage: Any) -> Any:
    """The data that PyTorch sends for a storage, which counts as one of the host meanwhile."""
    kind = type(storage)
    _as_host_s(storage)
    try:
        return reduce(storage)
    finally:
        storage.__class__ = kind


def _as_host_s(storage: Any) -> None:
    """Let a storage count as one of the host, until a tensor of the device is asked for it again."""
    storage.__class__ = torch.UntypedStorage


def _of_memory(memory: Any, dtype: torch.dtype, *view: Any) -> Tensor:
    rebuild, args = memory
    return torch.empty(0, dtype=dtype, device="cpu").set_(rebuild(*args), *view)


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
