"""A loader's twin with times: the same batches, the times where the work is done."""

import os
import time
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from steptrace.lab.timed_loader import TimedBatch, timed_loader

PAUSE_S = 0.002
PAUSE_NS = 2_000_000


def slow(sample: Tensor) -> Tensor:
    time.sleep(PAUSE_S)
    return sample * 2


class Numbers(Dataset[Tensor]):
    def __init__(self, length: int = 8, transform: Any = None) -> None:
        self.length = length
        self.transform = transform
        self.broken = -1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        if index == self.broken:
            raise ValueError(f"sample {index} is broken")
        sample = torch.tensor([float(index)])
        return self.transform(sample) if self.transform else sample


class Fetching(Numbers):
    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        time.sleep(PAUSE_S)
        return [torch.tensor([index + 100.0]) for index in indices]


def as_dictionary(samples: list[Tensor]) -> dict[str, Tensor]:
    time.sleep(PAUSE_S)
    return {"samples": torch.stack(samples)}


def batches_of(loader: DataLoader[Any]) -> list[TimedBatch]:
    timed = list(timed_loader(loader))
    assert all(isinstance(batch, TimedBatch) for batch in timed)
    return timed


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_same_batches_with_their_times(num_workers: int) -> None:
    loader = DataLoader(Numbers(transform=slow), batch_size=4, num_workers=num_workers, collate_fn=as_dictionary)
    timed = batches_of(loader)
    assert [batch.batch["samples"].flatten().tolist() for batch in timed] == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert [batch.times.worker for batch in timed] == ([None, None] if num_workers == 0 else [0, 1])
    for times in (batch.times for batch in timed):
        assert times.fetch_ns >= 4 * PAUSE_NS
        assert times.collate_ns >= PAUSE_NS
        assert times.pin_ns is None
    assert len(timed_loader(loader)) == len(loader)
    # The loader itself is as it was.
    assert isinstance(loader.dataset, Numbers)
    assert loader.dataset.transform is slow
    assert next(iter(loader))["samples"].shape == (4, 1)


def test_a_data_set_s_own_way_to_fetch_a_batch() -> None:
    (first, _) = batches_of(DataLoader(Fetching(), batch_size=4))
    assert first.batch.flatten().tolist() == [100, 101, 102, 103]
    assert first.times.fetch_ns >= PAUSE_NS


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_the_data_set_passes_through(num_workers: int) -> None:
    dataset = Numbers()
    dataset.broken = 5
    timed = iter(timed_loader(DataLoader(dataset, batch_size=4, num_workers=num_workers)))
    next(timed)
    with pytest.raises(ValueError, match="sample 5 is broken"):
        next(timed)
    if num_workers:  # or the traceback keeps them until a later test collects it, and waits 10 s for them
        timed._shutdown_workers()


def test_persistent_workers_stay_over_epochs() -> None:
    loader = DataLoader(Processes(), batch_size=4, num_workers=2, persistent_workers=True)
    before = {int(batch[0]) for batch in loader}
    timed = timed_loader(loader)
    first, second = ({int(batch.batch[0]) for batch in timed} for _ in range(2))
    assert first == second
    assert first.isdisjoint(before)  # the twin's workers are its own
    assert {int(batch[0]) for batch in loader} == before


class Processes(Numbers):
    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(os.getpid())


def test_pinning_is_timed_where_the_loader_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steptrace.lab.timed_loader._pin_memory", lambda batch: batch + 1)
    (batch,) = batches_of(DataLoader(Numbers(2), batch_size=2))
    pinned = torch.utils.data._utils.pin_memory.pin_memory(batch)
    assert pinned.batch.flatten().tolist() == [1, 2]
    assert pinned.times.pin_ns is not None
    assert pinned.times.collate_ns == batch.times.collate_ns
