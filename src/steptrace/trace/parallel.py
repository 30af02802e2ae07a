"""Reads traces in parallel processes, if there is enough to read."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from steptrace.machine import cpu_count

Result = TypeVar("Result")

#: Below this many bytes in all (packed ones count ten times) starting processes takes longer than reading.
_WORTH_PROCESSES = 200 << 20
_PACKED = 10
#: Memory of a process that reads and analyses a trace: a constant, and a multiple of the trace's text.
_PROCESS, _TIMES_TEXT = 160 << 20, 1.25


def read_each(read: Callable[[Path], Result], paths: Sequence[Path], *, workers: int | None = None) -> list[Result]:
    """`read(path)` of every path, in order; in processes of their own if there is enough to read.

    Args:
        read: a function of a module, so that a fresh process can import it; its result must be picklable.
        workers: number of processes; by default none for little data, else as many as the available processors and
            free memory allow.

    Raises:
        SteptraceError: the error of the first path for which `read` fails.
    """
    if workers is None:
        sizes = [_text_bytes(path) for path in paths if path.exists()]
        workers = _workers(max(sizes)) if sum(sizes) >= _WORTH_PROCESSES else 1
    workers = min(workers, len(paths))
    if workers < 2:
        return [read(path) for path in paths]
    from concurrent.futures import ProcessPoolExecutor  # most calls need no processes, nor the time to import them
    from multiprocessing import get_context

    # A forked child would inherit locks of threads; a spawned one does not.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(read, paths))


def _text_bytes(path: Path) -> int:
    return path.stat().st_size * (_PACKED if path.suffix == ".gz" else 1)


def _workers(largest: int) -> int:
    import psutil  # few calls need it

    room = psutil.virtual_memory().available // (_PROCESS + int(_TIMES_TEXT * largest))
    return max(1, min(cpu_count(), room))
