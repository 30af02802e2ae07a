"""Training steps of models and losses that people use: predicted, and held against PyTorch's CUDA host code.

    python tests/programs.py predict [NAME...]      predicted syncs of a step, as JSON lines
    python tests/programs.py device [NAME...]       warned and traced syncs, on the CUDA device that is there

A program is a function that builds its model on "cuda" and returns a step. `PROGRAMS` says what its second step has to
make: as `Counts` of warned, traced and predicted syncs, with the reason where they differ. Weights are random.
"""

import importlib.util
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everyone knows it by

from idioms import Counts, count_warnings

Step = Callable[[], object]


class Program(NamedTuple):
    """One program and what its second step makes.

    `flags` is how a flag reads that a kernel would have computed, where none does: as true in code that checks its
    inputs ("are the boxes valid?"), as false in code that asks for trouble ("is any degenerate?").
    """

    build: Callable[[], Step]
    needs: str
    expected: Counts
    reason: str
    flags: bool


PROGRAMS: dict[str, Program] = {}


def program(
    syncs: int | tuple[int, int, int], needs: str = "torch", reason: str = "", *, flags: bool = False
) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    """Enter a program with its syncs per step: one number, or those warned of, traced and predicted."""
    warned, traced, predicted = (syncs,) * 3 if isinstance(syncs, int) else syncs

    def enter(build: Callable[[], Step]) -> Callable[[], Step]:
        PROGRAMS[build.__name__] = Program(build, needs, Counts(warned, traced, predicted), reason, flags)
        return build

    return enter


def available(needs: str) -> bool:
    """Whether the library that a program needs is there."""
    return importlib.util.find_spec(needs) is not None


def on_device(*shape: int) -> Tensor:
    """Values on the device that were copied there, as a loader with pinned memory does."""
    return torch.linspace(-1, 1, int(torch.tensor(shape).prod())).view(shape).pin_memory().to("cuda", non_blocking=True)


def classes(*shape: int, of: int) -> Tensor:
    """Class numbers on the device."""
    count = int(torch.tensor(shape).prod())
    return (torch.arange(count).view(shape) % of).pin_memory().to("cuda", non_blocking=True)


def trained(model: nn.Module, loss_of: Callable[[], Tensor], make: Any = torch.optim.AdamW, **options: Any) -> Step:
    """A step of forward, backward and optimizer."""
    optimizer = make(model.parameters(), **{"lr": 1e-4, **options})

    def step() -> None:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return step


# PyTorch alone


@program(0)
def transformer() -> Step:
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).cuda()
    source = on_device(2, 5, 16)
    target = on_device(2, 4, 16)
    mask = nn.Transformer.generate_square_subsequent_mask(4, device="cuda")
    padding = classes(2, 5, of=1).bool()
    return trained(
        model,
        lambda: model(source, target, tgt_mask=mask, src_key_padding_mask=padding, tgt_is_causal=True).square().mean(),
    )


