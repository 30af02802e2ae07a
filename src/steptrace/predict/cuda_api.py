"""Stands in for `torch.cuda` and the modules below it during a prediction.

The tables have functions and classes by name. Each function takes the arguments of the real one. A function or class
without an entry is refused by its name.
"""

import importlib
import inspect
import math
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from enum import IntEnum
from functools import partial, wraps
from types import FunctionType, SimpleNamespace
from typing import Any, Final

import torch

from steptrace.predict.backend import (
    Replacements,
    choose_device,
    device_count,
    device_index,
    index_of,
    machine,
    rng_state,
)
from steptrace.predict.cuda_classes import (
    TYPES,
    AnyEvent,
    DefaultGenerator,
    Event,
    ExternalStream,
    Generator,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    host_waits,
    is_capturing,
    refused,
    set_default_tensor_type,
    set_stream,
)
from steptrace.predict.graphs import CUDAGraph, pool_handle
from steptrace.predict.limit import cannot_follow
from steptrace.predict.memory import PINNED, allocator
from steptrace.predict.pytorch import replacing
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import is_virtual


def _empty_cache() -> None:
    for gpu in range(device_count()):
        allocator(gpu).give_back()
    if Syncs.active is not None:
        reason = "cudaFree waits for the device, once per block that the allocator gives back"
        Syncs.active.cannot_judge("torch.cuda.empty_cache", reason)


def _of_allocator(attribute: str) -> Callable[..., int]:
    """A function that returns one figure of a GPU's allocator."""
    return lambda device=None: int(getattr(allocator(index_of(device)), attribute))


def _memory_stats(device: object = None) -> dict[str, int]:
    """The statistics of a GPU's allocator, by their names; those that are not followed are 0."""
    memory = allocator(index_of(device))
    figures = {
        "allocated": (memory.live, memory.program_peak),
        "reserved": (memory.reserved, memory.program_reserved_peak),
    }
    figures["active"] = figures["requested"] = figures["allocated"]
    return defaultdict(
        int,
        {
            f"{name}_bytes.all.{key}": value
            for name, pair in figures.items()
            for key, value in zip(("current", "peak"), pair, strict=True)
        },
    )


def _nested_memory_stats(device: object = None) -> dict[str, Any]:
    """The same as dictionaries within dictionaries."""

    def nested() -> dict[str, Any]:
        return defaultdict(nested)

    stats = nested()
    for name, value in _memory_stats(device).items():
        kind, pool, key = name.split(".")
        stats[kind][pool][key] = value
    return stats


def _reset_peaks(device: object = None) -> None:
    allocator(index_of(device)).reset_program_peak()


def _memory_info(device: object = None) -> tuple[int, int]:
    """The free and the total bytes of a GPU."""
    total = machine.driver.memory_bytes
    return max(0, total - allocator(index_of(device)).reserved), total


def _host_memory_stats() -> dict[str, int]:
    """The statistics of pinned memory, by their names: 0, as none is pinned."""
    return defaultdict(int)


class _PlanCache:
    """`torch.backends.cuda.cufft_plan_cache`: the plans of cuFFT that a GPU keeps. The virtual GPU makes none."""

    def __init__(self) -> None:
        self.size, self.max_size = 0, 4096

    def __getitem__(self, _device: object) -> "_PlanCache":
        return self

    def clear(self) -> None:
        """Nothing to do: it is empty."""


