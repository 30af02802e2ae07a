"""The programs of `tests/programs.py` against PyTorch's CUDA host code, on the stand-in device."""

import json
import os
import subprocess
import sys

import pytest
import torch

import programs
from idioms import Counts

pytestmark = [
    pytest.mark.standin,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not torch.cuda.is_available() or "stand-in" not in torch.cuda.get_device_name(),
        reason="needs PyTorch's CUDA build on the stand-in device",
    ),
]


def _counts(mode: str, name: str) -> Counts:
    # In a process of its own: PyTorch prefers a registered backend over CUDA, and flags are read once.
    program = programs.PROGRAMS[name]
    if not programs.available(program.needs):
        pytest.skip(f"{program.needs} is not installed")
    settings = {"FAKECUDA_COMPUTED_SIZE": "8", "FAKECUDA_COMPUTED_BOOL": str(int(program.flags)), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, programs.__file__, mode, name],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    row = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert row.pop("name") == name
    return Counts(**row)


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_the_device_does_what_is_said_of_a_program(name: str) -> None:
    expected = programs.PROGRAMS[name].expected
    assert _counts("device", name) == (expected.warned, expected.traced, None, False, "")


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_the_cuda_build_predicts_a_program(name: str) -> None:
    expected = programs.PROGRAMS[name].expected
    assert _counts("predict", name) == (None, None, expected.predicted, False, "")
