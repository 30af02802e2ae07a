"""What a training holds on its device, and how much its allocator has free.

Needs PyTorch and the standard library only.
"""

import gc
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from steptrace.engine.device import current_clock


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
        if current_clock().on_gpu:
            before = torch.cuda.memory_allocated()
            torch._C._cuda_clearCublasWorkspaces()
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
