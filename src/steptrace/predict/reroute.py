"""The entry point: `with predict_syncs() as syncs: step()`.

It makes "cuda" name the virtual device while a prediction is active, and puts everything back afterwards.
"""

import importlib
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _foreach_utils

from steptrace.errors import PredictError
from steptrace.predict import (
    backend,
    collectives,
    compilers,
    cuda_api,
    cuda_modules,
    execution,
    lazy,
    legacy,
    program,
    substitutes,
    tensor,
)
from steptrace.predict.arguments import Reroute, virtual_device
from steptrace.predict.marks import PINNED
from steptrace.predict.places import stack_of
from steptrace.predict.program import Replacements
from steptrace.predict.recorder import Syncs
from steptrace.predict.rule import Rule
from steptrace.predict.tensor import VirtualTensor

_one_at_a_time = threading.Lock()
_MISSING = object()


@contextmanager
def predict_syncs(rules: Sequence[Rule] = ()) -> Iterator[Syncs]:
    """Count the syncs that the program inside would make on a CUDA device, on any machine.

    Inside, "cuda" names a virtual device that computes on the CPU: tensors, modules, `torch.cuda`, autocast and
    gradient scaling go there unchanged, and values are those of a CPU run. What was moved there stays there; `.cpu()`
    brings it back, also afterwards. A first step does work that later ones do not (states are created), so predict
    the second.

    Args:
        rules: rows for custom operators, or to replace rows of the table (see `steptrace.predict.rule`).

    Raises:
        PredictError: another prediction is active in this process, or PyTorch cannot be extended.
    """
    if not _one_at_a_time.acquire(blocking=False):
        raise PredictError(
            "a prediction is already active in this process",
            expected="one predict_syncs() at a time",
            next_step="leave the outer block first, or read its counts",
        )
    recorder = Syncs()
    try:
        backend.ensure_registered()
        substitutes.ensure_registered()
        execution.use_rules(rules)
        # The engine starts its threads once, at the process's first backward pass, for the devices there are then: a
        # later device has none. In the calling thread it needs none.
        in_this_thread = torch.autograd.set_multithreading_enabled(False)
        with in_this_thread, _rerouted(recorder), execution.VirtualDevice():  # type: ignore[no-untyped-call]
            Syncs.active = recorder
            yield recorder
    finally:
        Syncs.active = None
        _one_at_a_time.release()


