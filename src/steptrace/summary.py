"""summary.json: what one set of traces says, in numbers. What was not measured is null, never 0."""

import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from steptrace.metrics import busy, idle, kernels, sections, steps, syncs
from steptrace.trace.find import find_traces
from steptrace.trace.link import read_trace
from steptrace.trace.model import TABLES, Trace
from steptrace.trace.source import SourceLines, load_source_lines

SCHEMA_VERSION = 1

#: Below this share of GPU work with a known launch, figures that follow launches are doubtful.
LAUNCH_COVERAGE_WARNING = 0.95

_PER_STEP = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")


@dataclass(frozen=True)
class Analysis:
    """One trace with every metric's table. `device` is the GPU they are about, None for a trace without GPU work."""

    path: Path
    trace: Trace
    device: int | None
    tables: dict[str, pd.DataFrame]


def analyze(path: Path) -> Analysis:
    """Read one trace and compute every table. Of several GPUs the one with the most activity time is taken.

    Raises:
        TraceError: the trace, or a file recorded beside it, cannot be read.
    """
    trace = read_trace(path)
    device = trace.devices[0] if trace.devices else None
    lines = load_source_lines(path)
    return Analysis(path, trace, device, _tables(trace, device, lines))


def _tables(trace: Trace, device: int | None, lines: SourceLines) -> dict[str, pd.DataFrame]:
    costs = syncs.sync_costs(trace, device, lines)
    times = sections.section_times(trace, device)
    tables = {
        "step_times": steps.step_times(trace, device),
        "sync_costs": costs,
        "sync_sites": syncs.sync_sites(trace, device, costs),
        "section_times": times,
        "sections": sections.section_medians(times, len(trace.steps)),
        "idle_by_stream": idle.idle_by_stream(trace),
    }
    if device is not None:
        tables["kernel_names"] = kernels.kernel_table(trace, device)
        tables["idle_gaps"] = idle.idle_gaps(trace, device)
    return tables


def summarize(paths: Iterable[str | Path]) -> tuple[dict[str, Any], list[Analysis]]:
    """The summary of all traces behind `paths` (files or folders), by rank, and the analyses behind it.

    Raises:
        TraceError: a path is missing, or a trace cannot be read.
    """
    analyses = [analyze(path) for path in find_traces(paths)]
    analyses.sort(key=lambda a: (a.trace.rank is None, a.trace.rank or 0, str(a.path)))
    entries = [summarize_trace(analysis) for analysis in analyses]
    ranks = [entry["rank"] for entry in entries]
    for entry in entries:
        if entry["rank"] is not None and ranks.count(entry["rank"]) > 1:
            entry["quality"]["warnings"].append(
                f"{ranks.count(entry['rank'])} traces say that they are rank {entry['rank']}"
            )
    return {"schema_version": SCHEMA_VERSION, "traces": entries}, analyses


def summarize_trace(analysis: Analysis) -> dict[str, Any]:
    """One entry of `traces` in summary.json."""
    trace, device, tables = analysis.trace, analysis.device, analysis.tables
    gpu = None if device is None else busy.gpu_time(trace, device)
    return {
        "path": str(analysis.path),
        "sha256": _sha256(analysis.path),
        "rank": trace.rank,
        "world_size": trace.meta.world_size,
        "device": device,
        "device_name": trace.meta.device_name(device),
        "window_ns": trace.window[1] - trace.window[0],
        "quality": {
            "steps": len(trace.steps),
            "launch_coverage": None if device is None else float(trace.kernels["launch"].notna().mean()),
            "warnings": _warnings(trace),
        },
        "gpu": _gpu_record(gpu),
        "devices": [{"device": other, **_gpu_record(busy.gpu_time(trace, other))} for other in trace.devices],
        **_utilisation(trace, device),
        "steps": _step_records(tables["step_times"]),
        "sections": records(tables["sections"]),
        **_counts(trace, device),
        "kernels": records(tables["kernel_names"]) if device is not None else [],
        "idle": {
            "by_stream": records(tables["idle_by_stream"]),
            "by_cause": None if device is None else idle.idle_by_cause(trace, device),
        },
        "syncs": _sync_record(trace, device, tables),
    }


def _gpu_record(gpu: busy.GpuTime | None) -> dict[str, Any]:
    if gpu is None:
        return {**{f.name: None for f in fields(busy.GpuTime)}, "activities": 0, "overlap_pct": None}
    return {**asdict(gpu), "overlap_pct": gpu.overlap_pct}


