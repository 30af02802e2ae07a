"""Steps of decoder-only language models, as others publish them, for estimates to be held to.

    python bench/published_language_models.py --out FOLDER [--at-most N]

MPT models of mosaicml/llm-foundry (scripts/train/benchmarking/README.md at commit 061f2c7c): eight GPUs, parameters,
gradients and states sharded, bfloat16 with reductions in float32. The table has tokens per second of one GPU. A step
here is one microbatch and a step of the optimizer, which is at most 2 % of it; theirs has one to six microbatches. The
software is of 2023, and attention is a flash attention in Triton, of the first generation.

GPT-2 with 124 million parameters, 16 sequences of 1,024 tokens on one A100, from A. Karpathy's lecture "Let's
reproduce GPT-2 (124M)": in float32, with TF32, in bfloat16, compiled, and with flash attention. The titles of the
lecture's chapters have these times. It used a card of 80 GB. A course's notes on the lecture, from a public
repository whose name is not on record, have other times, and memory (of `nvidia-smi`, which counts what is cached and
the CUDA context). They do not say which A100. What memory limits is as fast as in the lecture, so 80 GB were taken,
after two of their five steps had lain outside as those of a 40 GB card.

No constant was fitted to these steps. The models are written to their descriptions here. Each program is followed once,
as one rank, to a file in FOLDER; collectives of eight ranks send nothing there.
"""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import followed_programs
from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import gpu_named

#: Width, layers and heads of each size.
SIZES: Final = {
    "124m": (768, 12, 12), "125m": (768, 12, 12), "350m": (1024, 24, 16), "760m": (1536, 24, 12), "1b": (2048, 24, 16),
    "3b": (2560, 32, 20), "7b": (4096, 32, 32), "13b": (5120, 40, 40),
}  # fmt: skip
RANKS: Final = 8
#: Words of MPT's vocabulary, and of GPT-2's.
MPT_WORDS = 50368
GPT2_WORDS = 50257
PADDED_WORDS = 50304


class Program(NamedTuple):
    """A model's size, the length and number of its sequences, and how it is trained.

    `training`: `sharded`, or `checkpointed` (sharded, and layers are computed again in the backward pass); of GPT-2
    `fp32`, `tf32`, `bf16`, `compiled`, `flash` (compiled) or `padded` (flash, with 50,304 words).
    """

    size: str
    length: int
    batch: int
    training: str

    @property
    def file(self) -> str:
        """The name of the file that holds its operators."""
        return f"{'-'.join(map(str, self))}.json.gz"

    @property
    def is_sharded(self) -> bool:
        """Whether it is a model of eight ranks."""
        return self.training in ("sharded", "checkpointed")

    @property
    def is_compiled(self) -> bool:
        """Whether the program compiles its model."""
        return self.training in ("compiled", "flash", "padded")


class Published(NamedTuple):
    """A step that was published: its program, GPU, number of GPUs, milliseconds, and memory in use where it is said."""

    program: Program
    gpu: str
    devices: int
    ms: float
    memory_gib: float | None = None


def _mpt(gpu: str, rates: dict[tuple[str, int, int, str], float]) -> list[Published]:
    return [
        Published(Program(*key), gpu, RANKS, 1e3 * key[1] * key[2] / tokens_per_s)
        for key, tokens_per_s in rates.items()
    ]


