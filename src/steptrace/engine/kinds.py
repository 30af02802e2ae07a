"""Usual steps and long ones: a validation, a rollout or a checkpoint makes some take several times as long as most.

Needs nothing but the standard library: the engine groups steps while the program runs, the commands for their words.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from steptrace import format as fmt

#: A step that takes less than this many times the median is not long.
_FACTOR: Final = 2.0
#: Mean and median that lie further apart stand side by side, and the kinds of steps with them.
DIFFERENT: Final = 1.1
#: With two steps a period is one distance; it may be chance.
_LEAST_TO_REPEAT: Final = 2
#: Long steps that lie further apart than this part of all steps may be the machine's doing.
_CHANCE: Final = 2 / 3
#: How many times as many steps show how often something comes back that was seen once, or not at all.
_MORE: Final = 4


@dataclass(frozen=True)
class Kind:
    """Steps that are alike.

    Attributes:
        steps: their number.
        of: of how many.
        typical: the median of their times in nanoseconds.
        share: their part of the time of all steps, 0 to 1.
        every: each how many-th step is one of them; None: not regularly, seen too rarely to say, or most steps are.
        next_in: how many steps come before the next one of a kind that comes regularly.
    """

    steps: int
    of: int
    typical: float
    share: float
    every: int | None = None
    next_in: int | None = None


def kinds_of(steps_ns: Sequence[int]) -> tuple[Kind, ...]:
    """The usual steps, then the long ones, which take over a tenth of the time; one kind alone where all are alike."""
    long, of = long_steps(steps_ns), len(steps_ns)
    if sum(steps_ns[number] for number in long) <= (DIFFERENT - 1) * sum(steps_ns):
        long = []
    every = period(long, of)
    every = None if every is None or every > _CHANCE * of else every
    kinds = []
    if usual := [number for number in range(of) if number not in long]:
        kinds.append(_kind(steps_ns, usual))
    if long:
        kinds.append(_kind(steps_ns, long, every, None if every is None else long[-1] + every - of))
    return tuple(kinds)


def _kind(
    steps_ns: Sequence[int], numbers: Sequence[int], every: int | None = None, next_in: int | None = None
) -> Kind:
    own = [steps_ns[number] for number in numbers]
    return Kind(len(own), len(steps_ns), statistics.median(own), sum(own) / sum(steps_ns), every, next_in)


def long_steps(steps_ns: Sequence[int]) -> list[int]:
    """The indices of the steps that lift the mean beyond `DIFFERENT` times the median.

    They take `_FACTOR` times the median, and are nearer to the longest than to the median, as ratios: where steps are
    short, the machine makes some several times as long.
    """
    if not steps_ns:
        return []
    median = statistics.median(steps_ns)
    if statistics.mean(steps_ns) <= DIFFERENT * median:
        return []
    least = max(_FACTOR * median, math.sqrt(median * max(steps_ns)))
    return [number for number, step_ns in enumerate(steps_ns) if step_ns > least]


def next_long(kinds: Sequence[Kind], passed: int) -> int | None:
    """How many steps come before the next long one, once so many have passed; None where they come irregularly."""
    regular = next((kind for kind in kinds if kind.every is not None), None)
    return None if regular is None else ((regular.next_in or 0) - passed) % (regular.every or 1)


def nearest(kinds: Sequence[Kind], steps_ns: Sequence[int]) -> list[int]:
    """The index of the kind that is nearest in time to each of these steps, as ratios to the shortest of them.

    That one is usual: a profiler makes all of them longer.
    """
    longer = [math.log(kind.typical / kinds[0].typical) for kind in kinds]
    ratios = [math.log(step_ns / min(steps_ns)) for step_ns in steps_ns]
    return [min(range(len(kinds)), key=lambda kind: abs(ratio - longer[kind])) for ratio in ratios]


def period(numbers: Sequence[int], of: int) -> int | None:
    """The distance between these of `of` steps; None if it varies, or one of them alone is there, or one is missing."""
    distances = {later - earlier for earlier, later in pairwise(numbers)}
    if len(numbers) < _LEAST_TO_REPEAT or len(distances) > 1:
        return None
    (every,) = distances
    return every if numbers[0] < every and of - numbers[-1] <= every else None


def unusual(counts: Sequence[int]) -> list[int]:
    """The indices of the steps whose count is not the most frequent one; of equals the lower is that."""
    usual = min(statistics.multimode(counts), default=None)
    return [number for number, count in enumerate(counts) if count != usual]


def counts_in_words(counts: Sequence[int]) -> str:
    """How many steps make how many syncs; empty where all make the same, and without any."""
    others, of = unusual(counts), len(counts)
    if not others:
        return ""
    usual = next(count for number, count in enumerate(counts) if number not in others)
    every = period(others, of)
    low, high = min(counts[number] for number in others), max(counts[number] for number in others)
    return (
        f"{of - len(others)} of {of} steps: {fmt.plural(usual, 'sync')}; {len(others)} of {of} steps"
        f"{'' if every is None else f' (one every {every})'}: {'' if low == high else f'{low:,} to '}"
        f"{fmt.plural(high, 'sync')}"
    )


def to_show_period(steps: int) -> int:
    """How many steps to ask for where something was seen once in `steps`, or may come less often."""
    return _MORE * steps
