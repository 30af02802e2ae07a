"""Who holds a training's memory: counted on its true tensors, limited where the config asks, told of when it runs out.

The limit (`scale.memory_limit_mb`) is what the training may take beyond what the process holds before the model is
built. On a GPU the caching allocator keeps it; on a CPU the kernel does: RLIMIT_DATA counts all private writable
memory, what a library maps included, so that an allocation beyond it fails with torch's own error.
"""

import resource
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from msgspec.structs import replace
from omegaconf import DictConfig
from torch import Tensor, nn

from steptrace.documents.run import RunMemory
from steptrace.engine.held import held_bytes
from steptrace.record import MEMORY_FILE, write_memory
from steptrace.train.loop import Training, tensors_of, train_step
from steptrace.train.out_of_memory import is_out_of_memory, is_refusal, mapped_bytes, out_of_memory

_MIB = 2**20
#: Of a limit: from here on a library that could not do its work had no memory to do it in.
_NEARLY_FULL = 0.7


@dataclass
class MemoryWatch:
    """What a training may take, and its parts once they are built.

    `base_bytes` is what the process held when the watch began (a CPU's), `capacity_bytes` what the training may take.
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
        return held_bytes(tensors, self.device)

    def empty(self) -> RunMemory:
        """A record with what is known without looking at the training."""
        return RunMemory(
            device=self.device.type,
            batch_size=self.batch_size,
            capacity_bytes=self.capacity_bytes,
            capacity_source=self.capacity_source,
            held={},
        )

    def end_limit(self) -> None:
        """Limit the process no longer; what a GPU's allocator may take stays limited."""
        if self.device.type == "cpu":
            lift_limit()

    def measure(self) -> RunMemory:
        """Train for one more step, and count what it holds: at the end of its passes, and after it."""
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
        """The record with what cuBLAS holds of PyTorch's allocator: it is given back here, so after the last step."""
        if self.device.type != "cuda":
            return memory
        before = torch.cuda.memory_allocated(self.device)
        torch._C._cuda_clearCublasWorkspaces()
        size = before - torch.cuda.memory_allocated(self.device)
        return replace(memory, held=memory.held | {"workspaces": size})

    @property
    def is_full(self) -> bool:
        """Whether a limit of the process is nearly reached: what a library says of a refusal need not be that."""
        mapped = mapped_bytes()
        if self.capacity_source != "limit" or self.base_bytes is None or mapped is None:
            return False
        return mapped - self.base_bytes > _NEARLY_FULL * self.capacity_bytes

    def ran_out(self, error: BaseException) -> RunMemory:
        """The record of a training that ran out of memory: what it held, and for what there was no room."""
        free, largest = free_blocks(self.device) if self.device.type == "cuda" else (None, None)
        oom = out_of_memory(error, self.device, self.base_bytes)
        return replace(self.empty(), held=self.held_bytes(), free_bytes=free, largest_free_bytes=largest, oom=oom)


@contextmanager
def watched_memory(config: DictConfig, device: torch.device, out: Path | None) -> Generator[MemoryWatch]:
    """Limit what is done within to the config's memory; if it runs out all the same, write `memory.json` into `out`.

    The error goes on. `out` None writes nothing.
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
            if not plain and not (is_refusal(error) and watch.is_full):
                raise
            lift_limit()
            if out is not None:
                _tell(out, watch, error)
            if not plain:
                raise MemoryError(f"within {limit} MiB: {error}") from error
            raise


def _tell(out: Path, watch: MemoryWatch, error: BaseException) -> None:
    """Write memory.json; if that fails, the training's own error must not give way to it."""
    try:
        write_memory(out, watch.ran_out(error))
    except Exception as problem:
        sys.stderr.write(f"{MEMORY_FILE} was left out: {type(problem).__name__}: {problem}\n")


@contextmanager
def _limited_device(device: torch.device, limit_bytes: int | None) -> Generator[None]:
    if limit_bytes is None:
        yield
        return
    index = _index(device)  # it takes no device without one
    torch.cuda.set_per_process_memory_fraction(min(limit_bytes / _total(device), 1.0), index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, index)


@contextmanager
def _limited_process(limit_bytes: int | None) -> Generator[int | None]:
    """Limit this process's private memory; yields what it holds at the start, None where the system does not tell."""
    _load_what_any_training_needs()
    base = mapped_bytes()
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
    """Do a step of next to nothing: torch loads modules of 60 MB with the first optimizer, and libraries on first use.

    They are no part of the training that is limited. Nothing is drawn at random.
    """
    torch.ones(2**20).add_(1)  # the threads that compute have their stacks by now
    weight = torch.zeros(1, 1, 3, 3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.0)
    (torch.conv2d(torch.ones(1, 1, 4, 4), weight) @ torch.ones(2, 2)).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def lift_limit() -> None:
    """Let the process take what memory there is, so that it can tell of how it ran out."""
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
    """A GPU's index: the current one's where the device has none, which torch does not say can be so."""
    return torch.cuda.current_device() if device.index is None else device.index  # type: ignore[redundant-expr]


def _total(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)