class _Attending(nn.Module):
    """Causal attention and a network per token, as language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(256)
        self.between = nn.LayerNorm(256)
        self.projected = nn.Linear(256, 768)
        self.out = nn.Linear(256, 256)
        self.tokenwise = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256))

    def forward(self, tokens: Tensor) -> Tensor:
        batch, length, width = tokens.shape
        query, key, value = self.projected(self.before(tokens)).view(batch, length, 3, 4, 64).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        tokens = tokens + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return tokens + self.tokenwise(self.between(tokens))


@program(0)
def causal_attention() -> Step:
    """Of a size at which a prediction computes no values."""
    model = nn.Sequential(_Attending(), _Attending()).cuda()
    tokens = on_device(16, 128, 256)
    return trained(model, lambda: model(tokens).square().mean())


@program(9)
def ctc() -> Step:
    model = nn.Linear(8, 5).cuda()
    inputs = on_device(6, 2, 8)
    targets = classes(2, 3, of=4) + 1
    loss_of = nn.CTCLoss(zero_infinity=True)
    lengths = torch.full((2,), 6), torch.full((2,), 3)
    return trained(model, lambda: loss_of(model(inputs).log_softmax(-1), targets, *lengths))


@program(0)
def sparse_embedding_sgd() -> Step:
    model = nn.Embedding(20, 4, sparse=True).cuda()
    words = classes(3, 4, of=7)
    return trained(model, lambda: model(words).square().mean(), torch.optim.SGD)


@program((0, 5, 5), reason="Thrust waits by itself, which PyTorch does not warn of")
def sparse_embedding_adam() -> Step:
    model = nn.EmbeddingBag(20, 4, sparse=True, mode="sum").cuda()
    words = classes(3, 4, of=7)
    return trained(model, lambda: model(words).square().mean(), torch.optim.SparseAdam)


@program(2)
def scaled_and_clipped() -> Step:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    inputs = on_device(4, 8)
    labels = classes(4, of=3)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        scaler.step(optimizer)
        scaler.update()

    return step


@program(1)
def recurrent_with_lengths() -> Step:
    cell = nn.GRUCell(8, 16).cuda()
    head = nn.Linear(16, 3).cuda()
    inputs = on_device(4, 6, 8)
    labels = classes(4, of=3)
    lengths = classes(4, of=3) + 4
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)

    def step() -> None:
        hidden = on_device(4, 16)
        for at in range(6):
            hidden = torch.where((lengths > at)[:, None], cell(inputs[:, at], hidden), hidden)
        loss = F.cross_entropy(head(hidden), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


@program(0)
def convolutions_with_spectral_norm() -> Step:
    layer = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))
    model = nn.Sequential(
        layer, nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout2d(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).cuda()
    images = on_device(2, 3, 8, 8)
    labels = classes(2, of=4)
    return trained(model, lambda: F.cross_entropy(model(images), labels, label_smoothing=0.1))


@program(3)
def masked_segmentation_loss() -> Step:
    model = nn.Conv2d(3, 4, 3, padding=1).cuda()
    images = on_device(2, 3, 8, 8)
    labels = classes(2, 8, 8, of=4)

    def loss() -> Tensor:
        logits = model(images).permute(0, 2, 3, 1)
        valid = labels != 3
        return F.cross_entropy(logits[valid], labels[valid])

    return trained(model, loss)


@program(2)
def box_loss_with_products() -> Step:
    model = nn.Linear(8, 4).cuda()
    inputs = on_device(6, 8)
    boxes = on_device(6, 4)

    def loss() -> Tensor:
        predicted = model(inputs)
        corners = torch.minimum(predicted[:, 2:], boxes[:, 2:]) - torch.maximum(predicted[:, :2], boxes[:, :2])
        shared = corners.clamp(min=0).prod(-1)
        union = (predicted[:, 2:] - predicted[:, :2]).prod(-1) + (boxes[:, 2:] - boxes[:, :2]).prod(-1) - shared
        return (1 - shared / union.clamp(min=1e-5)).mean()

    return trained(model, loss)


@program(1)
def policy_gradient() -> Step:
    model = nn.Linear(8, 4).cuda()
    inputs = on_device(6, 8)

    def loss() -> Tensor:
        choice = torch.distributions.Categorical(logits=model(inputs), validate_args=False)
        action = choice.sample()
        total = -choice.log_prob(action).mean()
        total.item()
        return total

    return trained(model, loss, torch.optim.RMSprop)


# torchvision


def _detector(model: nn.Module) -> Step:
    images = list(on_device(2, 3, 64, 64))
    boxes = torch.tensor([[4.0, 4, 30, 30], [10, 12, 50, 44]]).pin_memory()
    targets = [{"boxes": boxes.to("cuda", non_blocking=True), "labels": classes(2, of=2) + 1} for _ in range(2)]
    return trained(model, lambda: sum(model(images, targets).values()), torch.optim.SGD)


@program(
    (49, 51, 51),
    "torchvision",
    "what PyTorch warns of inside torchvision's nms goes to stderr, once for each of two images",
)
def faster_rcnn() -> Step:
    from torchvision.models import detection

    return _detector(
        detection.fasterrcnn_mobilenet_v3_large_320_fpn(
            weights=None, weights_backbone=None, num_classes=3, min_size=64, max_size=64
        ).cuda()
    )


@program(34, "torchvision")
def retinanet() -> Step:
    from torchvision.models import detection

    return _detector(
        detection.retinanet_resnet50_fpn(
            weights=None, weights_backbone=None, num_classes=3, min_size=64, max_size=64
        ).cuda()
    )


@program(24, "torchvision")
def ssd() -> Step:
    from torchvision.models import detection

    return _detector(detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3).cuda())


@program(0, "torchvision")
def deeplab() -> Step:
    from torchvision.models import segmentation

    model = segmentation.deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).cuda()
    images = on_device(2, 3, 64, 64)
    labels = classes(2, 64, 64, of=4)
    return trained(model, lambda: F.cross_entropy(model(images)["out"], labels, ignore_index=3))


@program(10, "torchvision")
def sigmoid_focal_and_giou_losses() -> Step:
    from torchvision import ops

    model = nn.Linear(8, 8).cuda()
    inputs = on_device(6, 8)
    boxes = on_device(6, 4).sort(-1)[0]
    labels = classes(6, 4, of=2).float()

    def loss() -> Tensor:
        out = model(inputs)
        focal = ops.sigmoid_focal_loss(out[:, :4], labels, reduction="mean")
        corners = torch.cat([out[:, 4:6], out[:, 4:6] + out[:, 6:].exp()], -1)
        return focal + ops.generalized_box_iou_loss(corners, boxes, reduction="mean")

    return trained(model, loss)


# transformers


def _language(model: nn.Module, **inputs: Tensor) -> Step:
    model = model.cuda()
    return trained(model, lambda: model(**inputs).loss)


@program(1, "transformers")
def bert() -> Step:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    words = classes(2, 6, of=39)
    return _language(BertForMaskedLM(config), input_ids=words, labels=words, attention_mask=torch.ones_like(words))


@program(0, "transformers")
def gpt2() -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    words = classes(2, 6, of=39)
    return _language(
        GPT2LMHeadModel(GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2)), input_ids=words, labels=words
    )


@program(0, "transformers")
def t5() -> Step:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)
    words = classes(2, 6, of=39)
    return _language(T5ForConditionalGeneration(config), input_ids=words, labels=words)


@program(1, "transformers", flags=True)
def llama() -> Step:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=32,
    )  # fmt: skip
    words = classes(2, 6, of=39)
    return _language(LlamaForCausalLM(config), input_ids=words, labels=words, attention_mask=torch.ones_like(words))


@program(6, "transformers")
def mixtral() -> Step:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=2, max_position_embeddings=32, output_router_logits=True,
    )  # fmt: skip
    words = classes(2, 6, of=39)
    return _language(MixtralForCausalLM(config), input_ids=words, labels=words)


@program(0, "transformers")
def vit() -> Step:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8,
        num_labels=3,
    )  # fmt: skip
    return _language(ViTForImageClassification(config), pixel_values=on_device(2, 3, 16, 16), labels=classes(2, of=3))


@program(0, "transformers")
def whisper() -> Step:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=60, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, num_mel_bins=8, max_source_positions=10,
        max_target_positions=12, pad_token_id=1, bos_token_id=2, eos_token_id=3, decoder_start_token_id=4,
        suppress_tokens=[], begin_suppress_tokens=[],
    )  # fmt: skip
    return _language(
        WhisperForConditionalGeneration(config), input_features=on_device(2, 8, 20), labels=classes(2, 6, of=50) + 5
    )


@program(22, "transformers", flags=True)
def detr() -> Step:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 8, 16], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    config = DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=backbone, num_queries=5,
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, num_labels=3,
    )  # fmt: skip
    boxes = torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.6, 0.5, 0.4, 0.3]]).pin_memory().to("cuda", non_blocking=True)
    targets = [{"class_labels": classes(2, of=3), "boxes": boxes} for _ in range(2)]
    model = DetrForObjectDetection(config).cuda()
    images = on_device(2, 3, 64, 64)
    return trained(model, lambda: model(pixel_values=images, labels=targets).loss)


# timm and segmentation-models-pytorch


def _timm(name: str, size: int, **options: Any) -> Step:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=3, **options).cuda()
    images = on_device(2, 3, size, size)
    labels = classes(2, of=3)
    return trained(model, lambda: F.cross_entropy(model(images), labels))


@program(0, "timm")
def timm_resnet() -> Step:
    return _timm("resnet18", 64)


@program(0, "timm")
def timm_convnext() -> Step:
    return _timm("convnext_atto", 64, drop_path_rate=0.1)


@program(0, "timm")
def timm_swin() -> Step:
    return _timm("swin_tiny_patch4_window7_224", 56, img_size=56, depths=(1, 1, 1, 1), embed_dim=24)


@program(0, "timm")
def timm_mixup() -> Step:
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy

    model = timm.create_model("resnet18", pretrained=False, num_classes=3).cuda()
    mix = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=3)
    loss_of = SoftTargetCrossEntropy()
    images = on_device(2, 3, 64, 64)
    labels = classes(2, of=3)

    def loss() -> Tensor:
        mixed, targets = mix(images.clone(), labels)
        return loss_of(model(mixed), targets)

    return trained(model, loss)


def _segmentation(make: Callable[[Any], nn.Module]) -> Step:
    import segmentation_models_pytorch as smp

    model = nn.Conv2d(3, 4, 3, padding=1).cuda()
    images = on_device(2, 3, 16, 16)
    labels = classes(2, 16, 16, of=4)
    loss_of = make(smp.losses)
    return trained(model, lambda: loss_of(model(images), labels))


@program(0, "segmentation_models_pytorch")
def smp_dice() -> Step:
    return _segmentation(lambda losses: losses.DiceLoss("multiclass", ignore_index=3))


@program(0, "segmentation_models_pytorch")
def smp_jaccard() -> Step:
    return _segmentation(lambda losses: losses.JaccardLoss("multiclass"))


@program(4, "segmentation_models_pytorch")
def smp_lovasz() -> Step:
    return _segmentation(lambda losses: losses.LovaszLoss("multiclass"))


@program(12, "segmentation_models_pytorch")
def smp_focal() -> Step:
    return _segmentation(lambda losses: losses.FocalLoss("multiclass", ignore_index=3))


@program(0, "segmentation_models_pytorch")
def smp_tversky() -> Step:
    return _segmentation(lambda losses: losses.TverskyLoss("multiclass"))


def predict(name: str) -> Counts:
    """Predicted syncs of a program's second step."""
    from steptrace.predict import predict_syncs

    torch.manual_seed(0)
    with warnings.catch_warnings(), predict_syncs() as syncs:
        warnings.simplefilter("ignore")
        step = PROGRAMS[name].build()
        step()
        syncs.reset()
        step()
        return Counts(None, None, syncs.total, bool(syncs.unknown))


def measure(name: str) -> Counts:
    """Warned and traced syncs of a program's second step, on the CUDA device that is there."""
    from steptrace.trace.link import read_trace

    torch.manual_seed(0)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        step = PROGRAMS[name].build()
        step()
        torch.cuda.synchronize()
        with torch.profiler.profile() as profiler, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                with torch.profiler.record_function("the step"):
                    step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        trace = read_trace(path)
    label = trace.labels[trace.labels["name"].astype(str) == "the step"].iloc[0]
    at = trace.syncs["ts"]
    inside = (at >= label["ts"]) & (at < label["ts"] + label["dur"])
    return Counts(count_warnings(caught), int(inside.sum()), None)


def main(mode: str, names: list[str]) -> None:
    """Write the counts of the programs of that name, or of all whose library is there, one JSON object per line."""
    for name in names or [name for name, program in PROGRAMS.items() if available(program.needs)]:
        try:
            counts = (predict if mode == "predict" else measure)(name)
        except Exception as error:
            counts = Counts(None, None, None, error=f"{type(error).__name__}: {str(error)[:300]}")
        sys.stdout.write(json.dumps({"name": name, **counts._asdict()}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
