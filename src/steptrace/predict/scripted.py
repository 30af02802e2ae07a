"""What of TorchScript, exported programs and nested tensors goes another way on the virtual device."""

import copy
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch

from steptrace.predict.arguments import virtual_device
from steptrace.predict.backend import DEVICE_TYPE
from steptrace.predict.tensor import is_virtual

_LIMIT: Final = "steptrace predict cannot follow {}, which CUDA can: {}"


def _from_host(save: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a scripted module that writes it, with its tensors copied to the host: C++ writes memory it has."""

    @wraps(save)
    def saved(self: Any, *args: Any, **kwargs: Any) -> Any:
        return save(_moved(copy.deepcopy(self), "cpu"), *args, **kwargs)

    return saved


def _to_device(load: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.jit.load`, whose C++ knows no virtual device: what is read is moved there."""

    @wraps(load)
    def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        device = virtual_device(map_location)
        if getattr(device, "type", None) != DEVICE_TYPE:
            return load(f, map_location, *args, **kwargs)
        return _moved(load(f, "cpu", *args, **kwargs), device)

    return loaded


def _moved(module: Any, device: Any) -> Any:
    """A scripted module with its tensors on another device; its parameters cannot be swapped, as `to` would."""
    for part in module.modules():
        tensors = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        for name, tensor in tensors:
            part._c.setattr(name, tensor.detach().to(device).requires_grad_(tensor.requires_grad))
    return module


def _nested(make: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.nested.nested_tensor`: of the strided layout, C++ makes nested tensors on its own devices alone."""

    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        device = virtual_device(kwargs.get("device"))
        if getattr(device, "type", None) == DEVICE_TYPE and kwargs.get("layout") is not torch.jagged:
            raise NotImplementedError(_LIMIT.format("nested tensors of the strided layout", "pass layout=torch.jagged"))
        return make(*args, **kwargs)

    return made


def _exported(export: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.export.export`, which traces with tensors that stand for others on a device that has none."""

    @wraps(export)
    def exported(mod: Any, args: Any = (), *more: Any, **named: Any) -> Any:
        if any(map(is_virtual, (*mod.parameters(), *mod.buffers(), *args))):
            raise NotImplementedError(_LIMIT.format("torch.export", "export on the CPU, or after the steps"))
        return export(mod, args, *more, **named)

    return exported


def replacements() -> dict[tuple[Any, str], Any]:
    """By owner and name: what is called in place of PyTorch's own."""
    jit: Any = torch.jit
    module = jit.RecursiveScriptModule
    return {
        (jit, "load"): _to_device(jit.load),
        (module, "save"): _from_host(module.save),
        (module, "save_to_buffer"): _from_host(module.save_to_buffer),
        (torch.nested, "nested_tensor"): _nested(torch.nested.nested_tensor),
        (torch.export, "export"): _exported(torch.export.export),
    }
