"""What `torch.cuda` offers during a prediction."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from steptrace.predict.arguments import virtual_device
from steptrace.predict.backend import DEVICE_TYPE, rng_state
from steptrace.predict.collectives import choose_device, cuda_device, device_count, device_index
from steptrace.predict.cuda_modules import memory_stats
from steptrace.predict.cuda_streams import (
    AnyEvent,
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    default_stream,
    host_waits,
    refused,
)
from steptrace.predict.recorder import Syncs


class Generator(torch.Generator):
    """A random generator "on cuda": the CPU's, since that draws the values."""

    _device: torch.device

    def __new__(cls, device: Any = "cpu") -> "Generator":
        """Make that of a device."""
        named = virtual_device(torch.device(device))
        on_cuda = named.type == DEVICE_TYPE
        made: Generator = super().__new__(cls, "cpu" if on_cuda else device)  # type: ignore[call-arg]
        made._device = cuda_device(named.index) if on_cuda else named
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device as the program knows it."""
        return self._device


def _unknown(op: str, reason: str) -> None:
    if Syncs.active is not None:
        Syncs.active.cannot_judge(op, reason)


def _empty_cache() -> None:
    _unknown("torch.cuda.empty_cache", "cudaFree waits for the device, once per block that the allocator gives back")


#: Calls of the runtime by which programs tell a profiler where to begin and to end.
_CUDART = SimpleNamespace(cudaProfilerStart=lambda: 0, cudaProfilerStop=lambda: 0)
#: Like an H100: code that asks takes the path it would take there.
_PROPERTIES = SimpleNamespace(
    name="steptrace virtual CUDA device", major=9, minor=0, total_memory=80 * 2**30, multi_processor_count=132,
    warp_size=32, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, is_integrated=False,
    is_multi_gpu_board=False, L2_cache_size=50 * 2**20, gcnArchName="sm_90", max_threads_per_block=1024,
    clock_rate=1_980_000, memory_clock_rate=2_619_000, memory_bus_width=5120, pci_domain_id=0, pci_bus_id=0,
    pci_device_id=0, uuid="00000000-0000-0000-0000-000000000000",
)  # fmt: skip

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
#: What gives access to memory, handles or graphs of a real device, and so is refused.
_REFUSED = (
    "CUDAGraph", "CUDAPluggableAllocator", "GreenContext", "MemPool", "caching_allocator_alloc",
    "caching_allocator_delete", "change_current_allocator", "current_blas_handle", "current_solver_handle",
    "use_mem_pool",
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
    "get_device_name": lambda _device=None: _PROPERTIES.name,
    "get_device_capability": lambda _device=None: (9, 0),
    "get_device_properties": lambda _device=None: _PROPERTIES,
    "get_arch_list": lambda: ["sm_90"],
    "is_bf16_supported": lambda *_, **__: True,
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
    "memory_stats": memory_stats,
    "host_memory_stats": memory_stats,
    "memory_summary": lambda *_, **__: "the virtual device keeps no statistics",
    **dict.fromkeys(("memory_stats_as_nested_dict", "host_memory_stats_as_nested_dict"), lambda *_: {}),
    "mem_get_info": lambda _device=None: (_PROPERTIES.total_memory, _PROPERTIES.total_memory),
    "is_current_stream_capturing": lambda: False,
    "can_device_access_peer": lambda *_: True,
    "cudart": lambda: _CUDART,
    "get_allocator_backend": lambda: "native",
    "get_gencode_flags": lambda: "-gencode compute=compute_90,code=sm_90",
    "get_per_process_memory_fraction": lambda _device=None: 1.0,
    "get_stream_from_external": ExternalStream,
    "graph_pool_handle": lambda: (0, 0),
    "is_tf32_supported": lambda: True,
    "list_gpu_processes": lambda _device=None: "no processes are running",
    "memory_snapshot": lambda *_, **__: [],
    "caching_allocator_disabled": lambda *_, **__: nullcontext(),
    **dict.fromkeys(("graph", "make_graphed_callables"), refused("CUDAGraph")),
    **dict.fromkeys(_OF_NO_EFFECT, lambda *_, **__: None),
    **dict.fromkeys(_ZERO, lambda *_, **__: 0),
    **{name: refused(name) for name in _REFUSED},
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
    "Graph": refused("CUDAGraph"),
    "synchronize": lambda _device=None: host_waits("device", "torch.accelerator.synchronize"),
}

#: In `torch`: they take their device first.
TORCH: dict[str, Callable[..., Any]] = {"Event": AnyEvent, "Stream": Stream}
