"""Puts the stand-ins for `torch.cuda` and the modules below it in place while a prediction is active.

The tables of `steptrace.predict.cuda_functions` have them by name. A function or class without an entry is refused.
"""

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Mapping
from functools import wraps
from types import FunctionType, SimpleNamespace
from typing import Any, Final

import torch

from steptrace.predict import nested
from steptrace.predict.backend import Replacements, device_count
from steptrace.predict.cuda_build import facts_of_build
from steptrace.predict.cuda_classes import (
    TYPES,
    DefaultGenerator,
    Generator,
    forget_streams,
    host_waits,
    refused,
    set_default_tensor_type,
)
from steptrace.predict.cuda_functions import ACCELERATOR, CUDA, MODULES, TORCH
from steptrace.predict.cuda_tunable import Tunable
from steptrace.torch_names import private

#: Functions and whole modules that work on the virtual device as they are, since they call stand-ins.
_UNCHANGED: Final = frozenset(
    {
        "torch.cuda.device", "torch.cuda.device_of", "torch.cuda.is_bf16_supported", "torch.cuda.nccl.version",
        "torch.cuda.graph", "torch.cuda.graphs.graph",
        "torch.cuda.make_graphed_callables", "torch.cuda.graphs.make_graphed_callables",
    }
)  # fmt: skip
_UNCHANGED_MODULES: Final = (
    "torch.cuda.amp", "torch.cuda.comm", "torch.cuda.nvtx", "torch.cuda.profiler", "torch.cuda.tunable",
)  # fmt: skip
#: Names of types and errors, which do nothing, end with these.
_TYPES: Final = ("Storage", "Tensor", "Error", "cudaStatus")
#: Functions that PyTorch documents under a private name.
_DOCUMENTED: Final = {"torch.cuda.jiterator": ("_create_jit_fn", "_create_multi_output_jit_fn")}
#: Modules that share functions with `torch.cuda`.
_SHARING: Final = ("memory", "random", "streams", "profiler", "graphs", "green_contexts")
#: Marks for NVIDIA's profilers.
_NVTX: Final = SimpleNamespace(
    rangePushA=lambda _: 0, rangePop=lambda: 0, rangeStartA=lambda _: 0, rangeEnd=lambda _: None,
    markA=lambda _: None, deviceRangeStart=lambda *_: None, deviceRangeEnd=lambda *_: None,
)  # fmt: skip


def replacements() -> Replacements:
    """The replacements in `torch.cuda`, `torch.accelerator` and `torch` while a prediction is active."""
    forget_streams()  # an earlier prediction may have left another one
    return {
        **refusals(),
        **_called_alike(torch.cuda, CUDA),
        **_called_alike(torch.accelerator, ACCELERATOR),
        **_called_alike(getattr(torch.accelerator, "memory", None), ACCELERATOR),
        **_called_alike(torch, TORCH),
        **_of_submodules(),
        **_called_alike(_submodule("tunable"), Tunable().stand_ins()),  # with the settings of this prediction
        **{(torch.cuda, name): kind for name, kind in TYPES.items()},
        (torch.cuda.graph, "default_capture_stream"): None,  # made by the first capture
        (torch.cuda, "default_generators"): tuple(map(DefaultGenerator, range(device_count()))),
        (torch, "Generator"): Generator,
        (torch, "range"): _range,
        (torch.futures.Future, "__init__"): _future(torch.futures.Future.__init__),
        (torch.autograd.profiler.emit_nvtx, "__enter__"): _enters_nvtx,
        (torch.autograd.profiler.emit_nvtx, "__exit__"): _leaves_nvtx,
        (torch.autograd.profiler.profile, "__init__"): _profiling(torch.autograd.profiler.profile.__init__),
        **_without_copy_streams(),
        **nested.replacements(),
        **facts_of_build(),
        (torch, "set_default_tensor_type"): set_default_tensor_type,
    }


def _without_copy_streams() -> Replacements:
    """The streams that DataParallel copies on: those of an earlier prediction had another number of GPUs."""
    functions = private("torch.nn.parallel._functions")
    return {} if functions is None else {(functions, "_streams"): None}


def _range(start: Any, end: Any = None, step: Any = 1, *, device: Any = None, **named: Any) -> torch.Tensor:
    """`torch.range`. It is the only factory that PyTorch's function modes do not see."""
    start, end = (0, start) if end is None else (start, end)
    length = math.floor((float(end) - float(start)) / float(step)) + 1
    named.setdefault("dtype", torch.get_default_dtype())
    numbers: torch.Tensor = torch.arange(length, device=device, **named) * step + start
    return numbers


