"""What `torch.cuda` offers during a prediction: one device whose streams and events only say when the host waits."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from steptrace.predict.backend import rng_state
from steptrace.predict.collectives import choose_device, cuda_device, device_count, device_index
from steptrace.predict.recorder import Syncs


def _wait(kind: str, op: str) -> None:
    if Syncs.active is not None:
        Syncs.active.sync(kind, op, "the program asks the host to wait")


def _unknown(op: str, reason: str) -> None:
    if Syncs.active is not None:
        Syncs.active.cannot_judge(op, reason)


class _Event:
    """A CUDA event. Waiting for it on the host is a sync; asking it, or waiting for it on a stream, is none."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **_: Any) -> None:  # noqa: FBT001, FBT002 - torch's own
        self.enable_timing = enable_timing
        self.blocking = blocking
        self._at = 0.0

    def record(self, stream: object = None) -> None:  # noqa: ARG002 - torch's own name
        self._at = time.perf_counter()

    def wait(self, stream: object = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: "_Event") -> float:
        return (end_event._at - self._at) * 1e3

    def synchronize(self) -> None:
        _wait("event", "torch.cuda.Event.synchronize")


class _Stream:
    """A CUDA stream. As a context it does nothing: on the virtual device everything happens at once."""

    cuda_stream = 0
    stream_id = 0

    def __init__(self, device: object = None, priority: int = 0, **_: Any) -> None:
        self.priority = priority
        self.device = cuda_device(device)
        self.device_index = self.device.index

    def wait_event(self, event: object) -> None:
        pass

    def wait_stream(self, stream: object) -> None:
        pass

    def record_event(self, event: _Event | None = None) -> _Event:
        event = event or _Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        _wait("stream", "torch.cuda.Stream.synchronize")

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _StreamContext(nullcontext[object]):
    """`torch.cuda.StreamContext`: a class of its own, since PyTorch asks whether something is an instance."""

    def __init__(self, stream: object) -> None:
        super().__init__(None)
        self.stream = stream


_default_stream = _Stream()


def _no_capture(*_: Any, **__: Any) -> Any:
    raise RuntimeError("CUDA graphs cannot be captured on steptrace's virtual device")


def _empty_cache() -> None:
    _unknown("torch.cuda.empty_cache", "cudaFree waits for the device, once per block that the allocator gives back")


#: Like an H100: code that asks takes the path it would take there.
_PROPERTIES = SimpleNamespace(
    name="steptrace virtual CUDA device", major=9, minor=0, total_memory=80 * 2**30, multi_processor_count=132,
    warp_size=32, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, is_integrated=False,
    is_multi_gpu_board=False, L2_cache_size=50 * 2**20, gcnArchName="sm_90",
)  # fmt: skip

#: What has no effect: the device draws from the CPU's generator, keeps no statistics, and is always initialised.
_OF_NO_EFFECT = (
    "init", "ipc_collect", "manual_seed", "manual_seed_all", "reset_accumulated_memory_stats",
    "reset_peak_memory_stats", "seed", "seed_all", "set_rng_state",
    "set_rng_state_all", "set_stream", "set_sync_debug_mode",
)  # fmt: skip
#: What is always 0.
_ZERO = (
    "get_sync_debug_mode", "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved",
    "utilization",
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
    "synchronize": lambda _device=None: _wait("device", "torch.cuda.synchronize"),
    "Event": _Event,
    "Stream": _Stream,
    "ExternalStream": _Stream,
    "stream": _StreamContext,
    "StreamContext": _StreamContext,
    "current_stream": lambda _device=None: _default_stream,
    "default_stream": lambda _device=None: _default_stream,
    "initial_seed": lambda: torch.initial_seed(),
    "get_rng_state": rng_state,
    "get_rng_state_all": lambda: [rng_state() for _ in range(device_count())],
    "empty_cache": _empty_cache,
    "memory_stats": lambda _device=None: {},
    "memory_summary": lambda *_, **__: "",
    "mem_get_info": lambda _device=None: (_PROPERTIES.total_memory, _PROPERTIES.total_memory),
    "is_current_stream_capturing": lambda: False,
    "graph": _no_capture,
    "make_graphed_callables": _no_capture,
    **dict.fromkeys(_OF_NO_EFFECT, lambda *_, **__: None),
    **dict.fromkeys(_ZERO, lambda *_, **__: 0),
}

#: In `torch.accelerator`, what is called as in `torch.cuda`.
_SAME = (
    "current_stream", "device_count", "empty_cache", "is_available", "max_memory_allocated", "memory_allocated",
    "memory_reserved", "reset_peak_memory_stats", "set_stream",
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
    "synchronize": lambda _device=None: _wait("device", "torch.accelerator.synchronize"),
}
