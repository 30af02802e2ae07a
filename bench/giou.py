"""GIoU loss, every implementation side by side: `python bench/giou.py [--device cpu|cuda] [--json FILE]`.

For each batch size and number of boxes, forward and forward + backward of: a loop over images, one call on joined
boxes, one call on padded boxes (eager and compiled), the article's kernel with and without a branch for padding, the
fused operator, and on CUDA the same in Triton. All compute one definition, and their losses are compared before
anything is timed.

A sample is the mean over a few back-to-back calls; in each repeat every implementation gives one sample, in a new
random order, so that a disturbance of the machine hits all of them. The table has medians, quartiles and the fastest.
On CUDA each is also captured as a graph and replayed (`graph`): what is left is the device's time, without Python.
`--cold` goes from batch to batch, enough of them that none is in the device's cache when its turn comes; a graph then
holds as many calls as there are batches. `cold` in the file says whether it came to that: between two uses of a batch
at least twice the cache has to move.

Floors, measured in the same run: `copy`, the time torch takes to move as many bytes as the loss has to (all targets and
the predictions that count; for backward both again, and every gradient written once); `empty`, a call of an operator
that does nothing (on CUDA an empty kernel), twice for forward + backward. The column `over floor` is over the larger.
`copy_gb_s` in the file is the bandwidth of a copy of a gigabyte, the ceiling for large batches.

The file is written after each size and mode, so that a run that is cut off leaves what it had; `complete` says whether
it came to its end. An implementation that fails is named in `failures` with its message, and the others go on; the exit
code is then 1.
"""

import argparse
import itertools
import math
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ext" / "giou" / "python"))

from giou_parts.figures import Failure, Results, Row, Samples, Sized, rows_of, show, write
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
from giou_parts.timing import (
    Call,
    cache_bytes,
    copy_gb_s,
    graph_size,
    measure,
    measure_graphs,
    message_of,
)

_MOST_BATCHES = 256
_FLOORS = ("(copy)", "(empty)")


def bench_size(
    size: tuple[int, int], runs: Mapping[str, Loss], options: argparse.Namespace, results: Results
) -> Iterator[list[Row]]:
    """Both modes at one size: adds to the results, and yields the rows of each mode as soon as they are there."""
    try:
        sized = prepare(size, runs, options, results)
    except Exception as error:
        results.failures.append(Failure(*size, None, None, message_of(error)))
        return
    for mode in MODES:
        try:
            calls = calls_of(mode, sized.runs, sized.batches)
            samples, graphs = times_of(calls, sized, options)
        except Exception as error:
            results.failures.append(Failure(*size, mode, None, message_of(error)))
            continue
        failed = {name: values for name, values in samples.items() if isinstance(values, str)}
        results.failures += [Failure(*size, mode, name, message) for name, message in failed.items()]
        if failed.keys() & set(_FLOORS):
            continue
        times = {name: values for name, values in samples.items() if not isinstance(values, str)}
        rows = rows_of(mode, sized, times, graphs, cache_bytes(options.device) if options.cold else None)
        results.rows += rows
        yield rows


def prepare(size: tuple[int, int], runs: Mapping[str, Loss], options: argparse.Namespace, results: Results) -> Sized:
    """The batches of a size, and which implementations are worth timing there; the others are failures."""
    batch = make_batch(*size, options)
    losses: dict[str, float] = {}
    operators: dict[str, int | None] = {}
    for name, run in runs.items():
        try:
            losses[name] = run(batch).item()
            operators[name] = count_operators(run, batch) if name != "compiled" else None
        except Exception as error:
            results.failures.append(Failure(*size, None, name, message_of(error)))
    for name, loss in losses.items():
        if abs(loss - losses.get("fused", loss)) > 1e-4:
            message = f"not the same loss as fused, {losses['fused']}: {loss}"
            results.failures.append(Failure(*size, None, name, message))
    failed = {failure.implementation for failure in results.failures if (failure.batch, failure.boxes) == size}
    batches = [batch]
    if options.cold:
        wanted = math.ceil(4 * cache_bytes(options.device) / max(bytes_moved(batch, "forward"), 1))
        batches += [copy_of(batch) for _ in range(min(max(wanted, 2), _MOST_BATCHES) - 1)]
    return Sized(batches, {name: run for name, run in runs.items() if name not in failed}, losses, operators)


def times_of(calls: dict[str, Call], sized: Sized, options: argparse.Namespace) -> tuple[Samples, Samples]:
    """Samples of the calls, and on CUDA of the same calls in graphs."""
    how = {"repeats": options.repeats, "sample_ms": options.sample_ms}
    samples = measure(calls, options.device, **how)
    if options.device != "cuda" or not options.graphs:
        return samples, {}
    sizes = {name: graph_size(sized.operators.get(name), len(sized.batches)) for name in calls}
    good = {name: call for name, call in calls.items() if not isinstance(samples[name], str)}
    return samples, measure_graphs(good, sizes, **how)


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
    results = Results()
    for size in options.sizes:
        for rows in bench_size(size, runs, options, results):
            if rows:
                show(rows)
            write(options.json, setting, results, complete=False)
    write(options.json, setting, results, complete=True)
    if options.json:
        print(f"\nwritten: {options.json}")
    if results.failures:
        lines = [" ".join(str(part) for part in asdict(failure).values() if part) for failure in results.failures]
        raise SystemExit("not measured:\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
