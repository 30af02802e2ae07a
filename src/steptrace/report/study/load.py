"""Reading what a study's page shows: comparison.json, the runs' steps.parquet, and parts of a step by their labels."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison, RunResult
from steptrace.errors import RecordError
from steptrace.report.draw.bars import Part
from steptrace.report.study.model import STEP_SECTIONS, RunSteps

#: Labels of the loop inside its first part.
_INSIDE_DATA = ("copy data",)

#: Labels that PyTorch sets by itself; they are no sections of a loss.
_PROFILERS_LABELS = (
    "Optimizer.",
    "enumerate(DataLoader)",
    "DistributedDataParallel.",
    "ProfilerStep#",
    "PyTorch Profiler",
)


def load_study(path: Path | str) -> Comparison:
    """Read a comparison.json.

    Raises:
        RecordError: the file is missing or does not hold a comparison.
    """
    return read(Path(path), Comparison)


def loss_sections(sections: Mapping[str, float]) -> tuple[Part, ...]:
    """The sections that are neither the training loop's nor PyTorch's: those that a loss labels."""
    return tuple(
        Part(label, ms)
        for label, ms in sections.items()
        if label not in (*STEP_SECTIONS, *_INSIDE_DATA) and not label.startswith(_PROFILERS_LABELS)
    )


def load_steps(study: Comparison, comparison: Path | str) -> tuple[RunSteps, ...]:
    """The step times of every run that ended well and whose steps.parquet is found, in the study's order.

    Args:
        study: the comparison.
        comparison: its file. Steps are looked for beside it, so that a results folder can be moved or copied, and never
            below the working directory, where another run of the same name may lie.
    """
    found = []
    for variant in study.variants:
        for run in variant.runs:
            path = _steps_path(Path(comparison).parent, variant.name, run)
            if run.status == "ok" and path is not None:
                found.append(_read_steps(path, variant.name, run))
    return tuple(found)


def _steps_path(folder: Path, variant: str, run: RunResult) -> Path | None:
    candidates = [folder / variant / f"run{run.repeat}", folder.joinpath(*Path(run.path).parts[-2:])]
    return next((found / "steps.parquet" for found in candidates if (found / "steps.parquet").is_file()), None)


def _read_steps(path: Path, variant: str, run: RunResult) -> RunSteps:
    try:
        # `read_table`, `sort_by` and `to_numpy` would import all of pandas.
        with pq.ParquetFile(path) as file:
            columns = file.read(columns=["phase", "step", "step_ns"]).to_pydict()
        order = np.argsort(columns["step"], kind="stable")
        phase = np.array(columns["phase"])[order]
        ms = np.array(columns["step_ns"], dtype=np.float64)[order] / 1e6
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise RecordError(f"step times cannot be read ({error})", where=path, next_step="run the study again") from None
    unprofiled = phase != "profiled"
    left_out = phase == "warmup"
    first_timed = int(np.argmax(phase == "timed")) if bool((phase == "timed").any()) else len(phase)
    # Steps of the timed phase that the comparison found to be warm-up still.
    left_out[first_timed : first_timed + (run.warmup_left_out or 0)] = True
    return RunSteps(variant, run.repeat, ms[unprofiled], left_out[unprofiled])
