"""The time left of a call is that of the jobs that are left, whatever the others took."""

import pytest

from snakemake_logger_plugin_steptrace.time_left import TimeLeft

#: Seconds of a variant's training: one takes far longer than its siblings.
LENGTHS = {"slow": 120.0, "a": 6.0, "b": 8.0, "c": 10.0}


def call(rounds: int, drawings: int) -> tuple[TimeLeft, list[tuple[float, float | None]]]:
    """A call's jobs, one at a time; returns (time left in truth, as estimated) after each job."""
    counts = {**{f"train_memory_run{number}": len(LENGTHS) for number in range(rounds)}, "draw": drawings}
    jobs = [(f"train_memory_run{number}", variant, LENGTHS[variant]) for number in range(rounds) for variant in LENGTHS]
    jobs += [("draw", "", 1.0)] * drawings
    left = TimeLeft(counts, 0.0)
    now = 0.0
    told = []
    for number, (rule, variant, length) in enumerate(jobs):
        left.begin(number, rule, variant, now)
        now += length
        left.end(number, now)
        told.append((sum(length for *_, length in jobs[number + 1 :]), left.seconds(now)))
    return left, told


def test_after_the_first_round_each_variant_counts_with_its_own_length():
    _, told = call(rounds=3, drawings=20)
    # Only the drawings, of which none has ended, are a guess: each counts as the shortest kind of training.
    for truth, estimate in told[len(LENGTHS) - 1 : -21]:
        assert estimate == pytest.approx(truth + 20 * (min(LENGTHS.values()) - 1))
    for truth, estimate in told[-20:]:
        assert estimate == pytest.approx(truth)


def test_one_long_variant_does_not_make_the_drawings_long():
    _, told = call(rounds=1, drawings=50)
    after_trainings = told[len(LENGTHS)]  # and one drawing
    assert after_trainings == (49, pytest.approx(49))


def test_a_round_that_goes_on_lacks_what_has_begun():
    left = TimeLeft({"train_memory_run0": 4, "train_memory_run1": 4}, 0.0)
    now = 0.0
    for number, (variant, length) in enumerate(LENGTHS.items()):
        left.begin(number, "train_memory_run0", variant, now)
        now += length
        left.end(number, now)
    assert left.seconds(now) == pytest.approx(144)
    left.begin(9, "train_memory_run1", "slow", now)
    assert left.seconds(now + 100) == pytest.approx(20 + 24)


def test_jobs_side_by_side_share_the_time():
    left = TimeLeft({"draw": 8}, 0.0)
    for pair in range(2):
        for number in range(2):
            left.begin(2 * pair + number, "draw", "", 10.0 * pair)
        for number in range(2):
            left.end(2 * pair + number, 10.0 * (pair + 1))
    assert left.seconds(20.0) == pytest.approx(20)


def test_nothing_is_said_before_a_job_has_ended():
    left = TimeLeft({"draw": 8}, 0.0)
    assert left.seconds(5.0) is None
    left.begin(1, "draw", "", 5.0)
    assert left.seconds(6.0) is None
