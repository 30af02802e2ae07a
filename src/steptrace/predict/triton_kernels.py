"""Triton kernels during a prediction: a launch is noted, and the kernel's results are not computed.

A kernel is not compiled. Which tensors it writes to is read in its source. Autotuned kernels take their first
configuration: nothing can be timed. Works without a GPU, where Triton itself would not find its driver.
"""

import ast
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict import uncomputed
from steptrace.predict.backend import Replacements
from steptrace.predict.limit import cannot_follow
from steptrace.predict.pytorch import replacing
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import is_virtual

_REASON: Final = "a Triton kernel: the host does not wait for its launch, and what it computes is assumed"
#: Threads of a warp.
_WARP: Final = 32


def replacements() -> Replacements:
    """The replacements in Triton while a prediction is active; empty if Triton is not installed."""
    try:
        jit: Any = importlib.import_module("triton.runtime.jit")
        autotuner: Any = importlib.import_module("triton.runtime.autotuner")
        config: Any = importlib.import_module("triton.runtime.driver").driver
    except ImportError:
        return {}
    return {
        (jit.JITFunction, "run"): _launch,
        (autotuner.Autotuner, "_bench"): lambda *_args, **_kwargs: (1.0, 1.0, 1.0),
        (config, "_active"): _Driver(),
        # Outside of a trace, a kernel within `wrap_triton` is launched as any other.
        **replacing("torch._library.triton.is_wrap_triton_enabled", lambda _: lambda: False),
    }


def _launch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> "_Compiled":
    """In place of `JITFunction.run`, which compiles a kernel and launches it."""
    for hook in self.pre_run_hooks:
        hook(*args, **kwargs)
    if not warmup:
        defaults = {parameter.name: parameter.default for parameter in self.params if parameter.has_default}
        named = {name: value for name, value in kwargs.items() if name in self.arg_names}
        arguments = {**defaults, **dict(zip(self.arg_names, args, strict=False)), **named}
        if callable(grid):
            grid(arguments)  # because it may ask the device for something
        _launched(self, {name: tensor for name, value in arguments.items() if (tensor := _tensor(value)) is not None})
    return _Compiled(self)


def _tensor(value: Any) -> Tensor | None:
    """The tensor of a kernel's argument, which is a tensor or a tensor descriptor."""
    value = value if isinstance(value, Tensor) else getattr(value, "base", None)
    return value if isinstance(value, Tensor) else None


def _launched(kernel: Any, tensors: Mapping[str, Tensor]) -> None:
    for number, (name, tensor) in enumerate(tensors.items()):
        if not is_virtual(tensor) and tensor.numel() and not tensor.is_pinned():
            raise ValueError(f"Pointer argument (at {number}) cannot be accessed from Triton (cpu tensor?): {name}")
    written = _written(kernel) & tensors.keys()
    if Syncs.active is not None:
        name = getattr(kernel, "__name__", None) or kernel.fn.__name__
        Syncs.active.kernel(f"triton::{name}", _REASON, tensors, written)
    # If the source does not show which tensors the kernel writes to, it may write to any of its tensors of numbers.
    chosen = written or {name for name, tensor in tensors.items() if tensor.is_floating_point()}
    uncomputed.assume_written([tensors[name]._inner for name in chosen if is_virtual(tensors[name])])  # type: ignore[attr-defined]


class _Compiled:
    """A kernel after its compilation, as programs ask it for its needs, or launch it once more."""

    n_regs = 32
    n_spills = 0
    metadata: Final = SimpleNamespace(shared=0, num_warps=4, num_stages=3, num_ctas=1, warp_size=_WARP)

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def _init_handles(self) -> None:
        pass

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: _launch(self._kernel, *args, grid=grid, warmup=False, **kwargs)


