"""`input`: how long the steps waited for their data, and whether that is much."""

from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.input import measure as waiting


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`input_waits`, one row a step."""
    return {"input_waits": waiting.input_waits(analysis.trace, analysis.device)}


def record(analysis: Analysis) -> dict[str, Any]:
    """The waits of all steps together, of each step, and the verdict with its thresholds."""
    table = analysis.tables["input_waits"]
    found = waiting.input_wait(analysis.trace, analysis.device, table)
    return {
        "input": {
            "source": found.source,
            "steps": found.steps,
            "window_ns": found.window_ns,
            "waits": found.waits,
            "wait_ns": found.wait_ns,
            "gpu_idle_wait_ns": found.gpu_idle_wait_ns,
            "counted_ns": found.counted_ns,
            "share": found.share,
            "verdict": found.verdict,
            "threshold_moderate": waiting.MODERATE_SHARE,
            "threshold_high": waiting.HIGH_SHARE,
            "by_step": records(table) if found.steps else [],
        }
    }
