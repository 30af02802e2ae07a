"""One plain training step. It never waits for the device: its loss stays there until somebody reads it."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.profiler import record_function

from steptrace.train.arrangement import Precision
from steptrace.train.distributed import ALONE, DistInfo

#: What a loader yields: a batch of inputs and a batch of targets. Targets may be anything that `to_device` copies.
Batch = tuple[Tensor, Any]

#: Opens a named part of a step.
Section = Callable[[str], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Training:
    """Everything that one training step needs.

    `accumulate` batches go into each step. `no_sync`: several ranks reduce the gradients with the last of them alone.
    `set_to_none`: a step lets go of its gradients instead of filling them with zeros.
    """

    model: nn.Module
    loss: Callable[[Tensor, Any], Tensor]
    optimizer: Optimizer
    precision: Precision
    scaler: torch.amp.GradScaler
    batches: Iterator[Batch]
    device: torch.device
    non_blocking: bool
    accumulate: int = 1
    no_sync: bool = True
    set_to_none: bool = True
    ranks: DistInfo = ALONE


def train_step(training: Training, section: Section = record_function) -> tuple[Tensor, int]:
    """Train on the next batch; return the loss (still on the device) and the nanoseconds spent waiting for the loader.

    The labels are those by which a trace's time is summed up; `section` is what they are given to. The loader is waited
    for on the host, so that is where its wait is measured. Where a step takes several batches, their losses count as
    the mean, so do their gradients, and their waits add up.
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
    """Where gradients stay on their rank, if there are other ranks and the config wants it.

    With a static graph DistributedDataParallel learns the graph in its first backward pass, and fails with an internal
    error if that is one without a reduction: so that one reduces. The sum of the gradients is the same.
    """
    model = training.model
    if not training.no_sync or not isinstance(model, DistributedDataParallel):
        return nullcontext()
    unlearned = model.static_graph and not getattr(model, "_static_graph_delay_allreduce_enqueued", True)
    return nullcontext() if unlearned else model.no_sync()


def to_device(value: Any, device: torch.device, *, non_blocking: bool = False) -> Any:
    """A copy of a batch's part on `device`.

    Copied is whatever has a `to(device, non_blocking=...)`: tensors, and classes that hold some. Lists, tuples and
    mappings are walked through; anything else, such as a number, stays as it is.
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


def tensors_of(value: Any) -> Iterator[Tensor]:
    """All tensors of a batch's part: in lists, tuples and mappings, and in the attributes of objects."""
    seen: dict[int, Any] = {}  # by identity; holding them keeps a number from being used again
    open_ones = [value]
    while open_ones:
        part = open_ones.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, Tensor):
            yield part
        else:
            open_ones += reversed(_held_by(part))


def _held_by(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    slots: list[str] = []
    for kind in type(value).__mro__:
        named = vars(kind).get("__slots__", ())
        slots += [named] if isinstance(named, str) else named
    in_slots = [getattr(value, name) for name in slots if not name.startswith("__") and hasattr(value, name)]
    return [*getattr(value, "__dict__", {}).values(), *in_slots]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all its work; nothing to do on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
