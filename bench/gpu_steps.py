"""Whole training steps measured on a GPU, and what is estimated of the same steps without one.

    python bench/gpu_steps.py measure --out STEPS.json     on a GPU: about a minute; needs PyTorch alone
    python bench/gpu_steps.py compare STEPS.json           anywhere: follows each step, prints estimated beside measured
    python bench/gpu_steps.py train NAME                   the program of one case, as `compare` follows it

Networks of random weights and data, in plain PyTorch: of a few million parameters to four hundred million, limited by
arithmetic, memory or launches, in float32, TF32 and bfloat16. No constant of the estimate comes from them.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows it by
from torch import Tensor, nn

WARMUP: Final = 4
TIMED: Final = 20
#: A long case ends its timed steps after this many seconds, with so many at the least.
AT_MOST_S: Final = 2.0
LEAST: Final = 5
#: Steps that the host may be ahead of the GPU.
AHEAD: Final = 4
#: Steps of the program that `compare` follows.
FOLLOWED: Final = 6


class Block(nn.Module):
    """A transformer block: attention by `scaled_dot_product_attention`, and two products of four times the width."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, T, width] to the same shape."""
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(attended.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Transformer(nn.Module):
    """Token and position embeddings, blocks, and a product with the vocabulary."""

    def __init__(self, layers: int, width: int, heads: int, length: int, words: int, *, causal: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=causal) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [N, T] to logits [N, T, words]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places(places))))


