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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import torch
from msgspec.structs import replace
from omegaconf import DictConfig
from torch import Tensor, nn

from steptrace.documents.run import OutOfMemory, RunMemory
from steptrace.engine.device import tensor_bytes
from steptrace.record import MEMORY_FILE, OUT_OF_MEMORY, write_memory
from steptrace.train.loop import Training, tensors_of, train_step

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

    `base_bytes` is the process's memory when the watch began (CPU only), `capacity_bytes` the training's limit.
    """

    device: torch.device
    batch_size: int
    capacity_bytes: int
    capacity_source: str
    base_bytes: int | None = None
    training: Training | None = None

    def held_bytes(self) -> dict[str, int]:
        """Bytes of the training's lasting tensors by category, each storage once; empty before it is built."""
        parts = self.training
        if parts is None:
            return {}
        modules = [module for module in (parts.model, parts.loss) if isinstance(module, nn.Module)]
        parameters = [parameter for module in modules for parameter in module.parameters()]
        tensors: dict[str, list[Tensor]] = {
            "parameters": [*parameters, *(buffer for module in modules for buffer in module.buffers())],
            "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
            "optimizer_state": list(tensors_of(parts.optimizer.state)),
        }
        return tensor_bytes(tensors, self.device)

    def empty(self) -> RunMemory:
        """A record without the figures of the training itself."""
        return RunMemory(
            device=self.device.type,
            batch_size=self.batch_size,
            capacity_bytes=self.capacity_bytes,
            capacity_source=self.capacity_source,
            held={},
        )

    def measure(self) -> RunMemory:
        """Train for one more step, and count its tensors: at the end of its passes, and after it."""
        assert self.training is not None
        record = self.empty()

        @contextmanager
        def look(label: str) -> Generator[None]:  # in place of `record_function`
            nonlocal record
            if label == "backward" and self.device.type == "cuda":
                free, largest = free_blocks(self.device)
                record = replace(record, free_bytes=free, largest_free_bytes=largest)
            yield
            if label == "backward":
                record = replace(record, gradient_bytes=self.held_bytes()["gradients"])

        train_step(self.training, look)
        return replace(record, held=self.held_bytes())

    def with_workspaces(self, memory: RunMemory) -> RunMemory:
        """The record with cuBLAS's workspaces, which are freed to count them: to be called after the last step."""
        if self.device.type != "cuda":
            return memory
        before = torch.cuda.memory_allocated(self.device)
        torch._C._cuda_clearCublasWorkspaces()
        size = before - torch.cuda.memory_allocated(self.device)
        return replace(memory, held=memory.held | {"workspaces": size})

    def ran_out(self, error: BaseException) -> RunMemory:
        """The record of a training that ran out of memory: the memory held, and the failed allocation."""
        on_gpu, mapped = self.device.type == "cuda", _mapped_bytes()
        free, largest = free_blocks(self.device) if on_gpu else (None, None)
        used = torch.cuda.memory_allocated(self.device) if on_gpu else None
        if not on_gpu and mapped is not None and self.base_bytes is not None:
            used = max(mapped - self.base_bytes, 0)
        message = next(iter(str(error).splitlines()), "") or type(error).__name__
        oom = OutOfMemory(message[:_LONGEST], requested_bytes(str(error)), used)
        return replace(self.empty(), held=self.held_bytes(), free_bytes=free, largest_free_bytes=largest, oom=oom)


@contextmanager
def watched_memory(config: DictConfig, device: torch.device, out: Path | None) -> Generator[MemoryWatch]:
    """Apply the config's memory limit within; if memory runs out, write `memory.json` to `out`, and raise again.

    `out` None writes nothing.
    """
    limit = config.scale.memory_limit_mb
    limit_bytes = None if limit is None else limit * _MIB
    with _limited_device(device, limit_bytes) if device.type == "cuda" else _limited_process(limit_bytes) as base:
        total = _total(device)
        capacity = total if limit_bytes is None else min(limit_bytes, total)
        source = "limit" if capacity < total else "device" if device.type == "cuda" else "machine"
        watch = MemoryWatch(device, config.data.batch_size, capacity, source, base)
        try:
            yield watch
        except Exception as error:
            plain = is_out_of_memory(error)
            if not plain and not (source == "limit" and _REFUSED.search(str(error))):
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
    index = _index(device)  # the call needs an index
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


def free_blocks(device: torch.device) -> tuple[int, int]:
    """Free bytes in the CUDA caching allocator's segments on one GPU, and the largest free block among them."""
    index = _index(device)
    sizes = [
        block["size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == index
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    return sum(sizes), max(sizes, default=0)


def _index(device: torch.device) -> int:
    """A GPU's index, or the current GPU's if the device has none, which torch's type hints do not allow for."""
    return torch.cuda.current_device() if device.index is None else device.index  # type: ignore[redundant-expr]


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
