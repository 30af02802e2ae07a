"""What bounds the kernels of the GIoU loss, by hardware counters: `python bench/giou_counters.py [--json FILE]`.

Needs a CUDA device and Nsight Compute (`ncu`) with access to the counters. Per implementation, size and mode, every
kernel of one call: its time, bytes from and to memory, shares of the peak of memory and multiprocessors, hits in the
second cache, occupancy, registers, and what its warps wait for. Each counted kernel runs alone, several times, with the
caches emptied before: its time is no figure for a training, bench/giou.py has those.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ext" / "giou" / "python"))

from giou_parts.counters import Kernel, find_ncu, main_stall, read_counters
from giou_parts.losses import FILLS, MODES, Batch, Loss, bytes_moved, implementations, make_batch

_SIZES = ["1024x256", "65536x256"]
_COUNTED = ["kernel_conditional", "fused", "triton"]


@dataclass(frozen=True)
class Call:
    """One call that is counted; `bytes_moved` is the least that it has to move."""

    batch: int
    boxes: int
    mode: str
    implementation: str
    bytes_moved: int


def calls_of(options: argparse.Namespace, runs: dict[str, Loss]) -> list[tuple[Call, Loss, Batch]]:
    """What is counted, in its order."""
    calls = []
    for images, boxes in options.sizes:
        batch = make_batch(images, boxes, options)
        for mode in MODES:
            moved = bytes_moved(batch, mode)
            calls += [(Call(images, boxes, mode, name, moved), run, batch) for name, run in runs.items()]
    return calls


def run_calls(options: argparse.Namespace) -> None:
    """Make the calls, each once after a first one that compiles and allocates, and write down their order."""
    from steptrace_giou import ops

    calls = calls_of(options, implementations(options.only, "cuda"))
    made = [(call, MODES[call.mode](run, [batch]), batch) for call, run, batch in calls]
    for _, function, _ in made:
        function()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for _, function, batch in made:
        ops.empty_call(batch.targets)
        function()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    options.calls.write_text(json.dumps([vars(call) for call, _, _ in made]))


def rows_of(call: dict[str, object], kernels: list[Kernel]) -> list[dict[str, object]]:
    """A line per kernel of a call."""
    return [{**call, "kernel": k.name, "stalled_most_on": main_stall(k), **k.values} for k in kernels]


def show(rows: list[dict[str, object]]) -> None:
    """Print the lines as a table."""
    head = (
        "duration_ns",
        "dram_bytes",
        "dram_pct_of_peak",
        "sm_pct_of_peak",
        "l2_hit_pct",
        "occupancy_pct",
        "registers",
    )
    print(f"{'':44}" + "".join(f"{name:>18}" for name in head) + f"{'waits for':>20}  kernel")
    for row in rows:
        name = f"{row['batch']} x {row['boxes']} {row['mode']}, {row['implementation']}"
        cells = [f"{row[key]:,.1f}" if key in row else "unread" for key in head]
        print(
            f"{name:44}" + "".join(f"{cell:>18}" for cell in cells) + f"{row['stalled_most_on']!s:>20}  {row['kernel']}"
        )


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Hardware counters of the GIoU loss's kernels")
    parser.add_argument("--sizes", nargs="+", metavar="IMAGESxBOXES", default=_SIZES)
    parser.add_argument("--fill", choices=FILLS, default="article", help="how many boxes of an image count")
    parser.add_argument("--predictions", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--targets", choices=("float32", "uint8"), default="uint8")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=_COUNTED)
    parser.add_argument("--ncu", help="the program; default: on the path, or beside CUDA's compiler")
    parser.add_argument("--seconds", type=float, default=240.0, help="stop after that long")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--calls", type=Path, help=argparse.SUPPRESS)  # set for the program that ncu runs
    options = parser.parse_args()
    options.device = "cuda"
    try:
        options.sizes = [tuple(int(part) for part in size.split("x", 1)) for size in options.sizes]
    except ValueError:
        parser.error(f"--sizes {' '.join(options.sizes)}: expected IMAGESxBOXES, such as 1024x256")
    return options


def main() -> None:
    """Run the benchmark, or the calls that it counts."""
    options = arguments()
    if options.calls:
        run_calls(options)
        return
    ncu = find_ncu(options.ncu)
    if ncu is None:
        raise SystemExit("not measured: there is no ncu (Nsight Compute) on this machine; --ncu names it")
    about = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"Version (\S+)", about)
    with tempfile.TemporaryDirectory() as folder:
        order = Path(folder, "calls.json")
        command = [sys.executable, __file__, *sys.argv[1:], "--calls", str(order)]
        try:
            counted = read_counters(ncu, command, Path(folder, "ncu.csv"), options.seconds)
        except RuntimeError as error:
            raise SystemExit(f"not measured: {error}") from None
        calls = json.loads(order.read_text())
    if len(calls) != len(counted):
        raise SystemExit(f"not measured: {len(calls)} calls were made, and {len(counted)} were counted")
    rows = [row for call, kernels in zip(calls, counted, strict=True) for row in rows_of(call, kernels)]
    show(rows)
    if options.json:
        setting = {name: getattr(options, name) for name in ("predictions", "targets", "fill")}
        figures = {"schema_version": 1, "ncu": version[1] if version else None, **setting, "rows": rows}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
        print(f"\nwritten: {options.json}")


if __name__ == "__main__":
    main()