def _future(begin: Callable[..., None]) -> Callable[..., None]:
    """A future of the program. C++ would ask the devices of its value, which a build for the CPU does not know."""

    @wraps(begin)
    def __init__(self: Any, *, devices: Any = None) -> None:  # noqa: N807
        host = [device for device in devices or () if torch.device(device).type != "cuda"]
        begin(self, devices=host)

    return __init__


def _enters_nvtx(self: Any) -> Any:
    """`torch.autograd.profiler.emit_nvtx` begins: it waits for the device, and names operators for other profilers."""
    if self.enabled:
        host_waits("device", "torch.cuda.synchronize")
    return self


def _leaves_nvtx(self: Any, *_: object) -> bool:
    if self.enabled:
        host_waits("device", "torch.cuda.synchronize")
    return False


def _profiling(begin: Callable[..., None]) -> Callable[..., None]:
    """The profiler of a program that profiles itself. C++ would record CUDA events, and warn for each operator."""

    @wraps(begin)
    def __init__(self: Any, *args: Any, **named: Any) -> None:  # noqa: N807
        begin(self, *args, **named)
        kind: Any = getattr(self, "profiler_kind", None)  # a profiler that is switched off has none
        if kind is not None and kind == type(kind).KINETO_GPU_FALLBACK:
            self.profiler_kind = type(kind).KINETO

    return __init__


def _called_alike(owner: Any, stand_ins: Mapping[str, Callable[..., Any]]) -> Replacements:
    """Stand-ins for those functions of a module that this PyTorch has, called by the names of their arguments."""
    return {(owner, name): _called_as(getattr(owner, name), s) for name, s in stand_ins.items() if hasattr(owner, name)}


def _of_submodules() -> Replacements:
    """Stand-ins in the modules below `torch.cuda`: those that it shares with them, and their own."""
    shared = {
        (module, name): _called_as(getattr(module, name), stand_in)
        for module in map(_submodule, _SHARING)
        for name, stand_in in CUDA.items()
        if hasattr(torch.cuda, name) and getattr(module, name, None) is getattr(torch.cuda, name)
    }
    of_submodules: Replacements = {}
    for name, stand_ins in MODULES.items():
        of_submodules |= _called_alike(_submodule(name), stand_ins)
    return {**shared, **of_submodules, (_submodule("nvtx"), "_nvtx"): _NVTX}


def refusals() -> Replacements:
    """The refusals: all public functions and classes of these modules without a stand-in, each refused by its name."""
    stand_ins = {torch.cuda: CUDA, torch.accelerator: ACCELERATOR}
    below = [_submodule(name) for _, name, _ in pkgutil.iter_modules(torch.cuda.__path__) if not name.startswith("_")]
    refusing: Replacements = {}
    for module in (torch.cuda, torch.accelerator, *below):
        if module.__name__ in _UNCHANGED_MODULES:
            continue
        known = stand_ins.get(module) or MODULES.get(module.__name__.rpartition(".")[2], {})
        for name in _public(module):
            if name not in known and not _stands_in(module, name) and f"{module.__name__}.{name}" not in _UNCHANGED:
                refusing[module, name] = refused(f"{module.__name__}.{name}")
    return refusing


def _public(module: Any) -> set[str]:
    """The functions and classes that a module offers; types and errors are left out."""
    documented = {*getattr(module, "__all__", ()), *_DOCUMENTED.get(module.__name__, ())}
    defined = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }
    return {
        name
        for name in documented | defined
        if isinstance(getattr(module, name, None), FunctionType | type) and not name.endswith(_TYPES)
    }


def _stands_in(module: Any, name: str) -> bool:
    """Whether a module shares a function with `torch.cuda` that has a stand-in."""
    return name in CUDA and getattr(module, name) is getattr(torch.cuda, name, None)


def _submodule(name: str) -> Any:
    return importlib.import_module(f"torch.cuda.{name}")


def _as_own_function(stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does the same as a stand-in but is no other name's: Dynamo tells functions apart by identity."""
    if not isinstance(stand_in, FunctionType):
        return stand_in

    @wraps(stand_in)
    def function(*args: Any, **kwargs: Any) -> Any:
        return stand_in(*args, **kwargs)

    return function


def _called_as(real: Any, stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in that takes the arguments of the real function, by position or name; a class is returned as it is."""
    if not isinstance(real, FunctionType):
        return _as_own_function(stand_in)
    signature = inspect.signature(real)

    @wraps(real)
    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return stand_in(*bound.args, **bound.kwargs)

    return function
