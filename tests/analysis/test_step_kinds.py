"""Usual and long steps before a trace, with their share of the time and their syncs."""

import pytest
from msgspec import structs

from steptrace.analysis.steps import mean_ns, step_kinds
from steptrace.documents.run import Unprofiled
from steptrace.documents.steps import StepKind

MS = 1_000_000


def timed(*steps_ms: int) -> Unprofiled:
    return Unprofiled(median_ns=0, step_ns=[ms * MS for ms in steps_ms], load_average=0.0, cpus=1)


def test_long_steps_have_their_period_share_and_syncs() -> None:
    unprofiled = timed(*[10, 10, 10, 70] * 2)
    kinds = step_kinds(unprofiled, [12 * MS, 80 * MS, 11 * MS], [3, 9, 3])
    assert kinds == (
        StepKind("usual", steps=6, of=8, median_ns=10 * MS, share=0.3, comes="mostly", syncs=3.0),
        StepKind("other", steps=2, of=8, median_ns=70 * MS, share=0.7, comes="every 4 steps", syncs=9.0),
    )
    assert mean_ns(unprofiled) == 25 * MS


def test_kinds_by_operators_take_the_syncs_of_steps_at_their_distance() -> None:
    unprofiled = structs.replace(timed(*[10] * 6), operators=(21, 21, 37, 21, 21, 37), until_recorded=4)
    kinds = step_kinds(unprofiled, [12 * MS, 12 * MS, 12 * MS], [0, 1, 0])
    assert [(kind.kind, kind.comes, kind.syncs) for kind in kinds] == [
        ("usual", "mostly", 0.0),
        ("other", "every 3 steps", 1.0),
    ]


def test_each_of_three_kinds_takes_the_syncs_of_its_steps() -> None:
    ran = [900 if number % 12 == 0 else 90 if number % 4 == 0 else 9 for number in range(24)]
    unprofiled = structs.replace(timed(*[10] * 16), operators=tuple(ran), until_recorded=4)  # the steps 44 to 48
    kinds = step_kinds(unprofiled, [10 * MS] * 5, [1, 0, 0, 0, 7])
    assert [(kind.kind, kind.comes, kind.steps, kind.syncs) for kind in kinds] == [
        ("usual", "mostly", 12, 0.0),
        ("other", "every 4 steps", 2, 1.0),
        ("other 2", "every 12 steps", 2, 7.0),
    ]


def test_a_kind_that_no_profiled_step_is_of_has_no_count() -> None:
    kinds = step_kinds(timed(*[10, 10, 10, 70] * 2), [12 * MS], [3])
    assert [kind.syncs for kind in kinds] == [3.0, None]
    assert [kind.syncs for kind in step_kinds(timed(10, 10, 70), [12 * MS], None)] == [None, None]


@pytest.mark.parametrize(("steps_ms", "comes"), [((10, 10, 70), "once"), ((70, 10, 70, 10, 10, 10, 70), "irregularly")])
def test_long_steps_without_a_period_say_so(steps_ms: tuple[int, ...], comes: str) -> None:
    assert step_kinds(timed(*steps_ms), [12 * MS], None)[1].comes == comes


@pytest.mark.parametrize("unprofiled", [None, timed(), timed(10, 11, 12)])
def test_steps_that_are_alike_have_no_kinds(unprofiled: Unprofiled | None) -> None:
    assert step_kinds(unprofiled, [12 * MS], [3]) == ()
