"""The measurements without the profiler, and the predictions, on both sides of a diff.

One run a side has no interval, so nothing is called faster or slower here: `steptrace compare` does that for studies.
"""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from steptrace.documents.diff import MeasuredDiff, MeasuredSide
from steptrace.documents.estimate import Estimate
from steptrace.documents.prediction import PredictedStep
from steptrace.documents.run import Environment, RunRecord
from steptrace.documents.sides import sync_diff
from steptrace.documents.summary import TraceSummary
from steptrace.errors import ConfigError
from steptrace.estimate.gpus import Gpu, gpu_named
from steptrace.estimate.step import estimate_prediction
from steptrace.limits import LONG_STEPS
from steptrace.run_folder import PREDICTION_FILE, RUN_FILE, read_prediction, read_run, read_steps
from steptrace.run_times import Nanoseconds
from steptrace.words.estimate import with_reasons

#: The GPU for the estimates of both sides if neither names one.
DEFAULT_GPU: Final = "H100"
#: The runs of a program, or of a variant, within its folder.
_RUNS: Final = "run[0-9]*"
_LOW: Final = 0.05
_HIGH: Final = 0.95


@dataclass(frozen=True)
class ProgramRuns:
    """The runs of one program, or of one variant of a study.

    Attributes:
        folders: of the runs.
        records: their run.json.
        step_ns: their timed steps, in ns.
        wait_ns: the mean wait for data of each that has a DataLoader.
        prediction: the program on a virtual GPU; None without one.
    """

    folders: tuple[Path, ...]
    records: tuple[RunRecord, ...]
    step_ns: tuple[Nanoseconds, ...]
    wait_ns: tuple[float, ...]
    prediction: PredictedStep | None

    @property
    def traces(self) -> tuple[Path, ...]:
        """Their traces, one a rank."""
        return tuple(
            folder / name for folder, record in zip(self.folders, self.records, strict=True) for name in record.traces
        )

    @property
    def environment(self) -> Environment:
        """Where the first of them ran."""
        return self.records[0].environment

    @property
    def lifted_by_long_steps(self) -> bool:
        """Whether the mean of each run is well above its median, so that the median would hide the long steps."""
        timed = [ns for ns in self.step_ns if len(ns)]
        return bool(timed) and all(float(np.mean(ns)) > LONG_STEPS * float(np.median(ns)) for ns in timed)


def runs_at(path: Path) -> ProgramRuns | None:
    """The runs behind a folder that `steptrace run` wrote, or a variant's, or a single run's; None of any other path.

    Raises:
        RecordError: what a run left is malformed, or of another version.
    """
    if (path / RUN_FILE).is_file():
        folders = [path]
    else:
        folders = sorted(file.parent for file in path.glob(f"{_RUNS}/{RUN_FILE}"))
    if not folders:
        return None
    timed = [steps[steps["phase"] == "timed"] for steps in map(read_steps, folders)]
    waits = [steps["loader_wait_ns"].dropna() for steps in timed]
    predicted = next((folder for folder in (path, folders[0].parent) if (folder / PREDICTION_FILE).is_file()), None)
    return ProgramRuns(
        folders=tuple(folders),
        records=tuple(map(read_run, folders)),
        step_ns=tuple(steps["step_ns"].to_numpy(np.int64) for steps in timed),
        wait_ns=tuple(float(wait.mean()) for wait in waits if len(wait)),
        prediction=None if predicted is None else read_prediction(predicted),
    )


def measured_diff(
    sides: Sequence[ProgramRuns | None], traces: Sequence[Sequence[TraceSummary]], gpus: Sequence[str] = ()
) -> MeasuredDiff | None:
    """What was measured and predicted of both sides; None where neither is a result of `steptrace run`.

    Args:
        sides: A and B.
        traces: what the traces of each say, for measured syncs.
        gpus: GPUs to estimate both on; by default those that the runs were asked to estimate, else `DEFAULT_GPU`.

    Raises:
        ConfigError: there is no such GPU.
    """
    present = [side for side in sides if side is not None]
    if not present:
        return None
    of_mean = any(side.lifted_by_long_steps for side in present)
    chosen = [gpu_named(name) for name in gpus] or _gpus_of(present) or [gpu_named(DEFAULT_GPU)]
    a, b = (
        None if side is None else _side(side, summaries, chosen, of_mean=of_mean)
        for side, summaries in zip(sides, traces, strict=True)
    )
    predictions = [None if side is None else side.prediction for side in sides]
    sites = [[site.site for site in prediction.sites] for prediction in predictions if prediction is not None]
    return MeasuredDiff(
        statistic="mean" if of_mean else "median",
        a=a,
        b=b,
        ratio=a.step_ns / b.step_ns if a is not None and b is not None and a.step_ns and b.step_ns else None,
        predicted_syncs=sync_diff("predicted", *sites) if len(sites) == len(sides) else None,
        environment=tuple(_environment(present)) if len(present) == len(sides) else (),
    )


def _side(runs: ProgramRuns, traces: Sequence[TraceSummary], gpus: Sequence[Gpu], *, of_mean: bool) -> MeasuredSide:
    steps = np.concatenate(runs.step_ns)
    centre = np.mean if of_mean else np.median
    lengths = [float(centre(step_ns)) for step_ns in runs.step_ns if len(step_ns)]
    peaks = [record.peak_allocated_bytes for record in runs.records if record.peak_allocated_bytes is not None]
    counts = [trace.syncs.per_step for trace in traces if trace.gpu.activities and trace.syncs.per_step is not None]
    prediction = runs.prediction
    return MeasuredSide(
        runs=len(runs.folders),
        steps=len(steps),
        device=runs.records[0].device,
        gpu=runs.environment.gpu,
        step_ns=statistics.median(lengths) if lengths else None,
        low_ns=float(np.quantile(steps, _LOW)) if lengths else None,
        high_ns=float(np.quantile(steps, _HIGH)) if lengths else None,
        loader_wait_ns=statistics.median(runs.wait_ns) if runs.wait_ns else None,
        peak_allocated_bytes=max(peaks, default=None),
        measured_syncs_per_step=statistics.median(counts) if counts else None,
        predicted_syncs_per_step=None if prediction is None else prediction.syncs_per_step,
        estimates=() if prediction is None else tuple(_estimates(prediction, gpus)),
    )


def _gpus_of(sides: Sequence[ProgramRuns]) -> list[Gpu]:
    """The GPUs to estimate, as the runs were asked; a GPU that is not known on this machine is left out."""
    gpus = []
    for name in dict.fromkeys(name for side in sides for name in _asked_for(side)):
        with suppress(ConfigError):
            gpus.append(gpu_named(name))
    return gpus


def _asked_for(side: ProgramRuns) -> tuple[str, ...]:
    return () if side.prediction is None else side.prediction.gpus


def _estimates(prediction: PredictedStep, gpus: Sequence[Gpu]) -> Iterator[Estimate]:
    if prediction.followed.operator_calls:
        for gpu in gpus:
            yield with_reasons(estimate_prediction(prediction, gpu))


#: Keys of an environment that name the host or the code, and say nothing of the machine's speed.
_APART: Final = ("host", "git_commit", "git_dirty")


def _environment(sides: Sequence[ProgramRuns]) -> Iterator[str]:
    """The keys of the environment in which both sides differ."""
    a, b = (side.environment for side in sides)
    for key in a.__struct_fields__:
        if key not in _APART and getattr(a, key) != getattr(b, key):
            yield key
