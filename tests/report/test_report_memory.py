"""The section on memory, and a study that ran out of it for real, all the way to its page."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documents import fill
from steptrace.compare.study import compare
from steptrace.documents.base import write
from steptrace.documents.memory import DeviceMemory
from steptrace.files import write_json
from steptrace.findings import with_findings
from steptrace.record import read_status
from steptrace.report.draw.memory import category_bars, memory_curve
from steptrace.report.notebook import render_study

MIB = 2**20
ENTRY = {
    "device_type": "cuda",
    "peak_allocated_bytes": 180 * MIB,
    "peak_reserved_bytes": 200 * MIB,
    "before_bytes": 10 * MIB,
    "capacity_bytes": 1000 * MIB,
    "capacity_source": "device",
    "headroom_bytes": 800 * MIB,
    "fragmentation": 0.25,
    "complete": True,
    "by_category": {"parameters": 10 * MIB, "activations": 170 * MIB, "unknown": 0},
    "curve": [[0, 10 * MIB, 200 * MIB], [5, 180 * MIB, 200 * MIB], [9, 10 * MIB, 200 * MIB]],
    "peak_ts": 5,
}


def text_of(page):
    return " ".join(re.sub("<[^>]+>", " ", page).split())


def test_figures_of_nothing_are_none():
    assert memory_curve(fill(DeviceMemory, {**ENTRY, "curve": []}), "x") is None
    assert category_bars([("x", {})], "") is None


CONFIG = """
study: oom
variant: base
digest: d
seed: 0
device: cpu
model: {_target_: steptrace.workloads.residual.ResidualNet, hidden: 8, blocks: 2}
loss: {_target_: steptrace.workloads.masked_losses.IgnoreIndexLoss}
data:
  dataset: {_target_: steptrace.workloads.segmentation.RandomMasks, length: 64, image_size: 128}
  batch_size: 64
  num_workers: 0
optimizer: {_target_: torch.optim.SGD, _partial_: true, lr: 0.1}
scale: {memory_limit_mb: 150, threads: 1}
"""


@pytest.fixture(scope="module")
def study_out_of_memory(tmp_path_factory):
    """A study whose only run met its limit; its config is completed with the schema's defaults."""
    from omegaconf import OmegaConf

    from steptrace.config.schema import defaults

    folder = tmp_path_factory.mktemp("oom") / "results" / "oom"
    precision = {"name": "fp32", "autocast": None, "tf32": False, "tolerance": {"loss": 1e-5, "gradient": 1e-4}}
    profile = {"wait": 0, "warmup": 0, "active": 1}
    scale = {"name": "cpu", "warmup_steps": 1, "timed_steps": 2}
    made = {"precision": precision, "profile": profile, "scale": scale}
    whole = OmegaConf.merge(defaults(), made, OmegaConf.create(CONFIG))
    run_dir = folder / "base" / "run0"
    run_dir.mkdir(parents=True)
    OmegaConf.save(whole, folder / "base" / "config.yaml")
    variant = {"name": "base", "overrides": [], "hypothesis": None, "baseline": "base", "digest": "d"}
    study = {"name": "oom", "title": "Too large", "question": "", "text": "", "baseline": "base", "scale": "cpu"}
    write_json(folder / "study.json", study | {"repeats": 1, "variants": [variant]})
    trains = [sys.executable, "-m", "steptrace.train", str(folder / "base" / "config.yaml")]
    trains += ["--out", str(run_dir), "--repeat", "0"]
    supervise = [sys.executable, "-m", "steptrace.train.supervise", "--out", str(run_dir)]
    subprocess.run([*supervise, "--expect", "run.json", "--", *trains], check=True, capture_output=True, timeout=600)
    return folder


def test_an_out_of_memory_ends_in_a_page(study_out_of_memory: Path):
    folder = study_out_of_memory
    status = read_status(folder / "base" / "run0")
    assert (status.status, status.exit_code) == ("oom", 1), status
    write(folder / "comparison.json", with_findings(compare(folder)))
    entry = json.loads((folder / "comparison.json").read_text())["variants"][0]
    assert entry["status"] == "oom"
    assert entry["memory"]["capacity_bytes"] == 150 * MIB
    assert entry["memory"]["oom"]["used_bytes"] > 0
    page = folder.parent.parent / "oom.html"
    render_study(folder / "comparison.json", page)
    text = text_of(page.read_text())
    assert "ran out of memory at a batch of 64" in text
    assert "64.0 MiB asked for" in text or "MiB taken" in text
