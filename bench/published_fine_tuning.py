"""Steps of transformers that are fine-tuned, and of a diffusion transformer, with their memory, as others publish them.

    python bench/published_fine_tuning.py --out FOLDER [--at-most N]

No constant was fitted to these steps. The models are written to their descriptions here. Each program is followed once,
to a file in FOLDER.

- huggingface/transformers (docs/source/en/perf_train_gpu_one.mdx at commit 0016acf7; early 2022): BERT-large, four
  sequences of 512 tokens on a V100 (SXM2), at once or one after the other, with checkpoints, in AMP, with Adafactor.
  Seconds are of 128 steps, their start included. Memory is what the driver reports, of which 1,343 MiB are the context.
- chuanyangjin/fast-DiT (README.md at commit 0d14a156; 2023): DiT-XL/2, 128 images of 256 x 256 pixels on an A100, with
  checkpoints: in TF32 and in AMP with the images' encoder, and in AMP on encoded images. Over 40 GB were used.
- QwenLM/Qwen (README.md, "Profiling of Memory and Speed"; 2023, PyTorch 2.0, flash attention 2): Qwen-7B, LoRA of rank
  64, bfloat16 with checkpoints, on an A100 (SXM, 80 GB), sequences of 1,024 to 8,192 tokens one after the other. A step
  has eight of them. Here a step is one of them and a step of the optimizer, which is at most 2 % of it, and seconds are
  an eighth. Of shorter ones the optimizer's step would be a larger part.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import followed_programs

#: Of BERT-large: width, layers, heads, words, tokens in a sequence, sequences of a step, steps that were timed, and
#: MiB of the CUDA context.
WIDTH = 1024
LAYERS = 24
HEADS = 16
WORDS = 30522
LENGTH = 512
BATCH = 4
TIMED = 128
CONTEXT_MIB = 1343
#: Of DiT-XL/2: width, layers, heads, images, pixels of an encoded image, its channels, channels and blocks of a patch.
DIT_WIDTH = 1152
DIT_LAYERS = 28
DIT_HEADS = 16
IMAGES = 128
SIDE = 32
CHANNELS = 4
PATCH = 2
#: Channels of the stages of the images' encoder.
ENCODER: Final = (128, 256, 512, 512)
#: Of Qwen-7B: width, layers, heads, width of the feed-forward network, words, sequences of a step, and LoRA's rank.
QWEN_WIDTH = 4096
QWEN_LAYERS = 32
QWEN_HEADS = 32
INNER = 11008
QWEN_WORDS = 151936
SEQUENCES = 8
RANK = 64

NAMES: Final = {"bert": "BERT-large, fine-tuned", "dit": "DiT-XL/2", "qwen": "Qwen-7B, LoRA"}


class Program(NamedTuple):
    """A model, its tokens in a sequence, and how it is trained: words that `step_of` asks for."""

    model: str
    length: int
    training: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The name of the file that holds its operators."""
        return f"{'-'.join((self.model, str(self.length), *self.training))}.json.gz"


class Published(NamedTuple):
    """A step that was published: its program, GPU, milliseconds, and GiB of memory without the context."""

    program: Program
    gpu: str
    ms: float
    memory_gib: float
    devices: int = 1

    @property
    def kind(self) -> str:
        """The row of the table that it belongs to."""
        return f"{NAMES[self.program.model]}, {self.gpu}"


