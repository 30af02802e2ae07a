"""The figures of a variant from its traces, NVML, timed sections, equivalence check and prediction.

None of it decides about speed. What traces say is taken from rank 0's, all runs as one (`documents.runs.over_runs`);
any other figure is the median over the runs, None where no run measured it. A trace without GPU work measures no syncs
and no GPU figures.

The wait for data is that of the unprofiled steps. Where a GPU works meanwhile it costs nothing: the profiled window
says which part of the wait had the GPU idle, and that part of the unprofiled wait counts. Without a GPU all of it does.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
import pandas as pd
from msgspec.structs import replace

from steptrace.analysis.input import verdict_on
from steptrace.compare.load import MeasuredRun, VariantRuns, error_of, error_without_process
from steptrace.documents.compiled import WITHOUT_BREAKS
from steptrace.documents.compiled_figures import CompiledFigures
from steptrace.documents.equivalence import Equivalence, EquivalenceResult
from steptrace.documents.estimate import Estimate
from steptrace.documents.loader_wait import LoaderWait, LoadingParts
from steptrace.documents.note import Note, note
from steptrace.documents.prediction import PredictedStep
from steptrace.documents.ranks import Ranks
from steptrace.documents.run import Communication, InputOfRun, RunMemory
from steptrace.documents.runs import over_runs
from steptrace.documents.steps import STEP_FIGURES
from steptrace.documents.summary import TraceSummary
from steptrace.documents.sync_counts import SyncCounts, UnknownPlace
from steptrace.documents.syncs import Place
from steptrace.engine.kinds import step_groups
from steptrace.errors import RecordError
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.step import estimate_variants, followed_step
from steptrace.format import NS_PER_MS
from steptrace.run_folder import (
    PREDICTION_FILE,
    STATUS_FILE,
    read_communication,
    read_equivalence,
    read_memory,
    read_prediction,
    read_rows,
    read_status,
    read_warned_syncs,
)
from steptrace.words.estimate import with_reasons

EQUIVALENCE_FOLDER: Final = "equivalence"
PREDICTION_FOLDER: Final = "prediction"
NOT_MEASURED: Final[Literal["not measured"]] = "not measured"

_PLACE = Place.__struct_fields__

_Item = TypeVar("_Item")


def trace_of(variant: VariantRuns) -> TraceSummary | None:
    """`trace` of comparison.json: rank 0's traces of the runs as one, without pictures; None without any."""
    if not variant.traces:
        return None
    return replace(over_runs(variant.traces), findings=(), timeline=None)


def ranks_of(variant: VariantRuns) -> Ranks | None:
    """`ranks` of comparison.json: all ranks' traces together, the runs that have it as one, without pictures."""
    ranks = [run.summary.ranks for run in variant.measured if run.summary is not None and run.summary.ranks is not None]
    return replace(over_runs(ranks), findings=(), timeline=None) if ranks else None


def communication(variant: VariantRuns) -> Communication | None:
    """`communication` of comparison.json; None for a variant that trains in one process."""
    records = _recorded(variant, read_communication)
    return over_runs(records) if records else None


def figures(variant: VariantRuns, trace: TraceSummary | None) -> dict[str, Any]:
    """The single figures of comparison.json that come from profiled windows, from NVML and from the runs' records."""
    runs = variant.measured
    return {
        **{figure.name: None if trace is None else getattr(trace, figure.name) for figure in STEP_FIGURES},
        "nvml_util_pct": _median_of(
            [run.record.nvml for run in runs if run.record.nvml is not None], lambda nvml: nvml.utilisation_pct
        ),
        "joules_per_step": _median_of(runs, _joules_per_step),
        "profiled_over_unprofiled": _median_of(
            [run for run in runs if len(run.profiled_ns)],
            lambda run: float(np.median(run.profiled_ns)) / run.times.median_ns,
        ),
        "synced_sections_ms": _synced_sections(runs),
        "peak_allocated_bytes": max(
            (run.record.peak_allocated_bytes for run in runs if run.record.peak_allocated_bytes is not None),
            default=None,
        ),
        "batch_bytes": next((run.record.batch_bytes for run in runs if run.record.batch_bytes is not None), None),
        "compiled": compiled_figures(variant),
    }


