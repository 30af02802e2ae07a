"""PyTorch's functions are called with the virtual device in place of CUDA devices, before C++ sees them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from steptrace.predict import backend, cuda_classes
from steptrace.predict.memory import UNFINISHED
from steptrace.predict.pytorch import TensorBase
from steptrace.predict.replaced_functions import REPLACED
from steptrace.predict.swaps import set_data
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import SET_DATA, is_virtual, map_tensors
from steptrace.predict.threads import stop_if_ended
from steptrace.predict.unchecked_functions import unchecked
from steptrace.torch_names import private

_DEVICE: Any = vars(TensorBase).get("device")
_IS_CUDA: Any = vars(TensorBase).get("is_cuda")
#: Types of arguments that may be, or hold, the name of a device.
_MAY_NAME = (str, torch.device, list, tuple)
#: Methods by which Python reads a tensor's values, past all operators.
_READ_IN_PYTHON = {"numpy", "tolist", "__array__", "__dlpack__"}
#: How modules and other libraries read the arguments of `to`.
_PARSE_TO: Any = private("torch._C._nn._parse_to")


class Reroute(TorchFunctionMode):
    """Replaces CUDA devices among the arguments of PyTorch's functions before C++ sees them."""

    def __init__(self) -> None:
        super().__init__()
        self._inside: list[Any] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        stop_if_ended()
        if Syncs.active is None:  # the prediction is over, and the thread goes on
            return func(*args, **(kwargs or {}))
        kind = func.__name__
        if kind == "__get__":
            return _property(func, args)
        kwargs = dict(kwargs) if kwargs else {}
        if func is torch.device:  # a device stays "cuda", as the program will want to read it; a number means one, too
            return func("cuda", *args) if args and isinstance(args[0], int) else func(*args, **kwargs)
        if func is Tensor.cuda:
            return _to_virtual(*args, **kwargs)
        if func is Tensor.type and (of_cuda := cuda_classes.as_type(args[1] if len(args) > 1 else kwargs.get("dtype"))):
            non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
            device = backend.virtual_device(args[0].device if is_virtual(args[0]) else "cuda")
            return args[0].to(device, of_cuda.dtype, non_blocking=non_blocking)
        if kind == "__set__" and func == SET_DATA and isinstance(args[1], Tensor) and any(map(is_virtual, args)):
            return set_data(*args)
        if UNFINISHED and kind in _READ_IN_PYTHON and not is_virtual(args[0]) and Syncs.active is not None:
            Syncs.active.reads(f"Tensor.{kind}", args[:1])
        if type(kwargs.get("generator")) is cuda_classes.DefaultGenerator:
            kwargs["generator"] = None
        original = func
        func = REPLACED.get(func, func)
        inside = unchecked(func)
        if inside is None or func in self._inside:  # a method that calls the one of its base class comes here twice
            if func is not _PARSE_TO:  # it only reads the arguments
                args = _with_virtual_devices(args)
                if "device" in kwargs:
                    kwargs["device"] = _virtual_device(kwargs["device"])
            try:
                return _as_named(func(*args, **kwargs))
            except RuntimeError as error:
                raise backend.as_of_cuda(error) from error.__cause__
        if types:  # the copy below does not ask the classes of the arguments
            with self:
                return _by_classes(original, types, args, kwargs)
        # The functions that a Python function calls come here, too, so that they see "cuda" as a device.
        self._inside.append(func)
        try:
            with self:
                return inside(*args, **kwargs)
        finally:
            self._inside.remove(func)


def _with_virtual_devices(args: Sequence[Any]) -> list[Any]:
    """The arguments with the virtual device in place of CUDA devices, also within lists and tuples."""
    return [map_tensors(backend.virtual_device, value) if isinstance(value, _MAY_NAME) else value for value in args]


def _virtual_device(device: Any) -> Any:
    """The argument `device`; a number means a CUDA device."""
    return backend.virtual_device(torch.device(device) if isinstance(device, int) else device)


def _by_classes(func: Any, types: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result that the arguments' classes give by their own `__torch_function__`, asked in PyTorch's order."""
    for kind in types:
        result = kind.__torch_function__(func, types, args, kwargs)
        if result is not NotImplemented:
            return result
    raise TypeError(f"no implementation found for '{func.__module__}.{func.__name__}' on types {list(types)}")


def _as_named(result: Any) -> Any:
    """A result of C++, with devices named as in the program."""
    if type(result) is torch.device:
        return backend.cuda_device(result.index) if result.type == backend.DEVICE_TYPE else result
    if type(result) is tuple and any(type(value) is torch.device for value in result):
        return tuple(map(_as_named, result))
    return result


def _property(get: Any, args: Sequence[Any]) -> Any:
    """A property of a tensor. The device of a distributed or nested tensor on the virtual device is named "cuda"."""
    if _DEVICE is not None and (get.__self__ is _DEVICE or get.__self__ is _IS_CUDA):
        device = _DEVICE.__get__(args[0])
        if device.type == backend.DEVICE_TYPE:
            return backend.cuda_device(device.index) if get.__self__ is _DEVICE else True
    return get(*args)


def _to_virtual(
    tensor: Tensor,
    device: object = None,
    non_blocking: bool = False,  # noqa: FBT001, FBT002 - torch's own
    **kwargs: Any,
) -> Tensor:
    return tensor.to(backend.device(backend.index_of(device)), non_blocking=non_blocking, **kwargs)
