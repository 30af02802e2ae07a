"""Makes "cuda" name the virtual device while a prediction is active, and puts everything back afterwards."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils import _foreach_utils

from steptrace.predict import backend, collectives, cuda_api, storages
from steptrace.predict.arguments import Reroute, virtual_device
from steptrace.predict.recorder import Syncs
from steptrace.predict.tensor import VirtualTensor

_MISSING = object()


class _Scatter:
    """How DataParallel gives a tensor to its GPUs, of which one alone can be followed."""

    @staticmethod
    def apply(target_gpus: Sequence[Any], _sizes: Any, _dim: int, tensor: Tensor) -> tuple[Tensor, ...]:
        if len(target_gpus) > 1:
            raise RuntimeError("DataParallel over several GPUs cannot be followed: start a process for each GPU")
        return (tensor.to(backend.device(target_gpus[0]), non_blocking=True),)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
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
def _flag(get: Callable[[], bool], put: Callable[[bool], None], *, value: bool) -> Iterator[None]:
    before = get()
    put(value)
    try:
        yield
    finally:
        put(before)


@contextmanager
def _listed(types: list[type[Tensor]]) -> Iterator[None]:
    types.append(VirtualTensor)
    try:
        yield
    finally:
        types.remove(VirtualTensor)


@contextmanager
def _stacks_with_nodes() -> Iterator[None]:
    """Anomaly mode stays on, to keep the forward stack with every node; the program decides on its check for NaN."""
    put, before = torch.set_anomaly_enabled, (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled())
    asked = list(before)

    def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:  # noqa: FBT001, FBT002 - torch's own
        asked[:] = mode, check_nan
        put(True, mode and check_nan)

    set_anomaly_enabled(*before)
    with ExitStack() as stack:
        stack.callback(put, *before)
        stack.enter_context(_replaced(torch, "set_anomaly_enabled", set_anomaly_enabled))
        stack.enter_context(_replaced(torch, "is_anomaly_enabled", lambda: asked[0]))
        stack.enter_context(_replaced(torch, "is_anomaly_check_nan_enabled", lambda: asked[1]))
        yield


@contextmanager
def _default_device() -> Iterator[None]:
    """Let set_default_device("cuda") mean the virtual device, and forget it afterwards."""
    put, get = torch.set_default_device, torch.get_default_device

    def named() -> torch.device:
        return collectives.cuda_device(get().index) if get().type == backend.DEVICE_TYPE else get()

    replaced = _replaced(torch, "set_default_device", lambda device: put(virtual_device(device)))
    with replaced, _replaced(torch, "get_default_device", named):
        try:
            yield
        finally:
            if get().type == backend.DEVICE_TYPE:
                put(None)


def _not_compiling(recorder: Syncs) -> Callable[..., Any]:
    def compile(model: Any = None, **_: Any) -> Any:
        """Leave a function as it is, as a decorator with or without arguments."""
        if model is None:
            return compile
        recorder.always_unknown(
            "torch.compile", "runs uncompiled here; compiled code may wait in fewer places, or more"
        )
        return model

    return compile


def _labelled(recorder: Syncs, stack: ExitStack) -> None:
    """Let record_function tell the recorder which block is running."""
    owner = torch.autograd.profiler.record_function
    enter, leave = owner.__enter__, owner.__exit__

    def entering(self: Any) -> Any:
        recorder.enter(self.name)
        return enter(self)  # type: ignore[no-untyped-call]

    def leaving(self: Any, *error: Any) -> Any:
        recorder.leave()
        return leave(self, *error)

    stack.enter_context(_replaced(owner, "__enter__", entering))
    stack.enter_context(_replaced(owner, "__exit__", leaving))


def _pinning(stack: ExitStack) -> None:
    """On the class rather than in a mode, because the loader's pinning thread has no modes."""

    def pin_memory(self: Tensor, _device: object = None) -> Tensor:
        return self if storages.is_pinned(self) else storages.mark_pinned(self.clone())

    def is_pinned(self: Tensor, _device: object = None) -> bool:
        return storages.is_pinned(self)

    stack.enter_context(_replaced(Tensor, "pin_memory", pin_memory))
    stack.enter_context(_replaced(Tensor, "is_pinned", is_pinned))
    stack.callback(storages.forget_pinned)


