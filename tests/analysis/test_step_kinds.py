"""Usual and long steps before a trace, with their share of the time and their syncs."""

import pytest

from steptrace.analysis.step_kinds import mean_ns, step_kinds
from steptrace.documents.run import Unprofiled
from steptrace.documents.step_kinds import StepKind

MS = 1_000_000


def timed(*steps_ms: int) -> Unprofiled:
    return Unprofiled(median_ns=0, step_ns=[ms * MS for ms in steps_ms], load_average=0.0, cpus=1)


def test_long_steps_have_their_period_share_and_syncs() -> None:
    unprofiled = timed(*[10, 10, 10, 70] * 2)
    kinds = step_kinds(unprofiled, [12 * MS, 80 * MS, 11 * MS], [3, 9, 3])
    assert kinds == (
        StepKind("usual", steps=6, of=8, median_ns=10 * MS, share=0.3, comes="mostly", syncs=3.0),
        StepKind("long", steps=2, of=8, median_ns=70 * MS, share=0.7, comes="every 4 steps", syncs=9.0),
    )
    assert mean_ns(unprofiled) == 25 * MS


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
