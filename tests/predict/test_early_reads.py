"""Values that a program reads while their copy from the device may be under way."""

import io
from collections.abc import Callable

import pytest
import torch

from steptrace.predict import Prediction, predict_syncs

Copy = Callable[[torch.Tensor], torch.Tensor]


def to_new(value: torch.Tensor) -> torch.Tensor:
    return value.to("cpu", non_blocking=True)


def to_pinned(value: torch.Tensor) -> torch.Tensor:
    return torch.empty(value.shape, pin_memory=True).copy_(value, non_blocking=True)


def by_event(_: torch.Tensor) -> None:
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


def by_asking(_: torch.Tensor) -> None:
    event = torch.cuda.Event()
    event.record()
    while not event.query():
        pass


def nothing(_: torch.Tensor) -> None:
    pass


def read(value: torch.Tensor) -> object:
    return float(value.sum())


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda value: value[0].item(),
    "if": lambda value: bool((value > 1).any()),
    "sum": read,
    "numpy": lambda value: value.numpy(),
    "list": lambda value: value.tolist(),
    "print": repr,
    "file": lambda value: torch.save({"state": value}, io.BytesIO()),
    "view of it": lambda value: value.view(2, 1).detach().tolist(),
}


@pytest.mark.parametrize("copy", [to_new, to_pinned])
@pytest.mark.parametrize("way", READS)
def test_a_read_at_once_is_remarked_with_its_line(copy: Copy, way: str) -> None:
    with predict_syncs() as syncs:
        value = copy(torch.ones(2, device="cuda"))
        READS[way](value)
        READS[way](value)  # one remark for a copy
    (place,) = syncs.early_reads
    assert (syncs.total, place.count) == (0, 1)
    assert place.file == __file__
    assert Prediction.so_far(syncs).to_json()["early_reads"][0]["line"] == place.line


@pytest.mark.parametrize("copy", [to_new, to_pinned])
@pytest.mark.parametrize(
    "wait",
    [by_event, by_asking, lambda _: torch.cuda.synchronize(), lambda value: value.sum().item(), torch.Tensor.cpu],
)
def test_what_waits_for_the_device_ends_the_copies_before(copy: Copy, wait: Callable[[torch.Tensor], object]) -> None:
    with predict_syncs() as syncs:
        value = torch.ones(2, device="cuda")
        copied = copy(value)
        wait(value)
        read(copied)
    assert syncs.early_reads == []


def test_a_copy_after_the_wait_is_under_way_again() -> None:
    with predict_syncs() as syncs:
        value = torch.ones(2, device="cuda")
        buffer = torch.empty(2, pin_memory=True)
        for _ in range(3):
            torch.cuda.synchronize()
            buffer.copy_(value, non_blocking=True)
            read(buffer)
    (place,) = syncs.early_reads
    assert place.count == 3


def test_what_is_not_read_or_not_under_way_is_no_remark() -> None:
    with predict_syncs() as syncs:
        value = torch.ones(2, device="cuda")
        copied = to_new(value)
        copied.view(2, 1).shape  # noqa: B018 - shapes are the host's
        copied.to("cuda", non_blocking=True)  # in the order of the stream
        copied.zero_()
        read(value.cpu())
        read(torch.empty(2).copy_(value, non_blocking=True))  # into pageable memory the driver waits
        read(torch.ones(2))
    assert syncs.early_reads == []