class _Tunable:
    """`torch.cuda.tunable`, which tries a product's kernels and keeps the fastest: its settings, and no result."""

    def __init__(self) -> None:
        self._settings: dict[str, Any] = {
            "is_enabled": False,
            "tuning_is_enabled": True,
            "record_untuned_is_enabled": False,
            "get_max_tuning_duration": 30,
            "get_max_tuning_iterations": 100,
            "get_filename": "",
            "get_rotating_buffer_size": 52428800,
        }

    def stand_ins(self) -> dict[str, Callable[..., Any]]:
        """The stand-ins for the module's functions, by name."""
        readers = {name: partial(self._read, name) for name in self._settings}
        writers = {
            name.replace("is_enabled", "enable").replace("get_", "set_"): partial(self._write, name)
            for name in self._settings
        }
        no_effect = (
            "mgpu_tune_gemm_in_file", "set_numerical_check_tolerances", "tune_gemm_in_file", "write_file_on_exit",
        )  # fmt: skip
        return {
            **readers,
            **writers,
            "get_results": tuple,
            "get_validators": lambda: (("PT_VERSION", torch.__version__.partition("+")[0]),),
            "read_file": lambda _filename=None: False,
            "write_file": lambda _filename=None: True,
            **dict.fromkeys(no_effect, lambda *_, **__: None),
        }

    def _read(self, name: str) -> Any:
        return self._settings[name]

    def _write(self, name: str, value: Any = True, *_: Any) -> None:  # noqa: FBT002 - torch's own
        self._settings[name] = value


class _MemPool:
    """`torch.cuda.MemPool`: a part of the memory, which the virtual GPU does not divide."""

    id = (0, 1)

    def __init__(self, *_: Any, **__: Any) -> None:
        self.allocator = None

    def use_count(self) -> int:
        """How many use it."""
        return 1

    def snapshot(self, *_: Any, **__: Any) -> list[Any]:
        """Its segments: none."""
        return []


class _RuntimeError(IntEnum):
    """What a call of CUDA's runtime returns."""

    success = 0


def _register(pointer: int, nbytes: int, _flags: int = 0) -> _RuntimeError:
    """`cudaHostRegister`: memory of the host that exists counts as pinned from now on."""
    PINNED.add_range(pointer, nbytes)
    return _RuntimeError.success


def _unregister(pointer: int) -> _RuntimeError:
    PINNED.discard_range(pointer)
    return _RuntimeError.success


#: Calls of the runtime: those by which programs tell a profiler where to begin and to end, pin memory, and ask for it.
_CUDART = SimpleNamespace(
    cudaError=_RuntimeError,
    cudaGetErrorString=lambda error: _RuntimeError(error).name,
    cudaHostRegister=_register,
    cudaHostUnregister=_unregister,
    cudaMemGetInfo=_memory_info,
    cudaProfilerStart=lambda: _RuntimeError.success,
    cudaProfilerStop=lambda: _RuntimeError.success,
)
#: The version of cuDNN that PyTorch 2.13 for CUDA 13 brings.
_CUDNN: Final = 92000
#: Architectures that the published builds are made for, by the version of CUDA.
_ARCHITECTURES: Final = {
    "12.6": ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
    "13.0": ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
}


def _properties(_device: object = None) -> SimpleNamespace:
    """The result of `torch.cuda.get_device_properties` for the virtual GPU."""
    driver = machine.driver
    major, minor = driver.capability
    return SimpleNamespace(
        name=driver.name, major=major, minor=minor, total_memory=driver.memory_bytes,
        multi_processor_count=driver.sms, warp_size=32, max_threads_per_multi_processor=driver.threads,
        regs_per_multiprocessor=65536, shared_memory_per_block=49152,
        shared_memory_per_block_optin=driver.shared_bytes, shared_memory_per_multiprocessor=driver.shared_bytes + 1024,
        is_integrated=False, is_multi_gpu_board=False, L2_cache_size=driver.l2_bytes, gcnArchName=f"sm_{major}{minor}",
        max_threads_per_block=1024, clock_rate=1_980_000, memory_clock_rate=2_619_000, memory_bus_width=5120,
        pci_domain_id=0, pci_bus_id=0, pci_device_id=0, uuid="00000000-0000-0000-0000-000000000000",
    )  # fmt: skip


def _architectures() -> list[str]:
    return list(_ARCHITECTURES[machine.driver.cuda])


def _gencode() -> str:
    """The flags of the compiler, as PyTorch makes them of the architectures."""
    numbers = (name.removeprefix("sm_") for name in _architectures())
    return " ".join(f"-gencode compute=compute_{number},code=sm_{number}" for number in numbers)


