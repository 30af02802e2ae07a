"""What a run says of its memory: memory.json beside its trace, also of a run that ran out of it."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from steptrace.errors import RecordError
from steptrace.files import read_json, write_json

#: What out of memory looks like in a log: torch on a device, the runtime and its libraries (pinned memory, workspaces,
#: communicators), Python, torch's host allocator, C++.
OUT_OF_MEMORY: Final = re.compile(
    r"OutOfMemoryError\b|MemoryError\b|(?:CUDA|HIP)(?: error:)? out of memory|Cuda failure \d+ 'out of memory'"
    r"|(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc"
)
MEMORY_FILE: Final = "memory.json"


@dataclass(frozen=True)
class LiveTensors:
    """Tensors of one kind that were alive when memory ran out: their bytes together, those of shared storage once."""

    category: str
    what: str
    shape: tuple[int, ...]
    dtype: str
    count: int
    bytes: int


@dataclass(frozen=True)
class OutOfMemory:
    """How a run ran out of memory: in which part of a step, what it asked for, and what was alive.

    `used_bytes` is what the training had taken by then; what of it no row of `live` explains stands in `by_category`
    as `unknown`.
    """

    message: str
    phase: str | None
    requested_bytes: int | None
    used_bytes: int | None
    by_category: dict[str, int]
    live: tuple[LiveTensors, ...] = ()


@dataclass(frozen=True)
class RunMemory:
    """The memory of a run (memory.json): what there was to be had, and who held it. Unmeasured is None.

    `capacity_source` is `limit` (scale.memory_limit_mb), `device` or `machine`; `held` the bytes of tensors between two
    steps by category; `gradient_bytes` those of the parameters' gradients at the end of a backward pass. `free_bytes`
    and `largest_free_bytes` are of the caching allocator at the end of the forward pass; a CPU has none.
    """

    device: str
    batch_size: int
    capacity_bytes: int
    capacity_source: str
    held: dict[str, int]
    gradient_bytes: int | None = None
    free_bytes: int | None = None
    largest_free_bytes: int | None = None
    oom: OutOfMemory | None = None

    @property
    def fragmentation(self) -> float | None:
        """1 - largest free block / free bytes of the caching allocator; None without one, or with nothing free."""
        if not self.free_bytes or self.largest_free_bytes is None:
            return None
        return 1 - self.largest_free_bytes / self.free_bytes


def write_memory(run_dir: Path, memory: RunMemory) -> Path:
    """Write `memory.json` into `run_dir` (made if missing) and return its path."""
    return write_json(run_dir / MEMORY_FILE, msgspec.to_builtins(memory))


def read_memory(run_dir: Path) -> RunMemory | None:
    """The `memory.json` of `run_dir`, None if there is none; `RecordError` if it is malformed."""
    path = run_dir / MEMORY_FILE
    if not path.exists():
        return None
    try:
        return msgspec.convert(read_json(path), RunMemory)
    except msgspec.ValidationError as error:
        raise RecordError(f"file does not say a run's memory ({error})", where=path) from error
