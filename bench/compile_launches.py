"""Launches in Inductor's own generated code, and those that steptrace finds: a table of docs/evidence-compile.md.

    python bench/compile_launches.py [--only NAME ...]

Each module is followed, forward and backward, as a prediction follows it. Beside that Inductor writes its code of the
same graphs, for the same GPU that is not there, and the launches in that code are counted: calls of generated kernels,
and of operators of libraries. Nothing is compiled or run, so neither a GPU nor Triton is needed. `gpt2` needs
transformers; its weights are random.
"""

import argparse
import importlib
import json
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor, nn

from steptrace.predict import Prediction, predict_syncs

#: Lines of generated code that launch something: a kernel that Inductor wrote, and an operator of a library.
_GENERATED: Final = re.compile(r"^\s+\w+\.run\(", re.MULTILINE)
_LIBRARY: Final = re.compile(
    r"^\s+(?:\w+ = )?(?:extern_kernels\.\w+|(?:torch\.ops\.)?aten\.[\w.]+|torch\.ops\.\w+\.[\w.]+)\(", re.MULTILINE
)


class _Residual(nn.Module):
    """A block of a residual network: two convolutions with batch norm, and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](self.first(x)).relu()
        out: Tensor = self.norms[1](self.second(y))
        return (x + out).relu()


class _Logits(nn.Module):
    """A language model of transformers that returns a tensor."""

    def __init__(self) -> None:
        super().__init__()
        transformers: Any = importlib.import_module("transformers")
        config = transformers.GPT2Config(
            n_layer=2, n_embd=256, n_head=4, vocab_size=1024, use_cache=False, bos_token_id=0, eos_token_id=0
        )
        self.model = transformers.GPT2LMHeadModel(config)

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=ids).logits
        return logits


class _ConvNeXt(nn.Module):
    """A block of ConvNeXt: a depthwise convolution, a norm over channels, and two products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(nn.functional.gelu(self.wide(y)))
        out: Tensor = x + y.permute(0, 3, 1, 2)
        return out


class _UNet(nn.Module):
    """A block of a diffusion U-Net: group norms, SiLU, convolutions, and a shift by an embedding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(2))
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.shift = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convolutions[0](nn.functional.silu(self.norms[0](x)))
        y = y + self.shift(x.mean((2, 3)))[:, :, None, None]
        out: Tensor = x + self.convolutions[1](nn.functional.silu(self.norms[1](y)))
        return out


class _Llama(nn.Module):
    """A block of Llama: rotary positions, grouped queries, RMS norms, a gated network."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads = heads
        self.groups = groups
        self.size = width // heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.queries, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.keys, self.values = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def _rotated(self, x: Tensor) -> Tensor:
        length = x.shape[2]
        half = self.size // 2
        frequencies = 10000 ** (-torch.arange(half, device=x.device) / half)
        angles = torch.arange(length, device=x.device)[:, None] * frequencies
        first, second = x.chunk(2, -1)
        return torch.cat(
            (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()), -1
        )

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norms[0](x)
        queries, keys, values = (
            layer(normed).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.queries, self.keys, self.values)
        )
        attended = nn.functional.scaled_dot_product_attention(
            self._rotated(queries), self._rotated(keys), values, is_causal=True, enable_gqa=True
        )
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normed = self.norms[1](x)
        out: Tensor = x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))
        return out


class _Experts(nn.Module):
    """A layer of experts, all of which see all tokens, weighted by a router."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.wide = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.02)
        self.narrow = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = self.router(x).softmax(-1).topk(2)
        weights = torch.zeros_like(self.router(x)).scatter(-1, chosen, scores)
        hidden = nn.functional.silu(torch.einsum("bsd,edf->ebsf", x, self.wide))
        out: Tensor = torch.einsum("ebsf,efd,bse->bsd", hidden, self.narrow, weights)
        return x + out


class _Vision(nn.Module):
    """A vision transformer: patches, positions, two blocks, a classifier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.positions = nn.Parameter(torch.zeros(1, 16, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.classes = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        out: Tensor = self.classes(self.blocks(tokens).mean(1))
        return out


def _bert() -> nn.Module:
    """An encoder layer of BERT as PyTorch has it: norms behind the residuals, dropout."""
    return nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, activation="gelu", batch_first=True)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(256), nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256), nn.Dropout(0.1)
    )