#: Functions without an effect: the device draws from the CPU's generator, has no statistics, and is always initialised.
_OF_NO_EFFECT = (
    "init", "ipc_collect", "manual_seed", "manual_seed_all", "reset_accumulated_memory_stats", "seed", "seed_all",
    "set_rng_state",
    "set_rng_state_all", "set_sync_debug_mode", "caching_allocator_enable", "check_error",
    "reset_accumulated_host_memory_stats", "reset_peak_host_memory_stats", "set_per_process_memory_fraction",
)  # fmt: skip
#: Functions that return 0.
_ZERO = (
    "get_sync_debug_mode", "utilization", "clock_rate", "memory_usage", "power_draw", "temperature",
)  # fmt: skip
#: Replacements of functions and classes of `torch.cuda`.
CUDA: dict[str, Callable[..., Any]] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": device_count,
    "current_device": device_index,
    "set_device": choose_device,
    "_exchange_device": choose_device,  # called by `torch.cuda.device` and `device_of`
    "_maybe_exchange_device": choose_device,
    "get_device_name": lambda _device=None: machine.driver.name,
    "get_device_capability": lambda _device=None: machine.driver.capability,
    "get_device_properties": _properties,
    "get_arch_list": _architectures,
    "_is_compiled": lambda: True,
    "synchronize": lambda _device=None: host_waits("device", "torch.cuda.synchronize"),
    "Event": Event,
    "Stream": Stream,
    "ExternalStream": ExternalStream,
    "stream": StreamContext,
    "StreamContext": StreamContext,
    "current_stream": current_stream,
    "set_stream": set_stream,
    "default_stream": lambda _device=None: default_stream,
    "initial_seed": lambda: torch.initial_seed(),
    "get_rng_state": rng_state,
    "get_rng_state_all": lambda: [rng_state() for _ in range(device_count())],
    "empty_cache": _empty_cache,
    "memory_stats": _memory_stats,
    "host_memory_stats": _host_memory_stats,
    "memory_summary": lambda *_, **__: "the virtual device keeps no statistics",
    "memory_stats_as_nested_dict": _nested_memory_stats,
    "host_memory_stats_as_nested_dict": lambda: {},
    "memory_allocated": _of_allocator("live"),
    "max_memory_allocated": _of_allocator("program_peak"),
    **dict.fromkeys(("memory_reserved", "memory_cached", "device_memory_used"), _of_allocator("reserved")),
    **dict.fromkeys(("max_memory_reserved", "max_memory_cached"), _of_allocator("program_reserved_peak")),
    **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"), _reset_peaks),
    "mem_get_info": _memory_info,
    "is_current_stream_capturing": is_capturing,
    "CUDAGraph": CUDAGraph,
    "can_device_access_peer": lambda *_: True,
    "cudart": lambda: _CUDART,
    "get_allocator_backend": lambda: "native",
    "get_gencode_flags": _gencode,
    "get_per_process_memory_fraction": lambda _device=None: 1.0,
    "get_stream_from_external": ExternalStream,
    "graph_pool_handle": pool_handle,
    "is_tf32_supported": lambda: machine.driver.is_ampere,
    "list_gpu_processes": lambda _device=None: "no processes are running",
    "memory_snapshot": lambda *_, **__: [],
    "caching_allocator_disabled": lambda *_, **__: nullcontext(),
    "MemPool": _MemPool,
    "use_mem_pool": lambda *_, **__: nullcontext(),
    "current_blas_handle": lambda: 1,
    **dict.fromkeys(_OF_NO_EFFECT, lambda *_, **__: None),
    **dict.fromkeys(_ZERO, lambda *_, **__: 0),
}

_DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
#: The functions of `torch.accelerator` that have the same name in `torch.cuda`.
_SAME = (
    "current_stream", "device_count", "empty_cache", "is_available", "max_memory_allocated", "memory_allocated",
    "memory_reserved", "reset_peak_memory_stats", "set_stream", "max_memory_reserved", "memory_stats",
    "reset_accumulated_memory_stats",
)  # fmt: skip
#: Replacements in `torch.accelerator`, which newer code asks instead; DataLoader does to decide about pinning.
ACCELERATOR: dict[str, Callable[..., Any]] = {
    **{name: CUDA[name] for name in _SAME},
    "current_accelerator": lambda check_available=False: torch.device("cuda"),  # noqa: ARG005
    "current_device_index": device_index,
    "current_device_idx": device_index,
    "set_device_index": choose_device,
    "set_device_idx": choose_device,
    "device_index": torch.cuda.device,
    "empty_host_cache": lambda: None,
    "get_memory_info": CUDA["mem_get_info"],
    "get_device_capability": lambda _device=None: {"supported_dtypes": set(_DTYPES)},
    "synchronize": lambda _device=None: host_waits("device", "torch.accelerator.synchronize"),
}

#: In `torch`: they take their device first.
TORCH: dict[str, Callable[..., Any]] = {"Event": AnyEvent, "Stream": Stream}


#: By the name of the module and of the function or class.
MODULES: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    # Memory snapshots: there is nothing to record.
    "memory": {
        "_record_memory_history": lambda *_: None,
        "_dump_snapshot": lambda *_: None,
        "_snapshot": lambda *_: {"segments": [], "device_traces": [[]]},
    },
    "nccl": {"is_available": lambda *_: True},
}
#: Private functions of PyTorch's C++ that libraries call, or PyTorch's Python where it takes CUDA to be there. A build
#: for the CPU does not have them.
_CPP: Final[dict[str, Callable[..., Any]]] = {
    "_cuda_attach_out_of_memory_observer": lambda _observer: None,
    "_cuda_clearCublasWorkspaces": lambda: None,
    "_cuda_getCompiledVersion": lambda: _as_number(machine.driver.cuda),
    "_cuda_getCublasLtWorkspaceSize": lambda: 1 << 20,
    "_cuda_getCublasWorkspaceSize": lambda: 32 << 20,
    "_cuda_getCurrentRawStream": lambda _device: 0,
    "_cuda_getDevice": device_index,
    "_cuda_getDeviceCount": device_count,
    "_cuda_get_cudnn_benchmark_limit": lambda: 10,
    "_cuda_setDevice": choose_device,
    "_cuda_set_cudnn_benchmark_limit": lambda _limit: None,
    "_cuda_sleep": lambda _cycles: None,
    "_host_emptyCache": lambda: None,
    "_cuda_synchronize": lambda: host_waits("device", "torch.cuda.synchronize"),
}
#: What Inductor's module for CUDA graphs imports of a build for CUDA; `torch._dynamo.reset` imports that module.
_OF_GRAPHS: Final[dict[str, Any]] = {
    "_cuda_CUDAAllocator_AllocatorState": type("AllocatorState", (), {}),
    "_set_cached_tensors_enabled": lambda _enabled: None,
}
#: Functions and whole modules that work on the virtual device as they are, since they call stand-ins.
_UNCHANGED: Final = frozenset(
    {
        "torch.cuda.device", "torch.cuda.device_of", "torch.cuda.is_bf16_supported", "torch.cuda.nccl.version",
        "torch.cuda.graph", "torch.cuda.graphs.graph",
        "torch.cuda.make_graphed_callables", "torch.cuda.graphs.make_graphed_callables",
    }
)  # fmt: skip
_UNCHANGED_MODULES: Final = ("torch.cuda.amp", "torch.cuda.nvtx", "torch.cuda.profiler", "torch.cuda.tunable")
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
    set_stream(default_stream)  # an earlier prediction may have left another one
    return {
        **refusals(),
        **_called_alike(torch.cuda, CUDA),
        **_called_alike(torch.accelerator, ACCELERATOR),
        **_called_alike(getattr(torch.accelerator, "memory", None), ACCELERATOR),
        **_called_alike(torch, TORCH),
        **_of_submodules(),
        **_called_alike(_submodule("tunable"), _Tunable().stand_ins()),  # with the settings of this prediction
        **{(torch.cuda, name): kind for name, kind in TYPES.items()},
        (torch.cuda.graph, "default_capture_stream"): None,  # made by the first capture
        (torch.cuda, "default_generators"): tuple(map(DefaultGenerator, range(device_count()))),
        (torch, "Generator"): Generator,
        (torch, "range"): _range,
        (torch.autograd.profiler.emit_nvtx, "__enter__"): _enters_nvtx,
        (torch.autograd.profiler.emit_nvtx, "__exit__"): _leaves_nvtx,
        (torch.autograd.profiler.profile, "__init__"): _profiling(torch.autograd.profiler.profile.__init__),
        (torch.nested, "nested_tensor"): _nested(torch.nested.nested_tensor),
        **_of_the_build(),
        (torch, "set_default_tensor_type"): set_default_tensor_type,
    }