STEPS: Final = [
    *(
        Published(Program("bert", LENGTH, training), "V100-SXM2", 1e3 * seconds / TIMED, (mib - CONTEXT_MIB) / 1024)
        for training, seconds, mib in (
            ((), 57.82, 14949), (("accumulated",), 66.03, 8681), (("accumulated", "checkpoints"), 85.47, 6775),
            (("amp",), 27.46, 13939), (("accumulated", "checkpoints", "amp"), 50.76, 7275),
            (("adafactor",), 64.31, 12295), (("accumulated", "checkpoints", "amp", "adafactor"), 56.54, 4847),
        )
    ),
    *(
        Published(Program("dit", SIDE * SIDE // PATCH**2, training), "A100-80", 1e3 / rate, mb / 1024)
        for training, rate, mb in (
            (("encoder",), 0.43, 44045), (("encoder", "amp"), 0.56, 40461), (("amp",), 0.84, 27485),
        )
    ),
    *(
        Published(Program("qwen", length), "A100-80", 1e3 * seconds / SEQUENCES, gib)
        for length, gib, seconds in (
            (1024, 21.5, 2.8), (2048, 23.8, 5.2), (4096, 29.7, 10.1), (8192, 36.6, 21.3),
        )
    ),
]  # fmt: skip


class Attention(nn.Module):
    """BERT's attention, written out."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map [N, T, width] to the same shape; `mask` is added to the scores."""
        n, t, _ = x.shape
        q, k, v = (one(x).view(n, t, HEADS, -1).permute(0, 2, 1, 3) for one in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS) + mask
        weights = nn.functional.dropout(nn.functional.softmax(scores, dim=-1), 0.1)
        y = (weights @ v).permute(0, 2, 1, 3).contiguous().view(n, t, WIDTH)
        return self.norm(nn.functional.dropout(self.o(y), 0.1) + x)


class BertLayer(nn.Module):
    """Attention, and a feed-forward network of four times the width, each with a norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map [N, T, width] to the same shape."""
        x = self.attention(x, mask)
        y = self.outer(nn.functional.gelu(self.inner(x)))
        return self.norm(nn.functional.dropout(y, 0.1) + x)


class Bert(nn.Module):
    """Three embeddings, layers, and a classifier of the first token."""

    def __init__(self, *, checkpoints: bool) -> None:
        super().__init__()
        self.words, self.places, self.kinds = (nn.Embedding(count, WIDTH) for count in (WORDS, LENGTH, 2))
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer() for _ in range(LAYERS))
        self.pool = nn.Linear(WIDTH, WIDTH)
        self.classes = nn.Linear(WIDTH, 2)
        self.checkpoints = checkpoints

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [N, T] to scores [N, 2]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)[None]
        x = self.words(tokens) + self.kinds(torch.zeros_like(tokens)) + self.places(places)
        x = nn.functional.dropout(self.norm(x), 0.1)
        mask = (1.0 - torch.ones(tokens.shape, device=tokens.device)[:, None, None]) * -10000.0
        for layer in self.layers:
            x = checkpoint(layer, x, mask, use_reentrant=True) if self.checkpoints else layer(x, mask)
        return self.classes(nn.functional.dropout(torch.tanh(self.pool(x[:, 0])), 0.1))


