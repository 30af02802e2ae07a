"""GIoU loss, every implementation side by side: `python bench/giou.py [--device cpu|cuda] [--json FILE]`.

For each batch size and number of boxes, forward and forward + backward of: a loop over images, one call on joined
boxes, one call on padded boxes (eager and compiled), the article's kernel with and without a branch for padding, and
the fused operator. All compute one definition, and their losses are compared before anything is timed.

A sample is the mean over a few back-to-back calls; in each repeat every implementation gives one sample, in a new
random order, so that a disturbance of the machine hits all of them. The table has medians, quartiles and the fastest.

Floors, measured in the same run: `copy`, the time torch takes to move as many bytes as the loss has to (all targets and
the predictions that count; for backward both again, and every gradient written once); `empty`, a call of an operator
that does nothing (on CUDA an empty kernel), twice for forward + backward. The column `over floor` is over the larger.
"""

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ext" / "giou" / "python"))

from steptrace_giou import build, library, reference

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


def implementations(names: Sequence[str] | None) -> dict[str, Callable[[Batch], Tensor]]:
    """Name -> loss of a batch, in the article's order. Builds the library if need be."""
    build.build(library.DEFAULT_FOLDER, build.choose_toolchain("auto"))
    from steptrace_giou import ops

    compiled = torch.compile(padded_loss, fullgraph=True, dynamic=False)
    table: dict[str, Callable[[Batch], Tensor]] = {
        "loop": loop,
        "concat": concat,
        "padding": lambda b: padded_loss(b.predictions, b.targets),
        "compiled": lambda b: compiled(b.predictions, b.targets),
        "kernel": lambda b: ops.kernel_loss(b.predictions, b.targets),
        "kernel_conditional": lambda b: ops.kernel_loss(b.predictions, b.targets, conditional=True),
        "fused": lambda b: ops.giou_loss(b.predictions, b.targets),
    }
    unknown = sorted(set(names or ()) - set(table))
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


def forward_backward(run: Callable[[Batch], Tensor], batch: Batch) -> Callable[[], object]:
    """A call that also takes the gradient, without adding it up in a leaf."""
    return lambda: torch.autograd.grad(run(batch), batch.predictions)


def forward_only(run: Callable[[Batch], Tensor], batch: Batch) -> Callable[[], object]:
    """A call that records the graph, as a training does, and stops at the loss."""
    return lambda: run(batch)


MODES = {"forward": forward_only, "forward+backward": forward_backward}


def synchronize(device: str) -> None:
    """Wait for the device, where there is one to wait for."""
    if device == "cuda":
        torch.cuda.synchronize()


def sample(call: Callable[[], object], calls: int, device: str) -> float:
    """Mean seconds of `calls` back-to-back calls, the wait for the device included."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        call()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def measure(calls: dict[str, Callable[[], object]], options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds per call, `repeats` samples for each name, interleaved."""
    length = {}
    for name, call in calls.items():
        sample(call, 2, options.device)  # compiles, allocates, warms the caches
        length[name] = max(1, min(200, int(options.sample_ms / 1e3 / sample(call, 1, options.device))))
    order = list(calls)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    shuffle = random.Random(0)
    for _ in range(options.repeats):
        shuffle.shuffle(order)
        for name in order:
            samples[name].append(sample(calls[name], length[name], options.device))
    return samples


def bytes_moved(batch: Batch, mode: str) -> int:
    """The least that has to move: targets and predictions that count; in backward both again, and all gradients."""
    targets = batch.targets.numel() * batch.targets.element_size()
    needed = 4 * sum(batch.rows) * batch.predictions.element_size()
    gradients = batch.predictions.numel() * batch.predictions.element_size()
    return targets + needed if mode == "forward" else 2 * (targets + needed) + gradients


@dataclass(frozen=True)
class Row:
    """One line of the table. Times in microseconds; null where nothing was measured."""

    batch: int
    boxes: int
    mode: str
    implementation: str
    us: float
    us_low: float
    us_high: float
    us_fastest: float
    samples: int
    bytes_moved: int
    copy_us: float
    empty_us: float
    over_floor: float
    padding_over_this: float | None
    operators: int | None
    loss: float
    loss_minus_fused: float | None


