"""`run --memory-snapshot`: PyTorch's own allocator writes snapshots, at the end of the steps and at out of memory."""

import subprocess
import sys
from pathlib import Path

import pytest

from steptrace.snapshot.live import summarize_snapshots

PROGRAM = """
import sys
import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 8)).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
kept = []
for step in range(60):
    if sys.argv[1:] == ["leak"]:
        kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))
    if sys.argv[1:] == ["fail"] and step == 2:
        kept.append(torch.empty(1 << 43, dtype=torch.uint8, device="cuda"))
    loss = model(torch.randn(64, 256, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WEIGHTS = 4 * (256 * 512 + 512 + 512 * 8 + 8)
LINES = {text.strip(): number for number, text in enumerate(PROGRAM.splitlines(), 1)}


def _run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "steptrace", "run", "--memory-snapshot", "--steps", "5", "--warmup", "5"]
    command += ["--no-predict", "--out", "out", "--", sys.executable, "train.py", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.standin
def test_weights_and_states_have_their_size_and_a_leak_its_line(tmp_path: Path) -> None:
    done = _run(tmp_path, "leak")
    assert done.returncode == 0, done.stderr
    (device,) = summarize_snapshots([tmp_path / "out" / "snapshots" / "rank0.pickle"]).snapshots[0].devices
    assert device.agrees
    assert device.peak_bytes is not None
    live = {(line.category, line.line): line.bytes for line in device.live}
    assert (
        live["parameters", LINES['model = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 8)).to("cuda")']] == WEIGHTS
    )
    assert live["optimizer_state", LINES["optimizer.step()"]] >= 2 * WEIGHTS
    # The snapshot comes after the last optimizer step, which a dispatch mode watched, its backward pass too.
    assert live["gradients", None] >= WEIGHTS
    assert {line for category, line in live if category == "unknown"} <= set(LINES.values())
    leak = LINES['kept.append(torch.empty(1 << 20, dtype=torch.uint8, device="cuda"))']
    assert live["unknown", leak] >= 10 << 20
    assert live["unknown", leak] % (1 << 20) == 0


@pytest.mark.standin
def test_an_allocation_that_fails_leaves_a_snapshot_although_nothing_was_measured(tmp_path: Path) -> None:
    done = _run(tmp_path, "fail")
    assert done.returncode == 2
    assert "snapshots/rank0-out-of-memory.pickle" in done.stderr
    file = tmp_path / "out" / "snapshots" / "rank0-out-of-memory.pickle"
    (device,) = summarize_snapshots([file]).snapshots[0].devices
    failed = device.out_of_memory[-1]
    assert failed.bytes >= 1 << 43
    assert failed.line == LINES['kept.append(torch.empty(1 << 43, dtype=torch.uint8, device="cuda"))']
