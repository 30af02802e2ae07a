"""Marks on memory of the CPU: it counts as pinned, or its values are assumed."""

from typing import Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

#: The table of marked memory is cleaned when it has grown to this size, and then whenever it has doubled.
_CLEAN_AT: Final = 4096


class Marks:
    """Memory of the CPU that has a mark, for as long as it lives."""

    def __init__(self) -> None:
        self._storages: dict[int, StorageWeakRef] = {}
        self._clean_at = _CLEAN_AT

    def add(self, tensor: Tensor) -> Tensor:
        """Mark the memory of a tensor, and so of its views; return the tensor."""
        if not tensor.is_meta and tensor.layout is torch.strided:
            if len(self._storages) >= self._clean_at:
                self._storages = {key: ref for key, ref in self._storages.items() if not ref.expired()}  # type: ignore[no-untyped-call]
                self._clean_at = max(_CLEAN_AT, 2 * len(self._storages))
            reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self._storages[reference.cdata] = reference
        return tensor

    def __bool__(self) -> bool:
        return bool(self._storages)

    def __contains__(self, tensor: Tensor) -> bool:
        if not self._storages or tensor.layout is not torch.strided:
            return False
        reference = self._storages.get(tensor.untyped_storage()._cdata)
        return reference is not None and not reference.expired()  # type: ignore[no-untyped-call]

    def clear(self) -> None:
        """Forget all marks."""
        self._storages.clear()


#: Memory that counts as pinned: CPU builds of PyTorch cannot pin, and pinning decides whether a copy waits.
PINNED: Final = Marks()
