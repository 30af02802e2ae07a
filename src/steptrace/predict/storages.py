"""Memory of the virtual device and of the CPU beside it.

By storages `torch.save` and `torch.load` tell what lay on a GPU, and put it there. CPU builds of PyTorch cannot pin
memory, and pinning decides whether a copy waits: so which counts as pinned is kept here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from steptrace.predict.collectives import index_of
from steptrace.predict.recorder import Syncs

_Storage: Any = torch.storage._StorageBase


class VirtualStorage(torch.UntypedStorage):
    """Memory of the virtual device. Only Python asks it for its device: C++ sees the CPU's memory that it is."""

    gpu: int

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device as the program knows it."""
        return torch.device("cuda", self.gpu)


VirtualStorage.__name__ = torch.UntypedStorage.__name__  # as files name it


def on_device(storage: Any, gpu: int) -> torch.UntypedStorage:
    """The same storage, whose memory is that of a virtual GPU from now on."""
    storage.__class__ = VirtualStorage
    storage.gpu = gpu
    return storage  # type: ignore[no-any-return]


def replacements() -> dict[tuple[Any, str], Callable[..., Any]]:
    """By owner and name: what PyTorch does with storages, and pinning.

    That on the class rather than in a mode, because the loader's pinning thread has no modes.
    """
    to, is_storage = _Storage.to, torch.is_storage

    def pin_memory(self: Tensor, _device: object = None) -> Tensor:
        return self if is_pinned(self) else mark_pinned(self.clone())

    def moved(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        """Copy a storage to another device, as `torch.load` does with each that it has read."""
        if torch.device(device).type != "cuda":
            return to(self, device=device, non_blocking=non_blocking)
        gpu = index_of(device)
        if self.device == torch.device("cuda", gpu):
            return self
        if Syncs.active is not None and self.nbytes() and not isinstance(self, VirtualStorage):
            Syncs.active.sync("h2d_copy", "aten::copy_", "a blocking copy to the device")
        copy: Any = torch.UntypedStorage(self.nbytes())  # type: ignore[no-untyped-call]
        return on_device(copy.copy_(self), gpu)

    return {
        (_Storage, "to"): moved,
        (torch, "is_storage"): lambda value: isinstance(value, VirtualStorage) or is_storage(value),
        (Tensor, "pin_memory"): pin_memory,
        (Tensor, "is_pinned"): lambda self, _device=None: is_pinned(self),
    }


_pinned: dict[int, StorageWeakRef] = {}


def mark_pinned(tensor: Tensor) -> Tensor:
    """Count the memory of a CPU tensor, and so of its views, as pinned."""
    reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    _pinned[reference.cdata] = reference
    return tensor


def is_pinned(tensor: Tensor) -> bool:
    """Whether the memory of a CPU tensor counts as pinned."""
    if not _pinned:
        return False
    reference = _pinned.get(tensor.untyped_storage()._cdata)
    return reference is not None and not reference.expired()  # type: ignore[no-untyped-call]


def forget_pinned() -> None:
    """Forget all marks."""
    _pinned.clear()
