"""Recognises out-of-memory errors, and records the requested and the used bytes."""

import re
from pathlib import Path
from typing import Final

import torch

from steptrace.documents.run import OutOfMemory
from steptrace.record import OUT_OF_MEMORY

_LONGEST: Final = 500
_TRIED = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|B|KiB|MiB|GiB)")
_REFUSED = re.compile(r"could not (create|execute|initialize) a ")
_UNITS: Final = {"bytes": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception is an out-of-memory error: torch's, Python's, or one that wraps such a message."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or bool(
        OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}")
    )


def is_refusal(error: BaseException) -> bool:
    """Whether a library's error is unspecific, as oneDNN's are when it gets no memory."""
    return isinstance(error, RuntimeError) and bool(_REFUSED.search(str(error)))


def out_of_memory(error: BaseException, device: torch.device, base_bytes: int | None) -> OutOfMemory:
    """The record of an out of memory.

    Args:
        error: the exception.
        device: the training's.
        base_bytes: the process's memory before the training, on a CPU.
    """
    message = next(iter(str(error).splitlines()), "") or type(error).__name__
    return OutOfMemory(
        message=message[:_LONGEST],
        requested_bytes=requested_bytes(str(error)),
        used_bytes=used_bytes(device, base_bytes),
    )


def requested_bytes(message: str) -> int | None:
    """The requested bytes by the error's message; None if it does not give them."""
    match = _TRIED.search(message)
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


def used_bytes(device: torch.device, base_bytes: int | None) -> int | None:
    """The training's bytes: of the caching allocator on a GPU, of the process's private memory on a CPU."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    mapped = mapped_bytes()
    return None if mapped is None or base_bytes is None else max(mapped - base_bytes, 0)


def mapped_bytes() -> int | None:
    """This process's private writable memory, as RLIMIT_DATA counts it; None without it in /proc."""
    return status_bytes("VmData")


def status_bytes(name: str) -> int | None:
    """A figure of /proc/self/status in bytes; None if missing."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)
