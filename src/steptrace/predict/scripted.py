"""What of TorchScript, exported programs, nested tensors and flex_attention goes another way on the virtual device."""

import copy
import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from steptrace.predict.arguments import virtual_device
from steptrace.predict.backend import DEVICE_TYPE
from steptrace.predict.tensor import LIMIT, NESTED, is_virtual


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
    def made(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        on_device = getattr(virtual_device(kwargs.get("device")), "type", None) == DEVICE_TYPE
        if kwargs.get("layout") is not torch.jagged and (on_device or any(map(is_virtual, tensors))):
            raise NotImplementedError(NESTED)
        return make(tensors, *args, **kwargs)

    return made


def _exported(export: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.export.export`, which traces with tensors that stand for others on a device that has none."""

    @wraps(export)
    def exported(mod: Any, args: Any = (), *more: Any, **named: Any) -> Any:
        if any(map(is_virtual, (*mod.parameters(), *mod.buffers(), *args))):
            raise NotImplementedError(LIMIT.format("torch.export", "export on the CPU, or after the steps"))
        return export(mod, args, *more, **named)

    return exported


def _flex_attention(operator: Callable[..., Any]) -> Callable[..., Any]:
    """`flex_attention` as it runs uncompiled; its operator has a gradient for PyTorch's own devices only."""
    dense = importlib.import_module("torch._higher_order_ops.flex_attention").sdpa_dense

    def attention(query: Any, *args: Any, **named: Any) -> Any:
        return (dense if is_virtual(query) else operator)(query, *args, **named)

    return attention


def replacements() -> dict[tuple[Any, str], Any]:
    """By owner and name: what is called in place of PyTorch's own."""
    jit: Any = torch.jit
    flex: Any = importlib.import_module("torch.nn.attention.flex_attention")
    module = jit.RecursiveScriptModule
    return {
        (jit, "load"): _to_device(jit.load),
        (module, "save"): _from_host(module.save),
        (module, "save_to_buffer"): _from_host(module.save_to_buffer),
        (torch.nested, "nested_tensor"): _nested(torch.nested.nested_tensor),
        (flex, "flex_attention_hop"): _flex_attention(flex.flex_attention_hop),
        (torch.export, "export"): _exported(torch.export.export),
    }
