"""A DataLoader of `build_loader` with the parts of loading timed: fetch, collate and pin of every batch.

`timed_loader` makes a copy of a loader that yields `TimedBatch`. Data set and collate function are wrapped, so times
are measured where the work is done, also in worker processes, and are sent with the batch; errors of a data set or a
worker reach the caller unchanged.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory


@dataclass(frozen=True)
class BatchTimes:
    """The times of one batch, in ns.

    `fetch_ns` is the time in the data set, with its transforms.
    `pin_ns` is None unless the loader pins. `worker` is the worker process, None for the main one.
    """

    fetch_ns: int
    collate_ns: int
    pin_ns: int | None
    worker: int | None


@dataclass(frozen=True)
class TimedBatch:
    """A batch as the loader would have yielded it, and its times."""

    batch: Any
    times: BatchTimes

    def pin_memory(self) -> "TimedBatch":
        """The batch in pinned memory; PyTorch calls this in a loader that pins, possibly on a separate thread."""
        started_ns = time.perf_counter_ns()
        pinned = pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return TimedBatch(pinned, replace(self.times, pin_ns=time.perf_counter_ns() - started_ns))


def timed_loader(loader: "DataLoader[Any]") -> "DataLoader[Any]":
    """A copy of `loader` that yields each batch as a `TimedBatch`; `loader` is not changed.

    The two share sampler and generator: drawing batches from one advances the random state of both.
    """
    twin = copy.copy(loader)
    timed = TimedDataset(loader.dataset)
    # Bypasses DataLoader.__setattr__, which rejects another data set; drops the persistent workers of the original.
    vars(twin).update(dataset=timed, collate_fn=partial(_collated, loader.collate_fn), _iterator=None)
    return twin


@dataclass(frozen=True)
class TimedDataset:
    """A data set whose samples are timed, all of a batch at once."""

    dataset: Any

    def __getitems__(self, indices: list[int]) -> tuple[Any, int]:
        """A batch's samples, from the data set's own `__getitems__`, or one by one as the loader would; and the ns."""
        started_ns = time.perf_counter_ns()
        several = getattr(self.dataset, "__getitems__", None)
        samples = several(indices) if several else [self.dataset[index] for index in indices]
        return samples, time.perf_counter_ns() - started_ns


def _collated(collate: Callable[[Any], Any], fetched: tuple[Any, int]) -> TimedBatch:
    """Make a batch of a timed data set's samples, and add the time of the loader's own collate function."""
    samples, fetch_ns = fetched
    started_ns = time.perf_counter_ns()
    batch = collate(samples)
    collate_ns = time.perf_counter_ns() - started_ns
    worker = get_worker_info()
    return TimedBatch(batch, BatchTimes(fetch_ns, collate_ns, None, None if worker is None else worker.id))
