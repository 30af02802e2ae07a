"""GIoU loss, every implementation side by side: `python bench/giou.py [--device cpu|cuda] [--json FILE]`.

For each batch size and number of boxes, forward and forward + backward of: a loop over images, one call on joined
boxes, one call on padded boxes (eager and compiled), the article's kernel with and without a branch for padding, the
fused operator, and on CUDA the same in Triton. All compute one definition, and their losses are compared before
anything is timed.

A sample is the mean over a few back-to-back calls; in each repeat every implementation gives one sample, in a new
random order, so that a disturbance of the machine hits all of them. The table has medians, quartiles and the fastest.
On CUDA each is also captured as a graph and replayed (`graph`): what is left is the device's time, without Python.
`--cold` goes from batch to batch, enough of them that none is in the device's cache when its turn comes.

Floors, measured in the same run: `copy`, the time torch takes to move as many bytes as the loss has to (all targets and
the predictions that count; for backward both again, and every gradient written once); `empty`, a call of an operator
that does nothing (on CUDA an empty kernel), twice for forward + backward. The column `over floor` is over the larger.
`copy_gb_s` in the file is the bandwidth of a copy of a gigabyte, the ceiling for large batches.
"""

import argparse
import itertools
import json
import math
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ext" / "giou" / "python"))

from giou_parts.losses import (
    FILLS,
    MODES,
    Batch,
    Loss,
    bytes_moved,
    copy_of,
    count_operators,
    implementations,
    make_batch,
)
from giou_parts.timing import Call, cache_bytes, copy_gb_s, measure, measure_graphs, microseconds

_MOST_BATCHES = 256


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
    graph_us: float | None
    graph_us_low: float | None
    graph_us_high: float | None
    graph_error: str | None
    batches: int
    bytes_moved: int
    copy_us: float
    empty_us: float
    copy_graph_us: float | None
    empty_graph_us: float | None
    over_floor: float
    padding_over_this: float | None
    operators: int | None
    loss: float
    loss_minus_fused: float | None


def bench_size(images: int, boxes: int, runs: Mapping[str, Loss], options: argparse.Namespace) -> list[Row]:
    """All implementations and both modes at one size."""
    batch = make_batch(images, boxes, options)
    losses = {name: run(batch).item() for name, run in runs.items()}
    wrong = {name: loss for name, loss in losses.items() if abs(loss - losses.get("fused", loss)) > 1e-4}
    if wrong:
        raise SystemExit(f"not the same loss as fused, {losses['fused']}: {wrong}")
    operators = {name: count_operators(runs[name], batch) if name != "compiled" else None for name in runs}
    batches = [batch]
    if options.cold:
        wanted = math.ceil(4 * cache_bytes(options.device) / max(bytes_moved(batch, "forward"), 1))
        batches += [copy_of(batch) for _ in range(min(max(wanted, 2), _MOST_BATCHES) - 1)]
    rows = []
    for mode in MODES:
        calls = calls_of(mode, runs, batches)
        how = {"repeats": options.repeats, "sample_ms": options.sample_ms}
        samples = measure(calls, options.device, **how)
        graphs = measure_graphs(calls, operators, **how) if options.device == "cuda" and options.graphs else {}
        rows += rows_of(mode, batches, samples, graphs, {"losses": losses, "operators": operators})
    return rows


def calls_of(mode: str, runs: Mapping[str, Loss], batches: list[Batch]) -> dict[str, Call]:
    """What is timed: every implementation, a copy of as many bytes, and a call that does nothing."""
    from steptrace_giou import ops

    moved = bytes_moved(batches[0], mode)
    device = batches[0].targets.device
    sources = [torch.empty(moved // 2, dtype=torch.uint8, device=device) for _ in batches]  # read once, written once
    copies = itertools.cycle([(torch.empty_like(source), source) for source in sources])

    def copy() -> object:
        target, source = next(copies)
        return target.copy_(source)

    calls = {name: MODES[mode](run, batches) for name, run in runs.items()}
    calls["(copy)"] = copy
    calls["(empty)"] = lambda: ops.empty_call(batches[0].targets)
    return calls


def rows_of(
    mode: str,
    batches: list[Batch],
    samples: dict[str, list[float]],
    graphs: Mapping[str, list[float] | str],
    facts: Mapping[str, Mapping[str, float | int | None]],
) -> list[Row]:
    """The figures of one size and mode."""
    times = {name: microseconds(values) for name, values in samples.items()}
    graph = {name: microseconds(values) for name, values in graphs.items() if not isinstance(values, str)}
    empties = 1 if mode == "forward" else 2
    copy, empty = times.pop("(copy)")[0], times.pop("(empty)")[0] * empties
    unknown = (None, None, None)
    empty_graph = graph.get("(empty)", unknown)[0]
    losses = facts["losses"]
    rows = []
    for name, (us, low, high) in times.items():
        error = graphs.get(name)
        graph_us, graph_low, graph_high = graph.get(name, unknown)
        rows.append(
            Row(
                batch=len(batches[0].rows),
                boxes=batches[0].predictions.shape[1],
                mode=mode,
                implementation=name,
                us=us,
                us_low=low,
                us_high=high,
                us_fastest=1e6 * min(samples[name]),
                samples=len(samples[name]),
                graph_us=graph_us,
                graph_us_low=graph_low,
                graph_us_high=graph_high,
                graph_error=error if isinstance(error, str) else None,
                batches=len(batches),
                bytes_moved=bytes_moved(batches[0], mode),
                copy_us=copy,
                empty_us=empty,
                copy_graph_us=graph.get("(copy)", unknown)[0],
                empty_graph_us=None if empty_graph is None else empty_graph * empties,
                over_floor=us / max(copy, empty),
                padding_over_this=times["padding"][0] / us if "padding" in times else None,
                operators=facts["operators"][name] if mode == "forward" else None,
                loss=losses[name],
                loss_minus_fused=losses[name] - losses["fused"] if "fused" in losses else None,
            )
        )
    return rows


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
            f"{'':20}{'us':>12}{'quartiles':>22}{'fastest':>11}{'graph':>11}{'padding/this':>14}{'over floor':>12}"
            f"{'operators':>11}"
        )
        for row in chosen:
            quartiles = f"{row.us_low:.1f} .. {row.us_high:.1f}"
            ratio = "" if row.padding_over_this is None else f"{row.padding_over_this:.2f}"
            count = "" if row.operators is None else str(row.operators)
            graph = "" if row.graph_us is None else f"{row.graph_us:.1f}"
            print(
                f"{row.implementation:20}{row.us:12.1f}{quartiles:>22}{row.us_fastest:11.1f}{graph:>11}{ratio:>14}"
                f"{row.over_floor:12.1f}{count:>11}"
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
    parser.add_argument("--cold", action="store_true", help="no batch is in the cache when its turn comes")
    parser.add_argument("--no-graphs", dest="graphs", action="store_false", help="on CUDA: no graph timings")
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
    runs = implementations(options.only, options.device)
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
        "cold": options.cold,
        "copy_gb_s": round(copy_gb_s(options.device), 1),
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
