"""What the traces, NVML, the synchronised sections, the equivalence check and the prediction say of a variant.

None of it decides about speed. A figure is the median over the variant's runs (for sites: of each site), taken from
rank 0's trace; None where no run measured it. A trace without GPU work measures no syncs and no GPU figures.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
from msgspec.structs import asdict

from steptrace.compare.load import Measured, Variant, error_of, error_without_process
from steptrace.documents.base import convert
from steptrace.documents.comparison import (
    Breakdown,
    Equivalence,
    PredictedSite,
    SyncCounts,
    SyncSiteOfVariant,
    UnknownPlace,
)
from steptrace.documents.labels import Section
from steptrace.documents.step_figures import STEP_FIGURES
from steptrace.documents.summary import TraceSummary
from steptrace.documents.syncs import Place
from steptrace.errors import RecordError
from steptrace.files import read_versioned
from steptrace.format import NS_PER_MS
from steptrace.record import STATUS_FILE, WARNED_SYNCS_FILE, read_status

EQUIVALENCE_FOLDER: Final = "equivalence"
EQUIVALENCE_FILE: Final = "equivalence.json"
PREDICTION_FOLDER: Final = "prediction"
PREDICTION_FILE: Final = "prediction.json"
NOT_MEASURED: Final[Literal["not measured"]] = "not measured"

#: The parts of a step on the GPU; they add up to it.
_PARTS = ("compute", "exposed_comm", "exposed_memory", "idle")
#: What tells one sync site from another, as far as a trace says.
_PLACE = Place.__struct_fields__
_SITE_KEY = (*_PLACE, "kind")
_SITE_FIGURES = ("count", "blocked_ns", "exposed_idle_ns", "ceiling_ns")

_Item = TypeVar("_Item")


def trace_figures(variant: Variant) -> dict[str, Any]:
    """The figures of comparison.json that come from profiled windows and from NVML."""
    runs = variant.measured
    traces = variant.traces
    gpu_traces = [trace for trace in traces if _has_gpu_work(trace)]
    return {
        **{
            figure.key: median_of(gpu_traces if figure.needs_gpu else traces, attrgetter(figure.key))
            for figure in STEP_FIGURES
        },
        "nvml_util_pct": median_of([run.record.nvml or {} for run in runs], lambda nvml: nvml.get("utilisation_pct")),
        "profiled_over_unprofiled": median_of(
            [run for run in runs if len(run.profiled_ns)],
            lambda run: float(np.median(run.profiled_ns)) / run.times.median_ns,
        ),
        "sections_ms": _sections(traces, lambda section: section.host_ns_per_step),
        "sections_device_ms": _sections(gpu_traces, lambda section: section.device_ns_per_step),
        "synchronised_sections_ms": _synchronised_sections(runs),
        "breakdown_ms": _breakdown(gpu_traces),
        "loader_wait_ms": median_ms(runs, lambda run: run.wait_ns),
        "loader_wait_pct": median_of(runs, lambda run: None if run.wait_share is None else 100 * run.wait_share),
        "peak_allocated_bytes": max(
            (run.record.peak_allocated_bytes for run in runs if run.record.peak_allocated_bytes is not None),
            default=None,
        ),
        "batch_bytes": next((run.record.batch_bytes for run in runs if run.record.batch_bytes is not None), None),
    }


def sync_figures(variant: Variant) -> tuple[dict[str, Any], list[str]]:
    """`syncs`, `sync_sites` and `predicted_sites` of comparison.json, and warnings.

    Sync counts are compared exactly: runs or steps that disagree are a warning, not an average to be trusted.
    """
    traces = [trace for trace in variant.traces if _has_gpu_work(trace)]
    counts = [trace.syncs.per_step for trace in traces if trace.syncs.per_step is not None]
    by_step = {count for trace in traces for count in trace.syncs.by_step or ()}
    warnings = []
    if len(set(counts)) > 1:
        warnings.append(f"syncs per step differ between runs: {', '.join(f'{count:g}' for count in counts)}")
    elif len(by_step) > 1:
        warnings.append(f"syncs differ between steps: {min(by_step)} to {max(by_step)}")
    prediction, problem = _prediction(variant.path)
    predicted = [
        PredictedSite(**{name: site.get(name) for name in _SITE_KEY}, count_per_step=site.get("count"))
        for site in prediction.get("sites") or ()
    ]
    unknown = [
        UnknownPlace(**{name: place.get(name) for name in (*_PLACE, "reason")}, count_per_step=place.get("count"))
        for place in prediction.get("unknown") or ()
    ]
    sites = _sites([(list(map(asdict, trace.syncs.sites)), trace.quality.steps or 1) for trace in traces])
    warned = _warned(variant)
    return {
        "syncs": SyncCounts(
            measured_per_step=_plain(float(np.median(counts))) if counts else None,
            predicted_per_step=prediction.get("total"),
            predicted_not_judged=len(prediction.get("unknown") or ()) if prediction else None,
            predicted_batch_size=prediction.get("batch_size"),
            warned_per_step=median_of(warned, lambda record: record["per_step"]),
            ceiling_ns_per_step=median_of(
                [trace for trace in traces if trace.quality.steps],
                lambda trace: _per_step(trace.syncs.ceiling_ns, trace.quality.steps),
            ),
        ),
        "sync_sites": sites,
        "predicted_sites": predicted,
        "predicted_unknown": unknown,
    }, warnings + problem


def equivalence(variant_dir: Path) -> Equivalence:
    """`equivalence` of comparison.json: `same`, `differs`, `failed` (with how it ended) or `not measured`."""
    folder = variant_dir / EQUIVALENCE_FOLDER
    if not (folder / STATUS_FILE).exists():
        return Equivalence(status=NOT_MEASURED)
    try:
        status = read_status(folder)
        if status.status != "ok":
            return Equivalence(status="failed", failure=error_of(status))
        result = read_versioned(folder / EQUIVALENCE_FILE)
        if result.get("status") not in ("same", "differs", "not comparable"):
            raise RecordError("file holds no equivalence result", where=folder / EQUIVALENCE_FILE)
    except RecordError as error:
        return Equivalence(status="failed", failure=error_without_process("failed", str(error)))
    return convert({key: result.get(key) for key in Equivalence.__struct_fields__}, Equivalence)


def median_of(items: Sequence[_Item], figure: Callable[[_Item], float | None]) -> float | None:
    """Median of a figure over the items that have it; None if none has. Whole numbers stay whole."""
    values = [value for item in items if (value := figure(item)) is not None]
    return _plain(float(np.median(values))) if values else None


def median_ms(items: Sequence[_Item], ns: Callable[[_Item], float | None]) -> float | None:
    """The same of a figure in nanoseconds, as milliseconds."""
    return median_of(items, lambda item: None if (value := ns(item)) is None else value / NS_PER_MS)


def _plain(value: float) -> float:
    return int(value) if value.is_integer() else value


def _has_gpu_work(trace: TraceSummary) -> bool:
    return bool(trace.gpu.activities)


def _breakdown(traces: Sequence[TraceSummary]) -> Breakdown | None:
    """Mean milliseconds a step in each GPU part. Means, unlike medians, add up to the step."""
    steps = [
        (step.compute_ns, step.exposed_comm_ns, step.exposed_memory_ns, step.idle_ns)
        for trace in traces
        for step in trace.steps
    ]
    known = [tuple(ns for ns in step if ns is not None) for step in steps]
    if not known or any(len(step) < len(_PARTS) for step in known):
        return None
    sums = (sum(column) / len(known) / NS_PER_MS for column in zip(*known, strict=True))
    return Breakdown(**dict(zip(_PARTS, sums, strict=True)))


def _sections(traces: Sequence[TraceSummary], figure: Callable[[Section], float | None]) -> dict[str, float]:
    """Milliseconds a step of every `record_function` label, in the order of their first appearance."""
    found: dict[str, list[float]] = {}
    for trace in traces:
        for section in trace.sections:
            ns = figure(section)
            if ns is not None:
                found.setdefault(section.label, []).append(ns / NS_PER_MS)
    return {label: float(np.median(values)) for label, values in found.items()}


def _synchronised_sections(runs: Sequence[Measured]) -> dict[str, float] | None:
    """Milliseconds of each section in the pass that synchronises around it: median over steps, then over runs."""
    tables = [run.sections for run in runs if run.sections is not None]
    if not tables:
        return None
    by_run = [table.groupby("section", sort=False)["section_ns"].median() for table in tables]
    names = list(dict.fromkeys(name for medians in by_run for name in medians.index))
    return {
        name: float(np.median([medians[name] for medians in by_run if name in medians])) / NS_PER_MS for name in names
    }


def _sites(runs: Sequence[tuple[Sequence[Mapping[str, Any]], int]]) -> list[SyncSiteOfVariant]:
    """The sync sites of runs, each with its number of steps, most expensive first: medians, no site counting 0.

    A site that most traces do not have is left out; that their counts differ is a warning of its own.
    """
    found: dict[tuple[Any, ...], list[dict[str, float]]] = {}
    for of_run, steps in runs:
        for site in of_run:
            key = tuple(site.get(name) for name in _SITE_KEY)
            figures = {f"{name}_per_step": (site.get(name) or 0) / steps for name in _SITE_FIGURES}
            found.setdefault(key, []).append(figures)
    sites = []
    for key, rows in found.items():
        absent = [0.0] * (len(runs) - len(rows))
        medians = {name: _plain(float(np.median([row[name] for row in rows] + absent))) for name in rows[0]}
        if medians["count_per_step"]:
            sites.append(convert(dict(zip(_SITE_KEY, key, strict=True)) | medians, SyncSiteOfVariant))
    return sorted(sites, key=lambda site: (-(site.exposed_idle_ns_per_step or 0), -(site.blocked_ns_per_step or 0)))


def _per_step(total: float | None, steps: int) -> float | None:
    return None if total is None else total / steps


def _warned(variant: Variant) -> list[dict[str, Any]]:
    """What PyTorch's own check warned of in each run that asked it: `steps`, `per_step`, `sites`."""
    found = []
    for run in variant.runs:
        if run.measured is None or not (run.path / WARNED_SYNCS_FILE).exists():
            continue
        try:
            record = read_versioned(run.path / WARNED_SYNCS_FILE)
            sites = [dict.fromkeys(_SITE_KEY) | site for site in record["sites"]]
            found.append({"steps": record["steps"], "per_step": record["per_step"], "sites": sites})
        except (RecordError, KeyError, TypeError):
            continue  # the count is an extra: the trace's own stands without it
    return found


def _prediction(variant_dir: Path) -> tuple[dict[str, Any], list[str]]:
    """The content of a variant's prediction, empty if there is none, and a warning if there should be one."""
    path = variant_dir / PREDICTION_FILE
    try:
        if (variant_dir / PREDICTION_FOLDER / STATUS_FILE).exists():
            status = read_status(variant_dir / PREDICTION_FOLDER)
            if status.status != "ok":  # whatever file there is was left by an earlier prediction
                return {}, [f"syncs could not be predicted: {status.error or status.status}"]
        elif not path.exists():
            return {}, []
        prediction = read_versioned(path)
    except RecordError as error:
        return {}, [f"prediction not used: {error.what}"]
    if prediction.get("operators") == 0 and not prediction.get("total") and not prediction.get("unknown"):
        # What never asks for a GPU makes no host wait for one: that is no count of 0 to be praised for.
        return {}, ["no syncs are predicted: the program ran nothing on the virtual CUDA device that it was given"]
    return prediction, []
