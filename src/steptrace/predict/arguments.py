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

from steptrace.predict import backend, cuda_classes, encoder_layers, products, recurrent, spectral
from steptrace.predict.attention import attention
from steptrace.predict.memory import PINNED, UNFINISHED
from steptrace.predict.pytorch import TensorBase, aten
from steptrace.predict.swaps import set_data
from steptrace.predict.syncs import Syncs
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
_EIGVALS: Any = aten("_linalg_eigvals")
_CROSS_ENTROPY: Any = private("torch._C._nn.cross_entropy_loss")
_ATTENTION: Any = private("torch._C._nn.scaled_dot_product_attention")
_CHECK_SPARSE: Any = private("torch._validate_sparse_coo_tensor_args")


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
        if kind == "__set__" and func == SET_DATA and (is_virtual(args[0]) or is_virtual(args[1])):
            return set_data(*args)
        if UNFINISHED and kind in _READ_IN_PYTHON and not is_virtual(args[0]) and Syncs.active is not None:
            Syncs.active.reads(f"Tensor.{kind}", args[:1])
        if type(kwargs.get("generator")) is cuda_classes.DefaultGenerator:
            kwargs["generator"] = None
        asked = func
        func, inside = _called(func)
        if inside is None or func in self._inside:  # a method that calls the one of its base class comes here twice
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
        if types:  # the copy below does not ask the classes of the arguments, either
            with self:
                return _by_classes(asked, types, args, kwargs)
        # The functions that a Python function calls come here, too, so that they see "cuda" as a device.
        self._inside.append(func)
        try:
            with self:
                return inside(*args, **kwargs)
        finally:
            self._inside.remove(func)


def _by_classes(func: Any, types: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a function by the classes of its arguments that say it themselves, as PyTorch asks them."""
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
    """A copy of one of PyTorch's Python functions that skips the check for `__torch_function__` modes.

    PyTorch has just asked this mode, and it leaves a mode out while it asks it. So "cuda" would mean nothing to the
    functions that the function calls, nor to the program's hooks in a backward pass. To enter the mode again does not
    help: PyTorch would ask it again without end, and a mode cannot decline, since whatever it returns is the result.

    The copy has its own globals, in which `has_torch_function` and the like return False. They are not replaced in
    PyTorch's modules, because `torch.jit.script` knows them by identity, and a program that scripts a module would
    fail. None for a function that is not written in Python, or that has no such check.
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
    """A function of numbers in lists that reads the tensors among them, and may pin its result. C++ does both, past all
    dispatch.
    """

    def read(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [item.detach().cpu() if is_virtual(item) else read(item) for item in value]
        return value

    def called(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        result = function(*map(read, args), **{name: read(value) for name, value in kwargs.items()})
        return PINNED.add(result) if pin_memory and not is_virtual(result) else result

    return called


def _ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any, *options: Any, **named: Any
) -> Tensor:
    """Copies the targets to the host to ask whether cuDNN can take them, once more for lengths given as tensors."""
    lengths: tuple[Any, ...] = (input_lengths, target_lengths)
    if is_virtual(log_probs):
        tensor_lengths = [length for length in lengths if isinstance(length, Tensor)]
        for _ in range(2 if tensor_lengths else 1):
            targets.cpu()
        may = (
            targets.dtype == torch.int32
            and targets.dim() == 1
            and not (tensor_lengths and tensor_lengths[0].dtype != torch.int32)
        )
        if may and (tensor_lengths or not is_virtual(targets)) and Syncs.active is not None:
            Syncs.active.cannot_judge("aten::_cudnn_ctc_loss", "cuDNN may take this one, and copies otherwise")
        if len(tensor_lengths) == len(lengths):
            lengths = tuple(length.cpu().reshape(-1).tolist() for length in tensor_lengths)
    result: Tensor = torch.ctc_loss(log_probs, targets, *lengths, *options, **named)
    return result


def _one_hot(input: Tensor, num_classes: int = -1) -> Tensor:
    """Ones scattered into zeros, and no check of values that the host would read; C++ compares a subclass instead."""
    if not is_virtual(input):
        result: Tensor = _ONE_HOT(input, num_classes)
        return result
    if input.dtype is not torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    classes = int(input.max().item()) + 1 if num_classes == -1 else num_classes
    return input.new_zeros((*input.shape, classes)).scatter_(-1, input.unsqueeze(-1), 1)


def _eigvals(A: Tensor, *, out: Tensor | None = None) -> Tensor:  # noqa: N803 - PyTorch's name
    """Without the eigenvectors, unless a gradient needs them; for a subclass C++ computes them always."""
    if out is not None or _EIGVALS is None or not is_virtual(A) or (A.requires_grad and torch.is_grad_enabled()):
        result: Tensor = torch.linalg.eigvals(A, out=out)
        return result
    without: Tensor = _EIGVALS(A)
    return without


def _cross_entropy(
    scores: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Smoothed labels with weights, as in `aten/src/ATen/native/LossNLL.cpp`: CUDA selects the weights of the labels
    that are not ignored, and the host waits for their number; for a subclass C++ masks them instead.
    """
    is_selected = weight is not None and label_smoothing > 0 and reduction == 1 and not labels.is_floating_point()
    if weight is None or not is_selected or not is_virtual(scores):
        result: Tensor = _CROSS_ENTROPY(scores, labels, weight, reduction, ignore_index, label_smoothing)
        return result
    classes = 0 if scores.dim() == 1 else 1
    logs = scores.log_softmax(classes)
    loss = nn.functional.nll_loss(logs, labels, weight, ignore_index=ignore_index)
    shape = [-1 if axis == classes else 1 for axis in range(logs.dim())]
    smooth = -(logs * weight.view(shape)).sum(classes)
    ignored = labels == ignore_index
    smooth.masked_fill_(ignored, 0.0)
    smooth = smooth.sum() / weight.gather(0, labels.masked_select(~ignored).flatten()).sum()
    return (1 - label_smoothing) * loss + smooth * (label_smoothing / logs.size(classes))


def _check_sparse(*parts: Any, **options: Any) -> None:
    """The check of a sparse tensor's parts when it is loaded; C++ calls a kernel of the device past all dispatch."""
    _CHECK_SPARSE(*(part._inner if is_virtual(part) else part for part in parts), **options)


#: The replacements of functions.
_REPLACED: dict[Any, Callable[..., Any]] = {
    torch.ctc_loss: _ctc_loss,
    torch.linalg.eigvals: _eigvals,
    torch.tensor: _from_data(torch.tensor),
    torch.as_tensor: _from_data(torch.as_tensor),
    torch.asarray: _from_data(torch.asarray),
    Tensor.new_tensor: _from_data(Tensor.new_tensor),
    **encoder_layers.REPLACED,
    **products.REPLACED,
    **recurrent.REPLACED,
    **spectral.REPLACED,
    **{
        function: called
        for function, called in (
            (_ATTENTION, attention),
            (_ONE_HOT, _one_hot),
            (_CROSS_ENTROPY, _cross_entropy),
            (_CHECK_SPARSE, _check_sparse),
        )
        if function is not None
    },
}
