"""Steps of several kinds are told apart by their times or counts, with how often each comes."""

from dataclasses import asdict

import pytest

from figures import figures_in
from steptrace.engine.kinds import (
    StepGroup,
    first_of_each,
    groups_by_count,
    kind_after,
    kinds_of,
    long_steps,
    nearest,
    per_step,
    step_groups,
    window_of_each,
)
from steptrace.words.syncs import step_groups_in_words

#: As CleanRL's PPO: each sixteenth step follows a rollout.
ROLLOUTS = [12, 12, 12, 710] + [12] * 15 + [710] + [12] * 12


def test_steps_that_are_alike_are_one_kind():
    (kind,) = kinds_of([10, 11, 10, 12, 10, 14])
    assert (kind.steps, kind.of, kind.share, kind.every) == (6, 6, 1.0, None)
    assert kinds_of([]) == ()


def test_rare_long_steps_are_a_kind_with_their_share_and_period():
    usual, long = kinds_of(ROLLOUTS)
    assert (usual.steps, usual.typical, long.steps, long.typical, long.every) == (30, 12, 2, 710, 16)
    assert long.share == pytest.approx(2 * 710 / (30 * 12 + 2 * 710))
    assert usual.share + long.share == pytest.approx(1)


def test_one_slow_step_that_does_not_move_the_mean_is_no_kind():
    assert long_steps([10] * 99 + [30]) == []
    assert long_steps([10] * 9 + [30]) == [9]
    assert long_steps([2, 2, 5, 2, 300, 2, 2, 6, 2, 300]) == [4, 9]  # 5 and 6 are the machine's doing


@pytest.mark.parametrize(("counts", "expected"), [
    ([11, 11, 786, 11], [[0, 1, 3], [2]]),
    ([1, 2, 1, 2], [[0, 2], [1, 3]]),
    ([3, 25, 3, 26, 3, 80, 3, 0], [[0, 2, 4, 6], [1, 3], [7], [5]]),
    ([0, 0], [[0, 1]]),
    ([], []),
])  # fmt: skip
def test_other_counts_group_where_they_are_nearly_the_same(counts, expected):
    assert groups_by_count(counts) == expected


@pytest.mark.parametrize(("over", "window", "wait"), [(32, (2, 3), 0), (26, (2, 3), 5), (26, (0, 16), 0)])
def test_a_window_waits_for_the_next_step_of_a_kind(over, window, wait):
    steps_ns = [12] * over
    steps_ns[3] = steps_ns[19] = 710  # next: 35, 51
    assert window_of_each(kinds_of(steps_ns), *window) == (wait, window[1])
    assert any((over + wait + window[0] + k - 3) % 16 == 0 for k in range(window[1]))


#: As many operators as steps run that are usual, have a validation, or a rollout.
USUAL = 40
VALIDATION = 400
ROLLOUT = 9000
TIMES = {USUAL: 10, VALIDATION: 15, ROLLOUT: 900}


def _operators(steps, validation=4, rollout=16):
    return [ROLLOUT if not n % rollout else VALIDATION if not n % validation else USUAL for n in range(1, steps + 1)]


@pytest.mark.parametrize("validation", [4, 5])
def test_three_kinds_are_distinguished_by_their_operators(validation):
    ran = _operators(72, validation=validation)
    kinds = kinds_of([TIMES[count] for count in ran[40:]], ran[:40])
    expected = [(count, ran[40:].count(count)) for count in (USUAL, VALIDATION, ROLLOUT)]
    assert [(kind.operators, kind.steps) for kind in kinds] == expected
    assert [kind.every for kind in kinds] == [None, validation, 16]
    assert [kind.typical for kind in kinds] == [10, 15, 900]
    later = _operators(150, validation=validation)[72:]
    assert [expected[kind_after(kinds, number)][0] for number in range(len(later))] == later


def test_a_kind_that_the_warm_up_did_not_show_is_distinguished_by_its_time():
    """A rollout every 16 steps, each of them also due for a validation, where operators of steps 4 to 10 are known."""
    ran = _operators(42)
    kinds = kinds_of([TIMES[count] for count in ran[10:]], ran[3:10])
    assert [(kind.steps, kind.every, kind.typical) for kind in kinds] == [(24, None, 10), (6, 4, 15), (2, 16, 900)]


