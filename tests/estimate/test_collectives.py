"""Times of collectives by the number of GPUs: published ones, and what lies between and beyond them."""

import pytest

from steptrace.estimate.collectives import expected_seconds
from steptrace.estimate.gpus import gpu_named

LARGE = 2.0**27
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("gpu", ["A100-80", "L40S"])
def test_more_gpus_take_longer_between_and_beyond_those_that_were_measured(gpu, operation):
    found = [expected_seconds(operation, LARGE, count, gpu_named(gpu)) for count in (2, 3, 4, 8, 16, 64)]
    seconds = [one for one, _ in found]
    assert seconds == sorted(set(seconds))
    assert [source == "measured" for _, source in found] == [True] * 4 + [False] * 2


def test_another_number_of_gpus_sends_as_much_over_a_link_as_its_ring_does():
    """An all-reduce sends 2 (n - 1) / n of a message over each link: 4/3 on three GPUs, 3/2 on four."""
    four, three = (expected_seconds("all_reduce", 2.0**29, count, gpu_named("H100"))[0] for count in (4, 3))
    assert three == pytest.approx(four * (4 / 3) / (3 / 2), rel=0.02)


def test_a_gpu_without_tables_takes_those_of_its_link():
    seconds, source = expected_seconds("all_gather", LARGE, 4, gpu_named("L4"))
    measured, _ = expected_seconds("all_gather", LARGE, 4, gpu_named("RTX-PRO-6000"))
    assert source == "pcie"
    assert seconds == pytest.approx(measured * gpu_named("RTX-PRO-6000").pcie_gbs / gpu_named("L4").pcie_gbs, rel=0.1)


def test_a_collective_that_nobody_measured_has_no_time():
    with pytest.raises(KeyError):
        expected_seconds("broadcast", LARGE, 4, gpu_named("H100"))
