"""A training's memory: counts its tensors, enforces the config's limit, and records an out-of-memory error.

The limit (`scale.memory_limit_mb`) is on the memory beyond that of the process before the model is built. On a GPU the
caching allocator enforces it; on a CPU the kernel does, by RLIMIT_DATA, which counts all private writable memory,
libraries' included, so that an allocation beyond it fails with torch's own error.
"""

import re
import resource
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
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
#: An error of oneDNN, which names no cause: under a limit it is counted as out of memory.
_REFUSED: Final = re.compile(r"could not (create|execute|initialize) a ")


@dataclass
class MemoryWatch:
    """The training's limit, and its parts once they are built.

    `base_bytes` is the process's memory when the watch began (CPU only), `limit_bytes` the training's limit.
    """

    device: torch.device
    batch_size: int
    limit_bytes: int | None
    base_bytes: int | None = None
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
        mapped = _mapped_bytes()
        used = torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None
        if used is None and mapped is not None and self.base_bytes is not None:
            used = max(mapped - self.base_bytes, 0)
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
    with _limited_device(device, limit_bytes) if device.type == "cuda" else _limited_process(limit_bytes) as base:
        limited = limit_bytes is not None and limit_bytes < _total(device)
        watch = MemoryWatch(device, config.data.batch_size, limit_bytes, base)
        try:
            yield watch
        except Exception as error:
            plain = is_out_of_memory(error)
            if not plain and not (limited and _REFUSED.search(str(error))):
                raise
            lift_limit()
            if out is not None:
                try:
                    write_memory(out, watch.ran_out(error))
                except Exception as problem:  # must not replace the training's own error
                    sys.stderr.write(f"{MEMORY_FILE} was left out: {type(problem).__name__}: {problem}\n")
            if not plain:
                raise MemoryError(f"within {limit} MiB: {error}") from error
            raise


@contextmanager
def _limited_device(device: torch.device, limit_bytes: int | None) -> Generator[None]:
    if limit_bytes is None:
        yield
        return
    # The call needs an index, and torch's type hints do not allow for a device without one.
    index = torch.cuda.current_device() if device.index is None else device.index  # type: ignore[redundant-expr]
    torch.cuda.set_per_process_memory_fraction(min(limit_bytes / _total(device), 1.0), index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, index)


@contextmanager
def _limited_process(limit_bytes: int | None) -> Generator[int | None]:
    """Limit this process's private memory; yields its bytes at the start, None if the system does not give them."""
    _load_what_any_training_needs()
    base = _mapped_bytes()
    if limit_bytes is None or base is None:
        yield base
        return
    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = base + limit_bytes
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield base
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))


def _load_what_any_training_needs() -> None:
    """Run a tiny step: torch loads 60 MB of modules with the first optimizer, and libraries on first use.

    These do not count towards the training's limit. Draws no random numbers.
    """
    torch.ones(2**20).add_(1)  # starts the compute threads, for their stacks
    weight = torch.zeros(1, 1, 3, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    (torch.conv2d(torch.ones(1, 1, 4, 4), weight) @ torch.ones(2, 2)).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def lift_limit() -> None:
    """Lift the limit, so that there is memory to record the error."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _total(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception is an out-of-memory error: torch's, Python's, or one that wraps such a message."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or bool(
        OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}")
    )


def requested_bytes(message: str) -> int | None:
    """The requested bytes by the error's message; None if it does not give them."""
    match = _TRIED.search(message)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


def _mapped_bytes() -> int | None:
    """This process's private writable memory, as RLIMIT_DATA counts it; None without it in /proc."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:")), None)
