"""Memory of a virtual GPU: the bytes of live storages, placed as CUDA's caching allocator would place them.

Sizes and pools as in `c10/cuda/CUDACachingAllocator.cpp`: blocks are multiples of 512 bytes; up to 1 MiB they come from
segments of 2 MiB, above from segments of 20 MiB or, from 10 MiB on, of their own size in steps of 2 MiB. A free block
is split where the rest is worth keeping.
"""

import bisect
import weakref
from typing import Any, Final

_MIB: Final = 2**20
_BLOCK: Final = 512
_SMALL: Final = _MIB
_SMALL_SEGMENT: Final = 2 * _MIB
_LARGE_SEGMENT: Final = 20 * _MIB
_OWN_SEGMENT: Final = 10 * _MIB
_STEP: Final = 2 * _MIB


class Allocator:
    """The blocks of one GPU; all figures in bytes.

    `live` is what is allocated now, `peak` the most of it since `reset_peak`, `reserved` what all segments take.
    """

    def __init__(self) -> None:
        self.live = self.peak = self.reserved = 0
        self._free: dict[bool, list[tuple[int, int]]] = {False: [], True: []}  # by pool: sorted (size, address)
        self._size_at: dict[int, int] = {}  # free blocks by address
        self._ending_at: dict[int, int] = {}  # their addresses by end
        self._used: dict[int, int] = {}  # size by address
        self._top = 0

    def allocate(self, nbytes: int) -> int:
        """The address of a new block: of the smallest free one that fits, else of a new segment."""
        size = max(_BLOCK, -(-nbytes // _BLOCK) * _BLOCK)
        large = size > _SMALL
        pool = self._free[large]
        position = bisect.bisect_left(pool, (size, -1))
        if position < len(pool):
            whole, address = pool[position]
            self._take(large, address)
        else:
            own = -(-size // _STEP) * _STEP
            whole = _SMALL_SEGMENT if not large else _LARGE_SEGMENT if size < _OWN_SEGMENT else own
            address = self._top
            self._top += whole + 1  # blocks of two segments are never joined
            self.reserved += whole
        rest = whole - size
        if rest > _SMALL if large else rest >= _BLOCK:
            self._put(large, address + size, rest)
        else:
            size = whole
        self._used[address] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        return address

    def free(self, address: int, nbytes: int) -> None:
        """Give a block back, which had been allocated for `nbytes`, and join it with free neighbours."""
        large = -(-nbytes // _BLOCK) * _BLOCK > _SMALL
        size = self._used.pop(address)
        self.live -= size
        if address + size in self._size_at:
            size += self._take(large, address + size)
        if address in self._ending_at:
            before = self._ending_at[address]
            size += self._take(large, before)
            address = before
        self._put(large, address, size)

    def reset_peak(self) -> None:
        """Forget the peak, as `torch.cuda.reset_peak_memory_stats` does."""
        self.peak = self.live

    def _put(self, large: bool, address: int, size: int) -> None:  # noqa: FBT001
        bisect.insort(self._free[large], (size, address))
        self._size_at[address] = size
        self._ending_at[address + size] = address

    def _take(self, large: bool, address: int) -> int:  # noqa: FBT001
        size = self._size_at.pop(address)
        del self._ending_at[address + size]
        pool = self._free[large]
        del pool[bisect.bisect_left(pool, (size, address))]
        return size


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
    of_gpu = allocator(gpu)
    block = _Block(storage, _freed)
    block.key, block.nbytes, block.of, block.address = key, nbytes, of_gpu, of_gpu.allocate(nbytes)
    _tracked[key] = block


class _Block(weakref.ref[Any]):
    """A storage that is in use, and where it lies."""

    __slots__ = ("address", "key", "nbytes", "of")

    key: int
    nbytes: int
    address: int
    of: Allocator


def _freed(block: _Block) -> None:
    if _tracked.pop(block.key, None) is not None:
        block.of.free(block.address, block.nbytes)
