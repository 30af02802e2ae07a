"""One plain training step. It never syncs: the loss stays on the device until the caller reads it."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.profiler import record_function

from steptrace.lab.precision import NumberFormats
from steptrace.rank import ALONE, Rank

#: A batch of a loader: inputs and targets. Targets may be anything that `to_device` copies.
Batch = tuple[Tensor, Any]

#: Opens a named part of a step.
Section = Callable[[str], AbstractContextManager[Any]]


class LossReader:
    """Reads the loss with `.item()` at the end of every n-th step, as a training does that logs it.

    On a GPU the host waits there until all queued work is done.

    Args:
        every: the loss is read in every step whose number is a multiple of this; None: never.

    Attributes:
        last: the loss that was read last; None before the first read.
    """

    def __init__(self, every: int | None = None) -> None:
        self.last: float | None = None
        self._interval = every
        self._steps = 0

    def after_step(self, loss: Tensor, section: Section) -> None:
        """Count a step; if its loss has to be read, read it in a section "read loss"."""
        self._steps += 1
        if self._interval is not None and self._steps % self._interval == 0:
            with section("read loss"):
                self.last = loss.item()


@dataclass(frozen=True)
class Training:
    """The parts of a training step.

    Attributes:
        model: the model.
        loss: returns the loss of outputs and targets.
        optimizer: the optimizer.
        precision: the number formats.
        scaler: scales the loss, if the precision says so.
        batches: the loader's batches, without an end.
        device: where it trains.
        non_blocking: whether a copy of a batch returns before it is done.
        accumulate: batches per step.
        no_sync: whether ranks reduce the gradients only with the last batch of a step.
        set_to_none: whether gradients are set to None instead of zero.
        ranks: this process's rank.
        reader: reads the loss at the end of some steps.
    """

    model: nn.Module
    loss: Callable[[Tensor, Any], Tensor]
    optimizer: Optimizer
    precision: NumberFormats
    scaler: torch.amp.GradScaler
    batches: Generator[Batch]
    device: torch.device
    non_blocking: bool
    accumulate: int = 1
    no_sync: bool = True
    set_to_none: bool = True
    ranks: Rank = ALONE
    reader: LossReader = field(default_factory=LossReader)


def train_step(training: Training, section: Section = record_function) -> tuple[Tensor, int]:
    """Train on the next batch; return the loss (still on the device) and the nanoseconds spent waiting for the loader.

    `section` opens each labelled part of the step. The wait for the loader is measured on the host. With several
    batches per step, losses and gradients are means, and waits add up.
    """
    loss, loader_wait_ns = _gradients(training, section, last=training.accumulate == 1)
    for number in range(2, training.accumulate + 1):
        more, wait_ns = _gradients(training, section, last=number == training.accumulate)
        loss = loss + more
        loader_wait_ns = loader_wait_ns + wait_ns
    with section("optimizer"):
        training.scaler.step(training.optimizer)
        training.scaler.update()
        training.optimizer.zero_grad(set_to_none=training.set_to_none)
    training.reader.after_step(loss, section)
    return loss, loader_wait_ns


def _gradients(training: Training, section: Section, *, last: bool) -> tuple[Tensor, int]:
    """Add the gradients of one batch; return its share of the step's loss, and the wait for the loader in ns."""
    with section("data"):
        asked_ns = time.perf_counter_ns()
        inputs, targets = next(training.batches)
        loader_wait_ns = time.perf_counter_ns() - asked_ns
        with section("copy data"):
            inputs = to_device(inputs, training.device, non_blocking=training.non_blocking)
            targets = to_device(targets, training.device, non_blocking=training.non_blocking)
    with _unreduced(training) if not last else nullcontext():
        with training.precision.autocast():
            with section("forward"):
                outputs = training.model(inputs)
            with section("loss"):
                loss = training.loss(outputs, targets)
                if training.accumulate > 1:
                    loss = loss / training.accumulate
        with section("backward"):
            training.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    return loss.detach(), loader_wait_ns


def _unreduced(training: Training) -> AbstractContextManager[Any]:
    """A context in which ranks do not reduce their gradients, if the config says so and there are several ranks.

    With a static graph the first backward pass always reduces: DistributedDataParallel records the graph in it, and
    fails with an internal error if it does not reduce. The sum of the gradients is the same.
    """
    model = training.model
    if not training.no_sync or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    is_first = model.static_graph and not getattr(model, "_static_graph_delay_allreduce_enqueued", True)
    return nullcontext() if is_first else model.no_sync()


def to_device(value: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """A copy of a batch's part on `device`.

    Copies tensors and other objects with `to(device, non_blocking=...)`, also within lists, tuples and mappings;
    anything else, such as a number, stays as it is.
    """
    if hasattr(value, "to"):
        return value.to(device, non_blocking=non_blocking)
    if isinstance(value, Mapping):
        return {key: to_device(part, device, non_blocking=non_blocking) for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [to_device(part, device, non_blocking=non_blocking) for part in value]
        if isinstance(value, list):
            return parts
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value
