"""Steps of a GPT-2 that a book trains, changed one thing at a time, with the memory that the allocator kept.

    python bench/published_book_steps.py --out FOLDER [--at-most N]

Tokens per second and reserved memory are those of rasbt/LLMs-from-scratch (ch05/10_llm-training-speed/README.md at
commit 06361583): GPT-2 with 124 million parameters, untied, sequences of 1,024 tokens, dropout of 0.1, one A100,
PyTorch 2.6. The README does not say which A100. The batch is 8, and 32 after the last change. The programs time 10 or
15 steps together with an evaluation: two forward passes, and two loaders that start four processes each. So steps are
shorter than published, by a larger share the shorter they are. No constant was fitted to these steps, and they were
first looked at after all constants had been derived. The model is written to its description here.
"""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

import followed_programs

LENGTH = 1024
WIDTH = 768
LAYERS = 12
HEADS = 12
DROPOUT = 0.1
WORDS = 50257
PADDED_WORDS = 50304
#: What was changed, one after the other: each program has all changes up to its own.
CHANGES: Final = ("none", "tf32", "fused", "bf16", "classes", "flash", "compiled", "padded", "batch")
BATCH = 8
LARGEST_BATCH = 32


class Program(NamedTuple):
    """The last of its changes."""

    change: str

    @property
    def file(self) -> str:
        """The name of the file that holds its operators."""
        return f"book-{self.change}.json.gz"

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return LARGEST_BATCH if self.has("batch") else BATCH

    def has(self, change: str) -> bool:
        """Whether a change was made."""
        return CHANGES.index(self.change) >= CHANGES.index(change)


class Published(NamedTuple):
    """A program, tokens per second, and GiB that the allocator kept after some steps."""

    program: Program
    tokens_per_s: float
    reserved_gib: float

    @property
    def ms(self) -> float:
        """Milliseconds of a step."""
        return 1e3 * self.program.batch * LENGTH / self.tokens_per_s


STEPS: Final = [
    Published(Program(change), tokens, gib)
    for change, tokens, gib in (
        ("none", 12525, 26.2617), ("tf32", 27648, 26.2422), ("fused", 28399, 26.2422), ("bf16", 45486, 13.7871),
        ("classes", 55256, 11.5645), ("flash", 91901, 5.9004), ("compiled", 112046, 6.1875),
        ("padded", 127345, 5.8906), ("batch", 142156, 22.5078),
    )
]  # fmt: skip


class Norm(nn.Module):
    """A layer norm of PyTorch's maps and reductions."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to the same shape."""
        mean = x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=False)
        return self.weight * ((x - mean) / torch.sqrt(variance + 1e-5)) + self.bias


class Gelu(nn.Module):
    """The approximation of GELU by a hyperbolic tangent, of PyTorch's maps."""

    def forward(self, x: Tensor) -> Tensor:
        """Map any shape to the same one."""
        factor = torch.sqrt(torch.tensor(2 / math.pi))
        return 0.5 * x * (1 + torch.tanh(factor * (x + 0.044715 * torch.pow(x, 3))))


class Attention(nn.Module):
    """Causal attention: written out, with three products of its own, or PyTorch's operator."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.is_written = not program.has("flash")
        parts = 3 if self.is_written else 1
        self.inner = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH // parts, bias=False) for _ in range(parts))
        self.outer = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, T, width] to the same shape."""
        n, t, _ = x.shape
        if self.is_written:
            q, k, v = (one(x).view(n, t, HEADS, -1).transpose(1, 2) for one in self.inner)
            scores = q @ k.transpose(2, 3)
            scores.masked_fill_(torch.triu(torch.ones(t, t, device=x.device, dtype=torch.bool), 1), -torch.inf)
            y = self.dropout(torch.softmax(scores / math.sqrt(WIDTH // HEADS), dim=-1)) @ v
        else:
            q, k, v = self.inner[0](x).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            y = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=DROPOUT, is_causal=True)
        return self.outer(y.transpose(1, 2).contiguous().view(n, t, WIDTH))


class Layer(nn.Module):
    """Attention, and a feed-forward network of four times the width."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        of_classes = program.has("classes")
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) if of_classes else Norm() for _ in range(2))
        self.attention = Attention(program)
        self.dropout = nn.Dropout(DROPOUT)
        gelu = nn.GELU(approximate="tanh") if of_classes else Gelu()
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), gelu, nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, T, width] to the same shape."""
        x = x + self.dropout(self.attention(self.norms[0](x)))
        return x + self.dropout(self.feed(self.norms[1](x)))


class Model(nn.Module):
    """Embeddings of words and places, layers, and a product with other weights."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        words = PADDED_WORDS if program.has("padded") else WORDS
        self.words = nn.Embedding(words, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)
        self.layers = nn.Sequential(*(Layer(program) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH) if program.has("classes") else Norm()
        self.head = nn.Linear(WIDTH, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [N, T] to logits [N, T, words]."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.layers(self.dropout(x))))


def step_of(program: Program) -> Callable[[], None]:
    """A training step, as the book makes it."""
    torch.set_float32_matmul_precision("high" if program.has("tf32") else "highest")
    with torch.device("cuda"):
        model: Any = Model(program)
    if program.has("bf16"):
        model = model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.1, fused=program.has("fused") or None)
    if program.has("compiled"):
        model = torch.compile(model)
    batch = torch.randint(WORDS, (2, program.batch, LENGTH))

    def step() -> None:
        optimizer.zero_grad()
        tokens, targets = (one.to("cuda") for one in batch)
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()

    return step


def follow(program: Program) -> dict[str, Any]:
    """Follow a program's third step: what the probe would say of it."""
    from steptrace.estimate.driver import driver_facts
    from steptrace.estimate.gpus import gpu_named
    from steptrace.predict import predict_syncs

    with predict_syncs(driver=driver_facts(gpu_named("A100-80")), follow_compiled=program.has("compiled")) as syncs:
        step = step_of(program)
        return followed_programs.last_step(syncs, step)


if __name__ == "__main__":
    followed_programs.main(__doc__, (step.program for step in STEPS), follow)