def _utilisation(trace: Trace, device: int | None) -> dict[str, float | None]:
    """Busy and SM-weighted share of the steps' time (of the GPU's span, if there are no steps), in percent."""
    if device is None:
        return {"gpu_busy_pct": None, "sm_weighted_pct": None}
    gpu = busy.activity(trace, device)
    start = trace.steps["ts"].to_numpy()
    end = start + trace.steps["dur"].to_numpy()
    if len(start) == 0:
        start, end = np.array([gpu.span[0]]), np.array([gpu.span[1]])
    share = busy.busy_share(gpu, start, end)
    weighted = busy.sm_weighted_share(trace, device, start, end)
    return {
        "gpu_busy_pct": None if share is None else 100.0 * share,
        "sm_weighted_pct": None if weighted is None else 100.0 * weighted,
    }


def _step_records(times: pd.DataFrame) -> list[dict[str, Any]]:
    return records(times[["index", "start_ns", "dur_ns", "host_dur_ns", "busy_ns", *_PER_STEP]])


def _counts(trace: Trace, device: int | None) -> dict[str, float | None]:
    """Medians over the steps of the operators called and the kernels launched; null without steps."""
    if len(trace.steps) == 0:
        return {"operators_per_step": None, "kernels_per_step": None}
    return {
        "operators_per_step": float(steps.operators_per_step(trace).median()) if len(trace.ops) else None,
        "kernels_per_step": None if device is None else float(steps.kernels_per_step(trace, device).median()),
    }


def _sync_record(trace: Trace, device: int | None, tables: dict[str, pd.DataFrame]) -> dict[str, Any]:
    costs = tables["sync_costs"]
    counted = costs[costs["counted"].to_numpy()]
    steps_ = len(trace.steps)
    # Without a single call into a GPU's runtime nothing was there to synchronise: 0 found, but nothing measured.
    measured = len(trace.launches) > 0
    in_step = costs["step"].notna() if steps_ else pd.Series(True, index=costs.index)
    return {
        "count": len(counted),
        "per_step": len(counted) / steps_ if steps_ and measured else None,
        "by_step": np.bincount(counted["step"].astype("int64"), minlength=steps_).tolist()
        if steps_ and measured
        else None,
        "blocked_ns": int(counted["blocked_ns"].sum()),
        "exposed_idle_ns": syncs.exposed_idle(trace, device, counted),
        "by_kind": {str(kind): int(n) for kind, n in counted["kind"].value_counts().sort_index().items()},
        "outside_steps": int((~in_step).sum()),
        "other_threads": int((in_step & ~costs["counted"]).sum()),
        "sites": records(tables["sync_sites"]),
    }


def _warnings(trace: Trace) -> list[str]:
    found = list(trace.meta.notes)
    if len(trace.steps) == 0:
        found.append("no step annotation (ProfilerStep#N): figures cover the whole trace, per-step figures are missing")
    if len(trace.kernels) == 0:
        found.append("no GPU activity: GPU figures were not measured")
        return found
    linked = trace.kernels["launch"].notna()
    if linked.mean() < LAUNCH_COVERAGE_WARNING:
        found.append(f"{int((~linked).sum())} of {len(linked)} GPU activities have no launch in the trace")
    if len(trace.devices) > 1:
        found.append(f"GPU work on {len(trace.devices)} devices: figures are of device {trace.devices[0]}")
    index = trace.steps["index"].to_numpy()
    if len(index) and not (np.diff(index) == 1).all():
        found.append(f"steps are not numbered one after the other: {', '.join(map(str, index))}")
    idle_steps = np.setdiff1d(np.arange(len(index)), trace.kernels["step"].dropna().astype("int64"))
    if len(idle_steps):
        found.append(f"{len(idle_steps)} of {len(index)} steps launched no GPU work")
    return found


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as plain JSON values; missing ones are None."""
    return [
        {str(name): _plain(value) for name, value in row.items()} for row in table.astype(object).to_dict("records")
    ]


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_tables(analyses: list[Analysis], out: Path) -> None:
    """Write every table of every trace to `out/trace<k>/<name>.parquet`, k counting as in summary.json."""
    for k, analysis in enumerate(analyses):
        folder = out / f"trace{k}"
        folder.mkdir(parents=True, exist_ok=True)
        tables = {**{name: getattr(analysis.trace, name) for name in TABLES}, **analysis.tables}
        for name, table in tables.items():
            table.to_parquet(folder / f"{name}.parquet", index=False)
