"""Steps of networks on one GPU and on eight, as others publish them, for estimates to be held to.

    python bench/published_networks.py --out FOLDER [--at-most N]

The throughputs are those of NVIDIA/DeepLearningExamples (PyTorch/Classification/ConvNets): ResNet-50 v1.5 (README at
commit 291f0d02) and ResNeXt-101 of 32 groups (commit 46ff3707), trained with DistributedDataParallel on a DGX A100 and
a DGX-1, batches and layouts of configs.yml (commit 097c7ff9): NHWC with automatic mixed precision, otherwise NCHW. They
include data loading, which estimates leave out. No constant was fitted to these steps, and they were looked at after
the constants had been derived. The networks here are written to the papers' descriptions.

SSD300 with a ResNet-50 up to its fourth stage, whose loss mines hard negatives by sorting, is from the same examples
(PyTorch/Detection/SSD/README.md at commit 04099020, PyTorch 22.10): an A100 with 80 GB and a V100 with 16 GB.

Llama 3.1 of 8 billion parameters, sharded by FSDP2, is that of pytorch/torchtitan
(benchmarks/llama3_h100_202412_torchtitan.md at commit 31a17bfd): two sequences of 8,192 tokens on each of eight H100
with 96 GB of HBM2e and a power limit of 500 W; every second product and attention are kept for the backward pass, and
the rest is computed again.

Each program is followed once, as one rank, to a file in FOLDER. An image network is a job of one rank, which launches
the collectives that each of eight ranks launches. Llama is rank 0 of eight, whose collectives send nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import followed_programs
from steptrace.estimate.gpus import Gpu, gpu_named

#: Blocks of each stage, width of the first stage's 3 x 3 convolutions, and their groups.
NETWORKS: Final = {"resnet50": ((3, 4, 6, 3), 64, 1), "resnext101_32x4d": ((3, 4, 23, 3), 128, 32)}
CLASSES: Final = 1000
SIZE: Final = 224
LLAMA: Final = "llama3_8b"
#: A detector: images of 300 x 300, 80 kinds of objects and none, and for each of its six maps of features the boxes at
#: a place, and the channels of the block that makes it from the map before: inner, outer, stride and padding.
SSD = "ssd300"
SSD_SIZE = 300
OBJECTS = 81
BOXES: Final = (4, 6, 6, 6, 4, 4)
BLOCKS: Final = ((256, 512, 2, 1), (256, 512, 2, 1), (128, 256, 2, 1), (128, 256, 1, 0), (128, 256, 1, 0))
#: Of Llama: width, layers, heads, heads of keys, width of the feed-forward network, words, tokens in a sequence.
WIDTH = 4096
LAYERS = 32
HEADS = 32
KEY_HEADS = 8
INNER = 14336
WORDS = 128256
LENGTH = 8192
RANKS: Final = 8
#: The card of torchtitan's table, which is in no data sheet.
HBM2E: Final = "H100 with 96 GB, 500 W"


class Program(NamedTuple):
    """A network, the images of a batch, whether it trains, and its precision (`amp`, `fp32`)."""

    network: str
    batch: int
    part: str
    precision: str

    @property
    def file(self) -> str:
        """The name of the file that holds its operators."""
        return f"{'-'.join(map(str, self))}.json.gz"


class Published(NamedTuple):
    """A throughput that was published: its program, GPU, number of GPUs, and samples a second of all GPUs together.

    `memory_gib`: the most memory that PyTorch reserved, where it was published.
    """

    program: Program
    gpu: str
    devices: int
    images_per_s: float
    memory_gib: float | None = None

    @property
    def ms(self) -> float:
        """Milliseconds of a step."""
        return 1e3 * self.program.batch * self.devices / self.images_per_s


def _rows(network: str, part: str, figures: dict[tuple[str, str, int, int], float]) -> list[Published]:
    return [
        Published(Program(network, batch, part, precision), gpu, devices, rate)
        for (gpu, precision, batch, devices), rate in figures.items()
    ]


#: By GPU, precision, batch and number of GPUs. An A100 computes float32 in TF32.
STEPS: Final = [
    *_rows("resnet50", "train", {
        ("A100-80", "amp", 256, 1): 2470, ("A100-80", "amp", 256, 8): 16621,
        ("A100-80", "fp32", 256, 1): 938, ("A100-80", "fp32", 256, 8): 7248,
        ("V100-SXM2", "amp", 256, 1): 1200, ("V100-SXM2", "amp", 256, 8): 8322,
        ("V100-SXM2", "fp32", 112, 1): 367, ("V100-SXM2", "fp32", 112, 8): 2855,
    }),
    *_rows("resnext101_32x4d", "train", {
        ("A100-40", "amp", 128, 1): 908.4, ("A100-40", "amp", 128, 8): 6887.59,
        ("A100-40", "fp32", 128, 1): 300.42, ("A100-40", "fp32", 128, 8): 2380.51,
        ("V100-SXM2", "amp", 128, 1): 534.91, ("V100-SXM2", "amp", 128, 8): 4000.79,
        ("V100-SXM2", "fp32", 64, 1): 150.05, ("V100-SXM2", "fp32", 64, 8): 1151.01,
    }),
    *_rows("resnet50", "infer", {
        ("V100-SXM2", "amp", 128, 1): 3249, ("V100-SXM2", "fp32", 128, 1): 1229,
        ("T4", "amp", 128, 1): 1190, ("T4", "fp32", 128, 1): 426,
    }),
    *_rows(SSD, "train", {
        ("A100-80", "amp", 128, 1): 724.41, ("A100-80", "amp", 128, 8): 5733.98,
        ("A100-80", "fp32", 128, 1): 377.18, ("A100-80", "fp32", 128, 8): 2967.23,
        ("V100-SXM2", "amp", 64, 1): 322.81, ("V100-SXM2", "amp", 64, 8): 2520.50,
        ("V100-SXM2", "fp32", 32, 1): 107.22, ("V100-SXM2", "fp32", 32, 8): 840.35,
    }),
    Published(Program(LLAMA, 2, "train", "bf16"), HBM2E, RANKS, 5762 * RANKS / LENGTH, 82.4),
]  # fmt: skip


class Block(nn.Module):
    """A bottleneck of three convolutions, whose second one has the stride and the groups."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map images to images."""
        return torch.relu_(self.body(x) + self.shortcut(x))


