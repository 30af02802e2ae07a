"""The section "Step times": every step of every run, and the ratios with their intervals."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from steptrace.documents.comparison import Comparison, RunResult
from steptrace.errors import RecordError
from steptrace.format import NS_PER_MS
from steptrace.report.page.markup import Html, render
from steptrace.report.study import step_charts as draw
from steptrace.report.study.model import RunSteps, variants_shown


def step_times(study: Comparison, comparison: Path | str) -> Html:
    """Step times run by run, of the files beside comparison.json, and the ratios with their intervals."""
    whole, study = study, replace(study, variants=tuple(variants_shown(study)))
    steps = load_steps(study, comparison)
    has_ratio = not study.on_simulated_gpu and any(v.ratio is not None and not v.is_baseline for v in study.variants)
    return render(
        "study/step_times",
        study=study,
        left_out=len(whole.variants) - len(study.variants),
        distribution=draw.step_times(study, steps) if any(run.timed.size for run in steps) else None,
        ratios=draw.ratios(study) if has_ratio else None,
        in_order=draw.steps_in_order(study, steps) if any(run.timed.size for run in steps) else None,
        without_steps=sum(variant.runs_ok for variant in study.variants) - len(steps),
    )


def load_steps(study: Comparison, comparison: Path | str) -> tuple[RunSteps, ...]:
    """The step times of every run that ended well and whose steps.parquet is there, in the study's order.

    Args:
        study: the comparison.
        comparison: its file. Steps are looked for beside it, so that a results folder can be moved or copied, and never
            below the working directory, where another run of the same name may lie.
    """
    runs = []
    for variant in study.variants:
        for run in variant.runs:
            path = _steps_path(Path(comparison).parent, variant.name, run)
            if run.status == "ok" and path is not None:
                runs.append(_read_steps(path, variant.name, run))
    return tuple(runs)


def _steps_path(folder: Path, variant: str, run: RunResult) -> Path | None:
    candidates = [folder / variant / f"run{run.repeat}", folder.joinpath(*Path(run.path).parts[-2:])]
    return next((path for place in candidates if (path := place / "steps.parquet").is_file()), None)


def _read_steps(path: Path, variant: str, run: RunResult) -> RunSteps:
    try:
        # `read_table`, `sort_by` and `to_numpy` would import all of pandas.
        with pq.ParquetFile(path) as file:
            columns = file.read(columns=["phase", "step", "step_ns"]).to_pydict()
        order = np.argsort(columns["step"], kind="stable")
        phase = np.array(columns["phase"])[order]
        ms = np.array(columns["step_ns"], dtype=np.float64)[order] / NS_PER_MS
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise RecordError(f"step times cannot be read ({error})", where=path, next_step="run the study again") from None
    unprofiled = phase != "profiled"
    left_out = phase == "warmup"
    first_timed = int(np.argmax(phase == "timed")) if bool((phase == "timed").any()) else len(phase)
    # Steps of the timed phase that count as warm-up still in the comparison.
    left_out[first_timed : first_timed + (run.warmup_left_out or 0)] = True
    return RunSteps(variant, run.repeat, ms[unprofiled], left_out[unprofiled])
