"""Steps from tables in the documents of transformers, diffusers, Lambda and torchtitan, for estimates to be held to.

    python bench/published_model_tables.py --out FOLDER [--at-most N]

No constant was fitted to these steps.

- huggingface/transformers (docs/source/ko/model_doc/bert.md at commit 0a5a4565, docs/source/en/model_doc/opt.md at
  commit 3e7da9f1): BERT-base on an A100 with 80 GB and OPT-350m on an L40S, in float16, attention written out or
  PyTorch's own. A step is a forward pass, the sum of the logits, and a backward pass; memory is the allocator's most,
  gradients included.
- huggingface/diffusers (docs/source/en/optimization/torch2.0.md at commit 2c529b75, the nightly build of PyTorch 2.1):
  the network of Stable Diffusion 1.5 in float16, channels-last. A step denoises a number of images of 512 x 512 pixels,
  each with and without its prompt. The document does not say which A100 and V100 these were: they are taken as 40 GB,
  and as SXM2.
- lambdal/deeplearning-benchmark (pytorch/pytorch-train-throughput-fp16.csv and -fp32.csv at commits 0551cb70;
  batches of scripts/config_v1): programs of NVIDIA/DeepLearningExamples on one GPU. ResNet-50 on images that are made
  once, NCHW, which was the default of that script; BERT on SQuAD, 384 tokens, with apex's O2 (weights in float16,
  those of the optimizer in float32) or in float32, TF32 where a GPU has it.
- pytorch/torchtitan (docs/performance.md at commit 04133643): Llama 3 of 8 billion parameters, one sequence of 8,192
  tokens on each of 64 A100 with 80 GB.

Needs transformers and diffusers (pip install transformers diffusers). Each program is followed once, to a file in
FOLDER.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import followed_programs
import published_networks

#: Side of an encoded image of Stable Diffusion, its channels, words of a prompt, their width, and steps of a schedule.
SIDE = 64
CHANNELS = 4
WORDS = 77
WIDTH = 768
#: Tokens in a sequence of SQuAD.
SQUAD = 384
RANKS: Final = 64


class Program(NamedTuple):
    """A GPU, a model, a batch on it, the samples' length, and how they are computed: words that `step_of` asks for."""

    gpu: str
    model: str
    batch: int
    length: int = 0
    training: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The name of the file that holds its operators."""
        return f"{'-'.join((self.gpu, self.model, str(self.batch), str(self.length), *self.training))}.json.gz"


class Published(NamedTuple):
    """A step that was published: its program, row of the table, milliseconds, GPUs, and GiB of the allocator."""

    program: Program
    kind: str
    ms: float
    devices: int = 1
    memory_gib: float | None = None

    @property
    def gpu(self) -> str:
        """The GPU that it was measured on."""
        return self.program.gpu

    @property
    def tf32(self) -> bool:
        """Whether float32 was computed in TF32."""
        return "tf32" in self.program.training


#: By sequences and tokens: seconds and MB with attention written out, and with PyTorch's own.
BERT: Final[Mapping[tuple[int, int], tuple[float, float, float, float]]] = {
    (4, 256): (0.023, 939.213, 0.017, 764.834), (4, 512): (0.023, 1970.447, 0.018, 1227.162),
    (8, 256): (0.023, 1594.295, 0.018, 1226.114), (8, 512): (0.035, 3629.401, 0.025, 2134.262),
    (16, 256): (0.030, 2874.426, 0.024, 2134.262), (16, 512): (0.064, 6964.659, 0.044, 3961.013),
}  # fmt: skip
OPT: Final[Mapping[tuple[int, int], tuple[float, float, float, float]]] = {
    (1, 512): (0.046, 1973.544, 0.037, 1551.35), (1, 2048): (0.230, 15662.224, 0.039, 2715.75),
    (2, 1024): (0.122, 9054.405, 0.038, 2715.75), (2, 2048): (0.464, 30572.058, 0.067, 4750.55),
    (4, 1024): (0.262, 17427.842, 0.062, 4750.55), (8, 512): (0.153, 10985.391, 0.060, 4750.55),
    (8, 1024): (0.526, 34175.763, 0.122, 8821.18),
}  # fmt: skip
#: By GPU: denoising steps a second of 1, 4 and 16 images, eager and compiled.
DIFFUSION: Final[Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "A100-40": ((23.13, 13.12, 3.6), (49.74, 17.27, 4.68)), "V100-SXM2": ((19.14, 5.89, 1.66), (22.17, 6.86, 1.90)),
    "T4": ((6.95, 1.79, 1 / 2.30), (7.56, 1.99, 1 / 1.99)), "RTX-3090": ((22.84, 6.35, 1.69), (25.69, 7.30, 1.91)),
    "RTX-4090": ((41.89, 12.84, 3.2), (49.81, 15.59, 3.85)),
}  # fmt: skip
#: By GPU, in AMP or O2 and in float32 or TF32: samples of a batch and of a second of ResNet-50, BERT-base, BERT-large.
LAMBDA: Final[Mapping[str, tuple[tuple[tuple[int, float], ...], tuple[tuple[int, float], ...]]]] = {
    "A100-PCIe-80": (((1280, 1527), (320, 415), (112, 140)), ((640, 1014), (172, 224), (64, 70))),
    "A100-80": (((1280, 1582), (320, 443), (112, 152)), ((640, 1066), (172, 239), (64, 75))),
    "H100-PCIe": (((1280, 1866), (320, 567), (112, 203)), ((640, 1197), (172, 292), (64, 97))),
    "H100": (((1280, 2776), (320, 867), (112, 307)), ((640, 1893), (172, 433), (64, 147))),
    "RTX-3090": (((448, 905), (96, 172), (28, 52)), ((224, 513), (48, 85), (16, 24))),
    "RTX-4090": (((448, 1301), (96, 297), (28, 93)), ((224, 721), (48, 137), (16, 44))),
}  # fmt: skip
TITAN_TOKENS_PER_S: Final = 2973


def _of_transformers(
    model: str, gpu: str, figures: Mapping[tuple[int, int], tuple[float, float, float, float]]
) -> list[Published]:
    return [
        Published(Program(gpu, model, *key, (attention,)), f"transformers' {model}, {gpu}", 1e3 * seconds, 1, gib)
        for key, (eager, eager_mb, fused, fused_mb) in figures.items()
        for attention, seconds, mb in (("eager", eager, eager_mb), ("sdpa", fused, fused_mb))
        for gib in [mb * 1e6 / 2**30]
    ]


def _of_lambda(gpu: str) -> list[Published]:
    return [
        Published(
            Program(gpu, model, batch, length, (precision,)), f"Lambda's {model}, {precision}", 1e3 * batch / rate
        )
        for precision, figures in zip(("half", "tf32"), LAMBDA[gpu], strict=True)
        for (model, length), (batch, rate) in zip(
            (("resnet50", 224), ("bert-base", SQUAD), ("bert-large", SQUAD)), figures, strict=True
        )
    ]


STEPS: Final = [
    *_of_transformers("bert", "A100-80", BERT),
    *_of_transformers("opt", "L40S", OPT),
    *(
        Published(Program(gpu, "diffusion", batch, 0, training), " ".join(("Stable Diffusion", *training)), 1e3 / rate)
        for gpu, by_training in DIFFUSION.items()
        for training, rates in zip(((), ("compiled",)), by_training, strict=True)
        for batch, rate in zip((1, 4, 16), rates, strict=True)
    ),
    *(step for gpu in LAMBDA for step in _of_lambda(gpu)),
    Published(
        Program("A100-80", "llama", 1, published_networks.LENGTH), "torchtitan's Llama 3 8B, 64 A100-80",
        1e3 * published_networks.LENGTH / TITAN_TOKENS_PER_S, RANKS,
    ),
]  # fmt: skip


def transformers_step(program: Program) -> Callable[[], None]:
    """A forward pass, the sum of the logits, and a backward pass."""
    import transformers

    kind = program.model
    attention = program.training[0]
    if kind == "bert":
        model: nn.Module = transformers.BertForMaskedLM(transformers.BertConfig(attn_implementation=attention))
    else:
        config = transformers.OPTConfig(
            hidden_size=1024, num_hidden_layers=24, ffn_dim=4096, num_attention_heads=16, word_embed_proj_dim=512,
            do_layer_norm_before=False, attn_implementation=attention,
        )  # fmt: skip
        model = transformers.OPTForCausalLM(config)
    model = model.to("cuda", torch.float16).train()
    tokens = torch.randint(10_000, (program.batch, program.length), device="cuda")
    outputs: Any = None

    def step() -> None:
        nonlocal outputs  # those of the last step live until there are new ones, as in their loop
        model.zero_grad()
        outputs = model(input_ids=tokens)
        outputs.logits.sum().backward()

    return step


def diffusion_step(program: Program) -> Callable[[], None]:
    """Denoise images once, with guidance, by a scheduler of four former results."""
    import diffusers

    network = diffusers.UNet2DConditionModel(sample_size=SIDE, cross_attention_dim=WIDTH).eval()
    network = network.to("cuda", torch.float16).to(memory_format=torch.channels_last)
    called: Any = torch.compile(network) if "compiled" in program.training else network
    scheduler = diffusers.PNDMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1
    )
    scheduler.set_timesteps(50)
    prompts = torch.randn(2 * program.batch, WORDS, WIDTH, device="cuda", dtype=torch.float16)
    images = torch.randn(program.batch, CHANNELS, SIDE, SIDE, device="cuda", dtype=torch.float16)
    times = iter(scheduler.timesteps)

    def step() -> None:
        nonlocal images
        time = next(times)
        with torch.no_grad():
            both = torch.cat([images] * 2)
            without, with_prompt = called(both, time, encoder_hidden_states=prompts, return_dict=False)[0].chunk(2)
            noise = without + 7.5 * (with_prompt - without)
            images = scheduler.step(noise, time, images, return_dict=False)[0]

    return step


def squad_step(program: Program) -> Callable[[], None]:
    """Fine-tune BERT on questions: apex's O2 and a fused Adam, or float32 and one kernel for each operation."""
    import transformers

    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    config = transformers.BertConfig(attn_implementation="eager", **(sizes if program.model == "bert-large" else {}))
    model = transformers.BertForQuestionAnswering(config).cuda().train()
    tokens = torch.randint(10_000, (program.batch, program.length), device="cuda")
    mask, kinds = torch.ones_like(tokens), torch.zeros_like(tokens)
    places = torch.randint(program.length, (2, program.batch), device="cuda")
    masters = list(model.parameters())
    in_half = "half" in program.training
    if in_half:
        masters = [parameter.detach().clone() for parameter in masters]
        model.half()
    weights = list(model.parameters())
    optimizer = torch.optim.Adam(masters, lr=1e-5, fused=in_half, foreach=False)

    def step() -> None:
        loss = model(tokens, mask, kinds, start_positions=places[0], end_positions=places[1]).loss
        loss.backward()
        if in_half:
            for master in masters:
                master.grad = torch.empty_like(master) if master.grad is None else master.grad
            torch._foreach_copy_([master.grad for master in masters], [weight.grad for weight in weights])
        optimizer.step()
        if in_half:
            torch._foreach_copy_([weight.data for weight in weights], masters)
        model.zero_grad()

    return step


