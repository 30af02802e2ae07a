"""Supervised trainings on four devices: as many at once as there are, each with one of its own."""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steptrace.run_folder import read_status

TRAINING = """
import sys, time
start = time.monotonic()
import torch
assert torch.cuda.device_count() == 1
torch.ones(4, device="cuda").sum()
time.sleep(1)
uuid = torch.cuda.get_device_properties(0).uuid
open(sys.argv[1], "w").write(f"{uuid} {start} {time.monotonic()}")
"""


@pytest.mark.parametrize(
    ("visible", "trainings", "devices"),
    [(None, 5, "0123"), ("3,1", 3, "13"), ("GPU-66616b65-2d63-7564-612d-646576696332", 2, "2")],
)
def test_each_training_has_a_device_of_its_own(
    tmp_path: Path, visible: str | None, trainings: int, devices: str
) -> None:
    environment = os.environ | {"FAKECUDA_DEVICES": "4", "STEPTRACE_FOLDER": str(tmp_path / "locks")}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if visible is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    command = [sys.executable, "-m", "steptrace.jobs.supervise", "--gpus", "1"]
    runs = [tmp_path / f"run{k}" for k in range(trainings)]
    begun = [
        subprocess.Popen(
            [*command, "--out", str(run), "--", sys.executable, "-c", TRAINING, str(run / "run.json")], env=environment
        )
        for run in runs
    ]
    assert [process.wait(timeout=1500) for process in begun] == [0] * trainings
    assert {read_status(run).status for run in runs} == {"ok"}
    written = [(run / "run.json").read_text().split() for run in runs]
    spans = [(uuid, float(start), float(end)) for uuid, start, end in written]
    assert {uuid[-1] for uuid, _, _ in spans} == set(devices)  # the last digit of a stand-in's UUID is its index
    for one, other in itertools.combinations(spans, 2):
        assert one[0] != other[0] or min(one[2], other[2]) <= max(one[1], other[1])


def test_cuda_refuses_tensors_of_two_devices_where_predictions_do() -> None:
    file = Path(__file__).parents[1] / "predict" / "test_predict_several_devices.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file), "-k", "cuda_refuses_it"],
        env=os.environ | {"FAKECUDA_DEVICES": "2"},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "skipped" not in done.stdout
