"""On a GPU, or the stand-in: the syncs that `steptrace run` measures in an unchanged program are those predicted."""

import json
import sys
from pathlib import Path

import pytest
import torch

from steptrace.cli import main
from steptrace.record import read_run

FORMS = Path(__file__).with_name("forms.py")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("form", ["loader", "gan", "accumulation"])
def test_measured_syncs_are_those_predicted(tmp_path: Path, capfd: pytest.CaptureFixture[str], form: str) -> None:
    program = ["--", sys.executable, str(FORMS), form]
    out = tmp_path / "out"
    options = ["--steps", "4", "--warmup", "3", "--profile", "2", "--no-report", "--out", str(out)]
    assert main(["run", *options, *program]) == 0
    capfd.readouterr()
    assert main(["predict", "--json", *program]) == 0
    predicted = json.loads(capfd.readouterr().out)
    record = read_run(out / "run0")
    assert (record.device, record.clock) == ("cuda", "cuda_events")
    assert all("a gradient scaler has skipped" in warning for warning in record.warnings)
    assert record.peak_allocated_bytes
    (trace,) = json.loads((out / "summary.json").read_text())["traces"]
    assert trace["syncs"]["per_step"] == predicted["total"]
    measured = {(site["code"], site["count"] / len(trace["steps"])) for site in trace["syncs"]["sites"]}
    assert measured == {(site["code"], site["count"]) for site in predicted["sites"]}
    warned = json.loads((out / "run0" / "warned_syncs.json").read_text())
    assert warned["per_step"] == predicted["total"]
