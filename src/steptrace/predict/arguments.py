"""CUDA devices among the arguments of PyTorch's functions, replaced by the virtual device before C++ sees them."""

import re
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from steptrace.predict import backend, collectives
from steptrace.predict.cpp_paths import REPLACED
from steptrace.predict.tensor import SET_DATA, is_virtual, map_tensors

_CUDA = re.compile(r"cuda(:\d+)?")
_GET_DEVICE: Any = vars(torch._C.TensorBase)["device"].__get__
_GET_IS_CUDA: Any = vars(torch._C.TensorBase)["is_cuda"].__get__


def virtual_device(value: Any) -> Any:
    """The virtual device if the value names a CUDA device; anything else as it is."""
    if isinstance(value, str) and _CUDA.fullmatch(value):
        value = torch.device(value)
    if not isinstance(value, torch.device) or value.type != "cuda":
        return value
    return backend.device(collectives.index_of(value))


class Reroute(TorchFunctionMode):
    """Replaces CUDA devices among the arguments of PyTorch's functions before C++ sees them."""

    def __init__(self) -> None:
        super().__init__()
        self._inside: list[Any] = []

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **kwargs)  # stays "cuda", as the program will want to read it
        if func is Tensor.cuda:
            return _to_virtual(*args, **kwargs)
        if func in (_GET_DEVICE, _GET_IS_CUDA):  # a distributed or nested tensor: those of ours answer for themselves
            device = _GET_DEVICE(args[0])
            if device.type == backend.DEVICE_TYPE:
                return collectives.cuda_device(device.index) if func == _GET_DEVICE else True
        if func == SET_DATA and is_virtual(args[1]) is not is_virtual(args[0]):
            # p.data = p.data.cuda(): the tensor keeps its identity and changes sides.
            moved = args[1].detach().requires_grad_(args[0].requires_grad)
            torch.utils.swap_tensors(args[0], moved)  # type: ignore[no-untyped-call]
            return None
        if func == SET_DATA and is_virtual(args[0]):
            args[0]._inner, args[0].gpu = args[1]._inner.detach(), args[1].gpu
        args = tuple(map_tensors(virtual_device, argument) for argument in args)
        if isinstance(kwargs.get("device"), int) and not isinstance(kwargs["device"], bool):
            kwargs["device"] = torch.device("cuda", kwargs["device"])
        for name in ("device", "other", "map_location"):
            if name in kwargs:
                kwargs[name] = virtual_device(kwargs[name])
        func = REPLACED.get(func, func)
        inside = _without_question(func)
        if inside is None or func in self._inside:  # a method that calls its base class's comes by again
            return func(*args, **kwargs)
        self._inside.append(func)
        try:
            with self:
                return inside(*args, **kwargs)
        finally:
            self._inside.remove(func)


def _without_question(func: Any) -> Callable[..., Any] | None:
    """One of PyTorch's functions written in Python, less its first question: whether a mode wants to replace it.

    This mode has just been asked. While it is, PyTorch leaves it out, so that "cuda" would mean nothing to the
    functions called within, nor to the program's own hooks in a backward pass; and entering it again would ask again.
    """
    if not isinstance(func, FunctionType):
        return None
    asked = (name for name in func.__code__.co_names if name.startswith("has_torch_function"))
    questions = [name for name in asked if name in func.__globals__]
    if not questions:
        return None
    known = {**func.__globals__, **dict.fromkeys(questions, lambda *_: False)}
    copy = FunctionType(func.__code__, known, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _to_virtual(
    tensor: Tensor,
    device: object = None,
    non_blocking: bool = False,  # noqa: FBT001, FBT002 - torch's own
    **kwargs: Any,
) -> Tensor:
    return tensor.to(backend.device(collectives.index_of(device)), non_blocking=non_blocking, **kwargs)