def _range(start: Any, end: Any = None, step: Any = 1, *, device: Any = None, **named: Any) -> torch.Tensor:
    """`torch.range`. It is the only factory that PyTorch's function modes do not see."""
    start, end = (0, start) if end is None else (start, end)
    length = math.floor((float(end) - float(start)) / float(step)) + 1
    named.setdefault("dtype", torch.get_default_dtype())
    numbers: torch.Tensor = torch.arange(length, device=device, **named) * step + start
    return numbers


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


def _nested(nested_tensor: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.nested.nested_tensor`, whose C++ makes one of the strided layout past all modes."""

    @wraps(nested_tensor)
    def nested(tensor_list: Any, *, layout: Any = None, device: Any = None, **named: Any) -> Any:
        on_cuda = any(map(is_virtual, tensor_list)) if device is None else torch.device(device).type == "cuda"
        if layout in (None, torch.strided) and on_cuda:
            raise cannot_follow("nested tensors of the strided layout", "pass layout=torch.jagged")
        return nested_tensor(tensor_list, layout=layout, device=device, **named)

    return nested


def _of_the_build() -> Replacements:
    """The facts that a build of PyTorch says of itself, as the build for the virtual GPU says them."""
    return {
        (torch.version, "cuda"): torch.version.cuda or machine.driver.cuda,
        **replacing("torch._C._has_cuda", lambda _: True),
        **replacing("torch._C._has_cudnn", lambda _: True),
        (torch.backends.cudnn, "_init"): lambda: True,
        (torch.backends.cudnn, "version"): lambda: _CUDNN,
        (torch.backends.cudnn, "is_acceptable"): _cudnn_takes,
        (torch.backends.cuda, "cufft_plan_cache"): _PlanCache(),
        (torch.compiler, "cudagraph_mark_step_begin"): lambda: None,  # the real one needs CUDA's allocator
        **replacing("torch._C._set_blas_preferred_backend", lambda _: _chooses_nothing),
        **replacing("torch._C._set_linalg_preferred_backend", lambda _: _chooses_nothing),
        **{(torch._C, name): function for name, function in _CPP.items()},
        **{(torch._C, name): value for name, value in _OF_GRAPHS.items() if not hasattr(torch._C, name)},
    }


def _chooses_nothing(_backend: object) -> None:
    """Replacements for the choice of a library for products and linear algebra: no effect, since none of them runs."""


def _as_number(version: str) -> int:
    """A version of CUDA as its C library writes it: 13.0 is 13000."""
    major, minor = version.split(".")[:2]
    return 1000 * int(major) + 10 * int(minor)


def _cudnn_takes(tensor: torch.Tensor) -> bool:
    """`torch.backends.cudnn.is_acceptable`, without a look for its library."""
    cudnn: Any = torch.backends.cudnn
    return bool(cudnn.enabled) and tensor.is_cuda and tensor.dtype in cudnn.CUDNN_TENSOR_DTYPES


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
