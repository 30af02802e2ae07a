"""A DataLoader that times the parts of loading each batch: fetch, collate and pin.

`timed_loader` copies a loader; the copy yields `TimedBatch`. The data set and the collate function are wrapped, so the
times are measured where the work is done, also in worker processes, and come with the batch. An error of a data set or
a worker reaches the caller unchanged.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from torch.utils.data import DataLoader, get_worker_info

from steptrace.torch_names import private

#: Copies a batch to pinned memory as DataLoader does; without it a timed batch is not pinned.
_pin_memory: Final[Callable[[Any], Any]] = private("torch.utils.data._utils.pin_memory.pin_memory") or (
    lambda batch: batch
)


@dataclass(frozen=True)
class BatchTimes:
    """The times of one batch.

    Attributes:
        fetch_ns: the time in the data set, with its transforms, in ns.
        collate_ns: the time in the collate function, in ns.
        pin_ns: the time of the copy to pinned memory, in ns; None if the loader does not pin.
        worker: the number of the worker process; None for the main process.
    """

    fetch_ns: int
    collate_ns: int
    pin_ns: int | None
    worker: int | None


@dataclass(frozen=True)
class TimedBatch:
    """A batch, as the loader would have yielded it, with its times."""

    batch: Any
    times: BatchTimes

    def pin_memory(self) -> "TimedBatch":
        """The batch in pinned memory. PyTorch calls this in a loader that pins, possibly in another thread."""
        started_ns = time.perf_counter_ns()
        pinned = _pin_memory(self.batch)
        return TimedBatch(pinned, replace(self.times, pin_ns=time.perf_counter_ns() - started_ns))


def timed_loader(loader: "DataLoader[Any]") -> "DataLoader[Any]":
    """A copy of `loader` that yields each batch as a `TimedBatch`; `loader` is not changed.

    The two share sampler and generator: drawing batches from one advances the random state of both.
    """
    twin = copy.copy(loader)
    timed = TimedDataset(loader.dataset)
    # Not by `setattr`: DataLoader refuses another data set. The persistent workers belong to the original.
    vars(twin).update(dataset=timed, collate_fn=partial(_collated, loader.collate_fn), _iterator=None)
    return twin


@dataclass(frozen=True)
class TimedDataset:
    """A data set that times the loading of a batch's samples, all of them together."""

    dataset: Any

    def __getitems__(self, indices: list[int]) -> tuple[Any, int]:
        """The samples of a batch, by the data set's own `__getitems__` if it has one, and the time in ns."""
        started_ns = time.perf_counter_ns()
        several = getattr(self.dataset, "__getitems__", None)
        samples = several(indices) if several else [self.dataset[index] for index in indices]
        return samples, time.perf_counter_ns() - started_ns


def _collated(collate: Callable[[Any], Any], fetched: tuple[Any, int]) -> TimedBatch:
    """The batch of a timed data set's samples, with the time of the loader's own collate function."""
    samples, fetch_ns = fetched
    started_ns = time.perf_counter_ns()
    batch = collate(samples)
    collate_ns = time.perf_counter_ns() - started_ns
    worker = get_worker_info()
    return TimedBatch(batch, BatchTimes(fetch_ns, collate_ns, None, None if worker is None else worker.id))
