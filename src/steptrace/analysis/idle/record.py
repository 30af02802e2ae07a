"""`idle`: why the GPU idled, per stream as Holistic Trace Analysis sorts it, and per gap of the device by cause."""

from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.idle import measure as idle

#: How many gaps, and what ended gaps, summary.json lists; the table `idle_gaps` has all.
MOST = 20


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`idle_by_stream` of all GPUs; `idle_gaps` of the analysed one."""
    found = {"idle_by_stream": idle.idle_by_stream(analysis.trace)}
    if analysis.device is not None:
        found["idle_gaps"] = idle.idle_gaps(analysis.trace, analysis.device)
    return found


def record(analysis: Analysis) -> dict[str, Any]:
    """Idle time by stream, by cause, by what ended the gaps, and the longest gaps."""
    by_stream = records(analysis.tables["idle_by_stream"])
    if analysis.device is None:
        return {"idle": {"by_stream": by_stream, "by_cause": None, "gaps": None, "ended_by": [], "longest": []}}
    gaps = analysis.tables["idle_gaps"]
    return {
        "idle": {
            "by_stream": by_stream,
            "by_cause": {cause: int(gaps.loc[gaps["cause"] == cause, "dur"].sum()) for cause in idle.CAUSES},
            # One activity has nothing between it and another: no gap was there to be found.
            "gaps": len(gaps) if (analysis.trace.kernels["device"] == analysis.device).sum() > 1 else None,
            "ended_by": records(idle.gap_endings(gaps).head(MOST)),
            "longest": records(gaps.sort_values(["dur", "ts"], ascending=[False, True]).head(MOST)),
        }
    }
