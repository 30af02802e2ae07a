"""`collectives`: what the analysed GPU communicated, and what of it computation did not hide."""

from typing import Any

import pandas as pd

from steptrace.metrics import collectives
from steptrace.summary.analysis import Analysis, records


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`collective_times` of the analysed GPU."""
    if analysis.device is None:
        return {}
    return {"collective_times": collectives.collective_times(analysis.trace, analysis.device)}


def record(analysis: Analysis) -> dict[str, Any]:
    """The collectives by name and by step; null without a GPU."""
    times = analysis.tables.get("collective_times")
    if times is None:
        return {"collectives": None}
    return {
        "collectives": {
            "count": len(times),
            "by_name": records(collectives.collectives_by_name(times)),
            "by_step": records(collectives.collectives_by_step(times, analysis.trace)),
        }
    }
