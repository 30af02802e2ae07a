"""What comes back at one distance. Needs nothing but the standard library."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

#: With two steps a period is one distance; it may be chance.
_LEAST_TO_REPEAT: Final = 2


def period(numbers: Sequence[int], steps: int) -> int | None:
    """The distance between these numbers of steps, in ascending order.

    None if it varies, if there is one such step alone, or if one is missing before the first or after the last of them.
    """
    distances = {later - earlier for earlier, later in pairwise(numbers)}
    if len(numbers) < _LEAST_TO_REPEAT or len(distances) > 1:
        return None
    (distance,) = distances
    return distance if numbers[0] < distance and steps - numbers[-1] <= distance else None


def are_regular(by_place: Sequence[Sequence[int]]) -> bool:
    """Whether each place has its counts in all steps, or in steps at one distance.

    Two places that have something once can look as if it came back, if only their sum is looked at.
    """
    return all(_is_regular(counts) for counts in by_place)


def _is_regular(counts: Sequence[int]) -> bool:
    steps = [number for number, count in enumerate(counts) if count]
    return len(steps) in (0, len(counts)) or period(steps, len(counts)) is not None
