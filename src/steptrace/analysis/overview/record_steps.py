"""`steps`, `sections`, `operators_per_step`, `kernels_per_step`: the training steps and what they called."""

from typing import Any

import pandas as pd

from steptrace.analysis.common import steps
from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.program import sections

_COLUMNS = [
    "index", "start_ns", "dur_ns", "host_dur_ns", "busy_ns", "compute_ns", "exposed_comm_ns", "exposed_memory_ns",
    "idle_ns",
]  # fmt: skip


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`section_times` per step, `sections` as medians over the steps."""
    times = sections.section_times(analysis.trace, analysis.device)
    return {"section_times": times, "sections": sections.section_medians(times, len(analysis.trace.steps))}


def record(analysis: Analysis) -> dict[str, Any]:
    """Each step's time, and medians over the steps of the operators called and the kernels launched."""
    trace, device = analysis.trace, analysis.device
    counted = len(trace.steps) > 0
    operators = counted and len(trace.ops) > 0
    return {
        "steps": records(analysis.tables["step_times"][_COLUMNS]),
        "sections": records(analysis.tables["sections"]),
        "operators_per_step": float(steps.operators_per_step(trace).median()) if operators else None,
        "kernels_per_step": float(steps.kernels_per_step(trace, device).median())
        if counted and device is not None
        else None,
    }
