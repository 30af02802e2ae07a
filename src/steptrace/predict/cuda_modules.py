"""What the modules below `torch.cuda` offer during a prediction, but for what `torch.cuda` has of theirs."""

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from steptrace.predict.cuda_streams import refused

_MEASURED: Final = ("current", "peak", "allocated", "freed")
_POOLS: Final = ("all", "large_pool", "small_pool")
#: Statistics of the device's allocator: of each pool, of all of them, and mere counts.
_OF_POOLS: Final = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
    "inactive_split_bytes", "requested_bytes",
)  # fmt: skip
_OF_ALL: Final = ("oversize_allocations", "oversize_segments")
_COUNTS: Final = (
    "num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free",
    "num_oom_rejections", "max_split_size",
)  # fmt: skip
#: Those of the host's.
_OF_HOST: Final = ("allocations", "allocated_bytes", "active_requests", "active_bytes")
_TIMES: Final = ("total", "max", "min", "count", "avg")


def memory_stats_as_nested_dict(_device: object = None) -> dict[str, Any]:
    """Every statistic of the allocator, all of them 0."""
    of_pools = {name: {pool: dict.fromkeys(_MEASURED, 0) for pool in _POOLS} for name in _OF_POOLS}
    return {**of_pools, **{name: dict.fromkeys(_MEASURED, 0) for name in _OF_ALL}, **dict.fromkeys(_COUNTS, 0)}


def memory_stats(_device: object = None) -> dict[str, int]:
    """The same by one name each; whatever else is asked for is 0, too."""
    nested = [f"{name}.{pool}.{measured}" for name in _OF_POOLS for pool in _POOLS for measured in _MEASURED]
    names = (*nested, *(f"{name}.{measured}" for name in _OF_ALL for measured in _MEASURED), *_COUNTS)
    return defaultdict(int, dict.fromkeys(sorted(names), 0))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """Every statistic of the allocator of pinned memory."""
    of_time = {f"host_{name}_time": dict.fromkeys(_TIMES, 0) for name in ("alloc", "free")}
    counts = dict.fromkeys(("num_host_alloc", "num_host_free"), 0)
    return {**{name: dict.fromkeys(_MEASURED, 0) for name in _OF_HOST}, **of_time, **counts}


def _settings(names: dict[str, tuple[str, Any]]) -> dict[str, Callable[..., Any]]:
    """Functions that put and get a setting: by the first's name, the second's name and what it gets at first."""
    values = {put: value for put, (_, value) in names.items()}

    def putting(name: str) -> Callable[..., None]:
        return lambda value, *_: values.__setitem__(name, value)

    def getting(name: str) -> Callable[[], Any]:
        return lambda: values[name]

    return {put: putting(put) for put in names} | {get: getting(put) for put, (get, _) in names.items()}


#: GEMMs are tuned on a real device alone; what a program sets, it can ask for.
_TUNABLE: Final[dict[str, Callable[..., Any]]] = {
    **_settings({
        "enable": ("is_enabled", False),
        "tuning_enable": ("tuning_is_enabled", True),
        "record_untuned_enable": ("record_untuned_is_enabled", False),
        "set_max_tuning_duration": ("get_max_tuning_duration", 30),
        "set_max_tuning_iterations": ("get_max_tuning_iterations", 100),
        "set_filename": ("get_filename", "tunableop_results.csv"),
        "set_rotating_buffer_size": ("get_rotating_buffer_size", 0),
    }),
    "set_numerical_check_tolerances": lambda *_: None,
    "get_results": lambda: (),
    "get_validators": lambda: (),
    "read_file": lambda _filename: False,
    **{name: refused(f"tunable.{name}") for name in ("tune_gemm_in_file", "mgpu_tune_gemm_in_file")},
}  # fmt: skip
#: By the name of the module and of the function or class.
MODULES: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    # What records allocations for a picture of them.
    "memory": {
        "_record_memory_history": lambda *_: None,
        "_dump_snapshot": lambda *_: None,
        "_snapshot": lambda *_: {"segments": [], "device_traces": [[]]},
    },
    "tunable": _TUNABLE,
    "nccl": {
        "is_available": lambda _tensors: True,
        **{
            name: refused(f"nccl.{name}")
            for name in ("unique_id", "init_rank", "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
        },
    },
    "comm": {
        name: refused(f"comm.{name}")
        for name in ("broadcast", "broadcast_coalesced", "reduce_add", "reduce_add_coalesced", "scatter", "gather")
    },
    "gds": {name: refused(f"gds.{name}") for name in ("gds_register_buffer", "gds_deregister_buffer", "GdsFile")},
    "jiterator": {name: refused(f"jiterator.{name}") for name in ("_create_jit_fn", "_create_multi_output_jit_fn")},
}
#: Modules that have some of their functions from `torch.cuda`, or the other way round.
SHARING: Final = ("memory", "random", "streams", "profiler", "graphs", "green_contexts")
#: Marks for NVIDIA's profilers.
NVTX: Final = SimpleNamespace(
    rangePushA=lambda _: 0, rangePop=lambda: 0, rangeStartA=lambda _: 0, rangeEnd=lambda _: None,
    markA=lambda _: None, deviceRangeStart=lambda *_: None, deviceRangeEnd=lambda *_: None,
)  # fmt: skip
