"""The programs of `tests/programs.py` against PyTorch's CUDA host code, on the stand-in device."""

import json
import os
import subprocess
import sys

import pytest

import programs
from idioms import Counts

pytestmark = pytest.mark.timeout(1800)
NAMES = [name for name, program in programs.PROGRAMS.items() if programs.available(program.needs)]


def _run(mode: str, *, flags: bool) -> dict[str, Counts]:
    # In a process of its own: PyTorch prefers a registered backend over CUDA, and flags are read once.
    names = [name for name in NAMES if programs.PROGRAMS[name].flags is flags]
    settings = {"FAKECUDA_COMPUTED_SIZE": "8", "FAKECUDA_COMPUTED_BOOL": str(int(flags)), "HF_HUB_OFFLINE": "1"}
    if not names:
        return {}
    done = subprocess.run(
        [sys.executable, programs.__file__, mode, *names],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row.pop("name"): Counts(**row) for row in rows}


@pytest.fixture(scope="module")
def measured() -> dict[str, Counts]:
    return _run("device", flags=False) | _run("device", flags=True)


@pytest.fixture(scope="module")
def predicted() -> dict[str, Counts]:
    return _run("predict", flags=False) | _run("predict", flags=True)


@pytest.mark.parametrize("name", NAMES)
def test_the_device_does_what_is_said_of_a_program(name: str, measured: dict[str, Counts]) -> None:
    expected = programs.PROGRAMS[name].expected
    assert measured[name] == (expected.warned, expected.traced, None, False, "")


@pytest.mark.parametrize("name", NAMES)
def test_the_cuda_build_predicts_a_program(name: str, predicted: dict[str, Counts]) -> None:
    assert predicted[name] == (None, None, programs.PROGRAMS[name].expected.predicted, False, "")
