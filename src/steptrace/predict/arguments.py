"""PyTorch's functions are called with the virtual device in place of CUDA devices, before C++ sees them.

Some are replaced: where their C++ goes another way for a CUDA tensor than for a subclass of Tensor.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from steptrace.predict import backend, cuda_classes, products, recurrent
from steptrace.predict.attention import attention
from steptrace.predict.memory import UNFINISHED
from steptrace.predict.pytorch import TensorBase
from steptrace.predict.recorder import Syncs
from steptrace.predict.tensor import SET_DATA, is_virtual, map_tensors
from steptrace.predict.threads import stop_if_ended
from steptrace.torch_names import private

_DEVICE: Any = vars(TensorBase).get("device")
_IS_CUDA: Any = vars(TensorBase).get("is_cuda")
#: Types of arguments that may be, or hold, the name of a device.
_MAY_NAME = (str, torch.device, list, tuple)
#: Methods by which Python reads a tensor's values, past all operators.
_READ_IN_PYTHON = {"numpy", "tolist", "__array__", "__dlpack__"}
#: How modules and other libraries read the arguments of `to`.
_PARSE_TO: Any = private("torch._C._nn._parse_to")
_ONE_HOT: Any = private("torch._C._nn.one_hot")
_ATTENTION: Any = private("torch._C._nn.scaled_dot_product_attention")


class Reroute(TorchFunctionMode):
    """Replaces CUDA devices among the arguments of PyTorch's functions before C++ sees them."""

    def __init__(self) -> None:
        super().__init__()
        self._inside: list[Any] = []

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
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
        if kind == "__set__" and func == SET_DATA:
            if is_virtual(args[1]) is not is_virtual(args[0]):
                # p.data = p.data.cuda(): the tensor keeps its identity and changes sides.
                moved = args[1].detach().requires_grad_(args[0].requires_grad)
                moved = nn.Parameter(moved, moved.requires_grad) if isinstance(args[0], nn.Parameter) else moved
                torch.utils.swap_tensors(args[0], moved)  # type: ignore[no-untyped-call]
                return None
            if is_virtual(args[0]):
                args[0]._inner, args[0].gpu = args[1]._inner.detach(), args[1].gpu
        if UNFINISHED and kind in _READ_IN_PYTHON and not is_virtual(args[0]) and Syncs.active is not None:
            Syncs.active.reads(f"Tensor.{kind}", args[:1])
        func, inside = _called(func)
        if inside is None or func in self._inside:  # a method that calls its base class's comes by again
            if func is not _PARSE_TO:  # which only reads them
                args = [
                    map_tensors(backend.virtual_device, value) if isinstance(value, _MAY_NAME) else value
                    for value in args
                ]
                if "device" in kwargs:
                    device = kwargs["device"]
                    device = torch.device(device) if isinstance(device, int) else device
                    kwargs["device"] = backend.virtual_device(device)
            try:
                return _as_named(func(*args, **kwargs))
            except RuntimeError as error:
                raise backend.as_of_cuda(error) from error.__cause__
        # Of functions in Python those that they call come by, so that what they do with a device sees "cuda".
        self._inside.append(func)
        try:
            with self:
                return inside(*args, **kwargs)
        finally:
            self._inside.remove(func)


def _as_named(result: Any) -> Any:
    """What C++ has returned, with devices as the program names them."""
    if type(result) is torch.device:
        return backend.cuda_device(result.index) if result.type == backend.DEVICE_TYPE else result
    if type(result) is tuple and any(type(value) is torch.device for value in result):
        return tuple(map(_as_named, result))
    return result


def _property(get: Any, args: Sequence[Any]) -> Any:
    """A tensor's property; the device of a distributed or nested one is ours. Our tensors answer for themselves."""
    if _DEVICE is not None and (get.__self__ is _DEVICE or get.__self__ is _IS_CUDA):
        device = _DEVICE.__get__(args[0])
        if device.type == backend.DEVICE_TYPE:
            return backend.cuda_device(device.index) if get.__self__ is _DEVICE else True
    return get(*args)


class _Globals(dict[str, Any]):
    """A function's globals, some of them replaced."""

    def __init__(self, behind: Mapping[str, Any], replaced: Mapping[str, Any]) -> None:
        super().__init__(replaced)
        self._behind = behind

    def __missing__(self, name: str) -> Any:
        return self._behind[name]


