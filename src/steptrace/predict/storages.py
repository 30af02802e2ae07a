"""Storages of the virtual device. They say that they are on a GPU: `torch.save` and `torch.load` ask storages."""

import weakref
from typing import Any

import torch
from torch import Tensor

from steptrace.predict.syncs import Syncs


class VirtualStorage(torch.UntypedStorage):
    """Memory of the virtual device. Only Python asks it for its device: C++ sees the CPU's memory that it is."""

    gpu: int

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device as the program knows it."""
        return torch.device("cuda", self.gpu)

    def __getitem__(self, *index: Any) -> Any:
        """A byte, read from the device; or a part of the memory."""
        if index and isinstance(index[0], int):
            host_waits("d2h_copy", "reads a byte of the device's memory")
        return super().__getitem__(*index)  # type: ignore[no-untyped-call]

    def _write_file(self, *args: Any) -> Any:
        """Write the bytes into a file, as `pickle` does."""
        if self.nbytes():
            host_waits("d2h_copy", "saving copies to the host")
        return super()._write_file(*args)  # type: ignore[no-untyped-call]

    def _set_from_file(self, *args: Any) -> Any:
        """Fill the memory from a file, as `pickle` does."""
        if self.nbytes():
            host_waits("h2d_copy", "a blocking copy to the device")
        return super()._set_from_file(*args)  # type: ignore[no-untyped-call]


VirtualStorage.__name__ = torch.UntypedStorage.__name__  # as files name it


def on_device(storage: Any, gpu: int) -> torch.UntypedStorage:
    """The same storage, which counts as memory of a virtual GPU from now on."""
    storage.__class__ = VirtualStorage
    storage.gpu = gpu
    return storage  # type: ignore[no-any-return]


def zeros_in_place_of(meta: Tensor, gpu: int) -> Tensor:
    """Zeros for a tensor without values. Tensors that share their memory have zeros that share theirs: the memory of
    tied weights is saved once.
    """
    storage: Any = meta.untyped_storage()
    held: Any = getattr(storage, "saved_as", None)
    zeros = None if held is None else held()
    if zeros is None:
        zeros = on_device(torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage(), gpu)
        storage.saved_as = weakref.ref(zeros)
    empty = torch.empty(0, dtype=meta.dtype)
    return empty.set_(zeros, meta.storage_offset(), meta.size(), meta.stride())


def host_waits(kind: str, reason: str) -> None:
    """Record that the host waits for a copy of a storage, or of a part of it."""
    if Syncs.active is not None:
        Syncs.active.sync(kind, "aten::copy_", reason)
