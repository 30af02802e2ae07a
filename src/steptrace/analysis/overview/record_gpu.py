"""`gpu`, `devices`, `temporal`, `gpu_busy_pct`, `sm_weighted_pct`: where each GPU's time went, whole and per step."""

from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pandas as pd

from steptrace.analysis.common import busy, steps
from steptrace.analysis.common.analysis import Analysis, records
from steptrace.trace.model import Trace


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`step_times` of the analysed GPU, `temporal` of all of them."""
    return {
        "step_times": steps.step_times(analysis.trace, analysis.device),
        "temporal": steps.temporal_breakdown(analysis.trace),
    }


def record(analysis: Analysis) -> dict[str, Any]:
    """The breakdown of the analysed GPU, of each GPU, and of each step on each GPU."""
    trace, device = analysis.trace, analysis.device
    gpu = None if device is None else busy.gpu_time(trace, device)
    return {
        "gpu": _gpu_record(gpu),
        "devices": [{"device": other, **_gpu_record(busy.gpu_time(trace, other))} for other in trace.devices],
        "temporal": records(analysis.tables["temporal"]),
        **_utilisation(trace, device),
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
