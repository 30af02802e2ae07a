"""How a reduction is laid out on a GPU: whether blocks share a result, and how many values each thread adds up.

As `setReduceConfig` in ATen/native/cuda/Reduce.cuh does it, on a GPU with 132 multiprocessors of 2,048 threads.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.estimate import TensorSpec

_THREADS: Final = 512
_WARP: Final = 32
_VECTOR: Final = 4
#: A thread adds up to so many values before several blocks share a result.
_MOST_PER_THREAD: Final = 256
_FEWEST_PER_THREAD: Final = 16
_THREADS_AT_ONCE: Final = 132 * 2048


@dataclass(frozen=True)
class Layout:
    """`split`: several blocks share a result, and a launch of its own clears their counters; `per_thread`: values."""

    split: bool
    per_thread: int


def layout(given: TensorSpec, made: TensorSpec) -> Layout:
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
        return Layout(split=False, per_thread=per_thread)
    per_thread = _up(per_thread, height)
    blocks = results if along else _up(results // vector, width)
    spare = _THREADS_AT_ONCE // (width * height)
    if per_thread < _MOST_PER_THREAD or blocks > spare:
        return Layout(split=False, per_thread=per_thread)
    shared_by = max(min(_up(spare, blocks), _up(per_thread, _FEWEST_PER_THREAD)), _up(per_thread, _MOST_PER_THREAD))
    return Layout(split=shared_by > 1, per_thread=_up(per_thread, shared_by))


def reads_in_turn(given: TensorSpec, made: Sequence[TensorSpec]) -> tuple[int, int]:
    """How often a thread reads values and waits for them, least and most; of a trace, over any of the dimensions."""
    shape = given.shape
    results = [made[0].shape] if made else [(), shape[:-1], *(shape[place:] for place in range(1, len(shape)))]
    turns = [
        _up(layout(given, TensorSpec(shape=one, strides=(), dtype=given.dtype)).per_thread, _VECTOR) for one in results
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
