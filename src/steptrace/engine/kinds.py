"""Steps grouped by what they do: a validation, a log or a rollout every n-th step makes steps of another kind.

They are told apart by their operators, counted during the warm-up, and by their times.

Needs nothing but the standard library: the engine groups steps while the program runs, the commands for their words.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Final

from steptrace.limits import LONG_STEPS
from steptrace.periods import are_regular, period
from steptrace.words.syncs import step_groups_in_words

#: The first steps of a program do more than others: what is compiled, tuned and allocated for good.
FIRST_STEPS: Final = 3
#: A step that takes less than this many times the median is no other kind.
_FACTOR: Final = 2.0
#: Numbers of operators that lie no further apart, as ratios, are of steps that do the same.
_SAME_COUNT: Final = 1.1
#: Long steps that lie further apart than this part of all steps may be the machine's doing.
_CHANCE: Final = 2 / 3
#: Means that differ by less are the same figure.
_ROUNDED: Final = 0.01
#: How many times as many steps show how often something comes back that was seen once, or not at all.
_MORE: Final = 4
#: How many times the steps asked for are profiled at most.
_MOST_PROFILED: Final = 2


@dataclass(frozen=True)
class Kind:
    """Steps that are alike.

    Attributes:
        steps: their number.
        of: of how many.
        typical: the median of their values: nanoseconds, or syncs.
        share: their part of the sum of all values, 0 to 1.
        every: steps from one of them to the next; None: not regularly, seen too rarely to say, or most steps are.
        next_in: how many steps come before the next one of a kind that comes regularly.
        operators: how many operators they run; None where that is not known.
    """

    steps: int
    of: int
    typical: float
    share: float
    every: int | None = None
    next_in: int | None = None
    operators: float | None = None


def kinds_of(steps_ns: Sequence[int], operators: Sequence[int] = ()) -> tuple[Kind, ...]:
    """The usual steps, and the others of each kind; one kind alone where all are alike, none without steps.

    Steps of one kind run as many operators, every so many steps. Those that are long among their like, and take over a
    tenth of the time, are the last kind.

    Args:
        steps_ns: the times of the steps.
        operators: how many operators each of the steps just before them ran; what comes back at one distance there goes
            on so.
    """
    rhythms, of = _rhythms(operators), len(steps_ns)
    by_rhythm = _by_rhythm(rhythms, range(len(operators), len(operators) + of))
    long = [numbers[n] for numbers in by_rhythm.values() for n in long_steps([steps_ns[number] for number in numbers])]
    if sum(steps_ns[number] for number in long) <= (LONG_STEPS - 1) * sum(steps_ns):
        long = []
    ran = _by_rhythm(rhythms, range(len(operators)))
    kinds = []
    for rhythm, numbers in by_rhythm.items():
        own = [number for number in numbers if number not in long]
        every, at = rhythm or (None, 0)
        next_in = None if every is None else (at - len(operators) - of) % every
        count = statistics.median(operators[number] for number in ran[rhythm]) if rhythms and ran[rhythm] else None
        kinds += [_kind(steps_ns, own, every, next_in, count)] if own else []
    if long:
        every = period(sorted(long), of)
        every = None if every is None or every > _CHANCE * of else every
        kinds.append(_kind(steps_ns, long, every, None if every is None else max(long) + every - of))
    return tuple(kinds)


def _rhythms(operators: Sequence[int]) -> list[tuple[int, int]]:
    """Where an unusual number of operators comes regularly: (steps from one to the next, phase), longest first."""
    others, of = unusual(operators), len(operators)
    periods = [(period(numbers, of), numbers) for numbers in (others, *_alike(others, operators))]
    return sorted({(every, numbers[-1] % every) for every, numbers in periods if every is not None}, reverse=True)


def _alike(numbers: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    """These steps by their counts, in groups; what differs by less than `_SAME_COUNT` times is the same."""
    groups: list[list[int]] = []
    for number in sorted(numbers, key=counts.__getitem__):
        if groups and counts[number] <= _SAME_COUNT * counts[groups[-1][-1]]:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [sorted(group) for group in groups]


def _by_rhythm(rhythms: Sequence[tuple[int, int]], steps: range) -> dict[tuple[int, int] | None, list[int]]:
    """The indices of the steps by the rhythm that they belong to; first, by None, those of none."""
    groups: dict[tuple[int, int] | None, list[int]] = {rhythm: [] for rhythm in (None, *reversed(rhythms))}
    for number, step in enumerate(steps):
        groups[next(((every, at) for every, at in rhythms if (step - at) % every == 0), None)].append(number)
    return groups


def unusual(counts: Sequence[int]) -> list[int]:
    """The indices of the steps whose count is not the most frequent one; of equals the lower is that."""
    usual = min(statistics.multimode(counts), default=None)
    return [number for number, count in enumerate(counts) if count != usual]


def long_steps(steps_ns: Sequence[int]) -> list[int]:
    """The indices of the steps that lift the mean beyond `LONG_STEPS` times the median.

    They take `_FACTOR` times the median, and are nearer to the longest than to the median, as ratios: where steps are
    short, the machine makes some several times as long.
    """
    if not steps_ns:
        return []
    median = statistics.median(steps_ns)
    if statistics.mean(steps_ns) <= LONG_STEPS * median:
        return []
    least = max(_FACTOR * median, math.sqrt(median * max(steps_ns)))
    return [number for number, step_ns in enumerate(steps_ns) if step_ns > least]


def groups_by_count(counts: Sequence[int]) -> list[list[int]]:
    """The indices of the steps with the usual count, and of the others by what is nearly the same, most first."""
    others = unusual(counts)
    usual = [number for number in range(len(counts)) if number not in others]
    return [group for group in (usual, *sorted(_alike(others, counts), key=len, reverse=True)) if group]


@dataclass(frozen=True)
class StepGroup:
    """Steps with about the same number of syncs.

    Attributes:
        steps: how many steps are in the group.
        of: how many steps there are in all.
        every: the period in which they come back; None if they come irregularly, or if they are most of the steps.
        least: the fewest syncs of one of them.
        most: the most syncs of one of them.
    """

    steps: int
    of: int
    every: int | None
    least: int
    most: int


def step_groups(
    counts: Sequence[int], by_place: Sequence[Sequence[int]] = ()
) -> tuple[tuple[StepGroup, ...], float | None]:
    """The groups of steps by their number of syncs, and the long-term mean where it differs from the mean of `counts`.

    Without groups where all steps make the same number of syncs.

    Args:
        counts: the syncs of each step.
        by_place: those of each place; without regular places no group of steps is said to come regularly.
    """
    groups, of = groups_by_count(counts), len(counts)
    if len(groups) < 2:
        return (), None
    # A period only makes sense for a minority group.
    is_regular = are_regular(by_place)
    periods = [period(group, of) if is_regular and 2 * len(group) <= of else None for group in groups]
    of_group = [[counts[number] for number in group] for group in groups]
    often = _as_often_as_they_come(of_group, periods)
    differs = often is not None and abs(often - statistics.mean(counts)) > _ROUNDED * often
    described = (
        StepGroup(len(values), of, every, min(values), max(values))
        for values, every in zip(of_group, periods, strict=True)
    )
    return tuple(described), often if often and differs else None


def counts_in_words(counts: Sequence[int], by_place: Sequence[Sequence[int]] = ()) -> str:
    """How many steps make how many syncs; empty where all make the same, and without any. See `step_groups`."""
    groups, often = step_groups(counts, by_place)
    return step_groups_in_words(map(asdict, groups), often)


def _as_often_as_they_come(counts: Sequence[Sequence[int]], periods: Sequence[int | None]) -> float | None:
    """The mean count where all but the usual steps are periodic: these may be more or fewer of those that were seen."""
    usual, *others = (statistics.fmean(one) for one in counts)
    every = [one for one in periods[1:] if one is not None]
    if len(every) < len(others):
        return None
    return usual + sum((other - usual) / distance for other, distance in zip(others, every, strict=True))


def _kind(
    values: Sequence[float],
    numbers: Sequence[int],
    every: int | None,
    next_in: int | None = None,
    operators: float | None = None,
) -> Kind:
    own = [values[number] for number in numbers]
    total = sum(values)
    share = sum(own) / total if total else 0.0
    return Kind(len(own), len(values), statistics.median(own), share, every, next_in, operators)


def kind_after(kinds: Sequence[Kind], steps: int) -> int:
    """The index of the kind of the step that comes after so many more, by the kinds that come regularly."""
    regular = ((kind.every, kind.next_in or 0, number) for number, kind in enumerate(kinds) if kind.every is not None)
    ranked = sorted(regular, reverse=True)
    return next((number for every, next_in, number in ranked if (steps - next_in) % every == 0), 0)


def first_of_each(kinds: Sequence[Kind], passed: int) -> list[int]:
    """After how many steps more the first one of each kind that comes regularly comes; `passed` have been already."""
    first: dict[int, int] = {}
    for steps in range(max((kind.every for kind in kinds if kind.every is not None), default=1)):
        first.setdefault(kind_after(kinds, passed + steps), steps)
    return sorted(first.values())


def window_of_each(kinds: Sequence[Kind], warmup: int, steps: int) -> tuple[int, int]:
    """How many steps to let pass, and how many to profile, so that one of each kind is among these.

    Args:
        kinds: of the steps before.
        warmup: the profiler's own steps before those that it records.
        steps: the least to profile; twice as many are the most.
    """
    distances = [kind.every for kind in kinds if kind.every is not None]
    if not distances:
        return 0, steps

    def missing(wait: int, count: int) -> int:
        return len(kinds) - len({kind_after(kinds, wait + warmup + number) for number in range(count)})

    choices = product(range(max(distances)), range(steps, _MOST_PROFILED * steps + 1))
    return min(choices, key=lambda choice: (missing(*choice), choice[1], choice[0]))


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
    """The index of the kind that is nearest in time to each of these steps, as ratios to the shortest of them.

    That one is usual: a profiler makes all of them longer.
    """
    longer = [math.log(kind.typical / kinds[0].typical) for kind in kinds]
    ratios = [math.log(step_ns / min(steps_ns)) for step_ns in steps_ns]
    return [min(range(len(kinds)), key=lambda kind: abs(ratio - longer[kind])) for ratio in ratios]


def to_show_period(steps: int) -> int:
    """How many steps to ask for where something was seen once in `steps`, or may come less often."""
    return _MORE * steps
