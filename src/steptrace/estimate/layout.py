"""The memory layout of tensors, and the launch configuration of reductions.

Reductions follow `setReduceConfig` in ATen/native/cuda/Reduce.cuh, for a GPU with 132 multiprocessors of 2,048 threads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.estimate import TensorSpec

#: Dimensions of images: sample, channel, height, width; and their order in memory in the channels-last layout.
_IMAGES: Final = 4
_CHANNELS_LAST: Final = (0, 2, 3, 1)
#: Bytes per element of types that do not have 4.
_ITEM: Final = {
    "float64": 8, "int64": 8, "complex64": 8, "complex128": 16, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1, "uint16": 2, "uint64": 8,
}  # fmt: skip


def elements(tensor: TensorSpec) -> int:
    """Number of elements."""
    return math.prod(tensor.shape)


def item_bytes(tensor: TensorSpec) -> int:
    """Bytes per element."""
    return _ITEM.get(tensor.dtype, 4)


def is_contiguous(tensor: TensorSpec, order: Sequence[int] | None = None) -> bool:
    """Whether a tensor has no gaps and its dimensions lie in this order in memory, the last one fastest.

    By default the order is that of its dimensions.
    """
    if not tensor.strides:  # a sparse tensor has none
        return True
    expected = 1
    for place in reversed(order or range(len(tensor.shape))):
        if tensor.shape[place] != 1 and tensor.strides[place] != expected:
            return elements(tensor) == 0
        expected *= tensor.shape[place]
    return True


def other_layouts(images: Sequence[TensorSpec], *more: TensorSpec) -> int:
    """How many of a convolution's tensors are copied to the layout that it computes in.

    `images`: its input and weight, which decide the layout; `more`: further tensors.
    """
    return sum(other_layout(tensor, images) for tensor in (*images, *more))


def other_layout(tensor: TensorSpec, images: Sequence[TensorSpec]) -> bool:
    """Whether a convolution copies this tensor to another layout; `images`: its input and weight."""
    return not (_has_channels_last(tensor) if channels_last(images) else is_contiguous(tensor))


def channels_last(images: Sequence[TensorSpec]) -> bool:
    """Whether a convolution with this input and weight computes in the channels-last layout."""
    return any(_has_channels_last(tensor) and not is_contiguous(tensor) for tensor in images)


def _has_channels_last(images: TensorSpec) -> bool:
    return len(images.shape) == _IMAGES and is_contiguous(images, _CHANNELS_LAST)


def has_gaps(tensor: TensorSpec) -> bool:
    """Whether a tensor is not dense in any order of its dimensions, such as a broadcast tensor or a slice."""
    expected = 1
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=False)):
        if size != 1 and stride != expected:
            return elements(tensor) > 1
        expected *= size
    return False


_THREADS: Final = 512
_WARP: Final = 32
_VECTOR: Final = 4
#: A thread adds up to this many values before several blocks share a result.
_MOST_PER_THREAD: Final = 256
_FEWEST_PER_THREAD: Final = 16
_THREADS_AT_ONCE: Final = 132 * 2048


@dataclass(frozen=True)
class ReductionLayout:
    """How a reduction is launched.

    Attributes:
        split: whether several blocks share a result; a separate launch then clears their counters.
        per_thread: values that each thread reads.
    """

    split: bool
    per_thread: int


def reduction_layout(source: TensorSpec, result: TensorSpec) -> ReductionLayout:
    """The launch configuration of the reduction of `source` to `result`."""
    results = max(1, math.prod(result.shape))
    values = math.prod(source.shape) // results
    order = _fastest_first(source)
    reduced = _reduced(source.shape, result.shape)
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


def reads_in_turn(source: TensorSpec, outputs: Sequence[TensorSpec]) -> tuple[int, int]:
    """The fewest and the most times that a thread of a reduction reads values and waits for them.

    Without a result, as in a trace, reductions over any of the dimensions are possible.
    """
    shape = source.shape
    results = [outputs[0].shape] if outputs else [(), shape[:-1], *(shape[place:] for place in range(1, len(shape)))]
    turns = [
        _up(
            reduction_layout(source, TensorSpec(shape=shape_of_result, strides=(), dtype=source.dtype)).per_thread,
            _VECTOR,
        )
        for shape_of_result in results
    ]
    return min(turns), max(turns)


def _block(wide: int, high: int, most: int) -> tuple[int, int]:
    """A block's threads in both directions, for the work in each and at most `most` threads."""
    wide, high = (min(1 << (max(size, 1).bit_length() - 1), most) for size in (wide, high))
    height = min(high, most // min(wide, _WARP))
    return min(wide, most // height), height


def _fastest_first(tensor: TensorSpec) -> list[int]:
    """The tensor's dimensions with more than one element, the smallest stride first."""
    places = [place for place, size in enumerate(tensor.shape) if size > 1]
    return sorted(places, key=lambda place: (tensor.strides[place] if tensor.strides else 0, -place))


def _reduced(before: Sequence[int], after: Sequence[int]) -> set[int]:
    """The reduced dimensions, from the shapes alone; if several choices fit, the first dimensions."""
    if len(before) == len(after):
        return {place for place, size in enumerate(before) if size != after[place]}
    kept: set[int] = set()
    place = len(before)
    for size in reversed(after):
        place = next((candidate for candidate in reversed(range(place)) if before[candidate] == size), -1)
        if place < 0:
            return set(range(len(before)))
        kept.add(place)
    return set(range(len(before))) - kept


def _up(whole: int, part: int) -> int:
    return -(-whole // part)
