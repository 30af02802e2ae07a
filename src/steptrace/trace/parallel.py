"""Traces read side by side, each in a process of its own where that pays."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

#: Below this many bytes in all (packed ones count ten times) starting processes takes longer than reading.
_WORTH_PROCESSES = 200 << 20
_PACKED = 10


def read_each(read: Callable[[Path], Result], paths: Sequence[Path], *, workers: int | None = None) -> list[Result]:
    """`read(path)` of every path, in order; in processes of their own if there is enough to read.

    Args:
        read: a function of a module, so that a fresh process can import it; its result must be picklable.
        workers: how many processes; by default one for each processor that this process may use, and none for little.

    Raises:
        SteptraceError: whatever `read` raises for the first path that it raises for.
    """
    if workers is None:
        size = sum(p.stat().st_size * (_PACKED if p.suffix == ".gz" else 1) for p in paths if p.exists())
        workers = len(_processors()) if size >= _WORTH_PROCESSES else 1
    workers = min(workers, len(paths))
    if workers < 2:
        return [read(path) for path in paths]
    # A forked child would inherit threads' locks; a spawned one starts clean, on every system alike.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(read, paths))


def _processors() -> Sequence[int]:
    usable = getattr(os, "sched_getaffinity", None)
    return list(usable(0)) if usable else range(os.cpu_count() or 1)
