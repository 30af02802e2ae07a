"""A study's passes between the engine's phases: memory, sections, input."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from omegaconf import DictConfig

from steptrace.documents.base import Document
from steptrace.documents.run_tables import InputOfRun, SectionOfRun
from steptrace.engine.measure import peaks
from steptrace.record import write_rows
from steptrace.train import passes
from steptrace.train.arrangement import check_compiled
from steptrace.train.distributed import barrier
from steptrace.train.loop import Training
from steptrace.train.memory import MemoryWatch, lift_limit
from steptrace.train.setup import build_loader

if TYPE_CHECKING:
    import pandas as pd

    from steptrace.documents.run import RunMemory


class StudyPasses:
    """The passes of one run, for `Measurement(between=...)`; their results are complete after the timed steps.

    Args:
        parts: the training, which continues in them.
        config: the variant's.
        memory: the watch over the training's memory.
        explained: whether to run all passes; else only the memory's.
    """

    memory: "RunMemory"

    def __init__(self, parts: Training, config: DictConfig, memory: MemoryWatch, *, explained: bool) -> None:
        self.peaks = peaks()
        self.batch_bytes: dict[str, int] | None = None
        self._parts, self._config, self._watch, self._explained = parts, config, memory, explained
        self._tables: list[tuple[type[Document], pd.DataFrame]] = []

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
        self.peaks = peaks()
        check_compiled(self._config.step)
        if self._explained and scale.section_steps:
            self._tables.append((SectionOfRun, passes.measure_sections(parts, scale.section_steps)))
            self.batch_bytes = passes.batch_bytes(parts)
        if self._explained and scale.input_steps:
            loader = build_loader(self._config, parts.device, self._config.seed, parts.ranks)
            self._tables.append((InputOfRun, passes.measure_input(parts, loader, scale.input_steps)))
        self.memory = self._watch.measure()
        lift_limit()  # the profiler's memory does not count as the training's

    def write(self, folder: Path) -> None:
        """Write sections.parquet and input.parquet, if measured."""
        for table, rows in self._tables:
            write_rows(folder, table, rows)
