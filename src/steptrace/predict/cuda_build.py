"""What PyTorch's build for the virtual GPU says of itself: architectures, libraries, and functions of its C++."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

import torch

from steptrace.predict import between_gpus
from steptrace.predict.backend import Replacements, choose_device, device_count, device_index, machine
from steptrace.predict.cuda_classes import (
    Stream,
    current_stream,
    default_stream,
    host_waits,
    is_capturing,
    set_stream,
)
from steptrace.predict.cuda_memory import snapshot
from steptrace.predict.pytorch import replacing

#: The version of cuDNN that PyTorch 2.13 for CUDA 13 brings.
_CUDNN: Final = 92000
#: Architectures that the published builds are made for, by the version of CUDA.
_ARCHITECTURES: Final = {
    "12.6": ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"),
    "13.0": ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
}


class Properties(SimpleNamespace):
    """The properties of a GPU, which print as PyTorch prints them."""

    def __repr__(self) -> str:
        mib = 1 << 20
        facts: dict[str, object] = {
            "name": repr(self.name),
            **{name: getattr(self, name) for name in ("major", "minor")},
            "total_memory": f"{self.total_memory // mib}MB",
            **{
                name: getattr(self, name)
                for name in ("multi_processor_count", "uuid", "pci_bus_id", "pci_device_id", "pci_domain_id")
            },
            "L2_cache_size": f"{self.L2_cache_size // mib}MB",
        }
        return f"_CudaDeviceProperties({', '.join(f'{name}={value}' for name, value in facts.items())})"


def properties(_device: object = None) -> Properties:
    """The result of `torch.cuda.get_device_properties` for the virtual GPU."""
    driver = machine.driver
    major, minor = driver.capability
    reserved = 1024 if driver.is_ampere else 0  # for each block, by the system
    return Properties(
        name=driver.name, major=major, minor=minor, total_memory=driver.memory_bytes,
        multi_processor_count=driver.sms, warp_size=driver.warp, max_threads_per_multi_processor=driver.threads,
        regs_per_multiprocessor=65536, shared_memory_per_block=49152,
        shared_memory_per_block_optin=driver.shared_bytes,
        shared_memory_per_multiprocessor=driver.shared_bytes + reserved,
        is_integrated=False, is_multi_gpu_board=False, L2_cache_size=driver.l2_bytes, gcnArchName=f"sm_{major}{minor}",
        max_threads_per_block=1024, clock_rate=driver.clock_khz, memory_clock_rate=driver.memory_clock_khz,
        memory_bus_width=driver.bus_bits,
        pci_domain_id=0, pci_bus_id=0, pci_device_id=0, uuid="00000000-0000-0000-0000-000000000000",
    )  # fmt: skip


def architectures() -> list[str]:
    """`torch.cuda.get_arch_list`: what the build for the virtual GPU is made for."""
    return list(_ARCHITECTURES[machine.driver.cuda])


def gencode() -> str:
    """`torch.cuda.get_gencode_flags`: the flags of the compiler, as PyTorch makes them of the architectures."""
    numbers = (name.removeprefix("sm_") for name in architectures())
    return " ".join(f"-gencode compute=compute_{number},code=sm_{number}" for number in numbers)


class _PlanCache:
    """`torch.backends.cuda.cufft_plan_cache`: the plans of cuFFT that a GPU keeps. The virtual GPU makes none."""

    def __init__(self) -> None:
        self.size = 0
        self.max_size = 4096

    def __getitem__(self, _device: object) -> "_PlanCache":
        return self

    def clear(self) -> None:
        """Nothing to do: it is empty."""


#: Private functions of PyTorch's C++ that libraries call, or PyTorch's Python where it takes CUDA to be there. A build
#: for the CPU does not have them.
_CPP: Final[dict[str, Callable[..., Any]]] = {
    **dict.fromkeys(
        (
            "_cuda_attach_out_of_memory_observer",
            "_cuda_clearCublasWorkspaces",
            "_cuda_init",
            "_cuda_ipc_collect",
            "_cuda_record_memory_history",
            "_cuda_record_memory_history_legacy",
            "_cuda_resetAccumulatedHostMemoryStats",
            "_cuda_resetAccumulatedMemoryStats",
            "_cuda_resetPeakHostMemoryStats",
            "_cuda_setMemoryFraction",
            "_cuda_set_cudnn_benchmark_limit",
            "_cuda_set_sync_debug_mode",
            "_cuda_sleep",
            "_host_emptyCache",
        ),
        lambda *_, **__: None,
    ),
    "_cuda_canDeviceAccessPeer": lambda *_: True,
    "_cuda_emptyCache": lambda: torch.cuda.empty_cache(),
    **dict.fromkeys(("_cuda_exchangeDevice", "_cuda_maybeExchangeDevice", "_cuda_setDevice"), choose_device),
    "_cuda_getAllocatorBackend": lambda: torch.cuda.get_allocator_backend(),
    "_cuda_getArchFlags": lambda: " ".join(architectures()),
    "_cuda_getCompiledVersion": lambda: _as_number(machine.driver.cuda),
    "_cuda_getCublasLtWorkspaceSize": lambda: 1 << 20,
    "_cuda_getCublasWorkspaceSize": lambda: 32 << 20,
    "_cuda_getCurrentBlasHandle": lambda: 1,
    "_cuda_getCurrentRawStream": lambda _device: 0,
    "_cuda_getCurrentStream": lambda device: _numbers_of(current_stream(device)),
    "_cuda_getDefaultStream": lambda device: _numbers_of(default_stream(device)),
    "_cuda_getDevice": device_index,
    "_cuda_getDeviceCount": device_count,
    "_cuda_getMemoryFraction": lambda _device: 1.0,
    "_cuda_get_cudnn_benchmark_limit": lambda: 10,
    "_cuda_get_sync_debug_mode": lambda: 0,
    "_cuda_hasPrimaryContext": lambda _device: True,
    "_cuda_hostMemoryStats": lambda: {},
    "_cuda_isCurrentStreamCapturing": is_capturing,
    "_cuda_isHistoryEnabled": lambda: False,
    "_cuda_isInBadFork": lambda: False,
    "_cuda_memorySnapshot": snapshot,
    "_cuda_memoryStats": lambda device: torch.cuda.memory_stats_as_nested_dict(device),
    "_cuda_resetPeakMemoryStats": lambda device: torch.cuda.reset_peak_memory_stats(device),
    "_cuda_setStream": lambda **numbers: set_stream(Stream(**numbers)),
    "_cuda_synchronize": lambda: host_waits("device", "torch.cuda.synchronize"),
}
#: What Inductor's module for CUDA graphs imports of a build for CUDA; `torch._dynamo.reset` imports that module.
_OF_GRAPHS: Final[dict[str, Any]] = {
    "_cuda_CUDAAllocator_AllocatorState": type("AllocatorState", (), {}),
    "_set_cached_tensors_enabled": lambda _enabled: None,
}


def _numbers_of(stream: Stream) -> tuple[int, int, int]:
    """A stream as PyTorch's C++ gives it to Python."""
    return stream.stream_id, stream.device_index, stream.device_type


def facts_of_build() -> Replacements:
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
        **{(owner, "_CudaDeviceProperties"): Properties for owner in (torch._C, torch.cuda)},
        **{(torch._C, name): function for name, function in {**_CPP, **between_gpus.FUNCTIONS}.items()},
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