def network(name: str) -> nn.Module:
    """A network of `NETWORKS`."""
    layers, channels = stages_of(*NETWORKS[name])
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


def stages_of(
    stages: Sequence[int], width: int, groups: int, strides: Sequence[int] = (1, 2, 2, 2)
) -> tuple[list[nn.Module], int]:
    """The layers of a network's stages, and the channels of the last one."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    ]  # fmt: skip
    inputs = 64
    for stage, blocks in enumerate(stages):
        outputs = 256 * 2**stage
        for number in range(blocks):
            stride = 1 if number else strides[stage]
            layers.append(Block(inputs, width * 2**stage, outputs, stride, groups))
            inputs = outputs
    return layers, inputs


class Detector(nn.Module):
    """SSD300: boxes and their kinds at each place of six maps of features."""

    def __init__(self) -> None:
        super().__init__()
        layers, channels = stages_of(NETWORKS["resnet50"][0][:3], 64, 1, strides=(1, 2, 1))
        self.blocks = nn.ModuleList([nn.Sequential(*layers)])
        self.places = nn.ModuleList()
        self.kinds = nn.ModuleList()
        for inner, outer, stride, padding in BLOCKS:
            block = nn.Sequential(
                nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
                nn.Conv2d(inner, outer, 3, stride, padding, bias=False), nn.BatchNorm2d(outer), nn.ReLU(inplace=True),
            )  # fmt: skip
            self.blocks.append(block)
            channels = outer
        for boxes, channels in zip(BOXES, (1024, *(outer for _, outer, _, _ in BLOCKS)), strict=True):
            self.places.append(nn.Conv2d(channels, 4 * boxes, 3, padding=1))
            self.kinds.append(nn.Conv2d(channels, OBJECTS * boxes, 3, padding=1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map images to boxes [N, 4, 8732] and scores [N, 81, 8732]."""
        boxes = []
        scores = []
        for block, place, kind in zip(self.blocks, self.places, self.kinds, strict=True):
            x = block(x)
            boxes.append(place(x).reshape(len(x), 4, -1))
            scores.append(kind(x).reshape(len(x), OBJECTS, -1))
        return torch.cat(boxes, 2).contiguous(), torch.cat(scores, 2).contiguous()


def detection_loss(boxes: Tensor, scores: Tensor, targets: Tensor, kinds: Tensor) -> Tensor:
    """Smooth L1 of the boxes with an object, and cross entropy of these and of three times as many hard negatives."""
    mask = kinds > 0
    found = mask.sum(dim=1)
    of_boxes = nn.functional.smooth_l1_loss(boxes, targets, reduction="none").sum(dim=1)
    of_boxes = (mask.float() * of_boxes).sum(dim=1)
    entropy = nn.functional.cross_entropy(scores, kinds, reduction="none")
    negative = entropy.clone()
    negative[mask] = 0
    rank = negative.sort(dim=1, descending=True)[1].sort(dim=1)[1]
    hard = rank < torch.clamp(3 * found, max=mask.size(1)).unsqueeze(-1)
    total = of_boxes + (entropy * (mask.float() + hard.float())).sum(dim=1)
    return (total * (found > 0).float() / found.float().clamp(min=1e-6)).mean()


