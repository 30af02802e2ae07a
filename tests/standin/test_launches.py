"""Launches per step and peak memory as an estimate has them, against PyTorch's CUDA host code on the stand-in device.

Libraries' workspaces, which no estimate has, are switched off. Other programs launch up to twice or half as much: those
with sparse tensors, gradients of products, or sizes that come from computed values.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SETTINGS = {
    "FAKECUDA_COMPUTED_SIZE": "8",
    "FAKECUDA_COMPUTED_BOOL": "0",
    "CUBLAS_WORKSPACE_CONFIG": ":0:0",
    "CUBLASLT_WORKSPACE_SIZE": "0",
}
NAMES = ["recurrent_with_lengths", "convolutions_with_spectral_norm", "causal_attention"]
#: Of so few bytes that one block more or less is more than 5 %.
SMALL = ["transformer", "ctc"]


def _run(mode: str) -> dict[str, dict[str, Any]]:
    # In a process of its own: PyTorch prefers a registered backend over CUDA.
    here = Path(__file__)
    paths = os.pathsep.join([str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, here.with_name("launches.py"), mode, *NAMES, *SMALL],
        env={**os.environ, **_SETTINGS, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["name"]: row for row in rows}


@pytest.fixture(scope="module")
def launched() -> dict[str, dict[str, Any]]:
    return _run("device")


@pytest.fixture(scope="module")
def predicted() -> dict[str, dict[str, Any]]:
    return _run("predict")


@pytest.mark.parametrize("name", [*NAMES, *SMALL])
def test_launches_are_as_predicted(
    name: str, launched: dict[str, dict[str, Any]], predicted: dict[str, dict[str, Any]]
) -> None:
    assert sum(predicted[name]["launches"].values()) == pytest.approx(
        sum(launched[name]["launches"].values()), rel=0.02
    )


@pytest.mark.parametrize("name", NAMES)
def test_peak_memory_is_as_predicted(
    name: str, launched: dict[str, dict[str, Any]], predicted: dict[str, dict[str, Any]]
) -> None:
    assert predicted[name]["peak"] == pytest.approx(launched[name]["peak"], rel=0.05)
