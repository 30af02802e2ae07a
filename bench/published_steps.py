"""Steps that others have measured and published, each with its program, and how far estimates are from them.

    python bench/published_steps.py --out FOLDER [--at-most N]

The steps are of transformers of five sizes, as the course "Language Modeling from Scratch" (CS336) of Stanford has its
students measure them: rotary embeddings, RMSNorm in float32, attention written out, a gated feed-forward network, a
batch of 4 and 10,000 words. The program here is written to that description. Each program is followed once, to a file
in FOLDER. No constant was fitted to these steps. The host's time per launch (HOST_US in estimate_constants.py) was
judged after they had been seen.
"""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

import followed_programs

#: Width, width of the feed-forward network, layers and heads.
SIZES: Final = {
    "small": (768, 3072, 12, 12), "medium": (1024, 4096, 24, 16), "large": (1280, 5120, 36, 20),
    "xl": (1600, 6400, 48, 25), "2.7B": (2560, 10240, 32, 32),
}  # fmt: skip
WORDS: Final = 10_000
BATCH: Final = 4


class Program(NamedTuple):
    """A model, the length of its sequences, what a step does (`forward`, `backward`: both passes, `step`), its type."""

    size: str
    length: int
    part: str
    precision: str = "fp32"

    @property
    def file(self) -> str:
        """The name of the file that holds its operators."""
        return f"{'-'.join(map(str, self))}.json.gz"


class Published(NamedTuple):
    """A step that was measured: its program, GPU, milliseconds, and who published it."""

    program: Program
    gpu: str
    ms: float
    source: str


_YYIN: Final = "yyin-dev/cs336-a2@6d9d5d17, data/e2e_benchmark"
#: Milliseconds on an A100 with 40 GB by size and length of the sequences: 128, 256, 512.
_A100: Final = {
    ("forward", "fp32"): {
        "small": (40.4, 40.4, 45.3), "medium": (79.1, 79.6, 134.1), "large": (118.0, 140.5, 278.7),
        "xl": (158.8, 278.4, 561.2), "2.7B": (218.8, 412.9, 839.9),
    },
    ("backward", "fp32"): {
        "small": (78.0, 82.4, 134.0), "medium": (156.3, 222.0, 405.1), "large": (284.5, 427.4, 864.5),
        "xl": (461.1, 873.9, 1713.0), "2.7B": (671.4, 1303.5, 2575.3),
    },
    ("step", "fp32"): {
        "small": (68.9, 85.2, 153.9), "medium": (167.7, 242.3, 460.5), "large": (333.1, 536.1, 992.9),
        "xl": (655.2, 1092.6),
    },
    ("step", "amp"): {
        "small": (77.4, 75.1, 95.5), "medium": (162.1, 160.4, 194.7), "large": (278.0, 279.0, 357.9), "xl": (439.2,),
    },
}  # fmt: skip
STEPS: Final = [
    Published(Program(size, length, part, precision), "A100-40", ms, _YYIN)
    for (part, precision), by_size in _A100.items()
    for size, times in by_size.items()
    for length, ms in zip((128, 256, 512), times, strict=False)
]


class Norm(nn.Module):
    """RMSNorm, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor to its shape and type."""
        wide = x.float()
        return (self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5))).to(x.dtype)


def softmax(x: Tensor) -> Tensor:
    """As the course has it written: maximum, exponential, sum."""
    e = torch.exp(x - x.max(-1, keepdim=True)[0])
    return e / e.sum(-1, keepdim=True)


class Block(nn.Module):
    """Attention with rotary embeddings, and a gated feed-forward network."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = Norm(width), Norm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.w1, self.w3 = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """Map [N, T, width] to the same shape; `angles`: cosines and sines [2, T, half a head]."""
        x = x + self._attention(self.norm_1(x), angles)
        y = self.norm_2(x)
        gate = self.w1(y)
        return x + self.w2(gate * torch.sigmoid(gate) * self.w3(y))

    def _attention(self, x: Tensor, angles: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (one(x).view(n, t, self.heads, -1).transpose(1, 2) for one in (self.q, self.k, self.v))
        q, k = (_turned(one, angles[:, :t]) for one in (q, k))
        places = torch.arange(t, device=x.device)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        scores = torch.where(places[:, None] >= places[None], scores, float("-inf"))
        return self.o((softmax(scores) @ v).transpose(1, 2).reshape(n, t, width).contiguous())


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.unbind(0)
    return torch.cat((cos * a - sin * b, sin * a + cos * b), dim=-1)


class Model(nn.Module):
    """Embeddings, blocks, and a product with the words."""

    def __init__(self, size: str, length: int) -> None:
        super().__init__()
        width, inner, layers, heads = SIZES[size]
        self.words = nn.Parameter(torch.empty(WORDS, width))
        self.blocks = nn.ModuleList(Block(width, inner, heads) for _ in range(layers))
        self.norm = Norm(width)
        self.head = nn.Linear(width, WORDS, bias=False)
        half = width // heads // 2
        turns = torch.outer(torch.arange(length).float(), 10000.0 ** -(torch.arange(half) / half))
        self.register_buffer("angles", torch.stack((turns.cos(), turns.sin())))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [N, T] to logits [N, T, words]."""
        x = self.words[tokens, :]
        for block in self.blocks:
            x = block(x, self.angles)
        return self.head(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy as the course has it written."""
    x = logits - logits.max(-1, keepdim=True)[0]
    logs = -(x - x.exp().sum(-1, keepdim=True).log())
    return torch.gather(logs, -1, targets.unsqueeze(-1)).mean()


class AdamW(torch.optim.Optimizer):
    """AdamW as the course has it written: a dozen operators for each parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        """Update all parameters."""
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad.data
                state = self.state[parameter]
                parameter.data -= 1e-5 * parameter.data
                first = state.get("m", torch.zeros_like(gradient))
                first = 0.9 * first + 0.1 * gradient
                second = state.get("v", torch.zeros_like(gradient))
                second = 0.999 * second + 0.001 * torch.square(gradient)
                parameter.data -= 1e-3 * first / (torch.sqrt(second) + 1e-8)
                state["m"] = first
                state["v"] = second


def step_of(program: Program) -> Callable[[], None]:
    """What is measured: ends with a sync."""
    with torch.device("cuda"):
        model = Model(program.size, program.length)
        tokens, targets = (torch.randint(WORDS, (BATCH, program.length)) for _ in range(2))
    optimizer = AdamW(model.parameters())

    def step() -> None:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=program.precision == "amp"):
            logits = model(tokens)
            if program.part != "forward":
                loss_of(logits, targets).backward()
                if program.part == "step":
                    optimizer.step()
        torch.cuda.synchronize()

    return step


def follow(program: Program) -> dict[str, Any]:
    """Follow a program's third step; what the probe would say of it."""
    from steptrace.predict import predict_syncs

    with predict_syncs() as syncs:
        step = step_of(program)
        return followed_programs.last_step(syncs, step)


if __name__ == "__main__":
    by_what_they_say = sorted(STEPS, key=lambda step: (step.program.length != 256, step.program.part != "step"))
    followed_programs.main(__doc__, (step.program for step in by_what_they_say), follow)  # if some are enough