def sheet(name: str) -> Gpu:
    """The data sheet of a GPU of `STEPS`."""
    if name == HBM2E:
        return replace(gpu_named("H100"), name=name, bandwidth_gbs=2400, memory_gb=96, watts=500)
    return gpu_named(name)


class Layer(nn.Module):
    """A layer of Llama 3: attention with rotary embeddings and shared keys, and a gated feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
        of_keys = KEY_HEADS * WIDTH // HEADS
        self.q, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(WIDTH, of_keys, bias=False) for _ in range(2))
        self.w1, self.w3 = (nn.Linear(WIDTH, INNER, bias=False) for _ in range(2))
        self.w2 = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        """Map [N, T, width] to the same shape; `turns`: complex [T, half a head]."""
        x = x + self._attention(self.norm_1(x), turns)
        y = self.norm_2(x)
        return x + self.w2(nn.functional.silu(self.w1(y)) * self.w3(y))

    def _attention(self, x: Tensor, turns: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = (one(x).view(n, t, -1, width // HEADS) for one in (self.q, self.k, self.v))
        q, k = turned(q, turns), turned(k, turns)
        k, v = (one[:, :, :, None].expand(-1, -1, -1, HEADS // KEY_HEADS, -1).flatten(2, 3) for one in (k, v))
        q, k, v = (one.transpose(1, 2) for one in (q, k, v))
        result = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(result.transpose(1, 2).contiguous().view(n, t, width))


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Rotary embeddings, as complex numbers in float32."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns[:, None]).flatten(3).type_as(x)


class Llama(nn.Module):
    """Embeddings, layers, and a product with the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-5)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        half = WIDTH // HEADS // 2
        angles = torch.outer(torch.arange(LENGTH).float(), 5e5 ** -(torch.arange(half) / half))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [N, T] to logits [N, T, words]."""
        x = self.words(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, self.turns, use_reentrant=False, context_fn=_kept)
        return self.head(self.norm(x))


def _kept() -> Any:
    """Attention and every second product are kept; anything else is computed again in the backward pass."""
    products = 0

    def policy(_: Any, operator: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        nonlocal products
        name = str(operator)
        is_product = name == "aten.mm.default"
        products += is_product
        keep = "scaled_dot_product" in name or (is_product and products % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def llama_step(program: Program) -> Callable[[], None]:
    """A step of Llama, sharded by FSDP2: parameters in bfloat16, gradients reduced in float32."""
    with torch.device("cuda"):
        model = Llama()
        tokens, targets = (torch.randint(WORDS, (program.batch, LENGTH)) for _ in range(2))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=layer is not model.layers[-1])
    fully_shard(model, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, foreach=True)

    def train() -> None:
        optimizer.zero_grad()
        logits = model(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).backward()
        optimizer.step()

    return train


def step_of(program: Program) -> Callable[[], None]:
    """What is measured: ends with a sync."""
    amp = program.precision == "amp"
    layout = torch.channels_last if amp else torch.contiguous_format
    size = SSD_SIZE if program.network == SSD else SIZE
    images = torch.empty(program.batch, 3, size, size, device="cuda").contiguous(memory_format=layout)
    plain = Detector() if program.network == SSD else network(program.network)
    model = plain.cuda().to(memory_format=layout)  # type: ignore[call-overload]
    if program.part == "infer":
        model.eval()

        def infer() -> None:
            with torch.inference_mode(), torch.autocast("cuda", torch.float16, enabled=amp):
                model(images)
            torch.cuda.synchronize()

        return infer
    loss_of = _detection(program) if program.network == SSD else _classification(program)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.875, foreach=False)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)

    def train() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=amp):
            loss = loss_of(model(images))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()

    return train


def _classification(program: Program) -> Callable[[Tensor], Tensor]:
    labels = torch.randint(CLASSES, (program.batch,), device="cuda")
    return lambda scores: nn.functional.cross_entropy(scores, labels, label_smoothing=0.1)


def _detection(program: Program) -> Callable[[tuple[Tensor, Tensor]], Tensor]:
    count = 8732
    targets = torch.empty(program.batch, 4, count, device="cuda")
    kinds = torch.randint(OBJECTS, (program.batch, count), device="cuda")

    def loss(made: tuple[Tensor, Tensor]) -> Tensor:
        return detection_loss(made[0].float(), made[1].float(), targets, kinds)

    return loss


def follow(program: Program) -> dict[str, Any]:
    """Follow a program's fourth step, when the buckets of gradients no longer change: what the probe would say."""
    from steptrace.predict import predict_syncs

    with predict_syncs() as syncs:
        if program.network == LLAMA:
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
            step = llama_step(program)
        else:
            dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
            step = step_of(program)
        prediction = followed_programs.last_step(syncs, step, 4)
        dist.destroy_process_group()
        return prediction


if __name__ == "__main__":
    followed_programs.main(__doc__, (step.program for step in STEPS), follow)
