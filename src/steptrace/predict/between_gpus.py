"""Copies between the GPUs of one process, as DataParallel and `torch.cuda.comm` make them. The host waits for none.

PyTorch's functions are in Python down to these few of its C++, which only a build for CUDA has.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.backend import cuda_device


def broadcast(tensor: Tensor, devices: Iterable[int]) -> list[Tensor]:
    """The tensor on each of the GPUs; on its own GPU the tensor itself."""
    return [_sent(tensor, device) for device in devices]


def broadcast_out(tensor: Tensor, out: Sequence[Tensor]) -> list[Tensor]:
    """Copy the tensor into others."""
    return [target.copy_(tensor, non_blocking=True) for target in out]


def broadcast_coalesced(tensors: Sequence[Tensor], devices: Iterable[int], _buffer_bytes: int) -> list[list[Tensor]]:
    """For each of the GPUs all the tensors."""
    return [[_sent(tensor, device) for tensor in tensors] for device in devices]


def scatter(
    tensor: Tensor, devices: Sequence[int], sizes: Sequence[int] | None, dim: int, _streams: object
) -> list[Tensor]:
    """Consecutive parts of the tensor, one for each GPU: of these sizes, or about equal ones."""
    parts = tensor.chunk(len(devices), dim) if sizes is None else tensor.split_with_sizes(list(sizes), dim)
    return [_sent(part, device) for part, device in zip(parts, devices, strict=False)]


def scatter_out(tensor: Tensor, out: Sequence[Tensor], dim: int, _streams: object) -> list[Tensor]:
    """Copy consecutive parts of the tensor into others, by their sizes."""
    parts = tensor.split_with_sizes([target.size(dim) for target in out], dim)
    return [target.copy_(part, non_blocking=True) for target, part in zip(out, parts, strict=True)]


def gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    """The tensors behind each other on one GPU: the current one if none is named, the host if the number is -1."""
    device = torch.device("cpu") if destination == -1 else cuda_device(destination)
    size = list(tensors[0].shape)
    size[dim] = sum(tensor.size(dim) for tensor in tensors)
    return gather_out(tensors, torch.empty(size, dtype=tensors[0].dtype, device=device), dim)


def gather_out(tensors: Sequence[Tensor], out: Tensor, dim: int) -> Tensor:
    """Copy the tensors behind each other into another one."""
    lengths = [tensor.size(dim) for tensor in tensors]
    for tensor, end, length in zip(tensors, accumulate(lengths), lengths, strict=True):
        out.narrow(dim, end - length, length).copy_(tensor, non_blocking=True)
    return out


def reduce(
    inputs: Sequence[Tensor],
    output: Tensor | None = None,
    root: int = 0,
    *_: object,
    outputs: Sequence[Tensor] | None = None,
) -> None:
    """`torch.cuda.nccl.reduce`: the sum of tensors on several GPUs, written to one on the root's, or to that itself."""
    total = inputs[root]
    for number, tensor in enumerate(inputs):
        if number != root:
            total = total + tensor.to(total.device, non_blocking=True)
    if output is None:
        output = (inputs if outputs is None else outputs)[root]
    output.copy_(total)


def _sent(tensor: Tensor, device: int) -> Tensor:
    return tensor.to(cuda_device(device), non_blocking=True)


#: By their names in `torch._C`.
FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "_broadcast": broadcast,
    "_broadcast_coalesced": broadcast_coalesced,
    "_broadcast_out": broadcast_out,
    "_gather": gather,
    "_gather_out": gather_out,
    "_scatter": scatter,
    "_scatter_out": scatter_out,
}
