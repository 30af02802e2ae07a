"""Steps of several kinds are told apart by their times or counts, with how often each comes."""

import pytest

from steptrace.engine.kinds import counts_in_words, kinds_of, long_steps, nearest, next_long, unusual

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


@pytest.mark.parametrize(
    ("counts", "expected"), [([11, 11, 786, 11], [2]), ([1, 2, 1, 2], [1, 3]), ([0, 0], []), ([], [])]
)
def test_unusual_counts_are_those_that_are_not_the_most_frequent_one(counts, expected):
    assert unusual(counts) == expected


@pytest.mark.parametrize(("passed", "expected"), [(0, 3), (2, 1), (3, 0), (4, 15)])
def test_a_long_step_comes_again_after_its_period(passed, expected):
    assert next_long(kinds_of(ROLLOUTS), passed) == expected  # it has 32 steps, and the 36th is long


def test_steps_elsewhere_are_of_the_kind_nearest_in_time():
    kinds = kinds_of(ROLLOUTS)
    assert nearest(kinds, [15, 16, 800]) == [0, 0, 1]
    assert nearest(kinds, [15, 16, 14]) == nearest(kinds, [700, 650, 600]) == [0, 0, 0]  # under a profiler


def test_irregular_long_steps_have_no_next_one():
    steps_ns = [12] * 30
    steps_ns[3] = steps_ns[19] = steps_ns[20] = 710
    assert next_long(kinds_of(steps_ns), 0) is next_long(kinds_of([12] * 30), 0) is next_long((), 0) is None


def test_two_long_steps_at_both_ends_are_not_periodic():
    assert [kind.every for kind in kinds_of([40] + [10] * 28 + [40])] == [None, None]


def test_two_long_steps_with_one_missing_between_are_not_periodic():
    assert [kind.every for kind in kinds_of([12] * 10 + [710, 12, 710] + [12] * 17)] == [None, None]


def test_steps_with_other_counts_of_syncs_are_told_with_their_period():
    counts = [11] * 14 + [786] + [11] * 15 + [786] + [11] * 9
    assert counts_in_words(counts) == "38 of 40 steps: 11 syncs; 2 of 40 steps (one every 16): 786 syncs"
    assert counts_in_words([]) == counts_in_words([2, 2]) == ""
    assert counts_in_words([1, 0, 1, 0]).endswith("2 of 4 steps (one every 2): 1 sync")
    assert "(one every 10): 72 to 78 syncs" in counts_in_words([3] * 9 + [72] + [3] * 9 + [78])