class _Driver:
    """Triton's driver of the virtual GPU, which programs ask for the device and its properties."""

    def __init__(self) -> None:
        self.utils = SimpleNamespace(get_device_properties=_properties)

    def get_current_target(self) -> Any:
        """The target for which kernels would be compiled."""
        target: Any = importlib.import_module("triton.backends.compiler").GPUTarget
        major, minor = torch.cuda.get_device_capability()
        return target("cuda", 10 * major + minor, _WARP)

    def get_current_device(self) -> int:
        """The number of the current GPU."""
        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        """Choose a GPU."""
        torch.cuda.set_device(device)

    def get_current_stream(self, _device: int | None = None) -> int:
        """The handle of the current stream, which is the default stream."""
        return 0

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """The GPU's version."""
        return torch.cuda.get_device_capability(device)

    def get_active_torch_device(self) -> torch.device:
        """The current GPU."""
        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> Any:
        """PyTorch's module of the device."""
        return torch.cuda

    def get_benchmarker(self) -> Callable[..., Any]:
        """A function that times functions. In a prediction all take the same time."""

        def time(_function: Any, *_args: Any, quantiles: Sequence[float] | None = None, **_kwargs: Any) -> Any:
            return [1.0] * len(quantiles) if quantiles else 1.0

        return time

    def get_empty_cache_for_benchmark(self) -> Tensor:
        """Memory to clear a cache with."""
        return torch.empty(0, dtype=torch.int, device="cuda")

    def clear_cache(self, _cache: Tensor) -> None:
        """Nothing to clear."""

    def __getattr__(self, name: str) -> Any:
        raise cannot_follow(f"Triton's driver ({name})", "launch the kernel by kernel[grid](...)")


def _properties(device: int = 0) -> dict[str, int]:
    gpu: Any = torch.cuda.get_device_properties(device)
    return {
        "max_shared_mem": gpu.shared_memory_per_block_optin,
        "max_num_regs": gpu.regs_per_multiprocessor,
        "multiprocessor_count": gpu.multi_processor_count,
        "warpSize": _WARP,
        "sm_clock_rate": getattr(gpu, "clock_rate", 0),
        "mem_clock_rate": getattr(gpu, "memory_clock_rate", 0),
        "mem_bus_width": getattr(gpu, "memory_bus_width", 0),
    }


def _written(kernel: Any) -> frozenset[str]:
    """The parameters through which a kernel writes to memory, as far as its source says so."""
    return _written_by(kernel, frozenset())


@cache
def _written_by(kernel: Any, callers: frozenset[int]) -> frozenset[str]:
    source = getattr(kernel, "src", None)
    if not isinstance(source, str) or id(kernel) in callers:
        return frozenset()
    (function,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return _Pointers(kernel, callers | {id(kernel)}).written(function)


class _Pointers:
    """Finds in a kernel's source which names derive from which parameters, and which of them it stores through."""

    def __init__(self, kernel: Any, callers: frozenset[int]) -> None:
        self._kernel = kernel
        self._callers = callers
        self._names: dict[str, frozenset[str]] = {name: frozenset({name}) for name in kernel.arg_names}

    def written(self, function: ast.FunctionDef) -> frozenset[str]:
        """The parameters that the function writes through."""
        nodes = list(ast.walk(function))
        before = None
        while before != self._names:  # a loop may make a pointer from itself
            before = dict(self._names)
            for node in nodes:
                if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value:
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    self._assign(targets, self._origins(node.value))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        return frozenset().union(*map(self._stored, calls))

    def _assign(self, targets: Iterable[ast.expr], origins: frozenset[str]) -> None:
        for target in targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    self._names[node.id] = self._names.get(node.id, frozenset()) | origins

    def _origins(self, value: ast.AST) -> frozenset[str]:
        """The parameters from which a pointer expression is computed; a value that is loaded from memory has none."""
        if isinstance(value, ast.Call) and _called(value) in ("load", "cdiv", "program_id", "num_programs"):
            return frozenset()
        if isinstance(value, ast.Name):
            return self._names.get(value.id, frozenset())
        return frozenset().union(*map(self._origins, ast.iter_child_nodes(value)))

    def _stored(self, call: ast.Call) -> frozenset[str]:
        """The parameters that a call writes through."""
        helper = self._helper(call.func)
        if helper is not None:
            arguments: dict[str | None, ast.expr] = dict(zip(helper.arg_names, call.args, strict=False))
            arguments |= {word.arg: word.value for word in call.keywords}
            written = _written_by(helper, self._callers)
            return frozenset().union(*(self._origins(arguments[name]) for name in written if name in arguments))
        name = _called(call)
        if "store" not in name and not name.startswith("atomic_") and name != "scatter":
            return frozenset()
        descriptor = self._origins(call.func.value) if isinstance(call.func, ast.Attribute) else frozenset()
        return descriptor or (self._origins(call.args[0]) if call.args else frozenset())

    def _helper(self, function: ast.expr) -> Any:
        """The kernel's own function that is called, None if it is one of Triton's."""
        names = self._kernel.fn.__globals__
        if isinstance(function, ast.Name):
            helper = names.get(function.id)
        elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            helper = getattr(names.get(function.value.id), function.attr, None)
        else:
            helper = None
        return helper if isinstance(helper, type(self._kernel)) else None


def _called(call: ast.Call) -> str:
    """The last part of the name of a called function."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
