"""The queue of a step in closed form is what a simulation item by item says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steptrace.estimate.queue import (
    Collective,
    CopiesWait,
    CopyBeside,
    Item,
    Join,
    Sync,
    WaitForCopies,
    simulate,
    with_joins,
)
from steptrace.estimate.times import COUNT

RNG = np.random.default_rng(0)
SECONDS = RNG.uniform(1e-6, 4e-5, (12, COUNT))
LAUNCHES = RNG.integers(1, 4, 12).astype(float)
PER_LAUNCH = RNG.uniform(5e-6, 3e-5, COUNT)
DRAW = 7


def stepwise(order: list[Item | int], collectives: list[float], steps: int = 40) -> float:
    """Seconds per step of many steps in a row, item by item."""
    host = kernels = link = 0.0
    marks = []
    for _ in range(steps):
        number = 0
        for item in order:
            if isinstance(item, int):
                kernels = max(host + PER_LAUNCH[DRAW], kernels) + SECONDS[item, DRAW]
                host += LAUNCHES[item] * PER_LAUNCH[DRAW]
            elif isinstance(item, Sync):
                host = max(host, kernels)
            elif isinstance(item, Collective):
                host += PER_LAUNCH[DRAW]
                ready = kernels if item.after_kernels else 0.0
                link = max(host, ready, link) + collectives[number]
                number += 1
            else:
                kernels = max(kernels, link)
        marks.append(host if any(isinstance(item, Sync) for item in order) else max(host, kernels, link))
    return (marks[-1] - marks[steps // 2]) / (steps - 1 - steps // 2)


@settings(max_examples=30)
@given(st.lists(st.one_of(st.integers(0, 11), st.just(Sync())), min_size=1, max_size=80))
def test_a_queue_with_syncs_takes_as_long_as_item_by_item(order: list[Item | int]) -> None:
    if all(isinstance(item, Sync) for item in order):
        order = [0, *order]
    timeline = simulate(order, SECONDS, LAUNCHES, PER_LAUNCH)
    assert timeline.step[DRAW] == pytest.approx(stepwise(order, []), rel=1e-6)


@pytest.mark.parametrize("kernel_s", [10e-3, 1e-9])
def test_the_host_is_blocked_at_a_sync_until_the_kernels_before_it_have_ended(kernel_s: float) -> None:
    """Of two kernels the second starts when it is launched, or when the first has ended."""
    seconds, launch_s = np.full((1, COUNT), kernel_s), 1e-6
    timeline = simulate([0, 0, Sync()], seconds, np.ones(1), np.full(COUNT, launch_s))
    assert timeline.blocked == pytest.approx(np.full(COUNT, max(2 * kernel_s - launch_s, kernel_s)))
    assert not simulate([0, 0], seconds, np.ones(1), np.full(COUNT, launch_s)).blocked.any()


def test_a_long_queue_is_taken_together_with_little_error() -> None:
    order: list[Item | int] = [int(place) for place in RNG.integers(0, 12, 9001)]
    order.append(Sync())
    assert simulate(order, SECONDS, LAUNCHES, PER_LAUNCH).step[DRAW] == pytest.approx(stepwise(order, [], 4), rel=1e-3)


@pytest.mark.parametrize("after_kernels", [True, False])
def test_collectives_run_beside_kernels_until_they_are_joined(*, after_kernels: bool) -> None:
    send = Collective(operation="all_reduce", bytes=1.0, after_kernels=after_kernels)
    order: list[Item | int] = [0, 1, send, 2, 3, 4, send, 5, 6, Join(), 7]
    seconds = [3e-4, 2e-5]
    timeline = simulate(order, SECONDS, LAUNCHES, PER_LAUNCH, [np.full(COUNT, one) for one in seconds])
    assert timeline.step[DRAW] == pytest.approx(stepwise(order, seconds), rel=0.05)
    assert timeline.communication == pytest.approx(np.full(COUNT, sum(seconds)))
    assert (timeline.exposed > 0).all()


#: Seconds of a step's kernels and of its copy, and of a step with the copy beside the kernels, or in turn with them.
KERNELS, COPY = 2e-3, 1e-3


def _step_s(order: list[Item | int], copy_s: float = COPY) -> float:
    """A step of one kernel and one copy beside it; both are launched in no time."""
    seconds = np.array([[KERNELS] * COUNT, [copy_s] * COUNT])
    return float(simulate(order, seconds, np.ones(2), np.full(COUNT, 1e-9)).step[0])


@pytest.mark.parametrize("copy_s", [COPY, 3e-3])
@pytest.mark.parametrize("syncs", [[], [Sync()]])
def test_a_copy_one_batch_ahead_runs_beside_the_kernels(copy_s: float, syncs: list[Item]) -> None:
    order: list[Item | int] = [CopyBeside(1), WaitForCopies(later=1), 0, *syncs]
    assert _step_s(order, copy_s) == pytest.approx(max(KERNELS, copy_s), rel=1e-3)


def test_a_copy_that_the_kernels_wait_for_at_once_is_hidden_only_as_far_as_the_host_runs_ahead() -> None:
    """Without a sync the host is steps ahead; with one the copy starts when the kernels before it have ended."""
    waits: list[Item | int] = [CopyBeside(1), WaitForCopies(), 0]
    assert _step_s(waits) == pytest.approx(KERNELS, rel=1e-3)
    assert _step_s([*waits, Sync()]) == pytest.approx(KERNELS + COPY, rel=1e-3)
    assert _step_s([CopiesWait(), *waits]) == pytest.approx(KERNELS + COPY, rel=1e-3)


def test_a_copy_in_flight_at_the_end_of_a_step_with_syncs_delays_the_next_step() -> None:
    """It starts behind a kernel of 2 ms, takes 1 ms, and the next step waits for it."""
    order: list[Item | int] = [WaitForCopies(), 0, CopiesWait(), CopyBeside(1)]
    assert _step_s([*order, Sync()]) == pytest.approx(KERNELS + COPY, rel=1e-3)
    assert _step_s(order) == pytest.approx(KERNELS + COPY, rel=1e-3)


def test_without_syncs_a_step_takes_the_longer_of_host_and_kernels() -> None:
    order: list[Item | int] = [0, 1, 2]
    timeline = simulate(order, SECONDS, LAUNCHES, PER_LAUNCH)
    assert timeline.step == pytest.approx(np.maximum(SECONDS[:3].sum(axis=0), LAUNCHES[:3].sum() * PER_LAUNCH))


def test_reductions_run_beside_the_backward_pass_and_other_collectives_are_waited_for_at_once():
    reduced = Collective(operation="all_reduce", bytes=1.0)
    gathered = Collective(operation="all_gather", bytes=1.0, after_kernels=False)
    sync = Sync()
    join = Join()
    forward = [([gathered], False), ([0], False)]
    backward = [([1], True), ([reduced], True), ([gathered], True), ([2], True), ([sync], True)]
    after = [([], False), ([3, 4], False), ([reduced], False)]
    assert list(with_joins([*forward, *backward, *after])) == [
        *(gathered, join, 0),
        *(1, reduced, gathered, join, 2, sync),
        *(join, 3, 4, reduced, join),
    ]
    assert list(with_joins(backward)) == [1, reduced, gathered, join, 2, sync, join]
