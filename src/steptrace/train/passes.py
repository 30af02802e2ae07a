"""Passes of their own, each for one question, after the timed steps: the training goes on, and no step time is taken.

Sections: on a GPU a part that only queues work takes the host no time, and its cost shows up wherever the host happens
to wait. With the device synchronised before and after each part every cost stands where it is caused; it also makes the
step slower than any real one. These figures say how the work of a step divides, never how long it takes.

Input: the pass trains on from a second loader of the same settings whose data set and collate function are timed where
they run (`timed_loader`), so workers load ahead of real steps as they do in the timed ones. The copy to a GPU is timed
with the device synchronised before and after. It copies within the step whatever `data.device_prefetch` is.

Lines: a Kineto trace names the function around an operator, but only with the line of its `def`. Here one step runs
under an `OpLineRecorder`, which writes the line of the first frame that is neither PyTorch's nor the pipeline's own
(`schema.OP_LINES`).

Warned syncs: a third count beside the prediction and the trace, by `torch.cuda.set_sync_debug_mode("warn")`. By its
documentation PyTorch does not warn of every sync: none of `torch.cuda.synchronize`, events, or what happens inside
other libraries. On the other hand it knows the line. The mode and the filters for warnings are the process's, so this
comes last of all; the steps run under the recorder of the lines, by which a warning in the backward pass belongs to a
line of the forward pass.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from steptrace.files import write_versioned
from steptrace.record import WARNED_SYNCS_FILE, write_op_lines, write_sources
from steptrace.schema.run import INPUT_OF_RUN
from steptrace.train.loop import Batch, Training, synchronize, train_step
from steptrace.train.step_recorders import OpLineRecorder, SyncWatcher, summary, why_incomplete
from steptrace.train.timed_loader import TimedBatch, timed_loader

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


def record_op_lines(training: Training, out: Path) -> tuple[str, ...]:
    """Run one more step and write `op_lines.parquet` and `sources.json` (file -> text) into `out`.

    Returns warnings: a step that cannot be watched to its end leaves the lines seen so far.
    """
    recorder = OpLineRecorder()
    warnings: tuple[str, ...] = ()
    try:
        with recorder:
            train_step(training)
    except Exception as error:
        # Of any kind: not everything works under a dispatch mode, and a whole run's timings must not depend on it.
        warnings = (why_incomplete(error),)
    write_op_lines(out, recorder.rows())
    write_sources(out, recorder.sources())
    return warnings


#: Steps watched; a number that varies between them would be worth knowing.
STEPS: Final = 2
#: A watched step takes seven times as long as a step. Where one takes longer than this (seconds), it is the only one.
_LONG_S: Final = 5.0


def record_warned_syncs(training: Training, out: Path) -> tuple[str, ...]:
    """Run `STEPS` more steps and write `warned_syncs.json` into `out`; without a GPU do nothing.

    Returns warnings: a step that cannot be watched leaves no file.
    """
    if training.device.type != "cuda":
        return ()
    watcher = SyncWatcher()
    synchronize(training.device)
    try:
        started = time.monotonic()
        for number in range(STEPS):
            if number and time.monotonic() - started > _LONG_S:
                break
            with watcher.step():
                train_step(training)
    except Exception as error:
        # Of any kind: as with the lines, a whole run's timings must not depend on it.
        reason = next(iter(str(error).splitlines()), "")
        return (f"PyTorch's own check for syncs was left out: {type(error).__name__}: {reason}",)
    write_versioned(out / WARNED_SYNCS_FILE, summary(watcher.by_step))
    return ()
