"""Files of `torch.save` during a prediction: what lay on the virtual device comes back there, as from a GPU's file."""

from collections.abc import Callable
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, nn

from steptrace.predict import backend

#: How PyTorch tags the memory of a GPU in a file.
_TAG: Final = "cuda:0"
#: Addresses of the memory of virtual tensors that are being saved.
_saved: set[int] = set()


def note_saved(values: Tensor) -> None:
    """A virtual tensor with these values is being written to a file."""
    if values.layout is torch.strided:
        _saved.add(values.untyped_storage().data_ptr())


def replacements() -> dict[tuple[Any, str], Callable[..., Any]]:
    """What of PyTorch is another function meanwhile, by owner and name."""
    files: Any = torch.serialization
    tag, restore, save, load = files.location_tag, files.default_restore_location, files.save, files.load
    restored: dict[int, Any] = {}  # with the storage itself: an address is taken again once its memory is free

    def location_tag(storage: Any) -> Any:
        return _TAG if storage.data_ptr() in _saved else tag(storage)

    def default_restore_location(storage: Any, location: Any) -> Any:
        if not str(location).startswith("cuda"):
            return restore(storage, location)
        restored[storage.data_ptr()] = storage
        return storage

    def saving(*args: Any, **kwargs: Any) -> None:
        _saved.clear()
        try:
            save(*args, **kwargs)
        finally:
            _saved.clear()

    def loading(*args: Any, **kwargs: Any) -> Any:
        try:
            return _moved(load(*args, **kwargs), restored, set())
        finally:
            restored.clear()

    return {
        (torch, "save"): saving,
        (torch, "load"): loading,
        (files, "save"): saving,
        (files, "load"): loading,
        (files, "location_tag"): location_tag,
        (files, "default_restore_location"): default_restore_location,
    }


def _moved(value: Any, restored: dict[int, Any], seen: set[int]) -> Any:
    """What a file holds, with the tensors on the virtual device that belong there; containers and modules as well.

    `seen` are the lists and mappings that have had their turn: a file can hold one that holds itself.
    """
    if isinstance(value, (dict, list)):
        if id(value) in seen:
            return value
        seen.add(id(value))
    if isinstance(value, Tensor):
        if not _is_restored(value, restored):
            return value
        moved = value.detach().to(backend.device())
        return nn.Parameter(moved, value.requires_grad) if isinstance(value, nn.Parameter) else moved
    if isinstance(value, nn.Module):
        if any(_is_restored(tensor, restored) for tensor in chain(value.parameters(), value.buffers())):
            value.to(backend.device())
    elif isinstance(value, dict):
        for key in value:
            value[key] = _moved(value[key], restored, seen)
    elif isinstance(value, list):
        value[:] = [_moved(item, restored, seen) for item in value]
    elif type(value) is tuple:
        return tuple(_moved(item, restored, seen) for item in value)
    return value


def _is_restored(tensor: Tensor, restored: dict[int, Any]) -> bool:
    return tensor.layout is torch.strided and tensor.untyped_storage().data_ptr() in restored
