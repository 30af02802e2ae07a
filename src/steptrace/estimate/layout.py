"""How the elements of a tensor lie in memory, and how a reduction of it is laid out on a GPU.

Reductions as `setReduceConfig` in ATen/native/cuda/Reduce.cuh does it, on a GPU with 132 multiprocessors of 2,048
threads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.estimate import TensorSpec

#: Images by sample, channel, height and width, and the order of their dimensions where channels come last.
_IMAGES: Final = 4
_CHANNELS_LAST: Final = (0, 2, 3, 1)
#: Bytes of an element, where it has not 4.
_ITEM: Final = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "uint16": 2, "uint64": 8,
}  # fmt: skip


def elements(tensor: TensorSpec) -> int:
    """Elements that it shows."""
    return math.prod(tensor.shape)


def item_bytes(tensor: TensorSpec) -> int:
    """Bytes of an element."""
    return _ITEM.get(tensor.dtype, 4)


def is_contiguous(tensor: TensorSpec, order: Sequence[int] | None = None) -> bool:
    """Whether it has no gaps and its dimensions lie in this order, the last one fastest; in their own by default."""
    if not tensor.strides:  # a sparse tensor has none
        return True
    expected = 1
    for place in reversed(order or range(len(tensor.shape))):
        if tensor.shape[place] != 1 and tensor.strides[place] != expected:
            return elements(tensor) == 0
        expected *= tensor.shape[place]
    return True


def other_layouts(images: Sequence[TensorSpec], *more: TensorSpec) -> int:
    """How many of a convolution's tensors are copied: all get the layout of `images`, its input and weight."""
    last = channels_last(images)
    return sum(not (_has_channels_last(one) if last else is_contiguous(one)) for one in (*images, *more))


def channels_last(images: Sequence[TensorSpec]) -> bool:
    """Whether a convolution of these computes with the channels last."""
    return any(_has_channels_last(one) and not is_contiguous(one) for one in images)


def _has_channels_last(images: TensorSpec) -> bool:
    return len(images.shape) == _IMAGES and is_contiguous(images, _CHANNELS_LAST)


def has_gaps(tensor: TensorSpec) -> bool:
    """Whether it is dense in no order of its dimensions: a broadcast, a transposed slice."""
    expected = 1
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=False)):
        if size != 1 and stride != expected:
            return elements(tensor) > 1
        expected *= size
    return False


_THREADS: Final = 512
_WARP: Final = 32
_VECTOR: Final = 4
#: A thread adds up to so many values before several blocks share a result.
_MOST_PER_THREAD: Final = 256
_FEWEST_PER_THREAD: Final = 16
_THREADS_AT_ONCE: Final = 132 * 2048


@dataclass(frozen=True)
class ReductionLayout:
    """`split`: several blocks share a result, and a launch of its own clears their counters; `per_thread`: values."""

    split: bool
    per_thread: int


def reduction_layout(given: TensorSpec, made: TensorSpec) -> ReductionLayout:
    """The layout of the reduction of `given` to `made`."""
    results = max(1, math.prod(made.shape))
    values = math.prod(given.shape) // results
    order = _fastest_first(given)
    reduced = _reduced(given.shape, made.shape)
    along = not order or order[0] in reduced
    vector = 1 if along else next(size for size in (_VECTOR, 2, 1) if results % size == 0)
    wide, high = (values, results) if along else (results // vector, values)
    if along and values > 128 and reduced.issuperset(order):
        wide //= _VECTOR
    width, height = _block(wide, high, _THREADS // vector)
    per_thread = _up(values, width) if along else values
    if per_thread < min(height * _FEWEST_PER_THREAD, _MOST_PER_THREAD):
        return ReductionLayout(split=False, per_thread=per_thread)
    per_thread = _up(per_thread, height)
    blocks = results if along else _up(results // vector, width)
    spare = _THREADS_AT_ONCE // (width * height)
    if per_thread < _MOST_PER_THREAD or blocks > spare:
        return ReductionLayout(split=False, per_thread=per_thread)
    shared_by = max(min(_up(spare, blocks), _up(per_thread, _FEWEST_PER_THREAD)), _up(per_thread, _MOST_PER_THREAD))
    return ReductionLayout(split=shared_by > 1, per_thread=_up(per_thread, shared_by))


def reads_in_turn(given: TensorSpec, made: Sequence[TensorSpec]) -> tuple[int, int]:
    """How often a thread reads values and waits for them, least and most; of a trace, over any of the dimensions."""
    shape = given.shape
    results = [made[0].shape] if made else [(), shape[:-1], *(shape[place:] for place in range(1, len(shape)))]
    turns = [
        _up(reduction_layout(given, TensorSpec(shape=one, strides=(), dtype=given.dtype)).per_thread, _VECTOR)
        for one in results
    ]
    return min(turns), max(turns)


def _block(wide: int, high: int, most: int) -> tuple[int, int]:
    """Threads of a block in both directions, for so much work in each."""
    wide, high = (min(1 << (max(size, 1).bit_length() - 1), most) for size in (wide, high))
    height = min(high, most // min(wide, _WARP))
    return min(wide, most // height), height


def _fastest_first(tensor: TensorSpec) -> list[int]:
    """Its dimensions of more than one element, those of the smallest stride first."""
    places = [place for place, size in enumerate(tensor.shape) if size > 1]
    return sorted(places, key=lambda place: (tensor.strides[place] if tensor.strides else 0, -place))


def _reduced(given: Sequence[int], made: Sequence[int]) -> set[int]:
    """The dimensions that are reduced, as far as shapes say: the first ones where several would fit."""
    if len(given) == len(made):
        return {place for place, size in enumerate(given) if size != made[place]}
    kept: set[int] = set()
    place = len(given)
    for size in reversed(made):
        place = next((one for one in reversed(range(place)) if given[one] == size), -1)
        if place < 0:
            return set(range(len(given)))
        kept.add(place)
    return set(range(len(given))) - kept


def _up(whole: int, part: int) -> int:
    return -(-whole // part)