@cache
def _called(func: Any) -> tuple[Any, Callable[..., Any] | None]:
    """The function that is called in place of one, and a copy of it that skips the `__torch_function__` check."""
    func = _REPLACED.get(func, func)
    return func, _without_question(func)


def _without_question(func: Any) -> Callable[..., Any] | None:
    """A copy of one of PyTorch's Python functions that does not ask whether a mode wants to replace it.

    This mode has just been asked. While a mode is asked, PyTorch leaves it out. Then "cuda" would mean nothing to the
    functions called within, nor to the program's own hooks in a backward pass. Entering the mode again would ask again,
    without end, and PyTorch has no way to decline: what a mode returns is the result.

    The copy has globals of its own, in which `has_torch_function` and its like say no. These names are not replaced in
    PyTorch's modules, since `torch.jit.script` knows them by their identity: a program that scripts a module meanwhile
    would fail. None for a function that is not written in Python, or does not ask.
    """
    while hasattr(func, "__wrapped__") and not func.__globals__["__name__"].startswith("torch."):
        func = func.__wrapped__  # someone's wrapper: PyTorch's own function inside it asks, so the wrapper has run
    if not isinstance(func, FunctionType):
        return None
    asked = (name for name in func.__code__.co_names if name.startswith("has_torch_function"))
    questions = [name for name in asked if name in func.__globals__]
    if not questions:
        return None
    names = _Globals(func.__globals__, dict.fromkeys(questions, lambda *_: False))
    names["__builtins__"] = func.__globals__["__builtins__"]
    copy = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _to_virtual(
    tensor: Tensor,
    device: object = None,
    non_blocking: bool = False,  # noqa: FBT001, FBT002 - torch's own
    **kwargs: Any,
) -> Tensor:
    return tensor.to(backend.device(backend.index_of(device)), non_blocking=non_blocking, **kwargs)


def _from_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers in lists that reads the tensors among them. C++ does, past all dispatch."""

    def read(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [item.detach().cpu() if is_virtual(item) else read(item) for item in value]
        return value

    return lambda *args, **kwargs: function(*map(read, args), **{name: read(value) for name, value in kwargs.items()})


def _ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *options: Any, **named: Any
) -> Tensor:
    """Copies the targets to the host to ask whether cuDNN can take them, once more for lengths given as tensors."""
    lengths: tuple[Any, ...] = (input_lengths, target_lengths)
    if is_virtual(log_probs):
        given = [length for length in lengths if isinstance(length, Tensor)]
        for _ in range(2 if given else 1):
            targets.cpu()
        may = targets.dtype == torch.int32 and targets.dim() == 1 and not (given and given[0].dtype != torch.int32)
        if may and (given or not is_virtual(targets)) and Syncs.active is not None:
            Syncs.active.cannot_judge("aten::_cudnn_ctc_loss", "cuDNN may take this one, and copies otherwise")
        if len(given) == len(lengths):
            lengths = tuple(length.cpu().reshape(-1).tolist() for length in given)
    result: Tensor = torch.ctc_loss(log_probs, targets, *lengths, *options, **named)
    return result


def _one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """Ones scattered into zeros, and no check of values that the host would read; C++ compares a subclass instead."""
    if not is_virtual(input):
        made: Tensor = _ONE_HOT(input, num_classes)
        return made
    classes = int(input.max().item()) + 1 if num_classes == -1 else num_classes
    return input.new_zeros((*input.shape, classes)).scatter_(-1, input.unsqueeze(-1), 1)


#: What is called in place of a function.
_REPLACED: dict[Any, Callable[..., Any]] = {
    torch.ctc_loss: _ctc_loss,
    torch.tensor: _from_data(torch.tensor),
    torch.as_tensor: _from_data(torch.as_tensor),
    torch.asarray: _from_data(torch.asarray),
    Tensor.new_tensor: _from_data(Tensor.new_tensor),
    **products.REPLACED,
    **recurrent.REPLACED,
    **{
        function: called for function, called in ((_ATTENTION, attention), (_ONE_HOT, _one_hot)) if function is not None
    },
}
