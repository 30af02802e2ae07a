"""One plain training step. It never syncs: the loss stays on the device until the caller reads it."""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.profiler import record_function

from steptrace.rank import ALONE, Rank
from steptrace.train.precision import Precision

#: What a loader yields: a batch of inputs and a batch of targets. Targets may be anything that `to_device` copies.
Batch = tuple[Tensor, Any]

#: Opens a named part of a step.
Section = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Training:
    """The parts of a training step.

    `accumulate`: batches per step. `no_sync`: ranks reduce the gradients only with the last batch. `set_to_none`:
    gradients are set to None instead of zero.
    """

    model: nn.Module
    loss: Callable[[Tensor, Any], Tensor]
    optimizer: Optimizer
    precision: Precision
    scaler: torch.amp.GradScaler
    batches: Generator[Batch]
    device: torch.device
    non_blocking: bool
    accumulate: int = 1
    no_sync: bool = True
    set_to_none: bool = True
    ranks: Rank = ALONE


def train_step(training: Training, section: Section = record_function) -> tuple[Tensor, int]:
    """Train on the next batch; return the loss (still on the device) and the nanoseconds spent waiting for the loader.

    `section` opens each labelled part of the step. The wait for the loader is measured on the host. With several
    batches per step, losses and gradients are means, and waits add up.
    """
    loss, loader_wait_ns = _gradients(training, section, last=training.accumulate == 1)
    for number in range(2, training.accumulate + 1):
        more, wait_ns = _gradients(training, section, last=number == training.accumulate)
        loss, loader_wait_ns = loss + more, loader_wait_ns + wait_ns
    with section("optimizer"):
        training.scaler.step(training.optimizer)
        training.scaler.update()
        training.optimizer.zero_grad(set_to_none=training.set_to_none)
    return loss, loader_wait_ns


def _gradients(training: Training, section: Section, *, last: bool) -> tuple[Tensor, int]:
    """Add one batch's share to the gradients; return its share of the loss and the wait for the loader in ns."""
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
    """A context without reduction of gradients, if the config sets it and there are several ranks.

    With a static graph DistributedDataParallel records the graph in its first backward pass, and fails with an internal
    error if that does not reduce: so the first one always reduces. The sum of the gradients is the same.
    """
    model = training.model
    if not training.no_sync or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    unlearned = model.static_graph and not getattr(model, "_static_graph_delay_allreduce_enqueued", True)
    return nullcontext() if unlearned else model.no_sync()


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
