"""`gpu`, `devices`, `temporal`: where each GPU's time went, whole and per step."""

from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from steptrace.analysis.common import busy, steps
from steptrace.analysis.common.analysis import Analysis, records


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
    }


def _gpu_record(gpu: busy.GpuTime | None) -> dict[str, Any]:
    if gpu is None:
        return {**{f.name: None for f in fields(busy.GpuTime)}, "activities": 0, "overlap_pct": None}
    return {**asdict(gpu), "overlap_pct": gpu.overlap_pct}
