"""`timeline`: one step, the median one, as a picture shows it."""

from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis
from steptrace.analysis.timeline import measure as timeline


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`timeline_lanes` and `timeline`, from the costs of the syncs and the idle gaps found before."""
    of = analysis.tables
    return timeline.timeline(analysis.trace, analysis.device, of["sync_costs"], of.get("idle_gaps"))


def record(analysis: Analysis) -> dict[str, Any]:
    """The lanes with their boxes; None where nothing happened."""
    return {"timeline": timeline.summary(analysis.trace, analysis.tables)}
