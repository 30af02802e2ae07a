"""What a run says of its memory: memory.json beside its trace, also of a run that ran out of it."""

import re
from pathlib import Path
from typing import Final

from steptrace.documents.base import read, write
from steptrace.documents.memory import RunMemory

#: What out of memory looks like in a log: torch on a device, the runtime and its libraries (pinned memory, workspaces,
#: communicators), Python, torch's host allocator, C++.
OUT_OF_MEMORY: Final = re.compile(
    r"OutOfMemoryError\b|MemoryError\b|(?:CUDA|HIP)(?: error:)? out of memory|Cuda failure \d+ 'out of memory'"
    r"|(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc"
)
MEMORY_FILE: Final = "memory.json"


def write_memory(run_dir: Path, memory: RunMemory) -> Path:
    """Write `memory.json` into `run_dir` (made if missing) and return its path."""
    return write(run_dir / MEMORY_FILE, memory)


def read_memory(run_dir: Path) -> RunMemory | None:
    """The `memory.json` of `run_dir`, None if there is none; `RecordError` if it is malformed."""
    path = run_dir / MEMORY_FILE
    return read(path, RunMemory) if path.exists() else None
