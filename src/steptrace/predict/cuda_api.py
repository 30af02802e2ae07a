"""What `torch.cuda` and the modules below it offer during a prediction.

The tables have functions and classes by name; each function is called as the real one is. What has no entry is
refused with its name.
"""

import importlib
import inspect
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import wraps
from types import FunctionType, SimpleNamespace
from typing import Any, Final

import torch

from steptrace.predict.backend import Replacements, choose_device, device_count, device_index, machine, rng_state
from steptrace.predict.cuda_classes import (
    TYPES,
    AnyEvent,
    Event,
    ExternalStream,
    Generator,
    Stream,
    StreamContext,
    default_stream,
    host_waits,
    refused,
    set_default_tensor_type,
)
from steptrace.predict.pytorch import replacing
from steptrace.predict.recorder import Syncs


def _empty_cache() -> None:
    if Syncs.active is not None:
        reason = "cudaFree waits for the device, once per block that the allocator gives back"
        Syncs.active.cannot_judge("torch.cuda.empty_cache", reason)


def _memory_stats(_device: object = None) -> dict[str, int]:
    """Every statistic of an allocator, by its name: 0."""
    return defaultdict(int)


#: Calls of the runtime by which programs tell a profiler where to begin and to end.
_CUDART = SimpleNamespace(cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0)
#: The version of cuDNN that PyTorch 2.13 for CUDA 13 brings.
_CUDNN: Final = 92000
#: Architectures that the published builds are made for, by the version of CUDA.
_ARCHITECTURES: Final = {
    "12.6": ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
    "13.0": ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
}


def _properties(_device: object = None) -> SimpleNamespace:
    """What `torch.cuda.get_device_properties` says of the virtual GPU."""
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


#: What has no effect: the device draws from the CPU's generator, keeps no statistics, and is always initialised.
_OF_NO_EFFECT = (
    "init", "ipc_collect", "manual_seed", "manual_seed_all", "reset_accumulated_memory_stats",
    "reset_peak_memory_stats", "seed", "seed_all", "set_rng_state",
    "set_rng_state_all", "set_stream", "set_sync_debug_mode", "caching_allocator_enable", "check_error",
    "reset_accumulated_host_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
    "reset_peak_host_memory_stats", "set_per_process_memory_fraction",
)  # fmt: skip
#: What is always 0.
_ZERO = (
    "get_sync_debug_mode", "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved",
    "utilization", "clock_rate", "device_memory_used", "max_memory_cached", "memory_cached", "memory_usage",
    "power_draw", "temperature",
)  # fmt: skip
#: Replacements of functions and classes of `torch.cuda`.
CUDA: dict[str, Callable[..., Any]] = {
    "is_available": lambda: True,
    "is_initialized": lambda: True,
    "device_count": device_count,
    "current_device": device_index,
    "set_device": choose_device,
    "_exchange_device": choose_device,  # by which `torch.cuda.device` and `device_of` do what they do
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
    "current_stream": lambda _device=None: default_stream,
    "default_stream": lambda _device=None: default_stream,
    "initial_seed": lambda: torch.initial_seed(),
    "get_rng_state": rng_state,
    "get_rng_state_all": lambda: [rng_state() for _ in range(device_count())],
    "empty_cache": _empty_cache,
    "memory_stats": _memory_stats,
    "host_memory_stats": _memory_stats,
    "memory_summary": lambda *_, **__: "the virtual device keeps no statistics",
    **dict.fromkeys(("memory_stats_as_nested_dict", "host_memory_stats_as_nested_dict"), lambda *_: {}),
    "mem_get_info": lambda _device=None: (machine.driver.memory_bytes, machine.driver.memory_bytes),
    "is_current_stream_capturing": lambda: False,
    "can_device_access_peer": lambda *_: True,
    "cudart": lambda: _CUDART,
    "get_allocator_backend": lambda: "native",
    "get_gencode_flags": _gencode,
    "get_per_process_memory_fraction": lambda _device=None: 1.0,
    "get_stream_from_external": ExternalStream,
    "graph_pool_handle": lambda: (0, 0),
    "is_tf32_supported": lambda: machine.driver.is_ampere,
    "list_gpu_processes": lambda _device=None: "no processes are running",
    "memory_snapshot": lambda *_, **__: [],
    "caching_allocator_disabled": lambda *_, **__: nullcontext(),
    **dict.fromkeys(_OF_NO_EFFECT, lambda *_, **__: None),
    **dict.fromkeys(_ZERO, lambda *_, **__: 0),
}

_DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
#: In `torch.accelerator`, what is called as in `torch.cuda`.
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
}
#: What works on the virtual device as it is: functions, and whole modules, since these call what has a stand-in.
_UNCHANGED: Final = frozenset(
    {"torch.cuda.device", "torch.cuda.device_of", "torch.cuda.is_bf16_supported", "torch.cuda.nccl.version"}
)
_UNCHANGED_MODULES: Final = ("torch.cuda.amp", "torch.cuda.nvtx", "torch.cuda.profiler")
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
    """What of `torch.cuda`, `torch.accelerator` and `torch` is another one while a prediction is active."""
    return {
        **refusals(),
        **_called_alike(torch.cuda, CUDA),
        **_called_alike(torch.accelerator, ACCELERATOR),
        **_called_alike(torch, TORCH),
        **_of_submodules(),
        **{(torch.cuda, name): kind for name, kind in TYPES.items()},
        (torch.cuda, "default_generators"): (torch.default_generator,) * device_count(),
        (torch, "Generator"): Generator,
        **_of_the_build(),
        (torch, "set_default_tensor_type"): set_default_tensor_type,
    }


def _of_the_build() -> Replacements:
    """What a build of PyTorch without CUDA says of itself, as the build for the virtual GPU does."""
    return {
        (torch.version, "cuda"): torch.version.cuda or machine.driver.cuda,
        **replacing("torch._C._has_cuda", lambda _: True),
        **replacing("torch._C._has_cudnn", lambda _: True),
        (torch.backends.cudnn, "_init"): lambda: True,
        (torch.backends.cudnn, "version"): lambda: _CUDNN,
        (torch.backends.cudnn, "is_acceptable"): _cudnn_takes,
    }


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
    own: Replacements = {}
    for name, stand_ins in MODULES.items():
        own |= _called_alike(_submodule(name), stand_ins)
    return {**shared, **own, (_submodule("nvtx"), "_nvtx"): _NVTX}


def refusals() -> Replacements:
    """What needs a real device: each public function and class of these modules without a stand-in, refused by name."""
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


def _called_as(real: Any, stand_in: Callable[..., Any]) -> Callable[..., Any]:
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
