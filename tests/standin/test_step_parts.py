"""What a comparison says of variants whose times the stand-in device was told: `timed_study.py` trains them.

A step of the baseline is 60 kernels of 0.2 ms, a read of a value for which the host waits, 5 ms of the host while the
device is idle, and the small network around the loss, which is the same in all variants.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptrace.compare.study import compare
from steptrace.documents.comparison import Comparison

#: What a step may take the host in addition to its set wait: launching 60 kernels and being profiled, on a slow
#: machine. The shortest part that is set takes it 3 ms.
HOST_MS = 2.0
#: What the device does is exact but for the copy of the value that is read, and the clocks' precision.
DEVICE_MS = 0.01
DEVICE_PARTS = ("compute", "exposed_memory", "exposed_comm")
TOO_BUSY = 3
#: By variant, the parts that differ from the baseline's, in ms; `host_bound` has none, see its own test.
EXPECTED = {
    "more_kernels": {"compute": 20 * 0.2},
    "later_host": {"idle_sync": 4},
    "uploads": {"exposed_memory": 3 * 1.0},
    # The device has work for longer than the host takes: it is never idle.
    "no_sync": {"idle_sync": -5},
    "all_at_once": {"compute": -40 * 0.2, "exposed_memory": 1, "idle_sync": 3},
}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("study")
    settings = {"KERNEL_US": 200, "GAP_US": 0, "LATENCY_US": 10, "PCIE_GBS": 0.1}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("timed_study.py"), folder],
        env={**os.environ, **{f"FAKECUDA_{name}": str(value) for name, value in settings.items()}},
        capture_output=True, text=True, timeout=1500, check=False,
    )  # fmt: skip
    if done.returncode == TOO_BUSY:
        pytest.skip("other processes held up the host in every run: try it on an idle machine")
    assert done.returncode == 0, done.stderr[-2000:]
    return compare(folder / "results" / "step_parts")


def _parts_ms(comparison: Comparison, name: str) -> dict[str, float]:
    """The parts of a variant's mean profiled step."""
    variant = comparison.variant(name)
    assert variant is not None
    assert variant.overview is not None
    return {part: ns / variant.overview.steps / 1e6 for part, ns in variant.overview.parts_ns.items()}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_parts_of_a_difference_are_those_that_were_set(comparison: Comparison, name: str) -> None:
    before, after = _parts_ms(comparison, "base"), _parts_ms(comparison, name)
    assert {*DEVICE_PARTS, "idle_sync", "idle_host"} <= set(after)
    for part, ms in after.items():
        tolerance = DEVICE_MS if part in DEVICE_PARTS else HOST_MS
        assert ms - before[part] == pytest.approx(EXPECTED[name].get(part, 0), abs=tolerance), part


@pytest.mark.parametrize("name", EXPECTED)
def test_the_difference_of_the_unprofiled_steps_is_the_sum_of_what_was_set(comparison: Comparison, name: str) -> None:
    medians = comparison.step_times_ms
    assert medians[name] - medians["base"] == pytest.approx(sum(EXPECTED[name].values()), abs=HOST_MS)


def test_a_step_that_the_host_bounds_is_idle_for_the_rest_of_it(comparison: Comparison) -> None:
    """40 ms of the host beside 14.25 ms of the device, which were 12 of kernels before the sync and 5 idle after it."""
    before, after = _parts_ms(comparison, "base"), _parts_ms(comparison, "host_bound")
    busy = sum(after[part] for part in DEVICE_PARTS)
    assert after["compute"] == pytest.approx(before["compute"], abs=DEVICE_MS)
    assert after["idle_sync"] == 0
    # Here launching is not hidden behind the device's work, so that it counts in full.
    assert 40 - busy <= after["idle_host"] <= 40 - busy + 4 * HOST_MS
