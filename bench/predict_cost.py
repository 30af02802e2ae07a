"""What `steptrace predict` costs: the time of a step on the virtual device over that of the plain program on the CPU.

Each pair is two processes, one after the other, that run the same program: a few steps to warm up, then as many as are
timed, in processor time on one thread, which other programs on the machine change least. Printed are the ratio of the
best of each, the lowest and highest ratio of a pair, and what the virtual device adds to each operator that does work:
less than nothing where it computes no values. Names choose programs.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from steptrace.launch.settings import LaunchSettings
from steptrace.launch.start import launch

PAIRS = 3
#: By name: steps that are timed, and a program that defines `model` and `batch`, its inputs and targets.
PROGRAMS = {
    "mlp": (
        200,
        """
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
batch = torch.randn(32, 64), torch.randint(10, (32,))
""",
    ),
    "transformer": (
        10,
        """
layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(128, 4, 512, batch_first=True), 4)
model = nn.Sequential(nn.Embedding(1000, 128), layers, nn.Linear(128, 1000), nn.Flatten(0, 1))
batch = torch.randint(1000, (8, 64)), torch.randint(1000, (8 * 64,))
""",
    ),
    "resnet18": (
        5,
        """
def convolved(i, o, size, stride):
    return nn.Sequential(nn.Conv2d(i, o, size, stride, size // 2, bias=False), nn.BatchNorm2d(o))

class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.main = nn.Sequential(convolved(i, o, 3, stride), nn.ReLU(), convolved(o, o, 3, 1))
        self.side = nn.Identity() if i == o else convolved(i, o, 1, stride)
    def forward(self, x):
        return (self.main(x) + self.side(x)).relu()

blocks = [block for i, o in ((64, 64), (64, 128), (128, 256), (256, 512))
          for block in (Block(i, o, o // i), Block(o, o, 1))]
head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)
model = nn.Sequential(convolved(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks, *head)
batch = torch.randn(16, 3, 64, 64), torch.randint(1000, (16,))
""",
    ),
}
HEAD = "import sys, time\nimport torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
LOOP = """
device = "cuda" if torch.cuda.is_available() else "cpu"
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range({steps} + 3):
    if step == 3:
        start = time.process_time()
    inputs, targets = (tensor.to(device, non_blocking=True) for tensor in batch)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
open(sys.argv[1], "w").write(str(time.process_time() - start))
"""


def seconds(name: str, folder: Path, *, predicted: bool) -> tuple[float, float]:
    """The time of a program's steps in a process of its own, and operators per step where it is predicted."""
    steps, program = PROGRAMS[name]
    out = folder / "seconds"
    command = [sys.executable, "-c", HEAD + program + LOOP.format(steps=steps), str(out)]
    if predicted:  # a window that never ends: the program runs to its own end
        probe = LaunchSettings(str(folder / "probe"), "predict", warmup=2, steps=10**9, profile=0)
        prediction = launch(command, probe).ranks[0]["prediction"]
        operators = prediction["operators"] / len(prediction["by_step"])
    else:
        operators = 0.0
        subprocess.run(command, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    return float(out.read_text()), operators


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in sys.argv[1:] or PROGRAMS:
        with tempfile.TemporaryDirectory() as scratch:
            pairs = [[seconds(name, Path(scratch), predicted=which) for which in (True, False)] for _ in range(PAIRS)]
        predicted, plain = (min(time for time, _ in of) / PROGRAMS[name][0] for of in zip(*pairs, strict=True))
        ratios = sorted(a / b for (a, _), (b, _) in pairs)
        operators = pairs[0][0][1]
        each = (predicted - plain) / operators
        print(f"{name}: predicted {predicted * 1e3:.2f} ms a step, plain {plain * 1e3:.2f} ms")
        print(f"  {predicted / plain:.2f} times, of the pairs {ratios[0]:.2f} to {ratios[-1]:.2f}")
        print(f"  {operators:.0f} operators, {each * 1e6:.0f} us more each")
