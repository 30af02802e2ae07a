"""The peak of a training at some batch sizes: `python -m steptrace.train.batch_memory --config CONFIG --out DIR ...`.

    --batch-size N [N ...]   sizes, one after the other; those beyond the data set's length are left out
    --steps N                steps of each, after which the size counts as one that fits
    --limit-mb N             in place of scale.memory_limit_mb
    --measure                take the peak of one more step, on a CPU from the profiler's allocator events

Leaves batches.json in DIR: what could be had (`capacity_bytes`, `capacity_source`), the length of the data set, the
sizes `tried`, and for each that got to its end its `peak_bytes` and `other_bytes`, what the process took beside the
training's tensors (null where not measured). Running out of memory ends it as it ends a training: with memory.json.
"""

import argparse
import gc
import sys
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch.profiler import ProfilerActivity, profile

from steptrace.errors import SteptraceError, TrainError
from steptrace.record import write_json
from steptrace.train.loop import synchronize, train_step
from steptrace.train.memory import MemoryWatch, watched_memory
from steptrace.train.out_of_memory import mapped_bytes
from steptrace.train.setup import build_dataset, device_of, load_config, training

BATCHES_FILE = "batches.json"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description="Train for a few steps at some batch sizes and measure the peaks.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch-size", type=int, nargs="+", required=True)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--limit-mb", type=int)
    parser.add_argument("--measure", action="store_true")
    options = parser.parse_args(arguments)
    try:
        config = load_config(options.config)
        if options.limit_mb is not None:
            config.scale.memory_limit_mb = options.limit_mb
        samples = len(build_dataset(config, config.seed))  # type: ignore[arg-type]
        tried = [size for size in options.batch_size if size <= samples] or [samples]
        found: dict[str, Any] = {"samples": samples, "tried": tried, "sizes": []}
        write_json(options.out / BATCHES_FILE, found)
        for size in tried:
            found |= _one(config, size, options, found["sizes"])
            write_json(options.out / BATCHES_FILE, found)
            gc.collect()
    except SteptraceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _one(config: DictConfig, size: int, options: argparse.Namespace, sizes: list[dict[str, Any]]) -> dict[str, Any]:
    """Train at one size and add it to `sizes`; returns what there was to be had."""
    config.data.batch_size = size
    device = device_of(config)
    with watched_memory(config, device, options.out) as memory, training(config, config.seed) as parts:
        memory.training = parts
        for _ in range(options.steps):
            train_step(parts)
        synchronize(device)
        peak, other = _measured(memory) if options.measure else (None, None)
    sizes.append({"batch_size": size, "peak_bytes": peak, "other_bytes": other})
    return {"capacity_bytes": memory.capacity_bytes, "capacity_source": memory.capacity_source}


def _measured(memory: MemoryWatch) -> tuple[int, int | None]:
    """The peak of one more step, and what the process holds beside the training's lasting tensors before it."""
    assert memory.training is not None
    if memory.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(memory.device)
        train_step(memory.training)
        synchronize(memory.device)
        return torch.cuda.max_memory_allocated(memory.device), None
    held = sum(memory.books().sizes().values())
    mapped = mapped_bytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train_step(memory.training)
    # The host's allocator counts from the start of the profiler on.
    changes = [
        (event.start_ns(), event.nbytes())
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]" and event.device_type().name == "CPU"
    ]
    if not changes:
        raise TrainError("the profiler recorded no allocations", expected="events named [memory]")
    level, highest = 0, 0
    for _, size in sorted(changes, key=lambda change: change[0]):
        level += size
        highest = max(highest, level)
    known = mapped is not None and memory.base_bytes is not None
    return held + highest, max((mapped or 0) - (memory.base_bytes or 0) - held, 0) if known else None


if __name__ == "__main__":
    sys.exit(main())
