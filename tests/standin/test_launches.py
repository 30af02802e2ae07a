"""Launches per step and peak memory as an estimate has them, against PyTorch's CUDA host code on the stand-in device.

Libraries' workspaces, which no estimate has, are switched off. A value that a kernel would have computed reads as 0 or
False in one run and as 8 or True in another, so what is launched has to be as estimated in one of them; or else in a
run of its own, where the host reads what it read in the prediction.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import idioms
import programs

_WITHOUT_WORKSPACES = {"CUBLAS_WORKSPACE_CONFIG": ":0:0", "CUBLASLT_WORKSPACE_SIZE": "0", "HF_HUB_OFFLINE": "1"}
_SMALL = {"FAKECUDA_COMPUTED_SIZE": "0", "FAKECUDA_COMPUTED_BOOL": "0"}
#: As many as the idioms' sparse tensors have values.
_FEW = {"FAKECUDA_COMPUTED_SIZE": "3", "FAKECUDA_COMPUTED_BOOL": "1"}
_MIXED = {"FAKECUDA_COMPUTED_SIZE": "8", "FAKECUDA_COMPUTED_BOOL": "0"}
_LARGE = {"FAKECUDA_COMPUTED_SIZE": "8", "FAKECUDA_COMPUTED_BOOL": "1"}
#: Launches of an estimate alone. One needs a sum that the device reads as 0, as it lies behind others in a tensor:
#: nothing is selected. For a device other than CUDA's own, PyTorch adds up in a wider type in the other, and casts.
_NOT_ON_DEVICE = {"x.repeat_interleave(i)": 1, "back(lambda t: t.renorm(2, 0, 1.0), (4, 4))": 1}
#: Launches of the device alone. Estimates assume cuDNN, where a convolution is one kernel. Without it, PyTorch fills
#: the result, and unfolds and multiplies each image by itself. A sparse tensor by coordinates is copied to be
#: transposed, which for any other tensor is a view.
_NOT_ESTIMATED = {
    "sp().t()": 6,
    "with torch.backends.cudnn.flags(enabled=False): F.conv2d(img, torch.zeros(3, 3, 3, 3, device=d))": 4,
}
NAMES = [name for name, program in programs.PROGRAMS.items() if programs.available(program.needs)]
#: A step that holds less is a matter of some blocks of 512 bytes.
LEAST_PEAK = 2**20
#: What layouts, sizes and arguments change by so many launches of an operator is in no estimate.
LEFT_OUT = 2


def _run(mode: str, settings: dict[str, str], *names: str) -> dict[str, dict[str, Any]]:
    # In a process of its own: PyTorch prefers a registered backend over CUDA.
    here = Path(__file__)
    paths = os.pathsep.join([str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, here.with_name("launches.py"), mode, *names],
        env={**os.environ, **_WITHOUT_WORKSPACES, **settings, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["name"]: row for row in rows}


@pytest.fixture(scope="module")
def launched() -> list[dict[str, dict[str, Any]]]:
    return [_run("device", settings) for settings in (_MIXED, _LARGE)]


@pytest.fixture(scope="module")
def predicted() -> dict[str, dict[str, Any]]:
    return _run("predict", {})


def _count(row: dict[str, Any]) -> int:
    return sum(row["launches"].values())


def _count_of_reads(row: dict[str, Any], *options: str) -> int:
    """Launches where the host reads what it read in the prediction."""
    values = {"FAKECUDA_COMPUTED_VALUES": ",".join(row["reads"])}
    return _count(_run("device", {**_LARGE, **values}, *options, row["name"])[row["name"]])


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_launches_are_as_predicted(
    name: str, launched: list[dict[str, dict[str, Any]]], predicted: dict[str, dict[str, Any]]
) -> None:
    estimated = _count(predicted[name])
    counts = [_count(run[name]) for run in launched if "error" not in run[name]]
    if not any(estimated == pytest.approx(count, rel=0.02, abs=2 * LEFT_OUT) for count in counts):
        assert estimated == pytest.approx(_count_of_reads(predicted[name]), rel=0.02, abs=2 * LEFT_OUT), counts


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_peak_memory_is_as_predicted(
    name: str, launched: list[dict[str, dict[str, Any]]], predicted: dict[str, dict[str, Any]]
) -> None:
    peaks = [run[name]["peak"] for run in launched if "error" not in run[name]]
    if max(peaks) >= LEAST_PEAK:
        assert any(predicted[name]["peak"] == pytest.approx(peak, rel=0.05) for peak in peaks), peaks
    else:
        assert predicted[name]["peak"] < LEAST_PEAK


def _is_near(row: dict[str, Any], counts: list[int]) -> bool:
    return any(abs(_count(row) - count) <= LEFT_OUT for count in counts)


@pytest.mark.timeout(1800)
def test_idioms_launch_as_estimated() -> None:
    estimated = _run("predict", {}, "--idioms")
    runs = [_run("device", settings, "--idioms") for settings in (_SMALL, _FEW, _LARGE)]
    failing = set()
    differing = {}
    exact = 0
    for code, row in estimated.items():
        more = _NOT_ON_DEVICE.get(code, 0) - _NOT_ESTIMATED.get(code, 0)
        counts = [_count(run[code]) + more for run in runs if not run[code]["error"]]
        if not counts:
            failing.add(code)
        elif not _is_near(row, counts) and not _is_near(row, [_count_of_reads(row, "--idiom")]):
            differing[code] = _count(row), counts
        exact += bool(counts) and _count(row) in counts
    assert differing == {}
    assert exact > 0.8 * len(estimated)
    table = {idiom.code for idiom in idioms.read_table()}
    assert estimated.keys() == table
    assert _NOT_ON_DEVICE.keys() | _NOT_ESTIMATED.keys() <= table
    assert len(failing) < 0.02 * len(table)
