"""Bytes of the tensors that a training holds between its steps."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def tensor_bytes(tensors: Mapping[str, Iterable[Tensor]], device: torch.device | None = None) -> dict[str, int]:
    """Bytes of the storages of tensors by category, those on one type of device or on any.

    A storage that two categories share counts for the first. Sparse tensors have no single storage and do not count.
    """
    sizes = dict.fromkeys(tensors, 0)
    counted: set[int] = set()
    for category, members in tensors.items():
        for tensor in members:
            if tensor.layout is not torch.strided or (device is not None and tensor.device.type != device.type):
                continue
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in counted:
                counted.add(storage.data_ptr())
                sizes[category] += storage.nbytes()
    return sizes
