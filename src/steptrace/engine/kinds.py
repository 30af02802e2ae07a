"""Groups steps into kinds: a step with a validation, a log or a rollout does more work than the other steps.

Kinds differ in the number of operators that their steps run, which is counted during the warm-up, and in their times.

This module needs only the standard library: the engine groups steps while the program runs, and commands import it for
its sentences.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from steptrace.limits import LONG_STEPS
from steptrace.periods import are_regular, period

#: The number of first steps of a program that do more than others: they compile, tune, and allocate what is kept.
FIRST_STEPS: Final = 3
#: A step is of another kind only if it takes at least this many times the median.
_FACTOR: Final = 2.0
#: The largest ratio of the numbers of operators of two steps that do the same.
_SAME_COUNT: Final = 1.1
#: A period of long steps counts only if it is at most this part of all steps: rarer ones may be the machine's.
_CHANCE: Final = 2 / 3
#: Means within this share of each other print identically.
_ROUNDED: Final = 0.01
#: Something that was seen once or never needs this many times as many steps to show how often it comes back.
_MORE: Final = 4
#: The most profiled steps, as a multiple of the number that was asked for.
_MOST_PROFILED: Final = 2


@dataclass(frozen=True)
class Kind:
    """Steps that are alike.

    Attributes:
        steps: how many steps are of this kind.
        of: the number of all steps.
        typical: the median of their values: nanoseconds, or syncs.
        share: their part of the sum of all values, 0 to 1.
        every: the period in steps; None if they come irregularly or too rarely, or if they are most of the steps.
        next_in: how many steps come before the next one of this kind; None without a period.
        operators: how many operators such a step runs; None if that is not known.
    """

    steps: int
    of: int
    typical: float
    share: float
    every: int | None = None
    next_in: int | None = None
    operators: float | None = None


def kinds_of(steps_ns: Sequence[int], operators: Sequence[int] = ()) -> tuple[Kind, ...]:
    """The kinds of steps, the usual one first; a single kind if all steps are alike, none without steps.

    Steps of one kind run the same number of operators and come back with one period. Steps that take much longer than
    others of their kind are the last kind, if together they take over a tenth of the time.

    Args:
        steps_ns: the times of the steps.
        operators: how many operators each of the steps just before them ran. A period seen there is assumed to go on.
    """
    rhythms = _rhythms(operators)
    steps = len(steps_ns)
    by_rhythm = _by_rhythm(rhythms, range(len(operators), len(operators) + steps))
    long = [numbers[n] for numbers in by_rhythm.values() for n in long_steps([steps_ns[number] for number in numbers])]
    if sum(steps_ns[number] for number in long) <= (LONG_STEPS - 1) * sum(steps_ns):
        long = []
    ran = _by_rhythm(rhythms, range(len(operators)))
    kinds = []
    for rhythm, numbers in by_rhythm.items():
        usual = [number for number in numbers if number not in long]
        every, at = rhythm or (None, 0)
        next_in = None if every is None else (at - len(operators) - steps) % every
        count = statistics.median(operators[number] for number in ran[rhythm]) if rhythms and ran[rhythm] else None
        if usual:
            kinds.append(_kind(steps_ns, usual, every, next_in, count))
    if long:
        every = period(sorted(long), steps)
        every = None if every is None or every > _CHANCE * steps else every
        kinds.append(_kind(steps_ns, long, every, None if every is None else max(long) + every - steps))
    return tuple(kinds)


def _rhythms(operators: Sequence[int]) -> list[tuple[int, int]]:
    """The rhythms of unusual numbers of operators as (period in steps, phase), the longest period first."""
    rare = unusual(operators)
    periods = [(period(numbers, len(operators)), numbers) for numbers in (rare, *_alike(rare, operators))]
    rhythms = {(steps, numbers[-1] % steps) for steps, numbers in periods if steps is not None}
    return sorted(rhythms, reverse=True)


def _alike(numbers: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    """The steps in groups of about the same count: neighbours in a group differ at most by the factor `_SAME_COUNT`."""
    groups: list[list[int]] = []
    for number in sorted(numbers, key=counts.__getitem__):
        if groups and counts[number] <= _SAME_COUNT * counts[groups[-1][-1]]:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [sorted(group) for group in groups]


def _by_rhythm(rhythms: Sequence[tuple[int, int]], steps: range) -> dict[tuple[int, int] | None, list[int]]:
    """The indices of the steps, by their rhythm. The first key is None, for steps without a rhythm."""
    groups: dict[tuple[int, int] | None, list[int]] = {rhythm: [] for rhythm in (None, *reversed(rhythms))}
    for number, step in enumerate(steps):
        groups[next(((every, at) for every, at in rhythms if (step - at) % every == 0), None)].append(number)
    return groups


def unusual(counts: Sequence[int]) -> list[int]:
    """The indices of the steps whose count is not the most frequent one (the lower one, if two are as frequent)."""
    usual = min(statistics.multimode(counts), default=None)
    return [number for number, count in enumerate(counts) if count != usual]


def long_steps(steps_ns: Sequence[int]) -> list[int]:
    """The indices of the steps that lift the mean beyond `LONG_STEPS` times the median.

    Such a step takes more than `_FACTOR` times the median, and its ratio to the longest step is closer to 1 than that
    to the median: the machine makes some short steps several times as long.
    """
    if not steps_ns:
        return []
    median = statistics.median(steps_ns)
    if statistics.mean(steps_ns) <= LONG_STEPS * median:
        return []
    least = max(_FACTOR * median, math.sqrt(median * max(steps_ns)))
    return [number for number, step_ns in enumerate(steps_ns) if step_ns > least]


def groups_by_count(counts: Sequence[int]) -> list[list[int]]:
    """The indices of the steps in groups of about equal count: first the usual steps, then the largest group."""
    rare = unusual(counts)
    usual = [number for number in range(len(counts)) if number not in rare]
    return [group for group in (usual, *sorted(_alike(rare, counts), key=len, reverse=True)) if group]


@dataclass(frozen=True)
class StepGroup:
    """Steps with about the same number of syncs.

    Attributes:
        steps: how many steps are in the group.
        of: how many steps there are in all.
        every: the period in steps; None if they come irregularly, or if they are most of the steps.
        least: the fewest syncs of a step of the group.
        most: the most syncs of a step of the group.
    """

    steps: int
    of: int
    every: int | None
    least: int
    most: int


def step_groups(
    counts: Sequence[int], by_place: Sequence[Sequence[int]] = ()
) -> tuple[tuple[StepGroup, ...], float | None]:
    """The groups of steps by their number of syncs, and the long-term mean if it differs from the mean of `counts`.

    There are no groups if all steps make the same number of syncs.

    Args:
        counts: the syncs of each step.
        by_place: the same for each place; a group has a period only if the syncs of some place come regularly.
    """
    groups = groups_by_count(counts)
    if len(groups) < 2:
        return (), None
    # A period only makes sense for a minority group.
    is_regular = are_regular(by_place)
    steps = len(counts)
    periods = [period(group, steps) if is_regular and 2 * len(group) <= steps else None for group in groups]
    of_group = [[counts[number] for number in group] for group in groups]
    long_term = _long_term_mean(of_group, periods)
    differs = long_term is not None and abs(long_term - statistics.mean(counts)) > _ROUNDED * long_term
    described = (
        StepGroup(len(values), steps, every, min(values), max(values))
        for values, every in zip(of_group, periods, strict=True)
    )
    return tuple(described), long_term if long_term and differs else None


def _long_term_mean(counts: Sequence[Sequence[int]], periods: Sequence[int | None]) -> float | None:
    """The mean count over many steps, from the period of each group; None if an unusual group has no period.

    It differs from the mean of `counts` if the steps are not a whole number of periods.
    """
    usual, *rare = (statistics.fmean(group) for group in counts)
    distances = [steps for steps in periods[1:] if steps is not None]
    if len(distances) < len(rare):
        return None
    return usual + sum((mean - usual) / steps for mean, steps in zip(rare, distances, strict=True))


def _kind(
    values: Sequence[float],
    numbers: Sequence[int],
    every: int | None,
    next_in: int | None = None,
    operators: float | None = None,
) -> Kind:
    chosen = [values[number] for number in numbers]
    total = sum(values)
    share = sum(chosen) / total if total else 0.0
    return Kind(len(chosen), len(values), statistics.median(chosen), share, every, next_in, operators)


def kind_after(kinds: Sequence[Kind], steps: int) -> int:
    """The index of the kind of the step that comes after so many more steps, by the kinds with a period."""
    regular = ((kind.every, kind.next_in or 0, number) for number, kind in enumerate(kinds) if kind.every is not None)
    ranked = sorted(regular, reverse=True)
    return next((number for every, next_in, number in ranked if (steps - next_in) % every == 0), 0)


def first_of_each(kinds: Sequence[Kind], passed: int) -> list[int]:
    """For each kind, in how many steps it comes next once `passed` more steps are over; ascending."""
    first: dict[int, int] = {}
    for steps in range(max((kind.every for kind in kinds if kind.every is not None), default=1)):
        first.setdefault(kind_after(kinds, passed + steps), steps)
    return sorted(first.values())


def window_of_each(kinds: Sequence[Kind], warmup: int, steps: int) -> tuple[int, int]:
    """The number of steps to skip, and that of the steps to profile, so that a step of each kind is profiled.

    Args:
        kinds: the kinds of the steps before.
        warmup: how many steps the profiler warms up for before it records.
        steps: the least number of steps to profile; at most twice as many are profiled.
    """
    distances = [kind.every for kind in kinds if kind.every is not None]
    if not distances:
        return 0, steps

    def missing(wait: int, count: int) -> int:
        return len(kinds) - len({kind_after(kinds, wait + warmup + number) for number in range(count)})

    choices = product(range(max(distances)), range(steps, _MOST_PROFILED * steps + 1))
    return min(choices, key=lambda choice: (missing(*choice), choice[1], choice[0]))


def per_step(kinds: Sequence[Kind], of_kind: Sequence[int], counts: Sequence[int]) -> tuple[float | None, ...]:
    """The median count of each kind, for steps that were counted elsewhere, for example in a trace.

    Args:
        kinds: as `kinds_of` gives them.
        of_kind: the index of the kind of each counted step.
        counts: the count of each of these steps.

    Returns:
        One number for each kind; None for a kind without counted steps.
    """
    by_kind = [
        [count for count, kind in zip(counts, of_kind, strict=True) if kind == index] for index in range(len(kinds))
    ]
    return tuple(float(statistics.median(values)) if values else None for values in by_kind)


def nearest(kinds: Sequence[Kind], steps_ns: Sequence[int]) -> list[int]:
    """The index of the kind that is nearest in time to each of these steps.

    A profiler makes all steps longer, so times are compared as ratios to the shortest step, which counts as usual.
    """
    longer = [math.log(kind.typical / kinds[0].typical) for kind in kinds]
    ratios = [math.log(step_ns / min(steps_ns)) for step_ns in steps_ns]
    return [min(range(len(kinds)), key=lambda kind: abs(ratio - longer[kind])) for ratio in ratios]


def to_show_period(steps: int) -> int:
    """The number of steps to ask for if something was seen only once, or never, in `steps` steps."""
    return _MORE * steps
