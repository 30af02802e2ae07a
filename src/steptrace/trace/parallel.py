"""Traces read side by side, each in a process of its own where that pays."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import psutil

from steptrace.machine import cpu_count

Result = TypeVar("Result")

#: Below this many bytes in all (packed ones count ten times) starting processes takes longer than reading.
_WORTH_PROCESSES = 200 << 20
_PACKED = 10
#: What a process takes that reads a trace and computes everything: so much, and so many times the size of its text.
_PROCESS, _TIMES_TEXT = 160 << 20, 1.25


def read_each(read: Callable[[Path], Result], paths: Sequence[Path], *, workers: int | None = None) -> list[Result]:
    """`read(path)` of every path, in order; in processes of their own if there is enough to read.

    Args:
        read: a function of a module, so that a fresh process can import it; its result must be picklable.
        workers: how many processes; by default none for little, or else as many as there are processors that this
            process may use, and room in the memory that is free.

    Raises:
        SteptraceError: whatever `read` raises for the first path that it raises for.
    """
    if workers is None:
        sizes = [_text_bytes(path) for path in paths if path.exists()]
        workers = _workers(max(sizes)) if sum(sizes) >= _WORTH_PROCESSES else 1
    workers = min(workers, len(paths))
    if workers < 2:
        return [read(path) for path in paths]
    # A forked child would inherit threads' locks; a spawned one starts clean, on every system alike.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(read, paths))


def _text_bytes(path: Path) -> int:
    return path.stat().st_size * (_PACKED if path.suffix == ".gz" else 1)


def _workers(largest: int) -> int:
    room = psutil.virtual_memory().available // (_PROCESS + int(_TIMES_TEXT * largest))
    return max(1, min(cpu_count(), room))
