"""Decides whether a program that failed during a prediction has failed by a fault of steptrace."""

import inspect
import itertools
import linecache
import traceback
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from types import FrameType, FunctionType, ModuleType
from typing import Any, Final

import torch
from torch import Tensor, nn

from steptrace.engine.frames import OURS, TORCH, is_library, outside_pytorch, report
from steptrace.predict.pytorch import functions_off
from steptrace.predict.tensor import VirtualTensor
from steptrace.torch_names import private

_OURS: Final = f"{Path(__file__).parent}/"
_TREE_MAP: Final[Any] = private("torch.utils._pytree.tree_map")
#: Functions that call one of PyTorch's for the program, with `func` (or its `overload`), `args` and `kwargs`
#: among their variables.
_CALLS: Final = ("run", "__torch_function__")
#: Packages whose objects may lack on the virtual device what they have on a GPU.
_OF_A_DEVICE: Final = ("torch", "steptrace")
#: PyTorch's functions of CUDA, which may hold no tensor.
_OF_CUDA: Final = f"{TORCH}cuda/"
#: PyTorch's loaders, which pass on the errors of the program's data.
_LOADS_DATA: Final = f"{TORCH}utils/data/"
#: Objects whose attributes are looked at lie at most so deep in a variable.
_DEEPEST: Final = 3
#: The most items of a collection that are looked at.
_MOST_ITEMS: Final = 100


def fault_report(error: BaseException) -> str | None:
    """The report on an error by a fault of steptrace; None for an error of the program, or of PyTorch for it.

    It is steptrace's fault if the innermost frame outside of PyTorch is steptrace's. There are four exceptions:
    somebody has stopped the program, or steptrace raises there what CUDA would raise, or the same call fails on plain
    CPU tensors, too, or a function of PyTorch fails that it only passes on, without any tensor of the device.
    """
    if not isinstance(error, Exception):  # somebody has stopped the program
        return None
    frames = outside_pytorch(error)
    if not frames or not _file(frames[-1][0]).startswith(_OURS):
        return None
    *_, (last, _) = traceback.walk_tb(error.__traceback__)
    if _file(last) == inspect.__file__:  # which refuses arguments that the real function refuses
        return None
    innermost, line = frames[-1]
    if linecache.getline(_file(innermost), line).lstrip().startswith("raise "):
        return None
    call = _called(frame for frame, _ in reversed(frames))
    if call is not None and _fails_on_cpu(call["func"], call["args"], call["kwargs"], type(error)):
        return None
    if _only_passes_on(error):
        return None
    operator = "" if call is None else f", operator {getattr(call['func'], '__name__', call['func'])}"
    return report(error, frames, operator)


def may_be_ours(error: BaseException) -> bool:
    """Whether the prediction may have caused an error, judged by the innermost frames and what they hold.

    It may have if steptrace or PyTorch's functions of CUDA raise the error. It may also have if a tensor or module of
    the virtual device is among the variables of the innermost frames: those of libraries, or else the program's last
    one. What was read of it may have misled them. An attribute may only be missing by our fault if an object of
    PyTorch's lacks it.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames:
        return False
    if isinstance(error, AttributeError) and error.obj is not None:
        lacking = error.obj if isinstance(error.obj, ModuleType | type) else type(error.obj)
        package = lacking.__name__ if isinstance(lacking, ModuleType) else lacking.__module__
        return package.partition(".")[0] in _OF_A_DEVICE
    innermost = _file(frames[-1])
    if innermost.startswith((_OURS, _OF_CUDA)):
        return True
    called = list(itertools.takewhile(lambda frame: _is_called(_file(frame)), reversed(frames)))
    if isinstance(error, UnpicklingError) or (isinstance(error, KeyError) and not called):
        return False  # a file, or a name that the program's data lack
    return any(_holds(value) for frame in called or frames[-1:] for value in frame.f_locals.values())


def _is_called(file: str) -> bool:
    """Whether a file is a library's. A loader of PyTorch's ends them: its callers only ask for the next batch."""
    return not file.startswith(_LOADS_DATA) and (is_library(file) or file.startswith((TORCH, *OURS, _OURS)))


def _holds(value: Any, depth: int = 0) -> bool:
    """Whether a value is, or holds, a tensor of the device. Nothing of the program's runs."""
    if isinstance(value, VirtualTensor):
        return True
    if depth > _DEEPEST or isinstance(value, ModuleType | FunctionType | type):
        return False
    if isinstance(value, nn.Module):
        parts = (part.__dict__ for part in nn.Module.modules(value))
        tensors = (tensor for part in parts for kind in ("_parameters", "_buffers") for tensor in part[kind].values())
        return any(isinstance(tensor, VirtualTensor) for tensor in tensors)
    items: Iterable[Any] = ()
    if isinstance(value, list | tuple):
        items = value
    elif isinstance(value, dict):
        items = dict.values(value)
    elif not isinstance(value, Tensor):
        with suppress(AttributeError):  # it has slots
            items = list(object.__getattribute__(value, "__dict__").values())
    return any(_holds(item, depth + 1) for item in itertools.islice(items, _MOST_ITEMS))


def _only_passes_on(error: BaseException) -> bool:
    """Whether our innermost frame stands in for a function of PyTorch, and calls that with nothing of the device.

    So it is where a package of the program's does not fit its PyTorch: its operators are registered by a function that
    has a stand-in.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    innermost = max(number for number, frame in enumerate(frames) if _file(frame).startswith(_OURS))
    if innermost + 1 == len(frames):
        return False
    called = frames[innermost + 1]
    stands_in = any(getattr(value, "__code__", None) is called.f_code for value in frames[innermost].f_locals.values())
    return stands_in and not any(_of_the_device(value) for value in called.f_locals.values())


def _of_the_device(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_of_the_device, value))
    if isinstance(value, Mapping):
        return any(map(_of_the_device, value.values()))
    return isinstance(value, VirtualTensor)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _called(frames: Iterable[FrameType]) -> Mapping[str, Any] | None:
    """The variables of the first of the frames that calls a function of PyTorch for the program."""
    calling = (frame for frame in frames if _file(frame).startswith(_OURS) and frame.f_code.co_name in _CALLS)
    variables = next((frame.f_locals for frame in calling), None)
    if variables is not None and "func" not in variables:
        return {**variables, "func": variables["overload"].func}
    return variables


def _fails_on_cpu(func: Any, args: Any, kwargs: Any, kind: type[BaseException]) -> bool:
    """Whether a call fails in the same way with copies of its tensors on the CPU.

    A backward pass counts as one that does: copies have no history, so it cannot be repeated.
    """
    if getattr(func, "__name__", None) in ("backward", "grad"):
        return True

    def on_cpu(value: Any) -> Any:
        if isinstance(value, torch.device) or (isinstance(value, str) and value.startswith("cuda")):
            return torch.device("cpu")
        if isinstance(value, VirtualTensor):
            return value._inner.detach().clone().requires_grad_(value.requires_grad)
        return value.detach().clone() if isinstance(value, Tensor) else value

    if _TREE_MAP is None:
        return False
    try:
        with torch.inference_mode(mode=False), functions_off():
            args, kwargs = _TREE_MAP(on_cpu, (tuple(args), dict(kwargs or {})))
            func(*args, **kwargs)
    except kind:
        return True
    except Exception:
        return False
    return False