def resnet_step(program: Program) -> Callable[[], None]:
    """Train ResNet-50 on one batch of images, NCHW."""
    model = published_networks.network("resnet50").cuda()
    images = torch.randn(program.batch, 3, program.length, program.length, device="cuda")
    labels = torch.randint(published_networks.CLASSES, (program.batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.875, foreach=False)
    in_half = "half" in program.training
    scaler = torch.amp.GradScaler("cuda", enabled=in_half)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=in_half):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()

    return step


def step_of(program: Program) -> Callable[[], None]:
    """What is measured."""
    if program.model == "llama":
        of_llama = published_networks.Program(published_networks.LLAMA, program.batch, "train", "bf16")
        return published_networks.llama_step(of_llama)
    makers = {"bert": transformers_step, "opt": transformers_step, "diffusion": diffusion_step, "resnet50": resnet_step}
    return makers.get(program.model, squad_step)(program)


def follow(program: Program) -> dict[str, Any]:
    """Follow a program's later step: what the probe would say of it."""
    from steptrace.estimate.driver import driver_facts
    from steptrace.estimate.gpus import gpu_named
    from steptrace.predict import predict_syncs

    os.environ["HF_HUB_OFFLINE"] = "1"
    is_compiled = "compiled" in program.training
    with predict_syncs(driver=driver_facts(gpu_named(program.gpu)), follow_compiled=is_compiled) as syncs:
        if program.model == "llama":
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
        with torch.device("cuda"):
            step = step_of(program)
        prediction = followed_programs.last_step(syncs, step, 6 if program.model == "diffusion" else 3)
        if program.model == "llama":
            dist.destroy_process_group()
        return prediction


if __name__ == "__main__":
    followed_programs.main(__doc__, [step.program for step in STEPS], follow)