def _autocast(stack: ExitStack) -> None:
    """Let autocast's functions and class mean the virtual device by "cuda", which is also their default."""
    owner = torch.amp.autocast_mode.autocast
    initialise = owner.__init__

    @wraps(initialise)
    def __init__(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        initialise(self, _device_type(device_type), *args, **kwargs)

    stack.enter_context(_replaced(owner, "__init__", __init__))
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        stack.enter_context(_replaced(torch, name, _by_device_type(getattr(torch, name))))


def _device_type(value: Any) -> Any:
    return backend.DEVICE_TYPE if value == "cuda" else value


def _by_device_type(function: Callable[..., Any]) -> Callable[..., Any]:
    def rerouted(*args: Any) -> Any:
        if not args or isinstance(args[0], bool):
            args = ("cuda", *args)
        return function(_device_type(args[0]), *args[1:])

    return rerouted


class _Generator(torch.Generator):
    """A random generator "on cuda": the CPU's, since that draws the values."""

    def __new__(cls, device: Any = "cpu") -> "_Generator":
        on_cuda = is_virtual_name(device)
        made: _Generator = super().__new__(cls, "cpu" if on_cuda else device)  # type: ignore[call-arg]
        return made


def is_virtual_name(device: Any) -> bool:
    """Whether a device or its name means the virtual device."""
    return isinstance(virtual_device(device), torch.device) and virtual_device(device).type == backend.DEVICE_TYPE


@contextmanager
def rerouted(recorder: Syncs) -> Iterator[None]:
    """Everything that must be different while a prediction is active, except for the dispatch mode itself."""
    future = torch.__future__
    # Creating an optimizer imports it, and it wants to see torch.cuda as it is.
    importlib.import_module("torch._dynamo")
    collectives.machine.chosen = None
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(backend.set_active, False)
        backend.set_active(True)
        for module, replacements in ((torch.cuda, cuda_api.CUDA), (torch.accelerator, cuda_api.ACCELERATOR)):
            for name, value in replacements.items():
                if hasattr(module, name):
                    stack.enter_context(_replaced(module, name, value))
        stack.enter_context(_replaced(torch._C, "_get_accelerator", lambda *_: torch.device("cuda")))
        stack.enter_context(_replaced(torch, "Event", cuda_api.CUDA["Event"]))
        stack.enter_context(_replaced(torch, "Stream", cuda_api.CUDA["Stream"]))
        stack.enter_context(_replaced(torch, "Generator", _Generator))
        # Module.to() swaps what is inside a parameter, so that optimizers made before it still hold the parameter.
        swap = future.get_swap_module_params_on_conversion, future.set_swap_module_params_on_conversion
        stack.enter_context(_flag(*swap, value=True))
        # torch.tensor(..., device=) then shows its copy to the device as an operator.
        lift = torch._C._only_lift_cpu_tensors, torch._C._set_only_lift_cpu_tensors
        stack.enter_context(_flag(*lift, value=True))
        # Optimizers choose their foreach forms by type.
        stack.enter_context(_listed(_foreach_utils._foreach_supported_types))
        # torch.optim deletes its attribute of this name, so it can be had by import only.
        optimizers = importlib.import_module("torch.optim.optimizer")
        if optimizers._foreach_supported_types is not _foreach_utils._foreach_supported_types:
            stack.enter_context(_listed(optimizers._foreach_supported_types))
        stack.enter_context(_stacks_with_nodes())
        stack.enter_context(_replaced(torch, "compile", _not_compiling(recorder)))
        # cuDNN's recurrent layers do not know the virtual device; PyTorch's own cells do.
        stack.enter_context(_replaced(torch.backends.cudnn, "is_acceptable", lambda _tensor: False))
        stack.enter_context(_default_device())
        stack.enter_context(collectives.with_gloo())
        stack.enter_context(_replaced(importlib.import_module("torch.nn.parallel.scatter_gather"), "Scatter", _Scatter))
        for (module, name), value in storages.replacements().items():
            stack.enter_context(_replaced(module, name, value))
        _labelled(recorder, stack)
        _pinning(stack)
        _autocast(stack)
        stack.enter_context(Reroute())
        yield
