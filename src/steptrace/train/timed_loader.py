"""Any PyTorch DataLoader with the parts of loading timed: fetch, transform, collate and pin of every batch.

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

#: Attributes of data sets, torchvision's and most others', with functions applied to a sample.
TRANSFORMS = ("transform", "transforms")


@dataclass(frozen=True)
class BatchTimes:
    """The times of one batch, in ns.

    `fetch_ns` is the time in the data set, including `transform_ns` (None if the data set has no separate transform).
    `pin_ns` is None unless the loader pins. `worker` is the worker process, None for the main one.
    """

    fetch_ns: int
    transform_ns: int | None
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
    clock = TransformClock()
    dataset = _with_timed_transforms(loader.dataset, clock)
    timed_clock = None if dataset is loader.dataset else clock
    wrapper = TimedIterable if isinstance(loader.dataset, IterableDataset) else TimedDataset
    twin = copy.copy(loader)
    # Bypasses DataLoader.__setattr__, which rejects another data set; drops the persistent workers of the original.
    vars(twin).update(
        dataset=wrapper(dataset, timed_clock), collate_fn=partial(_collated, loader.collate_fn), _iterator=None
    )
    return twin


class TransformClock:
    """Adds up the time in transforms; of nested ones only the outer counts."""

    def __init__(self) -> None:
        self.ns = 0
        self.depth = 0

    def take(self) -> int:
        """The time since the last call."""
        taken, self.ns = self.ns, 0
        return taken


class TimedTransform:
    """A data set's transform that adds its time to a clock."""

    def __init__(self, transform: Callable[..., Any], clock: TransformClock) -> None:
        self._transform = transform
        self._clock = clock

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Transform as before."""
        if self._clock.depth:
            return self._transform(*args, **kwargs)
        self._clock.depth = 1
        started_ns = time.perf_counter_ns()
        try:
            return self._transform(*args, **kwargs)
        finally:
            self._clock.ns += time.perf_counter_ns() - started_ns
            self._clock.depth = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(_wrapped(self, "_transform"), name)


@dataclass(frozen=True)
class _Fetched:
    """A data set's result (a sample, or all samples of a batch) for the collate function."""

    data: Any
    fetch_ns: int
    transform_ns: int | None


class _Wrapper:
    """A proxy of a data set: forwards attribute reads and writes, as by a `worker_init_fn`."""

    def __init__(self, dataset: Any, clock: TransformClock | None) -> None:
        vars(self).update(_dataset=dataset, _clock=clock)

    def __getattr__(self, name: str) -> Any:
        return getattr(_wrapped(self, "_dataset"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_wrapped(self, "_dataset"), name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (vars(self)["_dataset"], vars(self)["_clock"])

    def __len__(self) -> int:
        return len(self._dataset)

    def _fetched(self, data: Any, started_ns: int) -> _Fetched:
        fetch_ns = time.perf_counter_ns() - started_ns
        # Transforms on parallel threads may add up to more than the whole time.
        transform_ns = None if self._clock is None else min(self._clock.take(), fetch_ns)
        return _Fetched(data, fetch_ns, transform_ns)


class TimedDataset(_Wrapper):
    """A map-style data set whose samples are timed, all of a batch at once."""

    def __getitem__(self, index: Any) -> _Fetched:
        """One sample, for a loader without automatic batching."""
        started_ns = time.perf_counter_ns()
        return self._fetched(self._dataset[index], started_ns)

    def __getitems__(self, indices: list[Any]) -> _Fetched:
        """A batch's samples: from the data set's own `__getitems__`, or one by one as the loader would."""
        started_ns = time.perf_counter_ns()
        several = getattr(self._dataset, "__getitems__", None)
        samples = several(indices) if several else [self._dataset[index] for index in indices]
        return self._fetched(samples, started_ns)


class TimedIterable(_Wrapper):
    """An iterable data set whose samples are timed one by one."""

    def __iter__(self) -> Iterator[_Fetched]:
        started_ns = time.perf_counter_ns()
        samples = iter(self._dataset)
        for sample in samples:
            yield self._fetched(sample, started_ns)
            started_ns = time.perf_counter_ns()


def _collated(collate: Callable[[Any], Any], fetched: Any) -> TimedBatch:
    """Make a batch of a timed data set's result, and add the time of the loader's own collate function."""
    # An iterable data set's samples are a list, each with its own time.
    each = fetched if isinstance(fetched, list) else [fetched]
    samples = [one.data for one in each] if isinstance(fetched, list) else fetched.data
    started_ns = time.perf_counter_ns()
    batch = collate(samples)
    collate_ns = time.perf_counter_ns() - started_ns
    transforms = [one.transform_ns for one in each if one.transform_ns is not None]
    info = get_worker_info()
    times = BatchTimes(
        fetch_ns=sum(one.fetch_ns for one in each),
        transform_ns=sum(transforms) if transforms else None,
        collate_ns=collate_ns,
        pin_ns=None,
        worker=None if info is None else info.id,
    )
    return TimedBatch(batch, times)


def _with_timed_transforms(dataset: Any, clock: TransformClock) -> Any:
    """A shallow copy of the data set whose transforms are timed; the data set itself if it has none.

    Data sets around others (`Subset`, `ConcatDataset`) are followed inwards through `dataset` and `datasets`.
    """
    own = [name for name in TRANSFORMS if callable(getattr(dataset, name, None))]
    changes: dict[str, Any] = {}
    inner = getattr(dataset, "dataset", None)
    if inner is not None and (timed := _with_timed_transforms(inner, clock)) is not inner:
        changes["dataset"] = timed
    several = getattr(dataset, "datasets", None)
    if isinstance(several, list | tuple):
        all_timed = [_with_timed_transforms(one, clock) for one in several]
        if any(timed is not one for timed, one in zip(all_timed, several, strict=True)):
            changes["datasets"] = all_timed
    if not own and not changes:
        return dataset
    try:
        twin = copy.copy(dataset)
        # Of the twin: a transform that is a method must see what a `worker_init_fn` sets there.
        changes |= {name: TimedTransform(getattr(twin, name), clock) for name in own}
        for name, value in changes.items():
            setattr(twin, name, value)
    except Exception:  # a data set that cannot be copied or changed: its transforms count as fetch
        return dataset
    return twin


def _wrapped(wrapper: Any, name: str) -> Any:
    """The wrapped object; AttributeError before it is set, as while copying."""
    try:
        return vars(wrapper)[name]
    except KeyError:
        raise AttributeError(name) from None
