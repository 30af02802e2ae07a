"""`host_gaps`: the gaps in the GPU's work that only the host explains, and the runtime calls it was in meanwhile."""

from dataclasses import asdict
from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis
from steptrace.analysis.idle import gaps as host_gaps


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """None of its own: the gaps stand in `idle_gaps`, the calls in `launches`."""
    del analysis
    return {}


def record(analysis: Analysis) -> dict[str, Any]:
    """The longest gaps with their calls, and what single long calls fill of all of them; None without a GPU."""
    if analysis.device is None:
        return {"host_gaps": None}
    found = host_gaps.host_gaps(analysis.trace, analysis.device, analysis.tables["idle_gaps"])
    return {"host_gaps": asdict(found)}