class AdamW(torch.optim.Optimizer):
    """AdamW as transformers had it written: some operators for each parameter."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        """Update all parameters."""
        for parameter in (one for group in self.param_groups for one in group["params"]):
            state = self.state[parameter]
            for name in ("first", "second"):
                state.setdefault(name, torch.zeros_like(parameter))
            state["first"].mul_(0.9).add_(parameter.grad, alpha=0.1)
            state["second"].mul_(0.999).addcmul_(parameter.grad, parameter.grad, value=0.001)
            parameter.addcdiv_(state["first"], state["second"].sqrt().add_(1e-8), value=-5e-5)


class Adafactor(torch.optim.Optimizer):
    """Adafactor with a given rate, as transformers has it written: matrices keep a row and a column."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        """Update all parameters."""
        for parameter in (one for group in self.param_groups for one in group["params"]):
            gradient = parameter.grad
            state = self.state[parameter]
            squares = gradient**2 + 1e-30
            if parameter.ndim > 1:
                row = state.setdefault("row", torch.zeros(parameter.shape[:-1], device=gradient.device))
                column = state.setdefault(
                    "column", torch.zeros((*parameter.shape[:-2], parameter.shape[-1]), device=gradient.device)
                )
                row.mul_(0.99).add_(squares.mean(dim=-1), alpha=0.01)
                column.mul_(0.99).add_(squares.mean(dim=-2), alpha=0.01)
                factor = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
                update = torch.mul(factor, column.unsqueeze(-2).rsqrt()).mul_(gradient)
            else:
                second = state.setdefault("second", torch.zeros_like(gradient))
                second.mul_(0.99).add_(squares, alpha=0.01)
                update = second.rsqrt().mul_(gradient)
            (parameter.norm(2) / parameter.numel() ** 0.5).item()
            update.div_((update.norm(2) / update.numel() ** 0.5).clamp_(min=1.0)).mul_(5e-5)
            parameter.add_(-update)


def bert_step(program: Program) -> Callable[[], None]:
    """A step of BERT-large, as transformers' Trainer makes it."""
    training = program.training
    model = Bert(checkpoints="checkpoints" in training).cuda()
    parameters = list(model.parameters())
    optimizer = (Adafactor if "adafactor" in training else AdamW)(parameters)
    scaler = torch.amp.GradScaler("cuda", enabled="amp" in training)
    parts = BATCH if "accumulated" in training else 1
    batches = [torch.randint(WORDS, (BATCH // parts, LENGTH)) for _ in range(parts)]
    labels = torch.zeros(BATCH // parts, dtype=torch.long)

    def step() -> None:
        for tokens in batches:
            with torch.autocast("cuda", torch.float16, enabled="amp" in training):
                loss = nn.functional.cross_entropy(model(tokens.cuda()), labels.cuda())
            scaler.scale(loss / parts).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)

    return step


class DitBlock(nn.Module):
    """Attention and a feed-forward network whose norms are shifted and scaled by a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIT_WIDTH, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv = nn.Linear(DIT_WIDTH, 3 * DIT_WIDTH)
        self.o = nn.Linear(DIT_WIDTH, DIT_WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(DIT_WIDTH, 4 * DIT_WIDTH), nn.GELU(approximate="tanh"), nn.Linear(4 * DIT_WIDTH, DIT_WIDTH)
        )
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(DIT_WIDTH, 6 * DIT_WIDTH))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """Map [N, T, width] to the same shape; `c`: conditions [N, width]."""
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.condition(c).unsqueeze(1).chunk(6, dim=2)
        x = x + gate_1 * self._attention(self.norms[0](x) * (1 + scale_1) + shift_1)
        return x + gate_2 * self.feed(self.norms[1](x) * (1 + scale_2) + shift_2)

    def _attention(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, DIT_HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        return self.o(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, DIT_WIDTH))


class Dit(nn.Module):
    """DiT-XL/2: patches, conditions of time and class, blocks that are computed again, and a last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(CHANNELS, DIT_WIDTH, PATCH, PATCH)
        self.time = nn.Sequential(nn.Linear(256, DIT_WIDTH), nn.SiLU(), nn.Linear(DIT_WIDTH, DIT_WIDTH))
        self.classes = nn.Embedding(1001, DIT_WIDTH)
        self.blocks = nn.ModuleList(DitBlock() for _ in range(DIT_LAYERS))
        self.norm = nn.LayerNorm(DIT_WIDTH, elementwise_affine=False, eps=1e-6)
        self.condition = nn.Sequential(nn.SiLU(), nn.Linear(DIT_WIDTH, 2 * DIT_WIDTH))
        self.last = nn.Linear(DIT_WIDTH, PATCH**2 * 2 * CHANNELS)
        self.register_buffer("places", torch.zeros(1, SIDE * SIDE // PATCH**2, DIT_WIDTH))

    def forward(self, x: Tensor, times: Tensor, classes: Tensor) -> Tensor:
        """Map encoded images [N, channels, side, side] to noise and its variance, twice as many channels."""
        turns = times[:, None].float() * torch.exp(-math.log(10000) * torch.arange(128, device=x.device) / 128)
        c = self.time(torch.cat((turns.cos(), turns.sin()), dim=-1)) + self.classes(classes)
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = checkpoint(block, x, c, use_reentrant=True)
        shift, scale = self.condition(c).unsqueeze(1).chunk(2, dim=2)
        x = self.last(self.norm(x) * (1 + scale) + shift)
        x = x.unflatten(1, (SIDE // PATCH, -1)).unflatten(3, (PATCH, PATCH, 2 * CHANNELS))
        return torch.einsum("nhwpqc->nchpwq", x).reshape(len(x), 2 * CHANNELS, SIDE, SIDE)


class Residual(nn.Module):
    """Two convolutions with group norms, and what they are added to."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels, eps=1e-6) for channels in (inputs, outputs))
        self.first, self.second = (nn.Conv2d(channels, outputs, 3, padding=1) for channels in (inputs, outputs))
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to images."""
        y = self.first(nn.functional.silu(self.norms[0](x)))
        return self.shortcut(x) + self.second(nn.functional.silu(self.norms[1](y)))


class Encoder(nn.Module):
    """The encoder of images of Stable Diffusion's autoencoder: to a side of an eighth."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, ENCODER[0], 3, padding=1)]
        inputs = ENCODER[0]
        for stage, outputs in enumerate(ENCODER):
            layers += [Residual(inputs, outputs), Residual(outputs, outputs)]
            if stage + 1 < len(ENCODER):
                layers += [nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(outputs, outputs, 3, 2)]
            inputs = outputs
        self.stages, self.before, self.after = nn.Sequential(*layers), *(Residual(inputs, inputs) for _ in range(2))
        self.attention_norm, self.norm = (nn.GroupNorm(32, inputs, eps=1e-6) for _ in range(2))
        self.qkv = nn.Linear(inputs, 3 * inputs)
        self.o = nn.Linear(inputs, inputs)
        self.last = nn.Conv2d(inputs, 2 * CHANNELS, 3, padding=1)
        self.moments = nn.Conv2d(2 * CHANNELS, 2 * CHANNELS, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [N, 3, H, W] to encoded images [N, channels, H / 8, W / 8]."""
        x = self.before(self.stages(images))
        q, k, v = self.qkv(self.attention_norm(x).flatten(2).transpose(1, 2)).chunk(3, dim=-1)
        y = self.o(nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0])
        x = self.after(x + y.transpose(1, 2).unflatten(2, x.shape[2:]))
        mean, log_variance = self.moments(self.last(nn.functional.silu(self.norm(x)))).chunk(2, dim=1)
        return (mean + torch.exp(0.5 * log_variance.clamp(-30, 20)) * torch.randn_like(mean)) * 0.18215


def dit_step(program: Program) -> Callable[[], None]:
    """A step of DiT-XL/2. The loss of the variance, some hundred maps of small tensors, is left out."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    amp = "amp" in program.training
    with torch.device("cuda"):
        model = Dit()
        average = Dit().requires_grad_(requires_grad=False)
        encoder = Encoder().requires_grad_(requires_grad=False) if "encoder" in program.training else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    side = SIDE if encoder is None else 8 * SIDE
    images = torch.randn(IMAGES, CHANNELS if encoder is None else 3, side, side)
    classes = torch.randint(1000, (IMAGES,))

    def step() -> None:
        x = images.cuda()
        if encoder is not None:
            with torch.no_grad():
                x = encoder(x)
        times = torch.randint(1000, (IMAGES,), device="cuda")
        noise = torch.randn_like(x)
        noisy = x * torch.rand(IMAGES, 1, 1, 1, device="cuda") + noise * torch.rand(IMAGES, 1, 1, 1, device="cuda")
        with torch.autocast("cuda", torch.float16, enabled=amp):
            made = model(noisy, times, classes.cuda())
        loss = ((made.float()[:, :CHANNELS] - noise) ** 2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
                mean.mul_(0.9999).add_(parameter, alpha=1e-4)
        loss.item()

    return step


class Lora(nn.Module):
    """A linear layer that is kept, and the product of two matrices of few rows that is trained."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.base = nn.Linear(inputs, outputs, bias=bias).requires_grad_(requires_grad=False)
        self.a, self.b = nn.Linear(inputs, RANK, bias=False), nn.Linear(RANK, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        return self.base(x) + self.b(self.a(nn.functional.dropout(x, 0.05))) * 0.25


class QwenNorm(nn.Module):
    """RMSNorm, computed in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(QWEN_WIDTH), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor to its shape and type."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.weight


class QwenLayer(nn.Module):
    """Attention with rotary embeddings in float32, and a gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(QwenNorm() for _ in range(2))
        self.qkv = Lora(QWEN_WIDTH, 3 * QWEN_WIDTH, bias=True)
        self.o = Lora(QWEN_WIDTH, QWEN_WIDTH)
        self.w1, self.w2, self.w3 = Lora(QWEN_WIDTH, INNER), Lora(QWEN_WIDTH, INNER), Lora(INNER, QWEN_WIDTH)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map [N, T, width] to the same shape; `cos`, `sin`: [1, T, 1, width of a head]."""
        x = x + self._attention(self.norms[0](x), cos, sin)
        y = self.norms[1](x)
        return x + self.w3(self.w1(y) * nn.functional.silu(self.w2(y)))

    def _attention(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = (one.view(n, t, QWEN_HEADS, -1) for one in self.qkv(x).split(QWEN_WIDTH, dim=2))
        q, k = (_turned(one.float(), cos, sin).type_as(one) for one in (q, k))
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(n, t, QWEN_WIDTH))


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.unflatten(-1, (2, -1)).unbind(-2)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Qwen(nn.Module):
    """Embeddings, layers that are computed again, and a product with other weights."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(QWEN_WORDS, QWEN_WIDTH).requires_grad_(requires_grad=False)
        self.layers = nn.ModuleList(QwenLayer() for _ in range(QWEN_LAYERS))
        self.norm = QwenNorm()
        self.head = nn.Linear(QWEN_WIDTH, QWEN_WORDS, bias=False).requires_grad_(requires_grad=False)
        half = QWEN_WIDTH // QWEN_HEADS // 2
        turns = torch.outer(torch.arange(length).float(), 10000.0 ** -(torch.arange(half) / half)).repeat(1, 2)
        for name, table in (("cos", turns.cos()), ("sin", turns.sin())):
            self.register_buffer(name, table[None, :, None])

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [N, T] to logits [N, T, words]."""
        x = self.words(tokens).requires_grad_()
        for layer in self.layers:
            x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=True)
        return self.head(self.norm(x))


def qwen_step(program: Program) -> Callable[[], None]:
    """A step of Qwen-7B with LoRA, of one sequence."""
    with torch.device("cuda"):
        model = Qwen(program.length)
    for module in model.modules():
        if not isinstance(module, Qwen):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.bfloat16()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, foreach=False)
    tokens = torch.randint(QWEN_WORDS, (1, program.length))

    def step() -> None:
        given = tokens.cuda()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(given)
            loss = nn.functional.cross_entropy(logits[:, :-1].contiguous().flatten(0, 1), given[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        optimizer.step()
        model.zero_grad()

    return step


def follow(program: Program) -> dict[str, Any]:
    """Follow a program's second step: what the probe would say of it."""
    from steptrace.estimate.driver import driver_facts
    from steptrace.estimate.gpus import gpu_named
    from steptrace.predict import predict_syncs

    make = {"bert": bert_step, "dit": dit_step, "qwen": qwen_step}[program.model]
    gpu = gpu_named("V100-SXM2" if program.model == "bert" else "A100-80")
    with predict_syncs(driver=driver_facts(gpu)) as syncs:
        return followed_programs.last_step(syncs, make(program), 2)


if __name__ == "__main__":
    followed_programs.main(__doc__, (step.program for step in STEPS), follow)
