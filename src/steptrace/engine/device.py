"""The process that trains, and its device: moments between its steps, memory that it holds, what torch.compile made.

Needs PyTorch and the standard library only.
"""

import gc
import os
import platform
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from steptrace.engine.rank_record import GpuInUse
from steptrace.rank import this_rank
from steptrace.torch_names import private


class Clock:
    """CUDA events on a GPU: moments of its current stream, marked without waiting for it, to about 500 ns.

    Else the host's monotonic clock: right where operations run when they are called, which is on a CPU.
    """

    def __init__(self, *, on_gpu: bool) -> None:
        self.on_gpu = on_gpu
        self.name = "cuda_events" if on_gpu else "monotonic"

    def now(self) -> Any:
        """This moment."""
        if not self.on_gpu:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between_ns(self, start: Any, end: Any) -> int:
        """Nanoseconds between two moments. There must have been a sync since the later one."""
        return round(start.elapsed_time(end) * 1e6) if self.on_gpu else int(end - start)  # from float milliseconds

    def is_over(self, moment: Any) -> bool:
        """Whether the device has got to this moment."""
        return bool(moment.query()) if self.on_gpu else True

    def synchronize(self) -> None:
        """Wait until the current device has done all its work; nothing to do on a CPU."""
        if self.on_gpu:
            torch.cuda.synchronize()


def current_clock() -> Clock:
    """The clock of a step that begins now."""
    return Clock(on_gpu=bool(torch.cuda.is_initialized()))  # type: ignore[no-untyped-call]


def gpu() -> GpuInUse | None:
    """The GPU in use; None where CUDA is not."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return GpuInUse(name=properties.name, memory_bytes=properties.total_memory, count=torch.cuda.device_count())


def peaks() -> dict[str, int | None]:
    """Peak memory that PyTorch's allocator has allocated and reserved on the GPU in use; None without one."""
    on_gpu = current_clock().on_gpu
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
    }


def process_record() -> dict[str, Any]:
    """What a record says of the process that it is of."""
    return {
        **asdict(this_rank()),
        "cwd": os.getcwd(),  # noqa: PTH109 - as text
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # the installed package's own version may lack the build, as in 2.11.0+cu130
        "cuda": torch.version.cuda,
    }


class MemoryLook:
    """Counts the bytes that a training holds, into `record`, by the names of `RunMemory`.

    As the `section` of a step (in place of `record_function`) it also counts at both ends of the backward pass.

    Args:
        modules: the trained modules; sub-modules may be listed, too.
        optimizers: their optimizers.
    """

    def __init__(self, modules: Sequence[nn.Module], optimizers: Sequence[Any]) -> None:
        self.record: dict[str, Any] = {}
        self._modules, self._optimizers = modules, optimizers

    @contextmanager
    def __call__(self, label: str) -> Generator[None]:
        """At both ends of a backward pass: free blocks, then gradients. A program never fails for want of a figure."""
        if label != "backward":
            yield
            return
        with suppress(Exception):
            self.record |= free_blocks()
        yield
        with suppress(Exception):
            self.record["gradient_bytes"] = self.held()["gradients"]

    def held(self) -> dict[str, int]:
        """Bytes of the tensors that outlast a step, by category, each storage once."""
        parameters = [parameter for module in self._modules for parameter in module.parameters()]
        for optimizer in self._optimizers:
            parameters += [one for group in getattr(optimizer, "param_groups", ()) for one in group["params"]]
        tensors = {
            "parameters": [*parameters, *(buffer for module in self._modules for buffer in module.buffers())],
            "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
            "optimizer_state": tensors_of([getattr(optimizer, "state", {}) for optimizer in self._optimizers]),
        }
        return _storage_bytes(tensors)

    def note_held(self) -> None:
        """Count it into the record."""
        self.record["held"] = self.held()

    def note_workspaces(self) -> None:
        """Add cuBLAS's workspaces, which are freed to count them: to be called after the last step."""
        clear = private("torch._C._cuda_clearCublasWorkspaces")
        if current_clock().on_gpu and clear is not None:
            before = torch.cuda.memory_allocated()
            clear()
            self.record["held"]["workspaces"] = before - torch.cuda.memory_allocated()


def modules_of(optimizers: Iterable[Any]) -> list[nn.Module]:
    """All modules of this process with a parameter that one of these optimizers trains."""
    groups = (group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ()))
    trained = {id(parameter) for group in groups for parameter in group["params"]}
    modules = []
    for one in gc.get_objects():
        # type() and not isinstance(), which may run code of the object's own; half-built modules raise.
        with suppress(Exception):
            if issubclass(type(one), nn.Module) and any(id(parameter) in trained for parameter in one.parameters()):
                modules.append(one)
    return modules


def free_blocks() -> dict[str, int]:
    """Free bytes in the CUDA caching allocator's segments on the GPU in use, and the largest block; empty on a CPU."""
    if not current_clock().on_gpu:
        return {}
    index = torch.cuda.current_device()
    sizes = [
        block["size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == index
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    return {"free_bytes": sum(sizes), "largest_free_bytes": max(sizes, default=0)}


def _storage_bytes(tensors: Mapping[str, Iterable[Tensor]]) -> dict[str, int]:
    """Bytes of the storages of tensors by category, those on the device in use; of a distributed one this rank's part.

    A storage that two categories share counts for the first. Sparse tensors have no single storage and do not count.
    """
    device, sizes = "cuda" if current_clock().on_gpu else "cpu", dict.fromkeys(tensors, 0)
    counted: set[int] = set()
    for category, members in tensors.items():
        for tensor in members:
            own = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if own.layout is not torch.strided or own.device.type != device:
                continue
            storage = own.untyped_storage()
            if storage.data_ptr() not in counted:
                counted.add(storage.data_ptr())
                sizes[category] += storage.nbytes()
    return sizes


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors of a batch's part: in lists, tuples and mappings, and in the attributes of objects."""
    seen: dict[int, Any] = {}  # by id; references keep the ids from being reused
    open_ones = [value]
    while open_ones:
        part = open_ones.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, Tensor):
            yield part
        else:
            open_ones += reversed(_held_by(part))


def _held_by(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    slots: list[str] = []
    for kind in type(value).__mro__:
        named = vars(kind).get("__slots__", ())
        slots += [named] if isinstance(named, str) else named
    in_slots = [getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)]
    return [*getattr(value, "__dict__", {}).values(), *in_slots]


def compilations() -> int:
    """How many graphs torch.compile has made in this process so far."""
    compiler = sys.modules.get("torch._dynamo.utils")  # it takes a second to import, and most runs compile nothing
    return 0 if compiler is None else int(compiler.counters["stats"]["unique_graphs"])
