"""How often something is said to happen: what happens once is no rate."""

import pytest

from documents import fill
from figures import figures_in
from steptrace.documents.prediction import PredictedStep, PredictedSync
from steptrace.documents.syncs import often
from steptrace.periods import are_regular
from steptrace.words.prediction import predicted_in_words


@pytest.mark.parametrize(
    ("by_step", "words"),
    [
        ([2, 2, 2, 2], "2"),
        ([0, 1, 0, 0], "once in 4 steps"),
        ([0, 7, 0, 0], "7 in 1 of 4 steps"),
        ([0, 1, 0, 1], "1 every 2 steps"),
        ([2, 0, 0, 2, 0, 0], "2 every 3 steps"),
        ([0, 1, 1, 0, 0, 0], "2 in 2 of 6 steps"),
        ([3], "3"),
    ],
)
def test_what_does_not_happen_in_each_step_is_told_with_its_steps(by_step: list[int], words: str) -> None:
    site = fill(PredictedSync, {"count": sum(by_step) / len(by_step), "by_step": by_step}).site
    assert site.how_often == words
    assert site.counted("read").endswith("read") is words.isdecimal()


def test_without_steps_told_apart_a_count_is_a_rate() -> None:
    assert often(0.25, None, None, None) == "0.25"
    assert fill(PredictedSync, {"count": 2}).site.in_steps is None


def prediction(*by_site: list[int]) -> PredictedStep:
    by_step = [sum(counts) for counts in zip(*by_site, strict=True)]
    sites = [{"by_step": counts} for counts in by_site]
    return fill(PredictedStep, {"total": sum(by_step) / len(by_step), "by_step": by_step, "sites": sites})


def test_two_sites_that_sync_once_are_no_rhythm() -> None:
    """Their sum comes every two steps; neither of them was seen to come back."""
    once = prediction([2, 2, 2, 2], [0, 1, 0, 0], [0, 0, 0, 1])
    assert not are_regular(once.sites_by_step)
    assert figures_in(predicted_in_words(once)) == [2.5, 10, 4]  # a step, in all, steps
    assert figures_in(predicted_in_words(prediction([2, 2, 2, 2], [0, 1, 0, 1]))) == [2.5, 10, 4]
    assert figures_in(predicted_in_words(prediction([1, 1]))) == [1]
