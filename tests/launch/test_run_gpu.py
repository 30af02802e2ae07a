"""On a GPU, or the stand-in: the syncs that `steptrace run` measures in an unchanged program are those predicted."""

import json
import sys
from pathlib import Path

import pytest
import torch

from steptrace.cli import main
from steptrace.run_folder import read_memory, read_run

FORMS = Path(__file__).with_name("forms.py")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("form", ["loader", "gan", "accumulation"])
def test_measured_syncs_are_those_predicted(tmp_path: Path, capfd: pytest.CaptureFixture[str], form: str) -> None:
    program = ["--", sys.executable, str(FORMS), form]
    out = tmp_path / "out"
    options = ["--steps", "4", "--warmup", "3", "--profile", "2", "--out", str(out)]
    assert main(["run", *options, *program]) == 0
    capfd.readouterr()
    assert main(["predict", "--json", *program]) == 0
    predicted = json.loads(capfd.readouterr().out)
    record = read_run(out / "run0")
    assert (record.device, record.clock) == ("cuda", "cuda_events")
    assert all("a gradient scaler has skipped" in warning for warning in record.warnings)
    assert record.peak_allocated_bytes
    if form == "loader":  # its batches are all of one size
        memory = read_memory(out / "run0")
        assert memory is not None
        assert "workspaces" in memory.held
        assert memory.free_bytes is not None
    (trace,) = json.loads((out / "summary.json").read_text())["traces"]
    assert trace["syncs"]["per_step"] == predicted["total"]
    measured = {(site["code"], site["count"] / len(trace["steps"])) for site in trace["syncs"]["sites"]}
    assert measured == {(site["code"], site["count"]) for site in predicted["sites"]}
    warned = json.loads((out / "run0" / "warned_syncs.json").read_text())
    assert warned["per_step"] == predicted["total"]


def test_workers_forked_in_any_phase_do_not_touch_the_gpu(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--steps", "2", "--warmup", "2", "--profile", "2", "--out", str(tmp_path / "out")]
    assert main(["run", *options, "--", sys.executable, str(FORMS), "workers"]) == 0
    assert "Exception ignored" not in capfd.readouterr().err


@pytest.mark.parametrize("form", ["ddp", "fsdp"])
def test_two_ranks_wait_where_it_is_predicted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    if "stand-in" in torch.cuda.get_device_name():
        monkeypatch.setenv("FAKECUDA_DEVICES", "2")
    elif torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = ["--", *torchrun, str(FORMS.with_name("distributed.py")), form]
    # Its 10th and 20th steps DistributedDataParallel times itself, and waits for that.
    options = ["--steps", "6", "--warmup", "5", "--profile", "2", "--out", str(tmp_path / "out")]
    assert main(["run", *options, *program]) == 0
    capfd.readouterr()
    assert main(["predict", "--json", *program]) == 0
    predicted = json.loads(capfd.readouterr().out)
    traces = json.loads((tmp_path / "out" / "summary.json").read_text())["traces"]
    assert [(trace["rank"], trace["world_size"]) for trace in traces] == [(0, 2), (1, 2)]
    assert {trace["syncs"]["per_step"] for trace in traces} == {predicted["total"]} == {0.5 if form == "ddp" else 1}
