"""How the elements of a tensor lie in memory."""

import math
from collections.abc import Sequence
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
