"""What `steptrace predict` costs: the time of a step on the virtual device over that of the plain program on the CPU.

Each pair is two processes, one after the other, that run the same program: a few steps to warm up, then as many as are
timed, in processor time on one thread, which other programs on the machine change least. Printed are the ratio of the
best of each, the lowest and highest ratio of a pair, and what the virtual device adds to each operator that does work:
less than nothing where it computes no values. Names choose programs.

Then the whole command, `steptrace predict -- python program.py`, beside `python program.py` that trains the same six
steps: wall and processor time, with as many threads as PyTorch takes; the least of each. Of BERT-large at a batch of 8
there is the prediction alone, with the most memory that a process took.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from steptrace.jobs.launch import launch
from steptrace.launch.settings import LaunchSettings

PAIRS = 3
#: Steps that `steptrace predict` follows by default, those of its warm-up included.
FOLLOWED = 6
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
#: By name: programs whose steps a CPU would take minutes for.
FOLLOWED_ONLY = {
    "bert_large": """
layer = nn.TransformerEncoderLayer(1024, 16, 4096, activation="gelu", batch_first=True)
layers = nn.Sequential(nn.Embedding(30522, 1024), nn.TransformerEncoder(layer, 24))
model = nn.Sequential(layers, nn.Linear(1024, 30522), nn.Flatten(0, 1))
batch = torch.randint(30522, (8, 512)), torch.randint(30522, (8 * 512,))
""",
}
HEAD = "import sys, time\nimport torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
LOOP = """
device = "cuda" if torch.cuda.is_available() else "cpu"
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range({steps}):
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
    command = [sys.executable, "-c", HEAD + program + LOOP.format(steps=steps + 3), str(out)]
    if predicted:  # a window that never ends: the program runs to its own end
        probe = LaunchSettings(str(folder / "probe"), "predict", warmup=2, steps=10**9, profile=0)
        prediction = launch(command, probe).ranks[0].prediction
        operators = prediction.operators / len(prediction.by_step)
    else:
        operators = 0.0
        subprocess.run(command, check=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    return float(out.read_text()), operators


def process(program: str, folder: Path, *, predicted: bool) -> tuple[float, float]:
    """Wall and processor seconds of a program that trains six steps, as a user starts it."""
    path = folder / "program.py"
    path.write_text(HEAD + program + LOOP.format(steps=FOLLOWED))
    follow = ["-m", "steptrace", "predict", "--", sys.executable] if predicted else []
    command = [sys.executable, *follow, str(path), str(folder / "seconds")]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    start = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, env={**environment, "CUDA_VISIBLE_DEVICES": ""})
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(name: str, folder: Path) -> None:
    """Print what following a program's steps, and the whole command, costs beside the plain program."""
    steps, program = PROGRAMS[name]
    pairs = [[seconds(name, folder, predicted=which) for which in (True, False)] for _ in range(PAIRS)]
    predicted, plain = (min(each for each, _ in of) / steps for of in zip(*pairs, strict=True))
    ratios = sorted(a / b for (a, _), (b, _) in pairs)
    operators = pairs[0][0][1]
    each = (predicted - plain) / operators
    print(f"{name}: predicted {predicted * 1e3:.2f} ms a step, plain {plain * 1e3:.2f} ms")
    print(f"  {predicted / plain:.2f} times, of the pairs {ratios[0]:.2f} to {ratios[-1]:.2f}")
    print(f"  {operators:.0f} operators, {each * 1e6:.0f} us more each")
    for which in (True, False):
        taken = [process(program, folder, predicted=which) for _ in range(PAIRS)]
        wall, processor = (min(of) for of in zip(*taken, strict=True))
        print(f"  whole command, {'predicted' if which else 'plain'}: {wall:.1f} s, {processor:.1f} s of processor")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in sys.argv[1:] or (*PROGRAMS, *FOLLOWED_ONLY):
        with tempfile.TemporaryDirectory() as scratch:
            if name in PROGRAMS:
                compare(name, Path(scratch))
            else:
                wall, processor = process(FOLLOWED_ONLY[name], Path(scratch), predicted=True)
                most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
                print(f"{name}: whole command {wall:.1f} s, {processor:.1f} s of processor, at most {most:.1f} GiB")
