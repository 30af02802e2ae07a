"""Usual and long steps before a trace, with their share of the time and their syncs."""

import pytest
from msgspec import structs

from builders import TraceBuilder
from steptrace.analysis.input import input_wait
from steptrace.analysis.steps import alike, lengths_ns, mean_ns, step_kinds
from steptrace.documents.run import Unprofiled
from steptrace.documents.steps import StepKind

MS = 1_000_000


def timed(*steps_ms: int) -> Unprofiled:
    return Unprofiled(median_ns=0, step_ns=[ms * MS for ms in steps_ms], load_average=0.0, cpus=1)


def test_long_steps_have_their_period_share_and_syncs() -> None:
    unprofiled = timed(*[10, 10, 10, 70] * 2)
    kinds = step_kinds(alike(unprofiled, [12 * MS, 80 * MS, 11 * MS]), [3, 9, 3])
    assert kinds == (
        StepKind("usual", steps=6, of=8, median_ns=10 * MS, share=0.3, comes="mostly", syncs=3.0),
        StepKind("other", steps=2, of=8, median_ns=70 * MS, share=0.7, comes="every 4 steps", syncs=9.0),
    )
    assert mean_ns(unprofiled) == 25 * MS


def test_kinds_by_operators_take_the_syncs_of_steps_at_their_distance() -> None:
    unprofiled = structs.replace(timed(*[10] * 6), operators=(21, 21, 37, 21, 21, 37), until_recorded=4)
    kinds = step_kinds(alike(unprofiled, [12 * MS, 12 * MS, 12 * MS]), [0, 1, 0])
    assert [(kind.kind, kind.comes, kind.syncs) for kind in kinds] == [
        ("usual", "mostly", 0.0),
        ("other", "every 3 steps", 1.0),
    ]


def test_each_of_three_kinds_takes_the_syncs_of_its_steps() -> None:
    ran = [900 if number % 12 == 0 else 90 if number % 4 == 0 else 9 for number in range(24)]
    unprofiled = structs.replace(timed(*[10] * 16), operators=tuple(ran), until_recorded=4)  # the steps 44 to 48
    kinds = step_kinds(alike(unprofiled, [10 * MS] * 5), [1, 0, 0, 0, 7])
    assert [(kind.kind, kind.comes, kind.steps, kind.syncs) for kind in kinds] == [
        ("usual", "mostly", 12, 0.0),
        ("other", "every 4 steps", 2, 1.0),
        ("other 2", "every 12 steps", 2, 7.0),
    ]


def test_a_kind_that_no_profiled_step_is_of_has_no_count() -> None:
    kinds = step_kinds(alike(timed(*[10, 10, 10, 70] * 2), [12 * MS]), [3])
    assert [kind.syncs for kind in kinds] == [3.0, None]
    assert [kind.syncs for kind in step_kinds(alike(timed(10, 10, 70), [12 * MS]), None)] == [None, None]


@pytest.mark.parametrize(("steps_ms", "comes"), [((10, 10, 70), "once"), ((70, 10, 70, 10, 10, 10, 70), "irregularly")])
def test_long_steps_without_a_period_say_so(steps_ms: tuple[int, ...], comes: str) -> None:
    assert step_kinds(alike(timed(*steps_ms), [12 * MS]), None)[1].comes == comes


@pytest.mark.parametrize("unprofiled", [None, timed(), timed(10, 11, 12)])
def test_steps_that_are_alike_have_no_kinds(unprofiled: Unprofiled | None) -> None:
    assert step_kinds(alike(unprofiled, [12 * MS]), [3]) == ()


def test_a_profiled_step_is_held_against_unprofiled_ones_of_its_kind() -> None:
    """Of 32 steps four open files for 800 ms; of three profiled ones, twice as long, one does."""
    unprofiled = timed(*([20, 20, 20, 800, 20, 20, 20, 20] * 4))
    steps = alike(unprofiled, [40 * MS, 1_600 * MS, 41 * MS])
    assert steps.of_kind == (0, 1, 0)
    assert steps.ratio == pytest.approx(40.5 / 20)  # not the mean of all over the median: 28
    assert steps.unprofiled_ns == 280 * MS
    # A kind counts as often as it comes: one step of eight, not of three.
    assert steps.mean([10, 1_000, 10]) == pytest.approx((28 * 10 + 4 * 1_000) / 32)
    without = alike(unprofiled, [40 * MS, 41 * MS])
    assert (without.ratio, without.mean([1, 1])) == (pytest.approx(40.5 / 20), None)
    assert (alike(None, [MS]).ratio, alike(timed(10, 11), [20 * MS]).ratio) == (None, pytest.approx(20 / 10.5))


def test_steps_of_a_gpu_that_overlap_add_up_to_their_window() -> None:
    builder = TraceBuilder()
    for step in range(3):
        builder.step(step, step * MS, MS)
        builder.kernel(step * MS + 1_000, step * 3 * MS + 2 * MS, 3 * MS - 1_000)
    trace = builder.trace()
    assert lengths_ns(trace) == [5 * MS - 1_000, 3 * MS, 3 * MS]
    host = TraceBuilder()
    host.step(0, 0, 2 * MS)
    host.step(1, 2 * MS, 5 * MS)
    host.op("aten::mm", 0, MS)
    assert lengths_ns(host.trace()) == [2 * MS, 5 * MS]


def test_the_share_of_waiting_is_that_of_all_steps() -> None:
    """Three profiled steps of 40, 1,600 and 40 ms, which wait 4, 1,200 and 4 ms; seven of eight steps are usual."""
    builder = TraceBuilder()
    at = 0
    for step, (length, wait) in enumerate(((40, 4), (1_600, 1_200), (40, 4))):
        builder.step(step, at, length * MS)
        builder.label("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", at, wait * MS)
        builder.op("aten::mm", at + wait * MS, MS)
        at += length * MS
    trace = builder.trace()
    unprofiled = timed(*([20, 20, 20, 800, 20, 20, 20, 20] * 4))
    kinds = alike(unprofiled, lengths_ns(trace))
    weighted = input_wait(trace, unprofiled, kinds)
    assert weighted.share == pytest.approx((7 * 4 + 1_200) / (7 * 40 + 1_600))
    assert input_wait(trace).share == pytest.approx(1_208 / 1_680)
    # Where the waits of the unprofiled steps were recorded, they are the answer.
    recorded = structs.replace(unprofiled, wait_ns=tuple([2 * MS, 2 * MS, 2 * MS, 600 * MS] + [2 * MS] * 4) * 4)
    waits = input_wait(trace, recorded, kinds)
    assert (waits.unprofiled_wait_ns, waits.unprofiled_step_ns) == (round(614 / 8 * MS), round(940 / 8 * MS))
    assert waits.share == pytest.approx(614 / 940)
    assert waits.verdict == "high"
