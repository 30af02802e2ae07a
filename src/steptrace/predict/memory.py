"""Memory of a virtual GPU: the bytes of live storages, as CUDA's caching allocator rounds them.

As in `c10/cuda/CUDACachingAllocator.cpp`: blocks are multiples of 512 bytes; from 10 MiB on a block has a segment of
its own in steps of 2 MiB, of which a rest of up to 1 MiB is not split off. Which free block is taken is not followed.
"""

import weakref
from typing import Any, Final

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