def compiled_figures(variant: VariantRuns) -> CompiledFigures | None:
    """`compiled` of comparison.json, by the runs or, if no run compiled anything, by the prediction; or None."""
    records = [run.record.compiled for run in variant.measured if run.record.compiled is not None]
    if records:
        return CompiledFigures(
            graph_breaks=max(sum(not broken.by_pytorch for broken in place.breaks) for place in records),
            recompilations=max(sum(guard.recompilations for guard in place.recompilations) for place in records),
            compile_ms=_median_ms(records, lambda code: code.compile_ns),
        )
    prediction = followed_prediction(variant.path)
    compiled = None if prediction is None else prediction.followed.compiled
    if compiled is None:
        return None
    unknown = any(code.unlowered in WITHOUT_BREAKS for code in compiled.codes)
    breaks = dict.fromkeys(
        graph_break for code in compiled.codes for graph_break in code.breaks if not graph_break.by_pytorch
    )
    return CompiledFigures(
        graph_breaks=None if unknown else len(breaks),
        recompilations=None if unknown else compiled.recompilations,
        compile_ms=None,
        predicted_breaks=tuple(breaks),
        predicted_recompilations=tuple(guard for code in compiled.codes for guard in code.recompilations),
        predicted_limit_reached=any(code.unlowered == "kinds" for code in compiled.codes),
    )


def _joules_per_step(run: MeasuredRun) -> float | None:
    """The energy of a mean step; None where NVML did not say the power."""
    nvml = run.record.nvml
    return None if nvml is None or nvml.power_w is None else nvml.power_w * run.times.mean_ns * 1e-9


def sync_figures(variant: VariantRuns, trace: TraceSummary | None) -> tuple[dict[str, Any], list[Note]]:
    """The keys `syncs` and `predicted_...` of a variant in comparison.json, and notes.

    Sync counts are compared exactly: runs or steps that disagree are a warning, not an average to be trusted.
    """
    traces = [entry for entry in variant.traces if entry.used_gpu]
    counts = [entry.syncs.per_step for entry in traces if entry.syncs.per_step is not None]
    by_step = {count for entry in traces for count in entry.syncs.by_step or ()}
    notes = list[Note]()
    if len(set(counts)) > 1:
        notes.append(note("syncs_differ_between_runs", per_step=counts))
    elif len(by_step) > 1:
        notes.append(note("syncs_differ_between_steps", least=min(by_step), most=max(by_step)))
    prediction, problem = _prediction(variant.path)
    notes += [
        note("early_read", file=read.file, line=read.line)
        for read in (() if prediction is None else prediction.early_reads)
        if read.file is not None
    ]
    groups, often = ((), None) if prediction is None else step_groups(prediction.by_step, prediction.sites_by_step)
    if groups:
        notes.append(note("predicted_syncs_differ", groups=[asdict(group) for group in groups], often=often))
    return {
        "syncs": SyncCounts(
            measured_per_step=trace.syncs.per_step if trace is not None and trace.used_gpu else None,
            predicted_per_step=None if prediction is None else prediction.syncs_per_step,
            predicted_not_judged=None if prediction is None else len(prediction.not_covered),
            predicted_batch_size=None if prediction is None else prediction.batch_size,
            warned_per_step=_warned(variant),
            predicted_steps=None if prediction is None else prediction.followed.steps,
        ),
        "predicted_branches": () if prediction is None else prediction.branches,
        "predicted_awaited": () if prediction is None else prediction.awaited,
        "predicted_sites": () if prediction is None else tuple(site.site for site in prediction.sites),
        "predicted_unknown": tuple(
            UnknownPlace(
                **{name: getattr(unknown, name) for name in _PLACE},
                reason=unknown.reason,
                count_per_step=unknown.count_per_step,
            )
            for unknown in (() if prediction is None else prediction.not_covered)
        ),
    }, notes + problem


