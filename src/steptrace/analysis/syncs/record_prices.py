"""`step_parts`, `whatif`, and the price of each site: what its synchronisations cost at most, and by replay."""

from dataclasses import asdict
from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis
from steptrace.analysis.overview import parts
from steptrace.analysis.syncs import whatif


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`sync_sites` once more, with `ceiling_ns` and `saved_ns`: null without a GPU."""
    sites = analysis.tables["sync_sites"]
    if analysis.device is None:
        none = pd.array([pd.NA] * len(sites), dtype="Int64")
        return {"sync_sites": sites.assign(ceiling_ns=none, saved_ns=none)}
    return {"sync_sites": whatif.sync_prices(analysis.trace, analysis.tables["sync_costs"], sites)}


def record(analysis: Analysis) -> dict[str, Any]:
    """The steps' time in parts that add up to it (null without steps); the replay (null without a GPU)."""
    divided = parts.step_parts(analysis.trace, analysis.device)
    costs = analysis.tables["sync_costs"]
    return {
        "step_parts": None if divided is None else asdict(divided),
        "whatif": None if analysis.device is None else whatif.whatif_record(analysis.trace, costs),
    }