def test_the_window_is_longer_where_it_then_holds_one_of_each_kind():
    ran = _operators(80)
    kinds = kinds_of([10] * 40, ran[:40])
    wait, steps = window_of_each(kinds, 2, 3)
    assert steps == 5  # from a rollout to the validation four steps later, or the other way round
    window = _operators(200)[80 + wait + 2 :][:steps]
    assert set(window) == {USUAL, VALIDATION, ROLLOUT}
    assert window_of_each(kinds, 2, 2)[1] == 2  # four would not hold one of each either


def test_counts_of_other_steps_belong_to_the_kind_nearest_in_time():
    kinds = kinds_of(ROLLOUTS)
    assert per_step(kinds, nearest(kinds, [15, 16, 800]), [11, 11, 786]) == (11, 786)
    assert per_step(kinds, nearest(kinds, [15, 16, 14]), [11, 11, 12]) == (11, None)
    assert per_step(kinds, nearest(kinds, [700, 650, 600]), [11, 11, 12]) == (11, None)  # under a profiler


def test_one_step_of_each_kind_is_watched():
    kinds = kinds_of([10] * 40, _operators(40))
    later = _operators(200)[80 + 5 :]  # five steps have been profiled
    watched = first_of_each(kinds, 5)
    assert sorted(later[number] for number in watched) == [USUAL, VALIDATION, ROLLOUT]
    assert first_of_each(kinds_of([12] * 30), 5) == first_of_each((), 0) == [0]


def test_without_a_period_no_window_waits():
    steps_ns = [12] * 30
    steps_ns[3] = steps_ns[19] = steps_ns[20] = 710
    assert window_of_each(kinds_of(steps_ns), 0, 3) == (0, 3)
    assert window_of_each(kinds_of([12] * 30), 2, 3) == (0, 3)


@pytest.mark.parametrize(("operators", "others"), [
    ([21, 37, 21, 37, 21], [0, 2, 4]),
    ([21, 21, 37, 21, 21, 37, 21], [1, 4]),
    ([21, 21, 37, 21, 21, 38, 21], [1, 4]),
    ([21, 21, 21, 37], []),
    ([21, 37, 21, 21, 37, 37], []),
    ([20, 21, 22, 23], []),
])  # fmt: skip
def test_steps_with_other_operators_at_one_distance_are_a_kind_whatever_their_time(operators, others):
    kinds = kinds_of([10, 11, 10, 10, 11], operators)
    assert [number for number in range(5) if kind_after(kinds, number - 5)] == others
    assert sum(kind.steps for kind in kinds[1:]) == len(others)


@pytest.mark.parametrize("steps_ns", [[40] + [10] * 28 + [40], [12] * 10 + [710, 12, 710] + [12] * 17])
def test_two_long_steps_at_both_ends_or_side_by_side_are_not_periodic(steps_ns):
    assert [kind.every for kind in kinds_of(steps_ns)] == [None, None]


def test_the_mean_of_syncs_is_that_of_steps_as_often_as_they_come():
    counts = [11] * 14 + [786] + [11] * 15 + [786] + [11] * 9
    groups, often = step_groups(counts)
    assert groups == (StepGroup(38, 40, None, 11, 11), StepGroup(2, 40, 16, 786, 786))
    assert often == pytest.approx(11 + (786 - 11) / 16)
    assert figures_in(step_groups_in_words(map(asdict, groups), often)) == [38, 40, 11, 2, 40, 16, 786, 59.44]
    assert step_groups([]) == step_groups([2, 2]) == ((), None)
    groups, often = step_groups([1, 0, 1, 0])
    assert groups[-1] == StepGroup(2, 4, 2, 1, 1)
    assert often is None  # the mean of the four steps is the same
    groups, _ = step_groups([3] * 9 + [72] + [3] * 9 + [78])
    assert groups[-1] == StepGroup(2, 20, 10, 72, 78)
