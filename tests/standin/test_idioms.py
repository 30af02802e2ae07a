"""The lines of `tests/idioms*.txt` against PyTorch's CUDA host code, on the stand-in device.

A value that a kernel would have computed reads as 0 or False in one run and as 8 or True in another. Code that branches
on such values takes one way in each, so a line has to hold in one of the two; where neither goes through, it says why.
"""

import json
import os
import subprocess
import sys

import pytest

import idioms
from idioms import Counts, Idiom

TABLE = idioms.read_tables()
_SMALL = {"FAKECUDA_COMPUTED_SIZE": "0", "FAKECUDA_COMPUTED_BOOL": "0"}
_LARGE = {"FAKECUDA_COMPUTED_SIZE": "8", "FAKECUDA_COMPUTED_BOOL": "1"}


def _run(mode: str, settings: dict[str, str]) -> dict[str, Counts]:
    command = [sys.executable, idioms.__file__, mode]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=1500, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row.pop("code"): Counts(**row) for row in rows}


@pytest.fixture(scope="module")
def measured() -> list[dict[str, Counts]]:
    return [_run("device", _SMALL), _run("device", _LARGE)]


@pytest.fixture(scope="module")
def predicted() -> dict[str, Counts]:
    # In a process of its own, since PyTorch prefers a registered backend over CUDA.
    return _run("predict", {})


@pytest.mark.parametrize("idiom", TABLE, ids=[idiom.code for idiom in TABLE])
def test_the_device_does_what_a_line_says(idiom: Idiom, measured: list[dict[str, Counts]]) -> None:
    runs = [run[idiom.code] for run in measured]
    through = [run for run in runs if not run.error]
    is_odd = not idiom.agrees or len(through) < len(runs)  # on a device of one size or the other
    assert is_odd if idiom.reason else idiom.agrees and through, runs[0].error
    expected = (idiom.expected.warned, idiom.expected.traced)
    assert expected in [(run.warned, run.traced) for run in through or runs]


@pytest.mark.parametrize("idiom", TABLE, ids=[idiom.code for idiom in TABLE])
def test_the_cuda_build_predicts_what_a_line_says(idiom: Idiom, predicted: dict[str, Counts]) -> None:
    counts = predicted[idiom.code]
    assert not counts.error
    assert (counts.predicted, counts.unknown) == (idiom.expected.predicted, idiom.expected.unknown)
