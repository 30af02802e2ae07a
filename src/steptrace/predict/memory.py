"""The memory of the virtual GPU during a prediction, and marks on tensors of the host: pinned, or with assumed values.

The GPU's memory is the sum of the live storages, rounded as CUDA's caching allocator does
(`c10/cuda/CUDACachingAllocator.cpp`). Blocks are multiples of 512 bytes. From 10 MiB on, a block has its own segment in
steps of 2 MiB, and a rest of up to 1 MiB is not split off. Which free block the allocator takes is not followed.
"""

import weakref
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.pytorch import storage_key

_BLOCK: Final = 512
_OWN_SEGMENT: Final = 10 * 2**20
_STEP: Final = 2 * 2**20
_KEPT_REST: Final = 2**20


class Allocator:
    """One GPU's memory in bytes.

    Attributes:
        live: the allocated bytes.
        peak: the most allocated bytes since the prediction's last `reset_peak`.
        program_peak: the same since the program's last `torch.cuda.reset_peak_memory_stats()`.
        reserved: what the allocator has taken from the device and keeps for later tensors, without its fragmentation.
        program_reserved_peak: the highest of these, as `program_peak`.
    """

    def __init__(self) -> None:
        self.live = 0
        self.peak = 0
        self.program_peak = 0
        self.reserved = 0
        self.program_reserved_peak = 0

    def allocate(self, nbytes: int) -> None:
        """Count a new block."""
        size = block_bytes(nbytes)  # no call within the sum: another thread may run meanwhile
        self.live += size
        self.peak = max(self.peak, self.live)
        self.program_peak = max(self.program_peak, self.live)
        self.reserved = max(self.reserved, _up(self.live, _STEP))
        self.program_reserved_peak = max(self.program_reserved_peak, self.reserved)

    def free(self, nbytes: int) -> None:
        """Give a block back, which had been allocated for `nbytes`."""
        size = block_bytes(nbytes)
        self.live -= size

    def reset_peak(self) -> None:
        """Forget the peak of the prediction."""
        self.peak = self.live

    def reset_program_peak(self) -> None:
        """Reset the peaks that the program can read, as `torch.cuda.reset_peak_memory_stats` does."""
        self.program_peak = self.live
        self.program_reserved_peak = self.reserved

    def give_back(self) -> None:
        """Return what no tensor needs to the device, as `torch.cuda.empty_cache` does."""
        self.reserved = _up(self.live, _STEP)


def block_bytes(nbytes: int) -> int:
    """Bytes of the block that a storage of so many bytes gets."""
    size = max(_BLOCK, _up(nbytes, _BLOCK))
    segment = _up(size, _STEP)
    return segment if size >= _OWN_SEGMENT and segment - size <= _KEPT_REST else size


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


_allocators: dict[int, Allocator] = {}
#: The live storages, by identity.
_tracked: dict[int, weakref.ref[Any]] = {}


def allocator(gpu: int = 0) -> Allocator:
    """The allocator of a virtual GPU; tensors may outlive a prediction, so it does, too."""
    if gpu not in _allocators:
        _allocators[gpu] = Allocator()
    return _allocators[gpu]


def track(tensor: Any, gpu: int) -> None:
    """Count the storage of a tensor inside a virtual one from now on until it is freed."""
    storage = tensor.untyped_storage()
    key = storage_key(storage)
    nbytes = storage.nbytes()
    memory = allocator(gpu)
    if key in _tracked or not nbytes:
        return
    memory.allocate(nbytes)

    def freed(_: object) -> None:
        if _tracked.pop(key, None) is not None:
            memory.free(nbytes)

    _tracked[key] = weakref.ref(storage, freed)


def is_same_memory(tensor: Tensor, other: Tensor) -> bool:
    """Whether a copy of one to the other, or a comparison, is left out, as the outcome is clear; also of meta tensors.

    `Tensor.is_set_to` is not implemented for those.
    """
    if tensor.layout is not torch.strided or other.layout is not torch.strided or tensor.dtype != other.dtype:
        return False
    if tensor.is_nested or other.is_nested:
        return False
    same_storage = storage_key(tensor.untyped_storage()) == storage_key(other.untyped_storage())
    same_place = tensor.storage_offset() == other.storage_offset() and tensor.stride() == other.stride()
    return same_storage and same_place and tensor.shape == other.shape


class Marks:
    """Memory of the CPU that has a mark, for as long as it lives."""

    def __init__(self) -> None:
        self._storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        #: The ends of the marked stretches of addresses, by their beginnings.
        self._ranges: dict[int, int] = {}

    def add(self, tensor: Tensor) -> Tensor:
        """Mark the memory of a tensor, and so of its views; return the tensor."""
        if not tensor.is_meta and tensor.layout is torch.strided:
            self._storages.add(tensor.untyped_storage())
        return tensor

    def add_range(self, pointer: int, nbytes: int) -> None:
        """Mark a stretch of addresses, until it is discarded."""
        self._ranges[pointer] = pointer + nbytes

    def discard_range(self, pointer: int) -> None:
        """Take the mark from the stretch that begins there."""
        self._ranges.pop(pointer, None)

    def __bool__(self) -> bool:
        return bool(self._storages) or bool(self._ranges)

    def __contains__(self, tensor: Tensor) -> bool:
        if tensor.layout is not torch.strided:
            return False
        if tensor.untyped_storage() in self._storages:
            return True
        return bool(self._ranges) and any(
            begin <= tensor.untyped_storage().data_ptr() < end for begin, end in self._ranges.items()
        )

    def discard(self, tensor: Tensor) -> None:
        """Take the mark from the memory of a tensor."""
        self._storages.discard(tensor.untyped_storage())

    def clear(self) -> None:
        """Forget all marks."""
        self._storages.clear()
        self._ranges.clear()


#: Host memory that is the target of a non-blocking copy from the device, while no sync has followed the copy.
UNFINISHED: Final = Marks()
#: Memory that counts as pinned: CPU builds of PyTorch cannot pin, and pinning decides whether a copy waits.
PINNED: Final = Marks()
