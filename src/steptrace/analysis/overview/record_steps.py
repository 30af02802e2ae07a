"""`steps`, `sections` and the figures of a step: the training steps and what they called."""

from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.overview.step_figures import step_figures
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
    """Each step's time, the sections' medians, and every figure of a step."""
    return {
        "steps": records(analysis.tables["step_times"][_COLUMNS]),
        "sections": records(analysis.tables["sections"]),
        **step_figures(analysis.trace, analysis.device),
    }
