"""What loading a batch is made of: a pass of its own over some batches, after the timed steps.

The pass trains on as before, from a second loader of the same settings whose data set and collate function are timed
where they run (`timed_loader`), so workers load ahead of real steps as they do in the timed ones. The copy to a GPU is
timed with the device synchronised before and after, which makes these steps slower than real ones: the pass says how
the work of loading divides, never how long a step takes. It copies within the step whatever `data.device_prefetch` is.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import pandas as pd
import torch
from torch.utils.data import DataLoader

from steptrace.schema.run import INPUT_OF_RUN
from steptrace.train.loop import Batch, Training, synchronize, train_step
from steptrace.train.timed_loader import TimedBatch, timed_loader

_COPY = "copy data"
_NULLABLE = [column.name for column in INPUT_OF_RUN.columns if column.nullable]


def left_out(loader: "DataLoader[Any]") -> int:
    """Steps that the pass makes before those it measures: the first batch of each process comes from a cold start."""
    return 1 + loader.num_workers


def measure_input(training: Training, loader: "DataLoader[Batch]", steps: int) -> pd.DataFrame:
    """Train for `left_out` + `steps` more steps on batches of `loader`; return their times (table `INPUT_OF_RUN`)."""
    rows: list[dict[str, Any]] = []
    source = _recorded(timed_loader(loader), rows)
    watched = replace(training, batches=source)
    timer = _CopyTimer(training.device, rows)
    try:
        for _ in range(left_out(loader)):
            train_step(watched, timer)
        rows.clear()
        for _ in range(steps):
            train_step(watched, timer)
    finally:
        source.close()
    table = pd.DataFrame(rows, columns=INPUT_OF_RUN.names[1:]).astype(dict.fromkeys(_NULLABLE, "Int64"))
    table.insert(0, "batch", range(len(table)))
    return table


def _recorded(loader: "DataLoader[TimedBatch]", rows: list[dict[str, Any]]) -> Generator[Batch]:
    """The loader's batches, epoch after epoch; each leaves a row before it is handed on."""
    asked_ns = time.perf_counter_ns()
    while True:
        for timed in loader:
            rows.append({"wait_ns": time.perf_counter_ns() - asked_ns, **asdict(timed.times), "copy_ns": None})
            yield timed.batch
            asked_ns = time.perf_counter_ns()


class _CopyTimer:
    """Given to `train_step` in place of `record_function`: times the copy of the latest batch to a GPU."""

    def __init__(self, device: torch.device, rows: list[dict[str, Any]]) -> None:
        self._device = device
        self._rows = rows

    @contextmanager
    def __call__(self, label: str) -> Generator[None]:
        """Time the part `label` if it is the copy. On a CPU nothing is copied, so nothing is measured."""
        if label != _COPY or self._device.type == "cpu":
            yield
            return
        synchronize(self._device)
        started_ns = time.perf_counter_ns()
        yield
        synchronize(self._device)
        self._rows[-1]["copy_ns"] = time.perf_counter_ns() - started_ns