def equivalence(variant_dir: Path) -> Equivalence:
    """`equivalence` of comparison.json: `same`, `differs`, `failed` (with how it ended) or `not measured`."""
    folder = variant_dir / EQUIVALENCE_FOLDER
    if not (folder / STATUS_FILE).exists():
        return Equivalence(status=NOT_MEASURED)
    try:
        status = read_status(folder)
        if status.status != "ok":
            return Equivalence(status="failed", failure=error_of(status))
        result = read_equivalence(folder)
    except RecordError as error:
        return Equivalence(status="failed", failure=error_without_process("failed", str(error)))
    names = (name for name in Equivalence.__struct_fields__ if name in EquivalenceResult.__struct_fields__)
    return Equivalence(**{name: getattr(result, name) for name in names})


def memory_of(variant: VariantRuns) -> RunMemory | None:
    """`memory` of a variant in comparison.json: its runs' records as one; None without any."""
    records = _recorded(variant, read_memory)
    return over_runs(records) if records else None


def _recorded(variant: VariantRuns, read: Callable[[Path], _Item | None]) -> list[_Item]:
    """The records of the measured runs; a record that cannot be read is left out, as step times do not need it."""
    records = []
    for run in variant.runs:
        with suppress(RecordError):
            record = None if run.measured is None else read(run.path)
            records += [] if record is None else [record]
    return records


def estimates(variants: Sequence[VariantRuns], gpus: Sequence[Gpu]) -> dict[str, tuple[Estimate, ...]]:
    """The estimates of each variant for each GPU, compared with those of its baseline.

    A variant has none if its step could not be followed; its `syncs` say why.
    """
    predictions = {}
    for variant in variants if gpus else ():
        prediction = followed_prediction(variant.path)
        if prediction is not None:
            predictions[variant.name] = prediction
    followed = {name: followed_step(prediction) for name, prediction in predictions.items()}
    baselines = {variant.name: variant.baseline for variant in variants}
    of_gpus = [estimate_variants(followed, baselines, gpu, predictions=predictions) for gpu in gpus]
    return {
        variant.name: tuple(with_reasons(of_gpu[variant.name]) for of_gpu in of_gpus)
        if variant.name in followed
        else ()
        for variant in variants
    }


def followed_prediction(variant_dir: Path) -> PredictedStep | None:
    """A variant's prediction with its operators, None where there is none that can be read."""
    if not (variant_dir / PREDICTION_FILE).is_file():
        return None
    try:
        prediction = read_prediction(variant_dir)
    except RecordError:
        return None
    return prediction if prediction.followed.operator_calls else None


def _median_of(items: Sequence[_Item], figure: Callable[[_Item], float | None]) -> float | None:
    """Median of a figure over the items that have it; None if none has. Whole numbers stay whole."""
    values = [value for item in items if (value := figure(item)) is not None]
    if not values:
        return None
    middle = float(np.median(values))
    return int(middle) if middle.is_integer() else middle


def _median_ms(items: Sequence[_Item], ns: Callable[[_Item], float | None]) -> float | None:
    """Median of a figure in nanoseconds over the runs that have it, in milliseconds."""
    return _median_of(items, lambda item: None if (value := ns(item)) is None else value / NS_PER_MS)


def _synced_sections(runs: Sequence[MeasuredRun]) -> dict[str, float] | None:
    """Milliseconds of each section in the pass with a sync around it: median over steps, then over runs."""
    tables = [run.sections for run in runs if run.sections is not None]
    if not tables:
        return None
    by_run = [table.groupby("section", sort=False)["section_ns"].median() for table in tables]
    names = list(dict.fromkeys(name for medians in by_run for name in medians.index))
    return {
        name: float(np.median([medians[name] for medians in by_run if name in medians])) / NS_PER_MS for name in names
    }


