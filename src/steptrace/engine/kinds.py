"""Steps grouped by what they do: a validation, a log or a rollout every n-th step makes steps of another kind.

They are told apart by their operators, counted during the warm-up, and by their times.

Needs nothing but the standard library: the engine groups steps while the program runs, the commands for their words.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from steptrace import format as fmt

#: The first steps of a program do more than others: what is compiled, tuned and allocated for good.
FIRST_STEPS: Final = 3
#: A step that takes less than this many times the median is no other kind.
_FACTOR: Final = 2.0
#: Mean and median that lie further apart stand side by side, and the kinds of steps with them.
DIFFERENT: Final = 1.1
#: With two steps a period is one distance; it may be chance.
_LEAST_TO_REPEAT: Final = 2
#: Means that differ by less are the same figure.
_ROUNDED: Final = 0.01
#: How many times as many steps show how often something comes back that was seen once.
_MORE: Final = 4


@dataclass(frozen=True)
class Kind:
    """Steps that are alike.

    Attributes:
        steps: their number.
        of: of how many.
        typical: the median of their values: nanoseconds, or syncs.
        share: their part of the sum of all values, 0 to 1.
        every: each how many-th step is one of them; None: not regularly, seen too rarely to say, or most steps are.
    """

    steps: int
    of: int
    typical: float
    share: float
    every: int | None = None


def kinds_of(steps_ns: Sequence[int], operators: Sequence[int] = ()) -> tuple[Kind, ...]:
    """Usual steps and the others (`other_steps`); one kind alone where all are alike, none without steps."""
    if not steps_ns:
        return ()
    others = other_steps(steps_ns, operators)
    if not others:
        return (_kind(steps_ns, range(len(steps_ns))),)
    usual = [number for number in range(len(steps_ns)) if number not in set(others)]
    return (_kind(steps_ns, usual), _kind(steps_ns, others))


def other_steps(steps_ns: Sequence[int], operators: Sequence[int] = ()) -> list[int]:
    """The indices of the steps that do something else than most, by their operators or else by their times.

    Args:
        steps_ns: the times of the steps.
        operators: how many operators each of the steps just before them ran; where a number other than the usual one
            comes back at one distance, it goes on so.
    """
    more = unusual(operators)
    if (every := period(more, len(operators))) is not None:
        return [number for number in range(len(steps_ns)) if (len(operators) + number - more[-1]) % every == 0]
    return long_steps(steps_ns)


def unusual(operators: Sequence[int]) -> list[int]:
    """The indices of the steps whose number of operators is not the most frequent one; of equals the lower is that."""
    usual = min(kinds_by_count(operators), key=lambda kind: (-kind.steps, kind.typical), default=None)
    return [] if usual is None else [number for number, count in enumerate(operators) if count != usual.typical]


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


def kinds_by_count(counts: Sequence[int]) -> tuple[Kind, ...]:
    """Steps with the same count, the most frequent first."""
    numbers = {count: [i for i, other in enumerate(counts) if other == count] for count in counts}
    return tuple(_kind(counts, numbers[count]) for count in sorted(numbers, key=lambda count: -len(numbers[count])))


def counts_in_words(counts: Sequence[int]) -> str:
    """How many steps make how many syncs; empty where all make the same, and without any."""
    kinds = kinds_by_count(counts)
    if len(kinds) < 2:
        return ""
    of = (
        f"{kind.steps} of {kind.of} steps{'' if kind.every is None else f' (one every {kind.every})'}: "
        f"{fmt.plural(kind.typical, 'sync')}"
        for kind in kinds
    )
    often = _as_often_as_they_come(kinds)
    apart = often is not None and abs(often - statistics.mean(counts)) > _ROUNDED * often
    return "; ".join(of) + (f"; as often as they come, {fmt.count(often)} per step" if often and apart else "")


def _as_often_as_they_come(kinds: Sequence[Kind]) -> float | None:
    """The mean count where all but the usual steps are periodic: these may be more or fewer of those that were seen."""
    usual, *others = kinds
    if any(kind.every is None for kind in others):
        return None
    return usual.typical + sum((kind.typical - usual.typical) / (kind.every or 1) for kind in others)


def _kind(values: Sequence[float], numbers: Sequence[int]) -> Kind:
    own = [values[number] for number in numbers]
    total = sum(values)
    every = (
        period(numbers, len(values)) if 2 * len(numbers) <= len(values) else None
    )  # the others are what it is rare among
    return Kind(len(own), len(values), statistics.median(own), sum(own) / total if total else 0.0, every)


def per_step(kinds: Sequence[Kind], of_kind: Sequence[int], counts: Sequence[int]) -> tuple[float | None, ...]:
    """The median count of each kind, of steps that were counted elsewhere, such as those in a trace.

    Args:
        kinds: as `kinds_of` gives them.
        of_kind: the index of the kind of each counted step.
        counts: what was counted in each.

    Returns:
        One number a kind; None where no counted step is of that kind.
    """
    by_kind = [[n for n, k in zip(counts, of_kind, strict=True) if k == kind] for kind in range(len(kinds))]
    return tuple(float(statistics.median(own)) if own else None for own in by_kind)


def nearest(kinds: Sequence[Kind], steps_ns: Sequence[int]) -> list[int]:
    """The index of the kind that is nearest in time to each of these steps, as ratios."""
    typical = [math.log(kind.typical) for kind in kinds]
    return [min(range(len(kinds)), key=lambda k: abs(math.log(step_ns) - typical[k])) for step_ns in steps_ns]


def period(numbers: Sequence[int], of: int) -> int | None:
    """The distance between these of `of` steps; None if it varies, or one of them alone is there, or one is missing."""
    distances = {later - earlier for earlier, later in pairwise(numbers)}
    if len(numbers) < _LEAST_TO_REPEAT or len(distances) > 1:
        return None
    (every,) = distances
    return every if numbers[0] < every and of - numbers[-1] <= every else None


def until_next(numbers: Sequence[int], over: int, window: range) -> int:
    """How many steps to let pass so that one of a periodic kind lies in a window.

    Args:
        numbers: the steps of that kind so far.
        over: how many steps are over.
        window: the steps that it takes, counted from its beginning.

    Returns:
        0 where they are not periodic.
    """
    every = period(numbers, over)
    if every is None:
        return 0
    return next(wait for wait in range(every) if any((over + wait + k - numbers[-1]) % every == 0 for k in window))


def to_show_period(steps: int) -> int:
    """How many steps to ask for where something was seen once in `steps`."""
    return _MORE * steps
