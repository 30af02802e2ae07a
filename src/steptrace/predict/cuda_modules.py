"""What the modules below `torch.cuda` offer during a prediction, besides what they share with `torch.cuda` itself."""

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from steptrace.predict.cuda_streams import refused


def memory_stats(_device: object = None) -> dict[str, int]:
    """Every statistic of an allocator, by its name: 0."""
    return defaultdict(int)


_SETTINGS: Final = (
    "enable", "tuning_enable", "record_untuned_enable", "set_max_tuning_duration", "set_max_tuning_iterations",
    "set_filename", "set_rotating_buffer_size", "set_numerical_check_tolerances",
)  # fmt: skip
_QUESTIONS: Final = ("is_enabled", "tuning_is_enabled", "record_untuned_is_enabled", "read_file")
#: GEMMs are tuned on a real device alone.
_TUNABLE: Final[dict[str, Callable[..., Any]]] = {
    **dict.fromkeys(_SETTINGS, lambda *_: None),
    **dict.fromkeys(_QUESTIONS, lambda *_: False),
    **dict.fromkeys(("get_results", "get_validators"), lambda: ()),
    **dict.fromkeys(("get_max_tuning_duration", "get_max_tuning_iterations", "get_rotating_buffer_size"), lambda: 0),
    "get_filename": lambda: "tunableop_results.csv",
    **{name: refused(f"tunable.{name}") for name in ("tune_gemm_in_file", "mgpu_tune_gemm_in_file")},
}
#: By the name of the module and of the function or class.
MODULES: Final[dict[str, dict[str, Callable[..., Any]]]] = {
    # Memory snapshots: there is nothing to record.
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
#: Modules that share functions with `torch.cuda`.
SHARING: Final = ("memory", "random", "streams", "profiler", "graphs", "green_contexts")
#: Marks for NVIDIA's profilers.
NVTX: Final = SimpleNamespace(
    rangePushA=lambda _: 0, rangePop=lambda: 0, rangeStartA=lambda _: 0, rangeEnd=lambda _: None,
    markA=lambda _: None, deviceRangeStart=lambda *_: None, deviceRangeEnd=lambda *_: None,
)  # fmt: skip
