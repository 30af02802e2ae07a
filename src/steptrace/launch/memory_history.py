"""Inside the program: PyTorch's history of GPU memory, written as snapshots for `steptrace analyze`."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from steptrace.engine.signals import pass_on
from steptrace.launch.settings import SNAPSHOT, SNAPSHOT_OUT_OF_MEMORY
from steptrace.rank import this_rank
from steptrace.torch_names import private

_LOG: Final = logging.getLogger("steptrace.memory")
#: How many of the last events are kept. An event takes some kilobytes with its stack.
_MOST_EVENTS: Final = 200_000


class MemoryHistory:
    """Records allocations from the moment at which the program begins to use a GPU. Without a GPU it does nothing.

    While it records, an allocation takes some microseconds longer.

    Args:
        folder: where snapshots are written, named by rank.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._record: Any = private("torch.cuda.memory._record_memory_history")
        self._dump: Any = private("torch.cuda.memory._dump_snapshot")
        self._watch: Any = private("torch._C._cuda_attach_out_of_memory_observer")
        when_used: Any = private("torch.cuda._lazy_call")
        if self._record is not None and self._dump is not None and when_used is not None:
            # Not now, since the program may still choose its GPU, or fork.
            when_used(self._begin)

    def write(self) -> None:
        """Write a snapshot, if the program has used a GPU."""
        used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if used and self._dump is not None:
            self._write(SNAPSHOT)

    def _begin(self) -> None:
        """Begin to record. PyTorch calls this, and an error in it would end the program."""
        with _kept_from_the_program():
            self._record(stacks="python", max_entries=_MOST_EVENTS)
            if self._watch is not None:
                self._watch(self._out_of_memory)

    def _out_of_memory(self, *_: int) -> None:
        """An allocation has failed: write a snapshot over an earlier one. The program gets the error afterwards."""
        self._write(SNAPSHOT_OUT_OF_MEMORY)

    def _write(self, name: str) -> None:
        with _kept_from_the_program():
            file = self._folder / name.format(rank=this_rank().rank)
            unfinished = file.with_suffix(".unfinished")
            self._dump(os.fspath(unfinished))
            unfinished.replace(file)


@contextmanager
def _kept_from_the_program() -> Iterator[None]:
    """A context that logs an error of ours, so that it neither reaches the program nor hides the program's own."""
    try:
        yield
    except Exception as error:
        pass_on(error)
        _LOG.warning("no memory snapshot: %s: %s", type(error).__name__, error)
