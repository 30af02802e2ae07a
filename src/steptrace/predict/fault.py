"""Whether a program that failed during a prediction has failed by a fault of steptrace, and what to report then."""

import inspect
import linecache
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.engine.frames import outside_pytorch, report
from steptrace.predict.pytorch import functions_off
from steptrace.predict.tensor import VirtualTensor
from steptrace.torch_names import private

_OURS: Final = f"{Path(__file__).parent}/"
_TREE_MAP: Final[Any] = private("torch.utils._pytree.tree_map")
#: Functions that call one of PyTorch's for the program, with `func` (or its `overload`), `args` and `kwargs`
#: among their variables.
_CALLS: Final = ("run", "__torch_function__")


def fault_report(error: BaseException) -> str | None:
    """What to report where steptrace itself has failed; None where the program did, or PyTorch for it.

    It is steptrace's fault if its frame is the innermost one outside of PyTorch, unless it raises there what CUDA would
    raise, or calls for the program what fails on plain CPU tensors as well.
    """
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
    operator = "" if call is None else f", operator {getattr(call['func'], '__name__', call['func'])}"
    return report(error, frames, operator)


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename


def _called(frames: Iterable[FrameType]) -> Mapping[str, Any] | None:
    """The variables of the first of the frames that calls a function of PyTorch for the program."""
    ours = (frame for frame in frames if _file(frame).startswith(_OURS) and frame.f_code.co_name in _CALLS)
    variables = next((frame.f_locals for frame in ours), None)
    if variables is not None and "func" not in variables:
        return {**variables, "func": variables["overload"].func}
    return variables


def _fails_on_cpu(func: Any, args: Any, kwargs: Any, kind: type[BaseException]) -> bool:
    """Whether a call fails in the same way with copies of its tensors on the CPU.

    So it is taken for a backward pass, which copies without their history cannot repeat.
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
