"""`step_parts`, `whatif`, and the price of each site: what its synchronisations cost at most, and what is saved."""

from dataclasses import asdict
from typing import Any

import pandas as pd

from steptrace.analysis.common.analysis import Analysis, records
from steptrace.analysis.overview import parts
from steptrace.analysis.syncs import whatif


def tables(analysis: Analysis) -> dict[str, pd.DataFrame]:
    """`sync_sites` once more, with `ceiling_ns` and `saved_ns`: null without a GPU; with one `whatif`, of one row."""
    sites = analysis.tables["sync_sites"]
    if analysis.device is None:
        none = pd.array([pd.NA] * len(sites), dtype="Int64")
        return {"sync_sites": sites.assign(ceiling_ns=none, saved_ns=none)}
    sites, together = whatif.sync_prices(analysis.trace, analysis.tables["sync_costs"], sites)
    return {"sync_sites": sites, "whatif": together}


def record(analysis: Analysis) -> dict[str, Any]:
    """The steps' time in parts that add up to it (null without steps); `whatif` of all steps (null without a GPU)."""
    divided = parts.step_parts(analysis.trace, analysis.device)
    return {
        "step_parts": None if divided is None else asdict(divided),
        "whatif": records(analysis.tables["whatif"])[0] if "whatif" in analysis.tables else None,
    }
