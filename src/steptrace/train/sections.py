"""The parts of a step one by one, with the device synchronised before and after each: a pass of its own.

On a GPU a part that only queues work takes the host no time, and its cost shows up wherever the host happens to wait.
Synchronising around each part puts every cost where it is caused; it also makes the step slower than any real one, as
host and device no longer work at the same time. These figures say how a step's work divides, never how long it takes.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pandas as pd
import torch
from torch import Tensor

from steptrace.train.loop import Training, synchronize, train_step

#: Label in the loop -> name of the section. What the loader takes is no work of the step: it is left out.
SECTIONS: Final = {
    "copy data": "copy data",
    "forward": "forward",
    "loss": "calc loss",
    "backward": "backward",
    "optimizer": "optimizer",
}


class SectionTimer:
    """Times the parts of one step; given to `train_step` in place of `record_function`."""

    def __init__(self, device: torch.device) -> None:
        self.times_ns: dict[str, int] = {}
        self._device = device

    @contextmanager
    def __call__(self, label: str) -> Generator[None]:
        """Time the part `label`, from a device without work to a device without work."""
        synchronize(self._device)
        start_ns = time.perf_counter_ns()
        yield
        synchronize(self._device)
        if label in SECTIONS:
            name = SECTIONS[label]  # more than once in a step that takes several batches
            self.times_ns[name] = self.times_ns.get(name, 0) + time.perf_counter_ns() - start_ns


def measure_sections(training: Training, steps: int) -> pd.DataFrame:
    """Train for `steps` more steps and return the times of their sections (table `SECTIONS_OF_RUN`)."""
    rows = []
    for step in range(steps):
        timer = SectionTimer(training.device)
        train_step(training, timer)
        rows += [(step, section, section_ns) for section, section_ns in timer.times_ns.items()]
    return pd.DataFrame(rows, columns=["step", "section", "section_ns"])


def batch_bytes(training: Training) -> dict[str, int]:
    """Bytes of the tensors in the next batch, which is not trained on: `inputs` and `targets`."""
    inputs, targets = next(training.batches)
    return {"inputs": tensor_bytes(inputs), "targets": tensor_bytes(targets)}


def tensor_bytes(value: Any) -> int:
    """Bytes of all tensors in a batch's part: in lists, tuples and mappings, and in the attributes of objects."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(tensor_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(tensor_bytes, value))
    return sum(map(tensor_bytes, vars(value).values())) if hasattr(value, "__dict__") else 0
