"""Programs of frameworks that people train with, unchanged, by the real packages: `make test-frameworks`."""

import json
import sys
from pathlib import Path

import pytest

from steptrace.cli import main
from steptrace.run_folder import read_run, read_steps

FRAMEWORKS = Path(__file__).with_name("frameworks.py")
WHY = "it is not among the test requirements: make test-frameworks"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
pytestmark = pytest.mark.frameworks

#: Each program, the package it needs, and the batches that make a step of it.
PROGRAMS = {
    "lightning": ("lightning", 2),
    "lightning_that_starts_its_ranks": ("lightning", 2),
    "transformers": ("transformers", 2),
    "accelerate": ("accelerate", 2),
    "stateful_loader": ("torchdata", 1),
    "web_loader": ("webdataset", 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_frameworks_are_measured_unchanged(tmp_path: Path, name: str) -> None:
    package, batches = PROGRAMS[name]
    pytest.importorskip(package, reason=WHY)
    out = tmp_path / "out"
    options = ["--steps", "4", "--warmup", "3", "--profile", "2", "--out", str(out), "--no-predict"]
    program = [sys.executable, str(FRAMEWORKS), name, str(tmp_path / "program")]
    assert main(["run", *options, "--", *program]) == 0
    record = read_run(out / "run0")
    steps = read_steps(out / "run0")
    assert steps.groupby("phase", sort=False).size().to_dict() == {"warmup": 2, "timed": 4, "profiled": 2}
    traces = (
        ("trace.json.gz", "trace.rank1.json.gz") if name == "lightning_that_starts_its_ranks" else ("trace.json.gz",)
    )
    assert (record.world_size, record.traces, record.warnings) == (len(traces), traces, ())
    assert record.config["step"] == {"accumulate": batches}
    assert (steps["loader_wait_ns"] > 0).all()
    trace = json.loads((out / "summary.json").read_text())["traces"][0]
    assert {label["label"] for label in trace["labels"]} >= {"data", "backward", "optimizer"}


@pytest.mark.parametrize(
    ("name", "total", "of_two_ranks", "line"),
    [
        # Of two ranks Lightning asks before each batch whether one of them is to end.
        ("lightning", 2, 6, 'self.total = getattr(self, "total", 0.0) + loss.item()'),
        ("accelerate", 4, 4, "return tensor.to(device, non_blocking=non_blocking)"),
        ("transformers", 10, 10, "return tensor.to(device, non_blocking=non_blocking)"),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_frameworks_choose_the_virtual_device_by_themselves(
    capfd, tmp_path: Path, name: str, total: int, of_two_ranks: int, line: str, ranks: int
) -> None:
    """Also as two ranks, whose gradients NCCL would reduce."""
    pytest.importorskip(name, reason=WHY)
    program = [*(TORCHRUN if ranks == 2 else ()), str(FRAMEWORKS), name, str(tmp_path)]
    assert main(["predict", "--json", "--steps", "4", "--", sys.executable, *program]) == 0
    prediction = json.loads(capfd.readouterr().out)
    assert prediction["total"] == (total, of_two_ranks)[ranks - 1]
    assert line in {site["code"] for site in prediction["sites"]}


def test_a_framework_that_starts_its_ranks_itself_is_followed_with_as_many_gpus_as_are_asked_for(
    capfd, tmp_path
) -> None:
    pytest.importorskip("lightning", reason=WHY)
    program = [sys.executable, str(FRAMEWORKS), "lightning_that_starts_its_ranks", str(tmp_path)]
    assert main(["predict", "--json", "--steps", "4", "--devices", "2", "--", *program]) == 0
    prediction = json.loads(capfd.readouterr().out)
    assert (prediction["total"], prediction["by_rank"]) == (6, [6, 6])
