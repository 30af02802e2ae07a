"""Reads a study's folder, also if files are missing.

A run that failed, never ran or left damaged files is a run without measurements, with the reason. Only a study.json
that cannot be read is an error.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from steptrace.documents.base import read
from steptrace.documents.note import Note, note
from steptrace.documents.run import (
    PlannedStudy,
    PlannedVariant,
    ProcessError,
    RunRecord,
    SectionOfRun,
    Status,
    VariantStatus,
)
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.errors import RecordError
from steptrace.run_folder import STATUS_FILE, read_rows, read_run, read_status, read_steps
from steptrace.run_times import Nanoseconds, RunTimes, run_times

STUDY_FILE: Final = "study.json"
NOT_RUN: Final = "not run"

#: A variant whose runs ended differently takes the first of these that one of them has.
_WORST_FIRST: Final[tuple[VariantStatus, ...]] = ("out of memory", "failed", "killed", NOT_RUN, "ok")


@dataclass(frozen=True)
class MeasuredRun:
    """The measurements of a complete run. Arrays have one entry for each step.

    `loader_wait_ns` belongs to the counted steps of `times`, None if a step's is not known; `profiled_ns` are the step
    times of the profiled window; `sections` is the table `SectionOfRun`, if the run had a pass that times sections.
    """

    record: RunRecord
    times: RunTimes
    loader_wait_ns: Nanoseconds | None
    profiled_ns: Nanoseconds
    sections: pd.DataFrame | None
    summary: Summary | None

    @property
    def wait_ns(self) -> float | None:
        """Mean wait for data of a counted step; None if it is not known."""
        return None if self.loader_wait_ns is None else float(self.loader_wait_ns.mean())

    @property
    def wait_share(self) -> float | None:
        """The same as a share of the step time, from 0 to 1."""
        return None if self.wait_ns is None else self.wait_ns / float(self.times.counted.mean())

    @property
    def trace(self) -> TraceSummary | None:
        """What rank 0's trace says; None if the run left none that could be read."""
        return None if self.summary is None else self.summary.traces[0]


@dataclass(frozen=True)
class Run:
    """One repeat of a variant: how it ended, and its measurements if it ended well."""

    repeat: int
    path: Path
    status: VariantStatus
    error: ProcessError | None
    measured: MeasuredRun | None = None
    notes: tuple[Note, ...] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True)
class VariantRuns:
    """One variant of a study with its runs."""

    plan: PlannedVariant
    path: Path
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """Its name."""
        return self.plan.name

    @property
    def baseline(self) -> str:
        """The variant that it is compared with."""
        return self.plan.baseline

    @property
    def measured(self) -> tuple[MeasuredRun, ...]:
        """The measurements of the runs that have any, in the order of the repeats."""
        return tuple(run.measured for run in self.runs if run.measured is not None)

    @property
    def traces(self) -> tuple[TraceSummary, ...]:
        """Rank 0's trace of each run that left one."""
        return tuple(run.trace for run in self.measured if run.trace is not None)

    @property
    def status(self) -> VariantStatus:
        """`ok` if every run ended well, and otherwise the worst status of a run."""
        return min((run.status for run in self.runs), key=_WORST_FIRST.index, default=NOT_RUN)


@dataclass(frozen=True)
class StudyRuns:
    """A study with all of its variants and their runs."""

    plan: PlannedStudy
    variants: tuple[VariantRuns, ...]


def load_study(study_dir: Path) -> StudyRuns:
    """Read `results/<study>/`.

    Args:
        study_dir: the study's folder.

    Raises:
        RecordError: its study.json is missing or lacks something.
    """
    plan = read(study_dir / STUDY_FILE, PlannedStudy, next_step="delete the file; the workflow writes it anew")
    return StudyRuns(plan, tuple(_load_variant(study_dir / variant.name, variant, plan) for variant in plan.variants))


def _load_variant(path: Path, variant: PlannedVariant, study: PlannedStudy) -> VariantRuns:
    runs = (load_run(path / f"run{k}", k, variant.digest) for k in range(study.repeats))
    return VariantRuns(variant, path, tuple(runs))


def load_run(run_dir: Path, repeat: int, digest: str | None) -> Run:
    """Read a run's folder; a run recorded under another configuration (`digest`) counts as not run."""
    if not (run_dir / STATUS_FILE).exists():
        return Run(repeat, run_dir, NOT_RUN, error_without_process(NOT_RUN, None))
    try:
        status = read_status(run_dir)
        if status.status != "ok":
            return Run(repeat, run_dir, status.status, error_of(status))
        measured = _load_measured(run_dir)
    except RecordError as error:
        return Run(repeat, run_dir, "failed", error_without_process("failed", str(error)))
    if digest is not None and measured.record.digest != digest:
        other = error_without_process(NOT_RUN, "recorded under another configuration of this variant")
        return Run(repeat, run_dir, NOT_RUN, other)
    began = datetime.fromisoformat(status.started_at)
    ended = began + timedelta(seconds=status.wall_s)
    run = Run(repeat, run_dir, "ok", None, measured, measured.record.notes, began, ended)
    return _with_summary(run, measured)


def error_of(status: Status) -> ProcessError:
    """How a supervised process ended, for comparison.json."""
    return ProcessError(**{name: getattr(status, name) for name in ProcessError.__struct_fields__})


def error_without_process(status: str, message: str | None) -> ProcessError:
    """The error of a failure that no process reported, for comparison.json."""
    return ProcessError(status=status, exit_code=None, signal=None, error=message, log_tail=())


def first_measured(variants: Sequence[VariantRuns]) -> MeasuredRun | None:
    """The first measured run of the study."""
    return next((measured for variant in variants for measured in variant.measured), None)


def _load_measured(run_dir: Path) -> MeasuredRun:
    steps = read_steps(run_dir)
    timed = steps[steps["phase"] == "timed"]
    step_ns = timed["step_ns"].to_numpy(np.int64)
    waits = timed["loader_wait_ns"]
    if not (step_ns > 0).any() or (step_ns <= 0).any():
        raise RecordError("run has no timed step, or one without a duration", where=run_dir)
    times = run_times(step_ns)
    return MeasuredRun(
        record=read_run(run_dir),
        times=times,
        loader_wait_ns=None if waits.isna().any() else waits.to_numpy(np.int64)[times.warmup_left_out :],
        profiled_ns=steps.loc[steps["phase"] == "profiled", "step_ns"].to_numpy(np.int64),
        sections=read_rows(run_dir, SectionOfRun),
        summary=None,
    )


def _with_summary(run: Run, measured: MeasuredRun) -> Run:
    """The run with the summary of its trace, or with a warning: step times count without it too."""
    summary: Summary | None = None
    reason = None
    path = run.path / "summary.json"
    try:
        summary = read(path, Summary)
    except RecordError as error:
        reason = error.what
    if summary is None or not summary.traces:
        explained = measured.record.explained_repeats
        if explained is not None and run.repeat >= explained:
            return run  # no trace was asked of it
        reason = (summary.error if summary else None) or reason or "it left none"
        return replace(run, notes=(*run.notes, note("trace_not_analysed", run=run.repeat, reason=reason)))
    return replace(run, measured=replace(measured, summary=summary))
