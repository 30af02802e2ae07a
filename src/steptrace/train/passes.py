"""Passes of their own, each for one question, after the timed steps: the training goes on, and its speed is not told.

Sections: on a GPU a part that only queues work takes the host no time, and its cost shows up wherever the host happens
to wait. With the device synchronised before and after each part every cost stands where it is caused; it also makes the
step slower than any real one. These figures say how the work of a step divides, never how long it takes.

Input: the pass trains on from a second loader of the same settings whose data set and collate function are timed where
they run (`timed_loader`), so workers load ahead of real steps as they do in the timed ones. The copy to a GPU is timed
with the device synchronised before and after. It copies within the step whatever `data.device_prefetch` is.

Profile: a few steps under torch.profiler, written as one Chrome trace per rank. These steps only explain. Their times
are kept (phase `profiled`) for one purpose: to say how much slower a step is while it is being watched.

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
import warnings
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import pandas as pd
import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader

from steptrace.files import write_versioned
from steptrace.record import WARNED_SYNCS_FILE, write_op_lines, write_sources
from steptrace.schema.run import INPUT_OF_RUN
from steptrace.trace.written import export
from steptrace.train.loop import Batch, StepTiming, Training, step_clock, synchronize, tensors_of, timings, train_step
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


class PartTimer:
    """Times parts of a step; given to `train_step` in place of `record_function`.

    `times` has the label of each part and its time in ns, from a device without work to a device without work.
    """

    def __init__(self, device: torch.device, labels: Collection[str]) -> None:
        self.times: list[tuple[str, int]] = []
        self._device, self._labels = device, labels

    @contextmanager
    def __call__(self, label: str) -> Generator[None]:
        """Time the part `label` if it is one of the labels."""
        if label not in self._labels:
            yield
            return
        synchronize(self._device)
        start_ns = time.perf_counter_ns()
        yield
        synchronize(self._device)
        self.times.append((label, time.perf_counter_ns() - start_ns))


def measure_sections(training: Training, steps: int) -> pd.DataFrame:
    """Train for `steps` more steps and return the times of their sections (table `SECTIONS_OF_RUN`)."""
    rows = []
    for step in range(steps):
        timer = PartTimer(training.device, SECTIONS)
        train_step(training, timer)
        rows += [(step, SECTIONS[label], section_ns) for label, section_ns in timer.times]
    parts = pd.DataFrame(rows, columns=["step", "section", "section_ns"])
    # A step that takes several batches has most sections more than once.
    return parts.groupby(["step", "section"], sort=False, as_index=False).sum()


def batch_bytes(training: Training) -> dict[str, int]:
    """Bytes of the tensors in the next batch, which is not trained on: `inputs` and `targets`."""
    parts = zip(("inputs", "targets"), next(training.batches), strict=True)
    return {name: sum(tensor.nbytes for tensor in tensors_of(part)) for name, part in parts}


_NULLABLE = [column.name for column in INPUT_OF_RUN.columns if column.nullable]


def left_out(loader: "DataLoader[Any]") -> int:
    """Steps that the pass makes before those it measures: the first batch of each process comes from a cold start."""
    return 1 + loader.num_workers


def measure_input(training: Training, loader: "DataLoader[Batch]", steps: int) -> pd.DataFrame:
    """Train for `left_out` + `steps` more steps on batches of `loader`; return their times (table `INPUT_OF_RUN`)."""
    rows: list[dict[str, Any]] = []
    source = _recorded(timed_loader(loader), rows)
    watched = replace(training, batches=source)
    copies = PartTimer(training.device, () if training.device.type == "cpu" else ("copy data",))
    try:
        for _ in range(left_out(loader)):
            train_step(watched, copies)
        rows.clear()
        copies.times.clear()
        for _ in range(steps):
            train_step(watched, copies)
    finally:
        source.close()
    for row, (_, copy_ns) in zip(rows, copies.times, strict=False):  # on a CPU nothing is copied
        row["copy_ns"] = copy_ns
    table = pd.DataFrame(rows, columns=INPUT_OF_RUN.names[1:]).astype(dict.fromkeys(_NULLABLE, "Int64"))
    table.insert(0, "batch", range(len(table)))
    return table


def _recorded(loader: "DataLoader[TimedBatch]", rows: list[dict[str, Any]]) -> Generator[Batch]:
    """The loader's batches, epoch after epoch; each leaves a row before it is handed on."""
    asked_ns = time.perf_counter_ns()
    while True:
        for timed in loader:
            rows.append({"wait_ns": time.perf_counter_ns() - asked_ns, **asdict(timed.times)})
            yield timed.batch
            asked_ns = time.perf_counter_ns()


def trace_name(rank: int) -> str:
    """File name of a rank's trace: `trace.json.gz` for rank 0, `trace.rank1.json.gz` for rank 1, and so on."""
    return "trace.json.gz" if rank == 0 else f"trace.rank{rank}.json.gz"


def profile_steps(training: Training, window: DictConfig, trace: Path) -> list[StepTiming]:
    """Go through the config's `profile` window, write its `trace` (.json.gz), and return its active steps' timing."""
    losses: list[Tensor] = []
    waits_ns: list[int] = []
    clock, marks = step_clock(training.device), []
    before = window.wait + window.warmup  # read here: OmegaConf's frames have no place in a recorded step
    synchronize(training.device)
    with _profiler(training.device, window, trace) as profiler:
        for index in range(before + window.active):
            active = index >= before
            if active:
                marks.append(clock.now())
            loss, wait_ns = train_step(training)
            if active:
                marks.append(clock.now())
                losses.append(loss)
                waits_ns.append(wait_ns)
            profiler.step()
    synchronize(training.device)
    # Every second interval is a step; those between belong to the profiler, which writes the trace in the last one.
    return timings(clock.intervals_ns(marks)[::2], waits_ns, losses)


@contextmanager
def _profiler(device: torch.device, window: DictConfig, trace: Path) -> Generator[profile]:
    with warnings.catch_warnings():
        # PyTorch 2.11 says so of every profile, also of one with a single cycle, which loses nothing.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
        with profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])],
            schedule=schedule(wait=window.wait, warmup=window.warmup, active=window.active, repeat=1),
            on_trace_ready=lambda profiler: export(profiler, trace),
            record_shapes=window.record_shapes,
            profile_memory=window.profile_memory,
            with_stack=window.with_stack,
        ) as profiler:
            yield profiler


def record_op_lines(training: Training, out: Path) -> tuple[str, ...]:
    """Run one more step and write `op_lines.parquet` and `sources.json` (file -> text) into `out`.

    Returns warnings: a step that cannot be watched to its end leaves the lines seen so far.
    """
    recorder = OpLineRecorder()
    problems: tuple[str, ...] = ()
    try:
        with recorder:
            train_step(training)
    except Exception as error:
        # Of any kind: not everything works under a dispatch mode, and a whole run's timings must not depend on it.
        problems = (why_incomplete(error),)
    write_op_lines(out, recorder.rows())
    write_sources(out, recorder.sources())
    return problems


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
