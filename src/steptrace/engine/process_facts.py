"""Facts on the process that trains: its rank, versions, GPU, and compiled graphs. Needs little but PyTorch."""

import platform
import sys
from dataclasses import asdict
from typing import Any

import torch

from steptrace.engine.rank_record import GpuInUse
from steptrace.files import working_directory
from steptrace.rank import this_rank


def process_record() -> dict[str, Any]:
    """The facts on this process in the record of its rank, by the names of `RankRecord`."""
    return {
        **asdict(this_rank()),
        "cwd": working_directory(),
        "python": platform.python_version(),
        # With the build, as in 2.11.0+cu130; the version of the installed package may lack it.
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
    }


def gpu() -> GpuInUse | None:
    """The GPU in use; None if the process has not used CUDA."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return GpuInUse(name=properties.name, memory_bytes=properties.total_memory, count=torch.cuda.device_count())


def compiled_graphs() -> int:
    """The number of graphs that torch.compile has made in this process so far."""
    # Not imported here: that takes a second, and most programs compile nothing.
    compiler = sys.modules.get("torch._dynamo.utils")
    return 0 if compiler is None else int(compiler.counters["stats"]["unique_graphs"])