def _warned(variant: VariantRuns) -> float | None:
    """The syncs per step that PyTorch's own check warned of: the median of the runs that used it."""
    return _median_of(_recorded(variant, read_warned_syncs), lambda warned: warned.per_step)


def _prediction(variant_dir: Path) -> tuple[PredictedStep | None, list[Note]]:
    """A variant's prediction, None if there is none, and a note if there should be one."""
    try:
        if (variant_dir / PREDICTION_FOLDER / STATUS_FILE).exists():
            status = read_status(variant_dir / PREDICTION_FOLDER)
            if status.status != "ok":  # whatever file there is was left by an earlier prediction
                return None, [note("not_predicted", error=status.error or status.status)]
        elif not (variant_dir / PREDICTION_FILE).exists():
            return None, []
        prediction = read_prediction(variant_dir)
    except RecordError as error:
        return None, [note("prediction_not_used", reason="; ".join(map(str.strip, str(error).splitlines())))]
    if not prediction.ran_on_gpu:
        # A program that never asks for a GPU never waits for one. A count of 0 would praise it for that.
        return None, [note("nothing_predicted")]
    return prediction, []


#: The parts of loading a batch, in the order a batch goes through them.
_LOADING: Final = ("fetch", "collate", "pin", "copy")


def input_figures(variant: VariantRuns) -> LoaderWait | None:
    """`input` of a variant: medians over its runs, None for figures that no run measured.

    `wait_ms` and `step_ms` are means over the same unprofiled steps, so that `share` (0 to 1) is `counted_ms` over
    `step_ms` in every run. `idle_part` is the share of the wait in which the GPU was idle.
    """
    runs = variant.measured
    if not runs:
        return None
    share = _median_of(runs, lambda run: _counted(run, run.wait_share))
    return LoaderWait(
        workers=runs[0].record.workers,
        wait_ms=_median_ms(runs, lambda run: run.wait_ns),
        counted_ms=_median_ms(runs, lambda run: _counted(run, run.wait_ns)),
        step_ms=_median_ms(runs, lambda run: float(run.times.counted.mean())),
        idle_part=_median_of(runs, lambda run: _idle_part(run) if _on_gpu(run) else None),
        share=share,
        verdict=verdict_on(share),
        breakdown_ms=_breakdown(variant),
    )


def _counted(run: MeasuredRun, wait: float | None) -> float | None:
    """The part of a wait that counts."""
    part = _idle_part(run)
    return None if part is None or wait is None else part * wait


def _idle_part(run: MeasuredRun) -> float | None:
    """The part of the wait that counts: with a GPU as the trace says, and all of it without one."""
    if not _on_gpu(run):
        return 1.0
    traced = None if run.trace is None else run.trace.input
    if traced is None or not traced.wait_ns or traced.gpu_idle_wait_ns is None:
        return None
    return traced.gpu_idle_wait_ns / traced.wait_ns


def _on_gpu(run: MeasuredRun) -> bool:
    return run.record.device == "cuda"


def _breakdown(variant: VariantRuns) -> LoadingParts | None:
    """Milliseconds a batch in each part of loading; None without such a pass."""
    tables = _recorded(variant, lambda folder: read_rows(folder, InputOfRun))
    if not tables:
        return None
    by_run = [{part: _median(table[f"{part}_ns"]) for part in _LOADING} for table in tables]
    return LoadingParts(**{part: _median_ms(by_run, itemgetter(part)) for part in _LOADING})


def _median(values: "pd.Series[Any]") -> float | None:
    measured = values.dropna().to_numpy(dtype=np.float64)
    return float(np.median(measured)) if len(measured) else None