def bench_size(
    images: int, boxes: int, runs: dict[str, Callable[[Batch], Tensor]], options: argparse.Namespace
) -> list[Row]:
    """All implementations and both modes at one size."""
    from steptrace_giou import ops

    batch = make_batch(images, boxes, options)
    losses = {name: run(batch).item() for name, run in runs.items()}
    wrong = {name: loss for name, loss in losses.items() if abs(loss - losses.get("fused", loss)) > 1e-4}
    if wrong:
        raise SystemExit(f"not the same loss as fused, {losses['fused']}: {wrong}")
    operators = {name: count_operators(runs[name], batch) if name != "compiled" else None for name in runs}
    rows = []
    for mode, of in MODES.items():
        moved = bytes_moved(batch, mode)
        source = torch.empty(moved // 2, dtype=torch.uint8, device=options.device)  # read once, written once
        target = torch.empty_like(source)
        calls = {name: of(run, batch) for name, run in runs.items()}
        calls["(copy)"] = lambda target=target, source=source: target.copy_(source)
        calls["(empty)"] = lambda: ops.empty_call(batch.targets)
        samples = measure(calls, options)
        copy = 1e6 * statistics.median(samples.pop("(copy)"))
        empty = 1e6 * statistics.median(samples.pop("(empty)")) * (1 if mode == "forward" else 2)
        median = {name: 1e6 * statistics.median(times) for name, times in samples.items()}
        for name, times in samples.items():
            low, _, high = statistics.quantiles(times, n=4)
            rows.append(
                Row(
                    batch=images,
                    boxes=boxes,
                    mode=mode,
                    implementation=name,
                    us=median[name],
                    us_low=1e6 * low,
                    us_high=1e6 * high,
                    us_fastest=1e6 * min(times),
                    samples=len(times),
                    bytes_moved=moved,
                    copy_us=copy,
                    empty_us=empty,
                    over_floor=median[name] / max(copy, empty),
                    padding_over_this=median["padding"] / median[name] if "padding" in median else None,
                    operators=operators[name] if mode == "forward" else None,
                    loss=losses[name],
                    loss_minus_fused=losses[name] - losses["fused"] if "fused" in losses else None,
                )
            )
    return rows


def count_operators(run: Callable[[Batch], Tensor], batch: Batch) -> int:
    """Operators that one forward call dispatches."""
    with CountOperators() as counter:
        run(batch)
    return counter.count


def show(rows: list[Row]) -> None:
    """Print the rows of one size as two tables."""
    for mode in MODES:
        chosen = [row for row in rows if row.mode == mode]
        first = chosen[0]
        print(
            f"\n{first.batch} x {first.boxes} boxes, {mode}: {first.bytes_moved / 1e6:.2f} MB to move, "
            f"copy {first.copy_us:.1f} us ({first.bytes_moved / first.copy_us / 1e3:.1f} GB/s), "
            f"empty {first.empty_us:.1f} us"
        )
        print(
            f"{'':20}{'us':>12}{'quartiles':>22}{'fastest':>11}{'padding/this':>14}{'over floor':>12}{'operators':>11}"
        )
        for row in chosen:
            quartiles = f"{row.us_low:.1f} .. {row.us_high:.1f}"
            ratio = "" if row.padding_over_this is None else f"{row.padding_over_this:.2f}"
            count = "" if row.operators is None else str(row.operators)
            print(
                f"{row.implementation:20}{row.us:12.1f}{quartiles:>22}{row.us_fastest:11.1f}{ratio:>14}{row.over_floor:12.1f}{count:>11}"
            )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="GIoU loss, every implementation side by side")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--sizes", nargs="+", metavar="IMAGESxBOXES", help="default: 32x256 128x256, on CUDA 128x256 1024x256"
    )
    parser.add_argument("--fill", choices=FILLS, default="article", help="how many boxes of an image count")
    parser.add_argument("--predictions", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--targets", choices=("float32", "uint8"), default="uint8")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="leave the other implementations out")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--sample-ms", type=float, default=10.0, help="length of a sample")
    parser.add_argument("--threads", type=int, help="threads on the CPU; default: torch's choice")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    if options.repeats < 2:
        parser.error(f"--repeats {options.repeats}: quartiles need 2 at least")
    try:
        sizes = options.sizes or (["32x256", "128x256"] if options.device == "cpu" else ["128x256", "1024x256"])
        options.sizes = [tuple(int(part) for part in size.split("x", 1)) for size in sizes]
    except ValueError:
        parser.error(f"--sizes {' '.join(options.sizes)}: expected IMAGESxBOXES, such as 128x256")
    return options


def main() -> None:
    """Run the benchmark."""
    options = arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    runs = implementations(options.only)
    from steptrace_giou import ops

    ops.IMPLEMENTATION.require(options.device)
    name = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    setting = {
        "device": f"{options.device}: {name}",
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "library": ops.IMPLEMENTATION.path.name if ops.IMPLEMENTATION.path else None,
        "predictions": options.predictions,
        "targets": options.targets,
        "fill": options.fill,
        "sample_ms": options.sample_ms,
    }
    print(", ".join(f"{key} {value}" for key, value in setting.items()))
    rows: list[Row] = []
    for images, boxes in options.sizes:
        rows += bench_size(images, boxes, runs, options)
        show(rows[-2 * len(runs) :])
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(
            json.dumps({"schema_version": 1, **setting, "rows": [asdict(r) for r in rows]}, indent=1) + "\n"
        )
        print(f"\nwritten: {options.json}")


if __name__ == "__main__":
    main()