#: By size, length and number of sequences on a GPU: tokens per second of a GPU.
STEPS: Final = [
    *_mpt("A100-80", {
        ("125m", 2048, 32, "sharded"): 141737, ("350m", 2048, 32, "sharded"): 58782,
        ("760m", 2048, 24, "sharded"): 32434, ("1b", 2048, 14, "sharded"): 20513,
        ("3b", 2048, 10, "sharded"): 10811, ("7b", 2048, 6, "sharded"): 4641, ("13b", 2048, 2, "sharded"): 2262,
        ("1b", 512, 56, "sharded"): 23148, ("1b", 8192, 3, "sharded"): 13814, ("3b", 4096, 5, "sharded"): 9457,
        ("3b", 1024, 20, "sharded"): 11580, ("7b", 8192, 8, "checkpointed"): 3206,
        ("7b", 1024, 64, "checkpointed"): 4357,
    }),
    *_mpt("A100-40", {
        ("125m", 2048, 26, "sharded"): 136334, ("350m", 2048, 16, "sharded"): 55995,
        ("760m", 2048, 12, "sharded"): 30173, ("1b", 2048, 8, "sharded"): 19271, ("3b", 2048, 5, "sharded"): 10065,
        ("7b", 2048, 12, "checkpointed"): 3679,
    }),
    *_mpt("H100", {
        ("760m", 2048, 24, "sharded"): 63147, ("1b", 2048, 14, "sharded"): 45455, ("7b", 2048, 6, "sharded"): 10643,
        ("13b", 2048, 2, "sharded"): 4792, ("1b", 512, 56, "sharded"): 52275, ("1b", 8192, 3, "sharded"): 29157,
        ("3b", 4096, 5, "sharded"): 20964, ("3b", 1024, 20, "sharded"): 27046, ("7b", 8192, 8, "checkpointed"): 6935,
        ("7b", 1024, 64, "checkpointed"): 10203,
    }),
    *(
        Published(Program("124m", 1024, 16, training), "A100-80", 1, ms)
        for training, ms in (
            ("fp32", 1000), ("tf32", 333), ("bf16", 300), ("compiled", 130), ("flash", 96), ("padded", 93),
        )
    ),
    *(
        Published(Program("124m", 1024, 16, training), "A100-80", 1, ms, mib / 1024)
        for training, ms, mib in (
            ("fp32", 1100, 35628), ("tf32", 366, 35628), ("bf16", 305, 33936), ("compiled", 136, 23872),
            ("flash", 99, 14578), ("padded", 97, 13022),
        )
    ),
]  # fmt: skip


class Block(nn.Module):
    """A layer: causal attention, and a feed-forward network of four times the width.

    `is_written`: whether attention is written out, with a mask, instead of PyTorch's operator.
    """

    def __init__(self, width: int, heads: int, length: int, *, is_written: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.o = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.activation = nn.GELU(approximate="tanh")
        if is_written:
            self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, T, width] to the same shape."""
        x = x + self._attention(self.norm_1(x))
        return x + self.down(self.activation(self.up(self.norm_2(x))))

    def _attention(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (one.view(n, t, self.heads, -1).transpose(1, 2) for one in self.qkv(x).split(width, dim=2))
        if hasattr(self, "mask"):
            scores = (q @ k.transpose(-2, -1)) * (1 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
            y = torch.softmax(scores, dim=-1) @ v
        else:
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).contiguous().view(n, t, width))


class Model(nn.Module):
    """Embeddings of words and places, layers, and a product with the words' embeddings."""

    def __init__(self, program: Program, words: int, *, is_written: bool) -> None:
        super().__init__()
        width, layers, heads = SIZES[program.size]
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(program.length, width)
        self.blocks = nn.ModuleList(Block(width, heads, program.length, is_written=is_written) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.again = program.training == "checkpointed"

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [N, T] to logits [N, T, words]."""
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return nn.functional.linear(self.norm(x), self.words.weight)


def sharded_step(program: Program) -> Callable[[], None]:
    """A step of an MPT model, sharded by FSDP2."""
    with torch.device("cuda"):
        model = Model(program, MPT_WORDS, is_written=False)
        tokens, targets = (torch.randint(MPT_WORDS, (program.batch, program.length)) for _ in range(2))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def step() -> None:
        optimizer.zero_grad()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def single_step(program: Program) -> Callable[[], None]:
    """A step of GPT-2 on one GPU: ends with a sync."""
    order = ("fp32", "tf32", "bf16", "compiled", "flash", "padded")
    done = order.index(program.training)
    words = PADDED_WORDS if program.training == "padded" else GPT2_WORDS
    if done:
        torch.set_float32_matmul_precision("high")
    with torch.device("cuda"):
        model: Any = Model(program, words, is_written=done < order.index("flash"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    if done >= order.index("compiled"):
        model = torch.compile(model)
    batch = torch.randint(words, (2, program.batch, program.length))

    def step() -> None:
        tokens, targets = (one.to("cuda") for one in batch)
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=done >= order.index("bf16")):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def follow(program: Program) -> dict[str, Any]:
    """Follow a program's third step: what the probe would say of it."""
    from steptrace.predict import predict_syncs

    with predict_syncs(driver=driver_facts(gpu_named("A100-80")), follow_compiled=program.is_compiled) as syncs:
        if program.is_sharded:
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
        step = sharded_step(program) if program.is_sharded else single_step(program)
        return followed_programs.last_step(syncs, step)


if __name__ == "__main__":
    followed_programs.main(__doc__, (step.program for step in STEPS), follow)
