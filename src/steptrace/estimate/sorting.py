"""Launches of operators that sort, as PyTorch makes them by CUB on CUDA."""

import math
from typing import Final

from steptrace.documents.operators import OperatorCalls, TensorSpec

#: CUB sorts up to so many items in one kernel: with values or keys of 8 bytes, and keys alone.
_ONE_TILE: Final = 2304
_ONE_TILE_OF_KEYS: Final = 4864
#: ATen/native/cuda/Sort.cu: up to so many elements a row is sorted by a kernel of its own; so many rows are segments.
_SHORT_ROW: Final = 4096
_OF_SHORT_ROWS: Final = 5
_SEGMENTS: Final = 128
_SEGMENTED_BITS: Final = 6
#: ATen/native/cuda/TensorTopK.cu: from so many elements a row on several blocks share one, by the number of rows.
_SHARED_ROWS: Final = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
_SHARED_ROW: Final = 400
_SORTED_IN_PLACE: Final = 4096
#: ATen/native/cuda/Embedding.cu: up to so many indices are added up without being sorted.
_UNSORTED: Final = 3072
_BYTES: Final = {"float64": 8, "int64": 8, "float16": 2, "bfloat16": 2, "int16": 2, "uint8": 1, "int8": 1, "bool": 1}


def radix_sort(count: int, bits: int, *, keys_only: bool = False) -> int:
    """Launches of a radix sort of so many items by so many bits."""
    small = _ONE_TILE_OF_KEYS if keys_only else _ONE_TILE
    return 1 if count <= small else 4 + 2 * _passes(bits, 8)


def sort(given: TensorSpec) -> int:
    """Launches of `sort` along the last dimension."""
    rows, length = _rows(given)
    bits = _bits(given)
    if length <= _SHORT_ROW:
        return _OF_SHORT_ROWS
    if rows == 1:
        return 2 + radix_sort(length, bits)
    if rows < _SEGMENTS:
        return 9 + radix_sort(rows * length, bits)
    return 2 + _passes(bits, _SEGMENTED_BITS)


def topk(given: TensorSpec, taken: int) -> int:
    """Launches of `topk` along the last dimension, its results sorted."""
    rows, length = _rows(given)
    shared_from = next((least for most, least in _SHARED_ROWS if rows <= most), _SHARED_ROW)
    search = 9 + 3 * _bits(given) // 8 if length >= shared_from else 1
    if taken <= 1:
        return search
    if taken <= _SORTED_IN_PLACE:
        return search + 1
    return search + 3 + sort(TensorSpec(shape=(rows, taken), strides=(taken, 1), dtype=given.dtype))


def unique(call: OperatorCalls) -> int:
    """Launches of `unique` of all elements; results that were not asked for are empty."""
    given = call.inputs[0]
    count = math.prod(given.shape)
    inverse = len(call.outputs) > 1 and math.prod(call.outputs[1].shape) > 0
    if given.dtype == "bool":
        return 3 + (count > _ONE_TILE_OF_KEYS) + inverse
    keys_only = not inverse and _bits(given) < 64
    return 3 + radix_sort(count, _bits(given), keys_only=keys_only) + 5 * inverse


def randperm(count: int) -> int:
    """Launches of `randperm`: as many random bits are sorted as make equal ones unlikely."""
    if count < 2:
        return 1
    bits = math.ceil(math.log2(count - (6 * count**2 + 1) / (12 * math.log(0.9))))
    return 4 + radix_sort(count, min(64, bits))


def embedding_backward(indices: int, rows: int) -> int:
    """Launches that add up the gradients of an embedding with so many rows."""
    return 2 if indices <= _UNSORTED else 11 + radix_sort(indices, max(1, rows.bit_length()))


def _rows(tensor: TensorSpec) -> tuple[int, int]:
    length = tensor.shape[-1] if tensor.shape else 1
    return math.prod(tensor.shape[:-1]), length


def _bits(tensor: TensorSpec) -> int:
    return 8 * _BYTES.get(tensor.dtype, 4)


def _passes(bits: int, at_once: int) -> int:
    return -(-bits // at_once)
