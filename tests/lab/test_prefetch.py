"""Batches fetched one ahead: the same ones in the same order; on a GPU copied on a stream of their own."""

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count, islice

import pytest
import torch

from steptrace.engine.memory import tensors_of
from steptrace.lab.loop import train_step
from steptrace.lab.setup import prefetched, training


@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_gets_the_same_losses(make_config, workers):
    losses = []
    for ahead in (False, True):
        config = make_config({"data.device_prefetch": ahead, "data.num_workers": workers})
        with training(config, seed=3) as parts:
            losses.append([train_step(parts)[0].item() for _ in range(5)])
    assert losses[0] == losses[1]


@dataclass(slots=True)
class Boxes:
    corners: torch.Tensor
    owner: object = None


@dataclass(slots=True)
class Named(Boxes):
    names: torch.Tensor | None = None


def test_tensors_in_slots_and_in_circles_are_found_once():
    """One that is missed is no error: its memory is written over while the step still reads it."""
    boxes = Named(torch.tensor([1]), names=torch.tensor([2]))
    boxes.owner = [boxes, {"again": boxes.corners}]
    assert sorted(tensor.item() for tensor in tensors_of((boxes, "text", None))) == [1, 2]


class Copied(torch.Tensor):
    """A tensor that tells of the streams that it is recorded on."""

    log: list[str]

    def record_stream(self, stream):
        self.log.append(f"{stream} reads {int(self.sum())}")


@pytest.fixture
def log(monkeypatch):
    """What two streams do, neither of them on a device."""
    log = []

    class Stream(str):
        def record_event(self):
            log.append(f"{self} marks")
            return sum(line.startswith("copy") for line in log) - 1

        def wait_event(self, event):
            log.append(f"{self} waits for {event}")

    def copy(batch, device, *, non_blocking):
        assert (device.type, non_blocking) == ("cuda", True)
        log.append(f"copy {batch[1]}")
        tensor = batch[0].as_subclass(Copied)
        tensor.log = log
        return tensor, batch[1]

    monkeypatch.setattr("torch.cuda.Stream", lambda _device: Stream("side"))
    monkeypatch.setattr("torch.cuda.stream", lambda _stream: nullcontext())
    monkeypatch.setattr("torch.cuda.current_stream", lambda _device: Stream("main"))
    monkeypatch.setattr("steptrace.lab.setup.to_device", copy)
    return log


def test_each_batch_is_copied_one_early_and_waited_for_before_its_step(log):
    def batches():
        try:
            yield from ((torch.tensor([i]), i) for i in count())
        finally:
            log.append("closed")

    ahead = prefetched(batches(), torch.device("cuda"), non_blocking=True)
    for _, number in islice(ahead, 2):
        log.append(f"step {number}")
    ahead.close()
    assert log == [
        "copy 0", "side marks",
        "copy 1", "side marks", "main waits for 0", "main reads 0", "step 0",
        "copy 2", "side marks", "main waits for 1", "main reads 1", "step 1", "closed",
    ]  # fmt: skip


@pytest.mark.usefixtures("log")
def test_an_error_of_the_loader_passes_through():
    def failing():
        yield torch.zeros(1), 0
        raise ValueError("sample is broken")

    with pytest.raises(ValueError, match="sample is broken"):
        next(prefetched(failing(), torch.device("cuda"), non_blocking=True))


@pytest.mark.gpu
@pytest.mark.gpu_values
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_run_on_a_stream_of_their_own_and_are_never_written_over():
    device = torch.device("cuda")
    source = ((torch.full((1 << 22,), float(i)).pin_memory(), i) for i in count())
    sums = []
    for inputs, number in islice(prefetched(source, device, non_blocking=True), 20):
        torch.cuda._sleep(20_000_000)  # the step reads its batch long after the next one was fetched
        sums.append((inputs.double().sum(), number))
        del inputs
    for total, number in sums:
        assert total.item() == number * (1 << 22)
