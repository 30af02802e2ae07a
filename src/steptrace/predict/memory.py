"""Memory during a prediction: the virtual GPU's, and marks on the host's, which counts as pinned or has assumed values.

The GPU's is the bytes of live storages, as CUDA's caching allocator rounds them (`c10/cuda/CUDACachingAllocator.cpp`):
blocks are multiples of 512 bytes; from 10 MiB on a block has a segment of its own in steps of 2 MiB, of which a rest of
up to 1 MiB is not split off. Which free block is taken is not followed.
"""

import weakref
from typing import Any, Final

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

_BLOCK: Final = 512
_OWN_SEGMENT: Final = 10 * 2**20
_STEP: Final = 2 * 2**20
_KEPT_REST: Final = 2**20


class Allocator:
    """One GPU's memory in bytes: `live` is what is allocated now, `peak` the most of it since `reset_peak`."""

    def __init__(self) -> None:
        self.live = self.peak = 0

    def allocate(self, nbytes: int) -> None:
        """Count a new block."""
        self.live += block_bytes(nbytes)
        self.peak = max(self.peak, self.live)

    def free(self, nbytes: int) -> None:
        """Give a block back, which had been allocated for `nbytes`."""
        self.live -= block_bytes(nbytes)

    def reset_peak(self) -> None:
        """Forget the peak, as `torch.cuda.reset_peak_memory_stats` does."""
        self.peak = self.live


def block_bytes(nbytes: int) -> int:
    """Bytes of the block that a storage of so many bytes gets."""
    size = max(_BLOCK, _up(nbytes, _BLOCK))
    segment = _up(size, _STEP)
    return segment if size >= _OWN_SEGMENT and segment - size <= _KEPT_REST else size


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


_allocators: dict[int, Allocator] = {}
_tracked: dict[int, "_Block"] = {}


def allocator(gpu: int = 0) -> Allocator:
    """The allocator of a virtual GPU; tensors may outlive a prediction, so it does, too."""
    if gpu not in _allocators:
        _allocators[gpu] = Allocator()
    return _allocators[gpu]


def track(tensor: Any, gpu: int) -> None:
    """Count the storage of a tensor inside a virtual one from now on until it is freed."""
    storage = tensor.untyped_storage()
    key, nbytes = storage._cdata, storage.nbytes()
    if key in _tracked or not nbytes:
        return
    block = _Block(storage, _freed)
    block.key, block.nbytes, block.of = key, nbytes, allocator(gpu)
    block.of.allocate(nbytes)
    _tracked[key] = block


class _Block(weakref.ref[Any]):
    """A storage that is in use, and where it lies."""

    __slots__ = ("key", "nbytes", "of")

    key: int
    nbytes: int
    of: Allocator


def _freed(block: _Block) -> None:
    if _tracked.pop(block.key, None) is not None:
        block.of.free(block.nbytes)


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
