"""A training's memory: counts its tensors, enforces the config's limit, and records an out-of-memory error.

On a GPU the caching allocator enforces the limit (`scale.memory_limit_mb`); on a CPU it is what a peak is held against.
"""

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch
from omegaconf import DictConfig
from torch import nn

from steptrace.documents.run import OutOfMemory, RunMemory
from steptrace.engine.device import gpu
from steptrace.engine.files import memory_of
from steptrace.engine.memory import MemoryLook, free_blocks
from steptrace.record import MEMORY_FILE, OUT_OF_MEMORY, write_memory
from steptrace.train.loop import Training, train_step

_MIB: Final = 2**20
#: Most characters of an error's message in the record.
_LONGEST: Final = 500
_TRIED: Final = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|B|KiB|MiB|GiB)")
_UNITS: Final = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@dataclass
class MemoryWatch:
    """The training's limit, and its parts once they are built."""

    device: torch.device
    batch_size: int
    limit_bytes: int | None
    training: Training | None = None
    look: MemoryLook = field(default_factory=lambda: MemoryLook((), ()))

    def watch(self, training: Training) -> None:
        """From now on count what this training holds."""
        modules = [module for module in (training.model, training.loss) if isinstance(module, nn.Module)]
        self.training, self.look = training, MemoryLook(modules, [training.optimizer])

    def measure(self) -> None:
        """Train for one more step, and count its tensors: at the end of its passes, and after it."""
        assert self.training is not None
        train_step(self.training, self.look)
        self.look.note_held()

    def ran_out(self, error: BaseException) -> RunMemory:
        """The record of a training that ran out of memory: the memory held, and the failed allocation."""
        used = torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None
        message = next(iter(str(error).splitlines()), "") or type(error).__name__
        oom = OutOfMemory(message[:_LONGEST], requested_bytes(str(error)), used)
        counted = {"held": self.look.held(), **free_blocks(), "oom": oom}
        return memory_of(gpu(), self.batch_size, counted, self.limit_bytes)


@contextmanager
def watched_memory(config: DictConfig, device: torch.device, out: Path | None) -> Generator[MemoryWatch]:
    """Apply the config's memory limit within; if memory runs out, write `memory.json` to `out`, and raise again.

    `out` None writes nothing.
    """
    limit = config.scale.memory_limit_mb
    limit_bytes = None if limit is None else limit * _MIB
    with _limited(device, limit_bytes) if device.type == "cuda" and limit_bytes is not None else nullcontext():
        watch = MemoryWatch(device, config.data.batch_size, limit_bytes)
        try:
            yield watch
        except Exception as error:
            if out is not None and is_out_of_memory(error):
                try:
                    write_memory(out, watch.ran_out(error))
                except Exception as problem:  # must not replace the training's own error
                    sys.stderr.write(f"{MEMORY_FILE} was left out: {type(problem).__name__}: {problem}\n")
            raise


@contextmanager
def _limited(device: torch.device, limit_bytes: int) -> Generator[None]:
    # The call needs an index, and torch's type hints do not allow for a device without one.
    index = torch.cuda.current_device() if device.index is None else device.index  # type: ignore[redundant-expr]
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(limit_bytes / total, 1.0), index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, index)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception is an out-of-memory error: torch's, Python's, or one that wraps such a message."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or bool(
        OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}")
    )


def requested_bytes(message: str) -> int | None:
    """The requested bytes by the error's message; None if it does not give them."""
    match = _TRIED.search(message)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None
