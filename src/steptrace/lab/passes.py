"""A study's extra passes, between the timed and the profiled steps. Their steps are excluded from step times.

Sections: on a GPU a part of a step only queues work, which takes the host almost no time, and its cost appears where
the host waits next. With a sync before and after each part, its cost appears in the part, but the step is slower than a
real one. So these figures give the proportions of a step's parts, not their durations.

Input: the pass trains on with a second loader of the same settings. Its data set and collate function are timed where
they run (`timed_loader`), so workers load ahead during real steps, as in the timed steps. The copy to a GPU is timed
with a sync before and after it, and always happens in the step, whatever `data.device_prefetch` is.
"""

import time
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, Final

import msgspec
import torch
from torch.utils.data import DataLoader

from steptrace.config.resolved import TrainingConfig
from steptrace.engine.clock import current_clock
from steptrace.engine.memory import MemoryLook, tensors_of
from steptrace.engine.rank_record import BatchTime, SectionOfRun
from steptrace.engine.session import Session
from steptrace.lab.distributed import barrier, communication
from steptrace.lab.loop import Batch, Training, train_step
from steptrace.lab.precision import check_compiled
from steptrace.lab.setup import build_loader
from steptrace.lab.timed_loader import TimedBatch, timed_loader

#: The name of each section, by its label in the loop. The wait for the loader is no section.
SECTIONS: Final = {
    "copy data": "copy data",
    "forward": "forward",
    "loss": "calc loss",
    "backward": "backward",
    "optimizer": "optimizer",
}


class PartTimer:
    """Times parts of a step. `train_step` takes it in place of `record_function`.

    Attributes:
        times: the label of each part, and its time in ns from sync to sync.
    """

    def __init__(self, labels: Collection[str]) -> None:
        self.times: list[tuple[str, int]] = []
        self._labels = labels
        self._clock = current_clock()

    @contextmanager
    def __call__(self, label: str) -> Generator[None]:
        """Time the part `label`, if it is among the labels."""
        if label not in self._labels:
            yield
            return
        self._clock.synchronize()
        start_ns = time.perf_counter_ns()
        yield
        self._clock.synchronize()
        self.times.append((label, time.perf_counter_ns() - start_ns))


def measure_sections(training: Training, steps: int) -> list[SectionOfRun]:
    """Train for `steps` more steps and return the times of their sections, in their order."""
    rows = []
    for step in range(steps):
        timer = PartTimer(SECTIONS)
        train_step(training, timer)
        times: dict[str, int] = {}
        for label, part_ns in timer.times:  # with several batches per step most sections occur more than once
            times[SECTIONS[label]] = times.get(SECTIONS[label], 0) + part_ns
        rows += [SectionOfRun(step=step, section=section, section_ns=total_ns) for section, total_ns in times.items()]
    return rows


def batch_bytes(training: Training) -> dict[str, int]:
    """The bytes of the tensors in the next batch's `inputs` and `targets`. The batch is not trained on."""
    parts = zip(("inputs", "targets"), next(training.batches), strict=True)
    return {name: sum(tensor.nbytes for tensor in tensors_of(part)) for name, part in parts}


def left_out(loader: "DataLoader[Any]") -> int:
    """The number of steps before the measured ones: the first batch of each worker includes the worker's start."""
    return 1 + loader.num_workers


def measure_input(
    training: Training, loader: "DataLoader[Batch]", steps: int, *, trained: int | None = None
) -> list[BatchTime]:
    """Train on batches of `loader` and return the times of loading each batch of the last `steps` steps.

    Args:
        training: the training that goes on.
        loader: its first `left_out` batches are not measured.
        steps: measured steps.
        trained: how many of the batches before the measured ones are trained on; None: all. The last one always is,
            so that the workers load the first measured batch during a step, as they do for the others.
    """
    rows: list[BatchTime] = []
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
    if not copies.times:  # on a CPU
        return rows
    return [replace(row, copy_ns=copy_ns) for row, (_, copy_ns) in zip(rows, copies.times, strict=True)]


def _recorded(loader: "DataLoader[TimedBatch]", rows: list[BatchTime]) -> Generator[Batch]:
    """The loader's batches, epoch after epoch. It adds a row to `rows` before it yields a batch."""
    asked_ns = time.perf_counter_ns()
    while True:
        for timed in loader:
            rows.append(BatchTime(wait_ns=time.perf_counter_ns() - asked_ns, copy_ns=None, **asdict(timed.times)))
            yield timed.batch
            asked_ns = time.perf_counter_ns()


class StudyPasses:
    """The passes of one run, between the phases of its measurement. Their results go into the session's record.

    Args:
        parts: the training, which goes on in them.
        config: the variant's.
        memory: counts the memory that the training holds.
        session: the measurement. If it does not explain the steps, only the memory is counted.
    """

    def __init__(self, parts: Training, config: TrainingConfig, memory: MemoryLook, session: Session) -> None:
        self._parts = parts
        self._config = config
        self._memory = memory
        self._session = session

    def between(self, phase: str) -> None:
        """Run the passes after a phase."""
        if phase == "all":
            self._after_all_steps()
            return
        if phase == "timed":
            self._after_timed_steps()
        elif self._parts.device.type == "cuda":
            # Without the allocations that only the first steps make.
            torch.cuda.reset_peak_memory_stats(self._parts.device)
        barrier(self._parts.ranks)  # otherwise a step would include the wait for a later rank

    def _after_timed_steps(self) -> None:
        """Run the passes that precede the profiled window, since the profiler leaves hooks in a GPU's runtime."""
        parts = self._parts
        scale = self._config.scale
        session = self._session
        check_compiled(self._config.step)
        if session.explains and scale.section_steps:
            session.record["sections"] = measure_sections(parts, session.that_fit(scale.section_steps))
            session.record["batch_bytes"] = batch_bytes(parts)
        if session.explains and scale.input_steps:
            loader = build_loader(self._config, parts.device, self._config.seed, parts.ranks)
            steps = session.that_fit(scale.input_steps)
            trained = session.that_fit(left_out(loader))
            session.record["input_batches"] = measure_input(parts, loader, steps, trained=trained)
        train_step(parts, self._memory)
        self._memory.note_held()

    def _after_all_steps(self) -> None:
        """Count the memory that is known only after the last step, and measure the bandwidth between the ranks."""
        self._memory.note_workspaces()
        self._session.record["memory"] = self._memory.record
        if not self._parts.ranks.alone:
            measured = communication(self._parts.model, self._parts.device, self._config, self._parts.ranks)
            self._session.record["communication"] = msgspec.to_builtins(measured)
