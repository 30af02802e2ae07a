"""What the probe of `steptrace run` costs an unprofiled step: 1,000 steps with it and without, side by side.

Each pair is two processes, one after the other, that time themselves; the ratio of the best of each is told, and the
lowest and highest ratio of a pair. The step is as small as a step can be, so that the hooks' share is at its largest.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from steptrace.jobs.launch import launch
from steptrace.launch.settings import LaunchSettings

PAIRS = 5
STEPS = 1_000
PROGRAM = f"""
import sys, time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn({STEPS * 4}, 32), torch.randint(0, 10, ({STEPS * 4},)))
best = float("inf")
for _ in range(3):
    start = time.perf_counter()
    for inputs, targets in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    best = min(best, time.perf_counter() - start)
open(sys.argv[1], "w").write(str(best))
"""


def seconds(folder: Path, *, probe: bool) -> float:
    """The best of three blocks of steps in a process of its own."""
    out = folder / "seconds"
    command = [sys.executable, "-c", PROGRAM, str(out)]
    environment = {"OMP_NUM_THREADS": "1"}
    if probe:  # a warm-up that never ends: hooks, and two readings of the clock a step
        launch(command, LaunchSettings(str(folder / "probe"), warmup=10**9), env=environment)
    else:
        subprocess.run(command, check=True, env={**os.environ, **environment})
    return float(out.read_text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        pairs = [(seconds(Path(scratch), probe=True), seconds(Path(scratch), probe=False)) for _ in range(PAIRS)]
    with_probe, without = (min(times) / STEPS * 1e6 for times in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    print(f"step with the probe {with_probe:.1f} us, without {without:.1f} us: +{with_probe - without:.1f} us")
    print(f"ratio {with_probe / without:.3f}, of the pairs {ratios[0]:.3f} to {ratios[-1]:.3f}")
