"""Any PyTorch DataLoader with the parts of loading timed: fetch, collate and pin of every batch.

`timed_loader` makes a copy of a loader that yields `TimedBatch`. Data set and collate function are wrapped, so times
are measured where the work is done, also in worker processes, and are sent with the batch. Supports map-style and
iterable data sets, `__getitems__`, loaders without automatic batching and custom collate functions; errors of a data
set or a worker reach the caller unchanged. The loader's own class and settings stay.
"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info
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
    wrapper = TimedIterable if isinstance(loader.dataset, IterableDataset) else TimedDataset
    twin = copy.copy(loader)
    # Bypasses DataLoader.__setattr__, which rejects another data set; drops the persistent workers of the original.
    vars(twin).update(dataset=wrapper(loader.dataset), collate_fn=partial(_collated, loader.collate_fn), _iterator=None)
    return twin


@dataclass(frozen=True)
class _Fetched:
    """A data set's result (a sample, or all samples of a batch) for the collate function."""

    data: Any
    fetch_ns: int


class _Wrapper:
    """A proxy of a data set: forwards attribute reads and writes, as by a `worker_init_fn`."""

    def __init__(self, dataset: Any) -> None:
        vars(self)["_dataset"] = dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["_dataset"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._dataset,)

    def __len__(self) -> int:
        return len(self._dataset)


class TimedDataset(_Wrapper):
    """A map-style data set whose samples are timed, all of a batch at once."""

    def __getitem__(self, index: Any) -> _Fetched:
        """One sample, for a loader without automatic batching."""
        started_ns = time.perf_counter_ns()
        return _fetched(self._dataset[index], started_ns)

    def __getitems__(self, indices: list[Any]) -> _Fetched:
        """A batch's samples: from the data set's own `__getitems__`, or one by one as the loader would."""
        started_ns = time.perf_counter_ns()
        several = getattr(self._dataset, "__getitems__", None)
        samples = several(indices) if several else [self._dataset[index] for index in indices]
        return _fetched(samples, started_ns)


class TimedIterable(_Wrapper):
    """An iterable data set whose samples are timed one by one."""

    def __iter__(self) -> Iterator[_Fetched]:
        started_ns = time.perf_counter_ns()
        samples = iter(self._dataset)
        for sample in samples:
            yield _fetched(sample, started_ns)
            started_ns = time.perf_counter_ns()


def _fetched(data: Any, started_ns: int) -> _Fetched:
    return _Fetched(data, time.perf_counter_ns() - started_ns)


def _collated(collate: Callable[[Any], Any], fetched: Any) -> TimedBatch:
    """Make a batch of a timed data set's result, and add the time of the loader's own collate function."""
    # An iterable data set's samples are a list, each with its own time.
    each = fetched if isinstance(fetched, list) else [fetched]
    samples = [one.data for one in each] if isinstance(fetched, list) else fetched.data
    started_ns = time.perf_counter_ns()
    batch = collate(samples)
    collate_ns = time.perf_counter_ns() - started_ns
    info = get_worker_info()
    times = BatchTimes(
        fetch_ns=sum(one.fetch_ns for one in each),
        collate_ns=collate_ns,
        pin_ns=None,
        worker=None if info is None else info.id,
    )
    return TimedBatch(batch, times)
