"""What the modules below `torch.cuda` offer during a prediction, but for what `torch.cuda` has of theirs."""

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final


def memory_stats(_device: object = None) -> dict[str, int]:
    """Every statistic of an allocator, by its name: 0."""
    return defaultdict(int)


#: In `torch.cuda.memory`, what records allocations for a picture of them.
MEMORY: Final[dict[str, Callable[..., Any]]] = {
    "_record_memory_history": lambda *_: None,
    "_dump_snapshot": lambda *_: None,
    "_snapshot": lambda *_: {"segments": [], "device_traces": [[]]},
}
#: Modules that have some of their functions from `torch.cuda`, or the other way round.
SHARING: Final = ("memory", "random", "streams", "profiler", "graphs", "green_contexts")
#: Marks for NVIDIA's profilers.
NVTX: Final = SimpleNamespace(
    rangePushA=lambda _: 0, rangePop=lambda: 0, rangeStartA=lambda _: 0, rangeEnd=lambda _: None,
    markA=lambda _: None, deviceRangeStart=lambda *_: None, deviceRangeEnd=lambda *_: None,
)  # fmt: skip
