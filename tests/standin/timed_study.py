"""A study whose parts take set times on the stand-in device: `python timed_study.py FOLDER` trains its variants.

The loss is where its variants differ: so many kernels, an upload, a read of a value, and a wait of the host. FOLDER
gets what the workflow leaves of a study: study.json, and of each variant a run with its summary.
"""

import contextlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from steptrace.commands.follow_study import named_study
from steptrace.jobs.supervise import Job, supervise
from steptrace.run_folder import read_steps
from steptrace.workflow.run_summary import summarize_run

STUDY = "step_parts"
STEPS = 8
#: How often the variants are recorded.
RUNS = 2
#: How often a run is tried, and how far apart its step times may lie; then the exit code is `TOO_BUSY`.
TRIES = 5
QUIET_NS = 2_000_000
TOO_BUSY = 3
#: Milliseconds of a kernel, and of one upload of `UPLOAD` bytes at the rate that the test sets.
KERNEL_MS = 0.2
UPLOAD_MS = 1.0
UPLOAD = 100_000
#: What the loss does in a step: kernels, uploads from pageable memory, whether a value is read, ms that the host waits.
PARTS: dict[str, dict[str, Any]] = {
    "base": {"kernels": 60, "uploads": 0, "read": True, "host_ms": 5},
    "more_kernels": {"kernels": 80, "uploads": 0, "read": True, "host_ms": 5},
    "later_host": {"kernels": 60, "uploads": 0, "read": True, "host_ms": 9},
    "uploads": {"kernels": 60, "uploads": 3, "read": True, "host_ms": 5},
    "no_sync": {"kernels": 60, "uploads": 0, "read": False, "host_ms": 5},
    "host_bound": {"kernels": 60, "uploads": 0, "read": False, "host_ms": 40},
    "all_at_once": {"kernels": 20, "uploads": 1, "read": True, "host_ms": 8},
}


class TimedLoss(nn.Module):
    """Kernels, a read of a value, uploads, then a wait of the host, and the mean of the outputs."""

    def __init__(self, kernels: int, uploads: int, host_ms: float, *, read: bool) -> None:
        super().__init__()
        self.kernels = kernels
        self.uploads = uploads
        self.host_ms = host_ms
        self.read = read
        self.numbers: Tensor | None = None

    def forward(self, outputs: Tensor, _: Tensor) -> Tensor:
        """The loss of a step, after all that takes time."""
        if self.numbers is None:
            self.numbers = torch.zeros(64, device=outputs.device)
            self.on_device = torch.zeros(UPLOAD, dtype=torch.uint8, device=outputs.device)
            self.on_host = torch.zeros(UPLOAD, dtype=torch.uint8)
        for _number in range(self.kernels):
            self.numbers.add_(1)
        if self.read:
            self.numbers[0].item()
        for _number in range(self.uploads):
            self.on_device.copy_(self.on_host)
        end = time.perf_counter() + self.host_ms / 1e3
        time.sleep((self.host_ms - 1) / 1e3)  # a process of this priority that never rests is held up by the system
        while time.perf_counter() < end:
            pass
        return outputs.mean()


OVERRIDES = [
    "model=timed", "loss=timed", "data=random_images", "data.dataset.classes=4", "data.batch_size=2", "data.pool=2",
    "data.num_workers=0", "data.prefetch_factor=null", "data.persistent_workers=false", "data.pin_memory=true",
    "data.non_blocking=true", "scale.warmup_steps=3", f"scale.timed_steps={STEPS}", "scale.section_steps=0",
    "scale.input_steps=0", "profile=light", f"profile.active={STEPS}",
    f"python_path=[{Path(__file__).parent}]",
]  # fmt: skip


def write_config(folder: Path) -> None:
    """Write the study, and its model and loss, as configuration of the working directory `folder`."""
    documents = {
        "model/timed": {"_target_": "torch.nn.Conv2d", "in_channels": 3, "out_channels": 4, "kernel_size": 3},
        "loss/timed": {"_target_": "timed_study.TimedLoss", **PARTS["base"]},
        f"study/{STUDY}": {
            "title": "Parts of known length",
            "baseline": "base",
            "overrides": OVERRIDES,
            "variants": {
                name: [f"loss.{key}={str(value).lower()}" for key, value in parts.items()]
                for name, parts in PARTS.items()
            },
        },
    }
    for name, document in documents.items():
        path = folder / "config" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(document))


def train(config: Path, out: Path, repeat: int) -> bool:
    """One run of a variant; whether no other process held up its host."""
    ((_, status),) = supervise([Job(out, variant=config, repeat=repeat)])
    assert status.status == "ok", status
    steps = read_steps(out)
    spreads = [
        float(times.max() - times.min()) for _, times in steps[steps["phase"] != "warmup"].groupby("phase")["step_ns"]
    ]
    return max(spreads) < QUIET_NS


def main(folder: Path) -> int:
    """Train every variant `RUNS` times in turns, again where the host was held up."""
    write_config(folder)
    os.chdir(folder)
    study = named_study(STUDY, folder / "cache", {"scale": "gpu", "allow_targets": ["timed_study"]})
    results = folder / "results" / STUDY
    for name, text in replace(study, repeats=RUNS).files().items():
        (results / name).parent.mkdir(parents=True, exist_ok=True)
        (results / name).write_text(text)
    with contextlib.suppress(PermissionError):  # nothing else of the machine holds it up then
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    for repeat in range(RUNS):
        for name in PARTS:
            out = results / name / f"run{repeat}"
            if not any(train(results / name / "config.yaml", out, repeat) for _ in range(TRIES)):
                return TOO_BUSY
            summarize_run(out, out / "summary.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
