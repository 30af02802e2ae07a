"""Functions of PyTorch that make, copy, pin and share memory, with the virtual device among their devices."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from steptrace.predict import backend
from steptrace.predict.backend import index_of
from steptrace.predict.memory import PINNED, UNFINISHED
from steptrace.predict.operators import overload_of
from steptrace.predict.pytorch import aten
from steptrace.predict.storages import VirtualStorage, host_waits, on_device
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import MAKE_WRAPPER, VirtualTensor, is_virtual, legacy_type
from steptrace.torch_names import private

_Storage: Any = private("torch.storage._StorageBase")


def replacements() -> dict[tuple[Any, str], Callable[..., Any]]:
    """The replacements for storages and for pinning, by owner and name.

    Pinning is replaced on the class and not in a mode, because a loader's pinning thread has no modes.
    """
    to: Any = getattr(_Storage, "to", None)
    copy: Any = torch.UntypedStorage.copy_
    new_storage: Any = torch.UntypedStorage.__new__
    is_storage = torch.is_storage
    dlpack: Any = torch.utils.dlpack
    as_subclass: Any = Tensor.as_subclass
    reduce: Any = private("torch.Tensor._reduce_ex_internal")
    type_to: Any = Tensor.type
    storage_of: Any = Tensor.untyped_storage

    def pin_memory(self: Tensor, _device: object = None) -> Tensor:
        return self if self in PINNED else PINNED.add(self.clone())

    def as_class(self: Tensor, cls: Any) -> Any:
        """A tensor as one of a class, which the program may have taken from a tensor of the device."""
        if isinstance(self, VirtualTensor):  # called as a function: torch.Tensor.as_subclass(x, cls)
            return VirtualTensor.as_subclass(self, cls)
        return as_subclass(self, cls.stands_for if issubclass(cls, VirtualTensor) else cls)

    def reduce_ex_internal(self: Tensor, protocol: Any) -> Any:
        """How `torch.save`, `pickle` and queues between processes read a tensor of the host."""
        if UNFINISHED and Syncs.active is not None:
            Syncs.active.reads("torch.save", (self,))
        return reduce(self, protocol)

    def make_wrapper(*args: Any, **named: Any) -> Any:
        """A subclass around tensors, such as a nested tensor, on the device that C++ can find."""

        def for_cpp(value: Any) -> Any:
            on_cuda = isinstance(value, torch.device) and value.type == "cuda"
            return backend.device(index_of(value)) if on_cuda else value

        return MAKE_WRAPPER(*map(for_cpp, args), **{name: for_cpp(value) for name, value in named.items()})

    def moved(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
        """Copy a storage to another device, as `torch.load` does with each that it has read."""
        if torch.device(device).type != "cuda":
            return to(self, device=device, non_blocking=non_blocking)
        gpu = index_of(device)
        if self.device == torch.device("cuda", gpu):
            return self
        target: Any = new(torch.UntypedStorage, self.nbytes(), device=torch.device("cuda", gpu))
        return target.copy_(self, non_blocking)

    def copied(self: Any, source: Any, non_blocking: Any = None) -> Any:
        """Copy a storage into another one. Either may be on a GPU."""
        to_gpu, from_gpu = (isinstance(storage, VirtualStorage) for storage in (self, source))
        if to_gpu is not from_gpu and self.nbytes() and not non_blocking:
            target = "device" if to_gpu else "host"
            host_waits("h2d_copy" if to_gpu else "d2h_copy", f"a blocking copy to the {target}")
        copied = copy(self, source, non_blocking)
        _copied_whole(self, source)
        return copied

    def new(cls: Any, *args: Any, device: Any = None, **named: Any) -> Any:
        """Make a storage, which may be on a GPU."""
        if device is None or torch.device(device).type != "cuda":
            return new_storage(cls, *args, **named, **({} if device is None else {"device": device}))
        return on_device(new_storage(torch.UntypedStorage, *args, **named), index_of(device))

    def type_of(self: Tensor, dtype: Any = None, *args: Any, **named: Any) -> Any:
        """The name of a tensor's type, also of one that holds tensors of the device; or the tensor in another type."""
        return legacy_type(self) if dtype is None else type_to(self, dtype, *args, **named)

    def untyped_storage(self: Tensor) -> Any:
        """A tensor's memory, also of one that holds tensors of the device."""
        storage: Any = storage_of(self)
        on_gpu = storage.device.type == backend.DEVICE_TYPE
        return on_device(storage, storage.device.index) if on_gpu else storage

    return {
        (Tensor, "type"): type_of,
        (Tensor, "untyped_storage"): untyped_storage,
        (torch.UntypedStorage, "__new__"): staticmethod(new),
        (torch.UntypedStorage, "copy_"): copied,
        **({} if to is None else {(_Storage, "to"): moved}),
        **({} if reduce is None else {(Tensor, "_reduce_ex_internal"): reduce_ex_internal}),
        (Tensor, "_make_wrapper_subclass"): staticmethod(make_wrapper),
        **{(owner, "to_dlpack"): _to_dlpack(dlpack.to_dlpack) for owner in (torch, dlpack)},
        **{(owner, "from_dlpack"): _from_dlpack(dlpack.from_dlpack) for owner in (torch, dlpack)},
        (torch, "is_storage"): lambda value: isinstance(value, VirtualStorage) or is_storage(value),
        (Tensor, "as_subclass"): as_class,
        (Tensor, "pin_memory"): pin_memory,
        (Tensor, "is_pinned"): lambda self, _device=None: self in PINNED,
    }


class _Capsule:
    """The capsule that `to_dlpack` returns for a tensor of the device."""

    def __init__(self, tensor: VirtualTensor) -> None:
        self.tensor = tensor


def _to_dlpack(to_dlpack: Callable[..., Any]) -> Callable[..., Any]:
    return lambda tensor, *args, **named: _Capsule(tensor) if is_virtual(tensor) else to_dlpack(tensor, *args, **named)


def _from_dlpack(from_dlpack: Callable[..., Any]) -> Callable[..., Any]:
    """`from_dlpack`, also for a tensor of the device. C++ would make a tensor that Python does not know as ours."""

    def shared(ext_tensor: Any, *, device: Any = None, copy: bool | None = None) -> Any:
        tensor = ext_tensor.tensor if isinstance(ext_tensor, _Capsule) else ext_tensor
        if not is_virtual(tensor) or tensor.requires_grad:  # which is an error
            named = {name: value for name, value in (("device", device), ("copy", copy)) if value is not None}
            return from_dlpack(tensor, **named)
        view = tensor.detach().clone() if copy else tensor.detach()
        return view if device is None else view.to(device)

    return shared


def _copied_whole(target: Any, source: Any) -> None:
    """Record a copy of a storage between host and GPU as one of its bytes."""
    if Syncs.active is None or any(getattr(storage, "gpu", None) for storage in (source, target)):
        return
    source_bytes = _bytes_of(source)
    target_bytes = _bytes_of(target)
    virtual = [source_bytes] if is_virtual(source_bytes) else []
    Syncs.active.ran(overload_of(aten("_to_copy")), ((source_bytes,), {}), virtual, target_bytes, None)


def _bytes_of(storage: Any) -> Any:
    """A tensor of the bytes of a storage, virtual if the storage is."""
    whole = torch.empty(0, dtype=torch.uint8).set_(storage)
    return VirtualTensor(whole, 0) if isinstance(storage, VirtualStorage) else whole