class _Scatter:
    """How DataParallel gives a tensor to its GPUs, of which one alone can be followed."""

    @staticmethod
    def apply(target_gpus: Sequence[Any], _sizes: Any, _dim: int, tensor: Tensor) -> tuple[Tensor, ...]:
        if len(target_gpus) > 1:
            raise RuntimeError("DataParallel over several GPUs cannot be followed: start a process for each GPU")
        return (tensor.to(backend.device(target_gpus[0]), non_blocking=True),)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of a module or class for a while, creating it if it is inherited or missing."""
    before = vars(owner).get(name, _MISSING)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _MISSING:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextmanager
def _stacks_with_nodes() -> Iterator[Replacements]:
    """Anomaly mode stays on, to keep the forward stack with every node; the program decides on its check for NaN."""
    stacks = importlib.import_module("torch.fx.traceback")
    put, before = torch.set_anomaly_enabled, (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
    asked = list(before)

    def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        asked[:] = mode, check_nan
        put(True, mode and check_nan)

    set_anomaly_enabled(*before)
    try:
        yield {
            (torch, "set_anomaly_enabled"): set_anomaly_enabled,
            (torch, "is_anomaly_enabled"): lambda: asked[0],
            (torch, "is_anomaly_check_nan_enabled"): lambda: asked[1],
            (stacks, "format_stack"): lambda: stack_of(sys._getframe(1)),
        }
    finally:
        put(*before)


@contextmanager
def _default_device() -> Iterator[Replacements]:
    """Let set_default_device("cuda") mean the virtual device, and forget it afterwards."""
    put, get = torch.set_default_device, torch.get_default_device

    def named() -> torch.device:
        return collectives.cuda_device(get().index) if get().type == backend.DEVICE_TYPE else get()

    try:
        yield {
            (torch, "set_default_device"): lambda device: put(virtual_device(device)),
            (torch, "get_default_device"): named,
        }
    finally:
        if get().type == backend.DEVICE_TYPE:
            put(None)


def _autocast() -> Replacements:
    """Let autocast's functions and class mean the virtual device by "cuda", which is also their default."""
    owner = torch.amp.autocast_mode.autocast
    initialise = owner.__init__

    @wraps(initialise)
    def __init__(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if device_type != "cuda" or dtype in (None, torch.float16, torch.bfloat16):
            initialise(self, _device_type(device_type), dtype, *args, **kwargs)
            return
        with warnings.catch_warnings():  # CUDA takes any type without a warning
            warnings.filterwarnings("ignore", "(?s).*target dtype is not supported", UserWarning)
            initialise(self, _device_type(device_type), dtype, *args, **kwargs)

    functions = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")
    by_type = {(torch, name): _by_device_type(getattr(torch, name)) for name in functions}
    return {(owner, "__init__"): __init__, **by_type}


def _device_type(value: Any) -> Any:
    return backend.DEVICE_TYPE if value == "cuda" else value


def _by_device_type(function: Callable[..., Any]) -> Callable[..., Any]:
    def rerouted(*args: Any) -> Any:
        if not args or isinstance(args[0], bool):
            args = ("cuda", *args)
        return function(_device_type(args[0]), *args[1:])

    return rerouted


def _called_alike(owner: Any, stand_ins: Mapping[str, Callable[..., Any]]) -> Replacements:
    """Stand-ins for those functions of a module that this PyTorch has, called by the names of their arguments."""
    return {(owner, name): called_as(getattr(owner, name), s) for name, s in stand_ins.items() if hasattr(owner, name)}


def _of_submodules() -> Replacements:
    """Stand-ins in the modules below `torch.cuda`: those that it shares with them, and their own."""
    shared = {
        (module, name): called_as(getattr(module, name), stand_in)
        for module in map(_submodule, cuda_modules.SHARING)
        for name, stand_in in cuda_api.CUDA.items()
        if getattr(module, name, _MISSING) is getattr(torch.cuda, name, None)
    }
    own: Replacements = {}
    for name, stand_ins in cuda_modules.MODULES.items():
        own |= _called_alike(_submodule(name), stand_ins)
    return {**shared, **own, (_submodule("nvtx"), "_nvtx"): cuda_modules.NVTX}


def _submodule(name: str) -> Any:
    return importlib.import_module(f"torch.cuda.{name}")


def called_as(real: Any, stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in that takes what the real function takes, by position or name; a class stands in for a class as is."""
    if not isinstance(real, FunctionType):
        return stand_in
    signature = inspect.signature(real)

    @wraps(real)
    def function(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return stand_in(*bound.args, **bound.kwargs)

    return function


def _converting(apply: Callable[..., Any]) -> Callable[..., Any]:
    """How a module's tensors are converted or moved.

    `Module.half()` in inference mode leaves parameters that can be trained, as it does on CUDA. A parameter that a
    graph still holds, as `torch.nn.utils.weight_norm` does, cannot be swapped: a new one takes its place.
    """

    @wraps(apply)
    def _apply(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        normal = torch.inference_mode(mode=False) if torch.is_inference_mode_enabled() else nullcontext()
        with normal, lazy.moved(self, fn):
            try:
                return apply(self, fn, *args, **kwargs)
            except RuntimeError as error:
                if "Couldn't swap" not in str(error):
                    raise
                torch.__future__.set_swap_module_params_on_conversion(False)
                try:
                    return apply(self, fn, *args, **kwargs)
                finally:
                    torch.__future__.set_swap_module_params_on_conversion(True)

    return _apply


@contextmanager
def _rerouted(recorder: Syncs) -> Iterator[None]:
    """Everything that must be different while a prediction is active, except for the dispatch mode itself."""
    future, cuda, accelerator = torch.__future__, torch.cuda, torch.accelerator
    # Creating an optimizer imports it, and it wants to see torch.cuda as it is.
    importlib.import_module("torch._dynamo")
    collectives.machine.chosen = None
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(backend.set_active, False)
        backend.set_active(True)
        # Module.to() swaps what is inside a parameter, so that optimizers made before it still hold the parameter.
        stack.callback(future.set_swap_module_params_on_conversion, future.get_swap_module_params_on_conversion())
        future.set_swap_module_params_on_conversion(True)
        # torch.tensor(..., device=) then shows its copy to the device as an operator.
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        # Optimizers choose their foreach forms by type, from what may be two lists or one.
        # torch.optim deletes its attribute of this name, so it can be had by import only.
        optimizers = importlib.import_module("torch.optim.optimizer")
        lists: tuple[list[Any], ...] = (_foreach_utils._foreach_supported_types, optimizers._foreach_supported_types)
        for types in {id(types): types for types in lists}.values():
            types.append(VirtualTensor)
            stack.callback(types.remove, VirtualTensor)
        stack.callback(PINNED.clear)
        stack.callback(collectives.release)
        replacements: Replacements = {
            **_called_alike(cuda, cuda_api.CUDA),
            **_called_alike(accelerator, cuda_api.ACCELERATOR),
            (torch.nn.Module, "_apply"): _converting(torch.nn.Module._apply),
            (torch._C, "_get_accelerator"): lambda *_: torch.device("cuda"),
            **_of_submodules(),
            **_called_alike(torch, cuda_api.TORCH),
            (torch, "Generator"): cuda_api.Generator,
            (cuda, "default_generators"): (torch.default_generator,) * collectives.device_count(),
            (torch, "set_default_tensor_type"): legacy.set_default_tensor_type,
            **{(cuda, name): kind for name, kind in legacy.TYPES.items()},
            (torch.autograd.Variable, "_execution_engine"): backend.Engine(torch.autograd.Variable._execution_engine),
            # Recurrent layers would move their weights into one buffer of cuDNN's, which it makes in C++.
            (torch.backends.cudnn, "is_acceptable"): lambda _tensor: False,
            (importlib.import_module("torch.nn.parallel.scatter_gather"), "Scatter"): _Scatter,
            **stack.enter_context(_stacks_with_nodes()),
            **stack.enter_context(_default_device()),
            **collectives.replacements(),
            **tensor.replacements(),
            **compilers.replacements(recorder),
            **lazy.replacements(),
            **program.labels(recorder),
            **program.batches(recorder),
            **program.warnings_at_lines(),
            **_autocast(),
        }
        for (owner, name), value in replacements.items():
            stack.enter_context(replaced(owner, name, value))
        stack.enter_context(Reroute())
        yield