class VisionTransformer(nn.Module):
    """Patches of 16 x 16 pixels, blocks, a mean and a classifier."""

    def __init__(self, layers: int, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(torch.zeros((size // 16) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(layers)))
        self.head = nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [N, 3, S, S] to logits [N, 1000]."""
        return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2) + self.places).mean(1))


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with batch normalisation, beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()

        def unit(i: int, o: int, kernel: int, stride: int = 1) -> nn.Sequential:
            conv = nn.Conv2d(i, o, kernel, stride, padding=kernel // 2, bias=False)
            return nn.Sequential(conv, nn.BatchNorm2d(o))

        self.a, self.b, self.c = unit(inputs, width, 1), unit(width, width, 3, stride), unit(width, 4 * width, 1)
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else unit(inputs, 4 * width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, inputs, H, W] to [N, 4 * width, H / stride, W / stride]."""
        y = self.c(F.relu(self.b(F.relu(self.a(x)))))
        return F.relu(y + self.shortcut(x))


def resnet_50() -> nn.Module:
    """ResNet-50 as He et al. (2015) describe it, with the stride in the 3x3 convolution."""
    blocks: list[nn.Module] = []
    inputs = 64
    for count, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for number in range(count):
            blocks.append(Bottleneck(inputs, width, stride if number == 0 else 1))
            inputs = 4 * width
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class Recurrent(nn.Module):
    """A two-layer LSTM over embeddings, and a product with the vocabulary."""

    def __init__(self, width: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [N, T] to logits [N, T, words]."""
        return self.head(self.lstm(self.words(tokens))[0])


def mlp(width: int, layers: int) -> nn.Module:
    """Linear layers of one width with GELU."""
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU())))


def _tokens(n: int, t: int, words: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randint(words, (n, t)), torch.randint(words, (n, t)))


def _images(n: int, size: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(n, 3, size, size), torch.randint(1000, (n,)))


def _vectors(n: int, width: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(n, width), torch.randint(width, (n,)))


@dataclass(frozen=True)
class Case:
    """A network, its data, its precision (fp32, tf32, amp: autocast to bfloat16, bf16: all of it) and its optimizer."""

    model: Callable[[], nn.Module]
    data: Callable[[], tuple[Tensor, Tensor]]
    precision: str = "fp32"
    channels_last: bool = False
    #: Arguments of AdamW.
    adamw: tuple[tuple[str, bool], ...] = ()


def _gpt() -> nn.Module:
    return Transformer(12, 768, 12, 1024, 50304, causal=True)


def _bert() -> nn.Module:
    return Transformer(24, 1024, 16, 512, 30528, causal=False)


def _vit() -> nn.Module:
    return VisionTransformer(12, 768, 12, 224)


CASES: Final = {
    "gpt2-fp32": Case(_gpt, _tokens(8, 1024, 50304)),
    "gpt2-tf32": Case(_gpt, _tokens(8, 1024, 50304), "tf32"),
    "gpt2-amp": Case(_gpt, _tokens(8, 1024, 50304), "amp"),
    "gpt2-bf16": Case(_gpt, _tokens(8, 1024, 50304), "bf16"),
    "gpt2-amp-batch-32": Case(_gpt, _tokens(32, 1024, 50304), "amp"),
    "gpt2-amp-fused-adamw": Case(_gpt, _tokens(8, 1024, 50304), "amp", adamw=(("fused", True),)),
    "bert-large-fp32": Case(_bert, _tokens(8, 512, 30528)),
    "bert-large-amp": Case(_bert, _tokens(16, 512, 30528), "amp"),
    "bert-large-bf16": Case(_bert, _tokens(16, 512, 30528), "bf16"),
    "vit-b-fp32": Case(_vit, _images(64, 224)),
    "vit-b-amp": Case(_vit, _images(64, 224), "amp"),
    "vit-b-bf16-batch-256": Case(_vit, _images(256, 224), "bf16"),
    "resnet50-fp32": Case(resnet_50, _images(64, 224)),
    "resnet50-amp": Case(resnet_50, _images(64, 224), "amp"),
    "resnet50-amp-channels-last": Case(resnet_50, _images(128, 224), "amp", channels_last=True),
    "lstm-fp32": Case(lambda: Recurrent(1024, 10000), _tokens(64, 128, 10000)),
    "lstm-amp": Case(lambda: Recurrent(1024, 10000), _tokens(64, 128, 10000), "amp"),
    "mlp-wide-fp32": Case(lambda: mlp(8192, 4), _vectors(4096, 8192)),
    "mlp-wide-tf32": Case(lambda: mlp(8192, 4), _vectors(4096, 8192), "tf32"),
    "mlp-wide-bf16": Case(lambda: mlp(8192, 4), _vectors(4096, 8192), "bf16"),
    "mlp-odd-bf16": Case(lambda: mlp(4097, 4), _vectors(4096, 4097), "bf16"),
    "mlp-small": Case(lambda: mlp(128, 16), _vectors(32, 128)),
    "mlp-small-adamw-loop": Case(lambda: mlp(128, 16), _vectors(32, 128), adamw=(("foreach", False),)),
    "gpt2-short-bf16": Case(_gpt, _tokens(1, 64, 50304), "bf16"),
}


class Training:
    """A case's model, data and optimizer on a device; a call is one training step."""

    def __init__(self, case: Case, device: str) -> None:
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("high" if case.precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = case.precision != "fp32"
        with torch.device(device):
            model = case.model()
        if case.precision == "bf16":
            model = model.bfloat16()
        layout = torch.channels_last if case.channels_last else torch.contiguous_format
        self.model = model.to(memory_format=layout)  # type: ignore[call-overload]
        inputs, self.targets = (part.to(device) for part in case.data())
        inputs = inputs.bfloat16() if case.precision == "bf16" and inputs.is_floating_point() else inputs
        self.inputs = inputs.to(memory_format=layout) if inputs.dim() == 4 else inputs
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, **dict(case.adamw))
        self.amp = torch.autocast(device, torch.bfloat16, enabled=case.precision == "amp")

    def __call__(self) -> None:
        """Forward, backward, optimizer; reads nothing back."""
        with self.amp:
            logits = self.model(self.inputs)
            loss = F.cross_entropy(logits.flatten(0, -2).float(), self.targets.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def measured(name: str) -> dict[str, object]:
    """Times in ms of steps in a row, and of the host alone to launch one; peak memory in bytes.

    Without a profiler: once one has run in a process, each launch takes longer there.
    """
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    step = Training(CASES[name], "cuda")
    for _ in range(WARMUP):
        step()
    torch.cuda.synchronize()
    began = time.monotonic()
    events = [torch.cuda.Event(enable_timing=True)]
    events[0].record()
    while len(events) <= TIMED and (len(events) <= LEAST or time.monotonic() - began < AT_MOST_S):
        step()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        events[-AHEAD:][0].synchronize()  # with the host far ahead, the limit would not hold
    torch.cuda.synchronize()
    times = [start.elapsed_time(end) for start, end in itertools.pairwise(events)]
    peak = torch.cuda.max_memory_allocated()
    host = []
    for _ in range(LEAST):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        host.append(1e3 * (time.perf_counter() - start))
    return {
        "name": name,
        "step_ms": statistics.median(times),
        "step_ms_range": [min(times), max(times)],
        "steps": len(times),
        "host_ms": statistics.median(host),
        "peak_memory_bytes": peak,
    }


def measure(names: list[str], out: Path) -> None:
    """Measure each case and write the results so far after each."""
    properties = torch.cuda.get_device_properties(0)
    record: dict[str, object] = {
        "gpu": properties.name,
        "memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": sys.version.split()[0],
    }
    cases: list[dict[str, object]] = []
    for name in names:
        try:
            cases.append(measured(name))
        except RuntimeError as error:
            cases.append({"name": name, "error": str(error).splitlines()[0]})
        print(json.dumps(cases[-1]), flush=True)
        out.write_text(json.dumps(record | {"cases": cases}, indent=1) + "\n")


def train(name: str) -> None:
    """The program that `compare` follows."""
    step = Training(CASES[name], "cuda")
    for _ in range(FOLLOWED):
        step()


def compare(measurements: Path, names: list[str]) -> None:
    """Follow each measured case and print the estimated step, host time and peak memory beside it."""
    # A machine that measures may not have steptrace.
    from steptrace.estimate.gpus import gpu_of_driver

    record = json.loads(measurements.read_text())
    sheet = gpu_of_driver(record["gpu"])
    gpu = record["gpu"] if sheet is None else sheet.name
    print(f"{record['gpu']}, torch {record['torch']}; estimated for {gpu}")
    print("| step | measured, ms | estimated, ms | inside | host, ms | estimated, ms | peak memory, GB | estimated |")
    print("|---|---|---|---|---|---|---|---|")
    for case in record["cases"]:
        name = case["name"]
        if name not in names or "error" in case:
            continue
        program = [sys.executable, __file__, "train", name]
        command = [sys.executable, "-m", "steptrace", "predict", "--json", "--gpu", gpu, "--", *program]
        answer = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        (estimate,) = answer["estimate"]
        peaks = [one / 1e9 for one in (case["peak_memory_bytes"], estimate["peak_memory_bytes"])]
        band = estimate["step_ms"]
        inside = "-" if band is None else "yes" if band[0] <= case["step_ms"] <= band[1] else "no"
        host = f"{case['host_ms']:.1f}" if "host_ms" in case else "-"
        cells = [name, f"{case['step_ms']:.1f}", _band(band), inside, host, _band(estimate["host_ms"])]
        print(f"| {' | '.join(cells)} | {peaks[0]:.2f} | {peaks[1]:.2f} |", flush=True)


def _band(band: list[float] | None) -> str:
    return "-" if band is None else f"{band[0]:.1f} to {band[1]:.1f}"


def main() -> None:
    """Run the chosen part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    for part, what in (("measure", "on a GPU"), ("compare", "with estimates"), ("train", "as a program")):
        sub = parts.add_parser(part, help=what)
        if part == "compare":
            sub.add_argument("file", type=Path)
        if part == "measure":
            sub.add_argument("--out", type=Path, required=True)
        count = 1 if part == "train" else "*"
        sub.add_argument("names", nargs=count, metavar="NAME", help=f"of: {', '.join(CASES)}")
    given = parser.parse_args()
    names = given.names or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no case is called {unknown[0]!r}; there are: {', '.join(CASES)}")
    if given.part == "measure":
        measure(names, given.out)
    elif given.part == "compare":
        compare(given.file, names)
    else:
        train(names[0])


if __name__ == "__main__":
    main()
