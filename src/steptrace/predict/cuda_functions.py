"""What stands in for functions and classes of `torch.cuda`, `torch.accelerator` and the modules below them, by name.

Each stand-in takes the arguments of the real one. A function or class without an entry is refused by its name.
"""

from collections.abc import Callable
from contextlib import nullcontext
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, Final

import torch

from steptrace.predict import between_gpus
from steptrace.predict.backend import choose_device, device_count, device_index, machine, rng_state
from steptrace.predict.cuda_build import architectures, gencode, properties
from steptrace.predict.cuda_classes import (
    AnyEvent,
    AnyStream,
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    host_waits,
    is_capturing,
    set_stream,
)
from steptrace.predict.cuda_memory import (
    MemPool,
    empty_cache,
    figure_of_allocator,
    host_memory_stats,
    memory_info,
    memory_stats,
    nested_memory_stats,
    reset_peaks,
    snapshot,
)
from steptrace.predict.graphs import CUDAGraph, pool_handle
from steptrace.predict.memory import PINNED


def _set_device(device: Any) -> None:
    choose_device(device)


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
CUDART = SimpleNamespace(
    cudaError=_RuntimeError,
    cudaGetErrorString=lambda error: "no error" if _RuntimeError(error) is _RuntimeError.success else "unknown error",
    cudaHostRegister=_register,
    cudaHostUnregister=_unregister,
    cudaMemGetInfo=memory_info,
    cudaProfilerStart=lambda: _RuntimeError.success,
    cudaProfilerStop=lambda: _RuntimeError.success,
    cudaStreamCreate=lambda _pointer: _RuntimeError.success,
    cudaStreamDestroy=lambda _stream: _RuntimeError.success,
)
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
    "set_device": _set_device,
    "_exchange_device": choose_device,  # called by `torch.cuda.device` and `device_of`
    "_maybe_exchange_device": choose_device,
    "get_device_name": lambda _device=None: machine.driver.name,
    "get_device_capability": lambda _device=None: machine.driver.capability,
    "get_device_properties": properties,
    "get_arch_list": architectures,
    "_is_compiled": lambda: True,
    "synchronize": lambda _device=None: host_waits("device", "torch.cuda.synchronize"),
    "Event": Event,
    "Stream": Stream,
    "ExternalStream": ExternalStream,
    "stream": StreamContext,
    "StreamContext": StreamContext,
    "current_stream": current_stream,
    "set_stream": set_stream,
    "default_stream": default_stream,
    "initial_seed": lambda: torch.initial_seed(),
    "get_rng_state": rng_state,
    "get_rng_state_all": lambda: [rng_state() for _ in range(device_count())],
    "empty_cache": empty_cache,
    "memory_stats": memory_stats,
    "host_memory_stats": host_memory_stats,
    "memory_summary": lambda *_, **__: "the virtual device keeps no statistics",
    "memory_stats_as_nested_dict": nested_memory_stats,
    "host_memory_stats_as_nested_dict": lambda: {},
    "memory_allocated": figure_of_allocator("live"),
    "max_memory_allocated": figure_of_allocator("program_peak"),
    **dict.fromkeys(("memory_reserved", "memory_cached", "device_memory_used"), figure_of_allocator("reserved")),
    **dict.fromkeys(("max_memory_reserved", "max_memory_cached"), figure_of_allocator("program_reserved_peak")),
    **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached"), reset_peaks),
    "mem_get_info": memory_info,
    "is_current_stream_capturing": is_capturing,
    "CUDAGraph": CUDAGraph,
    "can_device_access_peer": lambda *_: True,
    "cudart": lambda: CUDART,
    "get_allocator_backend": lambda: "native",
    "get_gencode_flags": gencode,
    "get_per_process_memory_fraction": lambda _device=None: 1.0,
    "get_stream_from_external": ExternalStream,
    "graph_pool_handle": pool_handle,
    "is_tf32_supported": lambda: machine.driver.is_ampere,
    "list_gpu_processes": lambda _device=None: "no processes are running",
    "memory_snapshot": lambda *_, **__: [],
    "caching_allocator_disabled": lambda *_, **__: nullcontext(),
    "MemPool": MemPool,
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
    "set_device_index": _set_device,
    "set_device_idx": _set_device,
    "device_index": torch.cuda.device,
    "empty_host_cache": lambda: None,
    "get_memory_info": CUDA["mem_get_info"],
    "get_device_capability": lambda _device=None: {"supported_dtypes": set(_DTYPES)},
    "synchronize": lambda _device=None: host_waits("device", "torch.accelerator.synchronize"),
}

#: In `torch`: they take their device first.
TORCH: dict[str, Callable[..., Any]] = {"Event": AnyEvent, "Stream": AnyStream}


#: By the name of the module and of the function or class.
MODULES: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    # Memory snapshots: there is nothing to record.
    "memory": {
        "_record_memory_history": lambda *_: None,
        "_dump_snapshot": lambda *_: None,
        "_snapshot": snapshot,
    },
    "nccl": {"is_available": lambda *_: True, "reduce": between_gpus.reduce},
}
