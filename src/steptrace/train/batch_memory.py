"""The peak of a training at some batch sizes: `python -m steptrace.train.batch_memory --config CONFIG --out DIR ...`.

    --batch-size N [N ...]   sizes, one after the other; those beyond the data set's length are left out
    --steps N                steps of each, after which the size counts as one that fits
    --limit-mb N             in place of scale.memory_limit_mb
    --measure                take the peaks: on a GPU the allocator's, on a CPU the process's (or, where the kernel
                             does not tell, that of the profiler's allocator events)

Leaves batches.json in DIR: what could be had (`capacity_bytes`, `capacity_source`), the length of the data set, the
sizes `tried`, and for each that got to its end its `peak_bytes` (null where not measured). Running out of memory ends
it as it ends a training: with memory.json.
"""

import argparse
import contextlib
import ctypes
import gc
import sys
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch.profiler import ProfilerActivity, profile

from steptrace.errors import SteptraceError, TrainError
from steptrace.files import write_versioned
from steptrace.train.loop import synchronize, train_step
from steptrace.train.memory import MemoryWatch, watched_memory
from steptrace.train.out_of_memory import status_bytes
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
        write_versioned(options.out / BATCHES_FILE, found)
        if options.measure:  # what is loaded and compiled at first use is no part of any size's peak
            _one(config, tried[0], options, [])
        for size in tried:
            found |= _one(config, size, options, found["sizes"])
            write_versioned(options.out / BATCHES_FILE, found)
            gc.collect()
    except SteptraceError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 0


def _one(config: DictConfig, size: int, options: argparse.Namespace, sizes: list[dict[str, Any]]) -> dict[str, Any]:
    """Train at one size and add it to `sizes`; returns what there was to be had."""
    config.data.batch_size = size
    device = device_of(config)
    with watched_memory(config, device, options.out) as memory:
        resident = _resident_bytes() if options.measure and device.type == "cpu" else None
        with training(config, config.seed) as parts:
            memory.training = parts
            for _ in range(options.steps):
                train_step(parts)
            synchronize(device)
            peak = _peak(memory, resident) if options.measure else None
    sizes.append({"batch_size": size, "peak_bytes": peak})
    return {"capacity_bytes": memory.capacity_bytes, "capacity_source": memory.capacity_source}


def _resident_bytes() -> int | None:
    """This process's resident memory, whose peak is forgotten, with nothing kept back for later.

    None where the kernel forgets no earlier peak.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library keeps what it keeps
        ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return None
    return None if status_bytes("VmHWM") is None else status_bytes("VmRSS")


def _peak(memory: MemoryWatch, resident: int | None) -> int:
    """The peak: of the caching allocator on a GPU, on a CPU of the process beyond what was `resident` at first.

    There a limit counts libraries' memory, too.
    """
    assert memory.training is not None
    if memory.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(memory.device)
        train_step(memory.training)
        synchronize(memory.device)
        return torch.cuda.max_memory_allocated(memory.device)
    return _allocated_peak(memory) if resident is None else max((status_bytes("VmHWM") or 0) - resident, 0)


def _allocated_peak(memory: MemoryWatch) -> int:
    """The peak of one more step by the allocator's events, with the training's lasting tensors."""
    assert memory.training is not None
    held = sum(memory.live_tensors().sizes().values())
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
    return held + int(max(accumulate(size for _, size in sorted(changes, key=itemgetter(0)))))


if __name__ == "__main__":
    sys.exit(main())
