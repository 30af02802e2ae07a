"""The memory that a training holds: tensors, free blocks, workspaces and peaks."""

import gc
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from steptrace.engine.clock import current_clock
from steptrace.torch_names import private


class MemoryLook:
    """Counts the bytes that a training holds into `record`, by the names of `RunMemory`.

    `train_step` can take it in place of `record_function`: then it also counts before and after the backward pass.

    Args:
        modules: the trained modules; a sub-module may be listed beside its module.
        optimizers: their optimizers.
    """

    def __init__(self, modules: Sequence[nn.Module], optimizers: Sequence[Any]) -> None:
        self.record: dict[str, Any] = {}
        self._modules = modules
        self._optimizers = optimizers

    @contextmanager
    def __call__(self, label: str) -> Generator[None]:
        """Count the free blocks before a backward pass and the gradients after it; an error leaves out the figure."""
        if label != "backward":
            yield
            return
        with suppress(Exception):
            self.record |= free_blocks()
        yield
        with suppress(Exception):
            self.record["gradient_bytes"] = self.held()["gradients"]

    def held(self) -> dict[str, int]:
        """The bytes of the tensors that outlast a step, by category. Each storage counts once."""
        parameters = [parameter for module in self._modules for parameter in module.parameters()]
        for optimizer in self._optimizers:
            for group in getattr(optimizer, "param_groups", ()):
                parameters += group["params"]
        tensors = {
            "parameters": [*parameters, *(buffer for module in self._modules for buffer in module.buffers())],
            "gradients": [parameter.grad for parameter in parameters if parameter.grad is not None],
            "optimizer_state": tensors_of([getattr(optimizer, "state", {}) for optimizer in self._optimizers]),
        }
        return _storage_bytes(tensors)

    def note_held(self) -> None:
        """Count the tensors that outlast a step into the record."""
        self.record["held"] = self.held()

    def note_workspaces(self) -> None:
        """Count cuBLAS's workspaces by freeing them. To be called after the last step."""
        clear = private("torch._C._cuda_clearCublasWorkspaces")
        if current_clock().on_gpu and clear is not None and "held" in self.record:
            before = torch.cuda.memory_allocated()
            clear()
            self.record["held"]["workspaces"] = before - torch.cuda.memory_allocated()


def modules_of(optimizers: Iterable[Any]) -> list[nn.Module]:
    """All modules of this process with a parameter that one of these optimizers trains."""
    groups = (group for optimizer in optimizers for group in getattr(optimizer, "param_groups", ()))
    trained = {id(parameter) for group in groups for parameter in group["params"]}
    modules = []
    for candidate in gc.get_objects():
        # By type(): isinstance() may run the object's own code. A module that is not fully built raises.
        with suppress(Exception):
            if issubclass(type(candidate), nn.Module) and any(id(p) in trained for p in candidate.parameters()):
                modules.append(candidate)
    return modules


def free_blocks() -> dict[str, int]:
    """The free bytes in the segments of the GPU's caching allocator, and the largest free block; empty on a CPU."""
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
    """The bytes of the tensors' storages on the device in use, by category.

    A storage that two categories share counts for the first one. A distributed tensor counts with this rank's part, and
    a subclass that wraps other tensors, such as a quantized one, with the tensors inside. Sparse tensors have no single
    storage and do not count.
    """
    device = "cuda" if current_clock().on_gpu else "cpu"
    sizes = dict.fromkeys(tensors, 0)
    counted: set[int] = set()
    for category, members in tensors.items():
        for local in (part for tensor in members for part in _with_memory(tensor)):
            if local.layout is not torch.strided or local.device.type != device:
                continue
            storage = local.untyped_storage()
            if storage.data_ptr() not in counted:
                counted.add(storage.data_ptr())
                sizes[category] += storage.nbytes()
    return sizes


def _with_memory(tensor: Any) -> Iterator[Tensor]:
    """The tensors that hold the memory of a tensor: a subclass that wraps other tensors holds no memory itself."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    if not hasattr(local, "__tensor_flatten__"):
        yield local
        return
    names, _ = local.__tensor_flatten__()
    for part in (getattr(local, name) for name in names):
        if isinstance(part, Tensor):
            yield from _with_memory(part)


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors in a value: also those in lists, tuples and mappings, and in the attributes of objects."""
    seen: dict[int, Any] = {}  # by id; the reference keeps the id from being reused
    to_visit = [value]
    while to_visit:
        part = to_visit.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, Tensor):
            yield part
        else:
            to_visit += reversed(_held_by(part))


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


def peaks() -> dict[str, int | None]:
    """The peak memory that PyTorch's allocator has allocated and reserved on the GPU in use; None without a GPU."""
    on_gpu = current_clock().on_gpu
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "peak_reserved_bytes": torch.cuda.max_memory_reserved() if on_gpu else None,
    }