#: The modules and their inputs by name.
_MODULES: Final[dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]]] = {
    "transformer block": (
        lambda: nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True),
        lambda: torch.randn(8, 128, 256),
    ),
    "ResNet block": (lambda: _Residual(64), lambda: torch.randn(16, 64, 32, 32)),
    "MLP with dropout and layer norm": (_mlp, lambda: torch.randn(64, 256)),
    "BERT layer with dropout": (_bert, lambda: torch.randn(8, 128, 256)),
    "ConvNeXt block": (lambda: _ConvNeXt(64), lambda: torch.randn(16, 64, 32, 32)),
    "diffusion U-Net block": (lambda: _UNet(64), lambda: torch.randn(16, 64, 32, 32)),
    "Llama block, rotary, grouped queries": (lambda: _Llama(256, 8, 2), lambda: torch.randn(8, 128, 256)),
    "layer of experts": (lambda: _Experts(256, 4), lambda: torch.randn(8, 128, 256)),
    "vision transformer": (lambda: _Vision(256), lambda: torch.randn(8, 3, 64, 64)),
    "gpt2": (_Logits, lambda: torch.randint(0, 1024, (8, 128))),
}


def main() -> None:
    """Print a row of the table for each module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=tuple(_MODULES), default=tuple(_MODULES))
    warnings.simplefilter("ignore")
    print("| module | found forward, backward | Inductor's code |\n|---|---|---|")
    for name in parser.parse_args().only:
        found, generated = _launches(*_MODULES[name])
        print(f"| {name} | {', '.join(map(str, found))} | {', '.join(map(str, generated))} |", flush=True)


def _launches(module: Callable[[], nn.Module], example: Callable[[], Tensor]) -> tuple[list[int], list[int]]:
    """The launches of a module, forward and backward, as found and as in Inductor's code."""
    # A child process follows the module, so the counts go through a file.
    with tempfile.TemporaryDirectory() as folder, _writing(Path(folder) / "counts.jsonl") as counts:
        with predict_syncs(follow_compiled=True) as syncs:
            compiled = torch.compile(module().cuda().train())
            compiled(example().cuda()).sum().backward()
            prediction = Prediction.so_far(syncs)
        written = [json.loads(line) for line in counts.read_text().splitlines()]
    assert prediction.compiled is not None
    found = [0, 0]
    for code in prediction.compiled.codes:
        if code.kernels is None:
            raise SystemExit(f"its kernels are not known: {code.unlowered}: {code.reason}")
        found[0] += len(code.kernels.forward)
        found[1] += len(code.kernels.backward)
    return found, [sum(one["launches"] for one in written if one["is_backward"] is part) for part in (False, True)]


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Let Inductor write its code of each graph that is lowered, and note the launches in it."""
    lowering: Any = importlib.import_module("torch._inductor.graph").GraphLowering
    update = lowering._update_scheduler

    def updated(self: Any) -> None:
        update(self)
        found = self.scheduler
        self.init_wrapper_code()
        update(self)
        self.wrapper_code.push_codegened_graph(self)
        self.scheduler.codegen()
        code = self.wrapper_code.generate(self.is_inference)[0].value
        count = len(_GENERATED.findall(code)) + len(_LIBRARY.findall(code))
        with path.open("a") as file:
            file.write(json.dumps({"is_backward": bool(self.is_backward), "launches": count}) + "\n")
        self.scheduler = found  # steptrace reads its launches from this one

    triton: Any = importlib.import_module("torch.utils._triton")
    path.touch()
    with ExitStack() as stack:
        # What names the release of Triton in generated code.
        stack.enter_context(mock.patch.object(triton, "triton_hash_with_backend", return_value="none"))
        stack.enter_context(mock.patch.object(lowering, "_update_scheduler", updated))
        yield path


if __name__ == "__main__":
    main()
