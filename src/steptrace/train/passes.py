"""A study's extra passes, between the timed and the profiled steps. Their steps are excluded from step times.

Sections: on a GPU a part that only queues work takes the host no time, and its cost appears wherever the host next
waits. With a sync before and after each part every cost appears where it is caused, but the step is slower than a real
one. These figures give the proportions of a step's parts, not their durations.

Input: the pass trains on from a second loader of the same settings whose data set and collate function are timed where
they run (`timed_loader`), so workers load ahead of real steps as in the timed ones. The copy to a GPU is timed with a
sync before and after, and is always within the step, whatever `data.device_prefetch` is.
"""

import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
from omegaconf import DictConfig
from torch.utils.data import DataLoader

from steptrace.documents.base import Document, columns_of
from steptrace.documents.run import InputOfRun, SectionOfRun
from steptrace.documents.table import names_of
from steptrace.engine.device import MemoryLook, current_clock, tensors_of
from steptrace.record import write_rows
from steptrace.train.distributed import barrier
from steptrace.train.loop import Batch, Training, train_step
from steptrace.train.precision import check_compiled
from steptrace.train.setup import build_loader
from steptrace.train.timed_loader import TimedBatch, timed_loader

#: Label in the loop -> name of the section. The loader's time is not work of the step.
SECTIONS: Final = {
    "copy data": "copy data",
    "forward": "forward",
    "loss": "calc loss",
    "backward": "backward",
    "optimizer": "optimizer",
}


class PartTimer:
    """Times parts of a step; given to `train_step` in place of `record_function`.

    `times` has the label of each part and its time in ns, from sync to sync.
    """

    def __init__(self, labels: Collection[str]) -> None:
        self.times: list[tuple[str, int]] = []
        self._labels, self._clock = labels, current_clock()

    @contextmanager
    def __call__(self, label: str) -> Generator[None]:
        """Time the part `label` if it is one of the labels."""
        if label not in self._labels:
            yield
            return
        self._clock.synchronize()
        start_ns = time.perf_counter_ns()
        yield
        self._clock.synchronize()
        self.times.append((label, time.perf_counter_ns() - start_ns))


def measure_sections(training: Training, steps: int) -> pd.DataFrame:
    """Train for `steps` more steps and return the times of their sections (table `SectionOfRun`)."""
    rows = []
    for step in range(steps):
        timer = PartTimer(SECTIONS)
        train_step(training, timer)
        rows += [(step, SECTIONS[label], section_ns) for label, section_ns in timer.times]
    parts = pd.DataFrame(rows, columns=["step", "section", "section_ns"])
    # With several batches per step most sections occur more than once.
    return parts.groupby(["step", "section"], sort=False, as_index=False).sum()


def batch_bytes(training: Training) -> dict[str, int]:
    """Bytes of the tensors in the next batch, `inputs` and `targets`; the batch is not trained on."""
    parts = zip(("inputs", "targets"), next(training.batches), strict=True)
    return {name: sum(tensor.nbytes for tensor in tensors_of(part)) for name, part in parts}


_NULLABLE = [column.name for column in columns_of(InputOfRun) if column.nullable]


def left_out(loader: "DataLoader[Any]") -> int:
    """Steps before the measured ones: the first batch of each worker process includes its start."""
    return 1 + loader.num_workers


def measure_input(
    training: Training, loader: "DataLoader[Batch]", steps: int, *, trained: int | None = None
) -> pd.DataFrame:
    """Train on batches of `loader` and return the times of `steps` of them (table `InputOfRun`).

    Args:
        training: what goes on.
        loader: its first `left_out` batches are not measured.
        steps: measured steps.
        trained: how many of the batches before the measured ones are trained on; None: all. At least the last one is,
            so that the workers load during a step, as they do before the measured ones.
    """
    rows: list[dict[str, Any]] = []
    source = _recorded(timed_loader(loader), rows)
    watched = replace(training, batches=source)
    copies = PartTimer(() if training.device.type == "cpu" else ("copy data",))
    try:
        before = left_out(loader)
        for number in range(before):
            if trained is None or number >= before - max(trained, 1):
                train_step(watched, copies)
            else:
                next(source)
        rows.clear()
        copies.times.clear()
        for _ in range(steps):
            train_step(watched, copies)
    finally:
        source.close()
    for row, (_, copy_ns) in zip(rows, copies.times, strict=False):  # no copies on a CPU
        row["copy_ns"] = copy_ns
    table = pd.DataFrame(rows, columns=names_of(InputOfRun)[1:]).astype(dict.fromkeys(_NULLABLE, "Int64"))
    table.insert(0, "batch", range(len(table)))
    return table


def _recorded(loader: "DataLoader[TimedBatch]", rows: list[dict[str, Any]]) -> Generator[Batch]:
    """The loader's batches, epoch after epoch; adds a row for each before it yields it."""
    asked_ns = time.perf_counter_ns()
    while True:
        for timed in loader:
            rows.append({"wait_ns": time.perf_counter_ns() - asked_ns, **asdict(timed.times)})
            yield timed.batch
            asked_ns = time.perf_counter_ns()


class StudyPasses:
    """The passes of one run, for `Measurement(between=...)`; their results are complete after the timed steps.

    Args:
        parts: the training, which continues in them.
        config: the variant's.
        memory: counts what the training holds.
        explained: whether to run all passes; else only the memory's.

    Attributes:
        that_fit: how many of a pass's planned steps its time allows; all of them until it is set.
    """

    def __init__(self, parts: Training, config: DictConfig, memory: MemoryLook, *, explained: bool) -> None:
        self.batch_bytes: dict[str, int] | None = None
        self.memory = memory
        self._parts, self._config, self._explained = parts, config, explained
        self._tables: list[tuple[type[Document], pd.DataFrame]] = []
        self.that_fit: Callable[[int], int] = lambda planned: planned

    def between(self, phase: str) -> None:
        """Run the passes after a phase."""
        if phase == "warmup":
            if self._parts.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self._parts.device)  # without first steps' one-off allocations
        else:
            self._after_timed_steps()
        barrier(self._parts.ranks)  # else a step would include the wait for a later rank

    def _after_timed_steps(self) -> None:
        """Run the passes before the window: on a GPU the profiler's hooks into the runtime stay after it."""
        parts, scale = self._parts, self._config.scale
        check_compiled(self._config.step)
        if self._explained and scale.section_steps:
            self._tables.append((SectionOfRun, measure_sections(parts, self.that_fit(scale.section_steps))))
            self.batch_bytes = batch_bytes(parts)
        if self._explained and scale.input_steps:
            loader = build_loader(self._config, parts.device, self._config.seed, parts.ranks)
            steps, trained = self.that_fit(scale.input_steps), self.that_fit(left_out(loader))
            self._tables.append((InputOfRun, measure_input(parts, loader, steps, trained=trained)))
        train_step(parts, self.memory)
        self.memory.note_held()

    def write(self, folder: Path) -> None:
        """Write sections.parquet and input.parquet, if measured."""
        for table, rows in self._tables:
            write_rows(folder, table, rows)
