"""The losses that bench/giou.py compares, and the batches that it gives them."""

import argparse
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from steptrace_giou import build, library, reference
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

IMAGE = 256  # pixels a side
FILLS = ("article", "half", "full")


@dataclass(frozen=True)
class Batch:
    """One batch in each form that an implementation takes; `rows[i]` boxes of image i count, from the first on."""

    predictions: Tensor
    targets: Tensor
    rows: list[int]
    pieces: list[Tensor]
    joined: Tensor


def make_batch(images: int, boxes: int, options: argparse.Namespace) -> Batch:
    """Boxes as the article draws them: sizes in [1, 256), corners in [0, 255), cut at 255; seed 0."""
    draw = torch.Generator().manual_seed(0)
    if options.fill == "article":
        counts = torch.randn(images, generator=draw).mul(3).abs().floor().clamp(max=min(boxes, IMAGE - 1)).long()
    else:
        counts = torch.full((images,), boxes if options.fill == "full" else boxes // 2)
    low = torch.randint(0, IMAGE - 1, (images, boxes, 2), generator=draw)
    size = torch.randint(1, IMAGE, (images, boxes, 2), generator=draw)
    targets = torch.cat([low, (low + size).clamp(max=IMAGE - 1)], -1)
    targets = targets * (torch.arange(boxes) < counts[:, None])[..., None]
    predictions = 64 * torch.randn(images, boxes, 4, generator=draw) + targets
    targets = targets.to(options.device, getattr(torch, options.targets))
    predictions = predictions.to(options.device, getattr(torch, options.predictions)).requires_grad_()
    rows = counts.tolist()
    pieces = [image[:n].clone() for image, n in zip(targets, rows, strict=True)]
    return Batch(predictions, targets, rows, pieces, torch.cat(pieces))


def copy_of(batch: Batch) -> Batch:
    """The same boxes at other addresses."""
    predictions = batch.predictions.detach().clone().requires_grad_()
    pieces = [piece.clone() for piece in batch.pieces]
    return Batch(predictions, batch.targets.clone(), batch.rows, pieces, batch.joined.clone())


def loop(batch: Batch) -> Tensor:
    """One GIoU an image."""
    total = torch.zeros((), device=batch.predictions.device)
    for image, target, n in zip(batch.predictions, batch.pieces, batch.rows, strict=True):
        total = total + reference.giou(image[:n].float(), target.float()).sum()
    return 1 - total / max(sum(batch.rows), 1)


def concat(batch: Batch) -> Tensor:
    """The predictions that count are joined, the targets arrive joined."""
    parts = [image[:n] for image, n in zip(batch.predictions, batch.rows, strict=True)]
    values = reference.giou(torch.cat(parts).float(), batch.joined.float())
    return 1 - values.sum() / max(len(batch.joined), 1)


def padded_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    """Every box is computed, those that do not count are multiplied by 0."""
    mask = targets[..., 3] > 0
    return 1 - (reference.giou(predictions.float(), targets.float()) * mask).sum() / mask.sum().clamp(min=1)


Loss = Callable[[Batch], Tensor]


def implementations(names: Sequence[str] | None, device: str) -> dict[str, Loss]:
    """Name -> loss of a batch, in the article's order, on CUDA also one in Triton. Builds the library if need be."""
    build.build(library.DEFAULT_FOLDER, build.choose_toolchain("auto"))
    from steptrace_giou import ops

    compiled = torch.compile(padded_loss, fullgraph=True, dynamic=False)
    table: dict[str, Loss] = {
        "loop": loop,
        "concat": concat,
        "padding": lambda b: padded_loss(b.predictions, b.targets),
        "compiled": lambda b: compiled(b.predictions, b.targets),
        "kernel": lambda b: ops.kernel_loss(b.predictions, b.targets),
        "kernel_conditional": lambda b: ops.kernel_loss(b.predictions, b.targets, conditional=True),
        "fused": lambda b: ops.giou_loss(b.predictions, b.targets),
    }
    if device == "cuda" and importlib.util.find_spec("triton"):
        from steptrace.workloads import giou_triton

        table["triton"] = lambda b: giou_triton.giou_loss(b.predictions, b.targets)
    unknown = sorted(set(names or ()) - set(table) - {"triton"})
    if unknown:
        raise SystemExit(f"unknown implementation {', '.join(unknown)}: choose from {', '.join(table)}")
    return {name: run for name, run in table.items() if names is None or name in names}


class CountOperators(TorchDispatchMode):
    """Counts the operators that reach the dispatcher, views included."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Count one and run it."""
        self.count += 1
        return func(*args, **(kwargs or {}))


def forward_only(run: Loss, batches: Sequence[Batch]) -> Callable[[], object]:
    """A call that records the graph, as a training does, and stops at the loss; each call takes the next batch."""
    turn = itertools.cycle(batches)
    return lambda: run(next(turn))


def forward_backward(run: Loss, batches: Sequence[Batch]) -> Callable[[], object]:
    """A call that also takes the gradient, without adding it up in a leaf."""
    turn = itertools.cycle(batches)

    def call() -> object:
        batch = next(turn)
        return torch.autograd.grad(run(batch), batch.predictions)

    return call


MODES = {"forward": forward_only, "forward+backward": forward_backward}


def bytes_moved(batch: Batch, mode: str) -> int:
    """The least that has to move: targets and predictions that count; in backward both again, and all gradients."""
    targets = batch.targets.numel() * batch.targets.element_size()
    needed = 4 * sum(batch.rows) * batch.predictions.element_size()
    gradients = batch.predictions.numel() * batch.predictions.element_size()
    return targets + needed if mode == "forward" else 2 * (targets + needed) + gradients


def count_operators(run: Loss, batch: Batch) -> int:
    """Operators that one forward call dispatches."""
    with CountOperators() as counter:
        run(batch)
    return counter.count
