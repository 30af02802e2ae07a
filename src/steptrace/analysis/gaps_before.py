"""GPU idle time by the activity that ends each gap, beside the activity's own time."""

import pandas as pd

from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.idle import idle_gaps
from steptrace.documents.gaps_before import GapBefore
from steptrace.documents.table import frame_of
from steptrace.trace.model import Trace, once


@once
def gaps_before(trace: Trace) -> pd.DataFrame:
    """The table `gaps_before` of the analysed GPU, by the name of the first activity after each gap, longest first."""
    gaps = idle_gaps(trace)
    kernels = trace.kernels[(trace.kernels["device"] == trace.device).to_numpy()]
    before = gaps.set_index("kernel")["dur"].reindex(kernels.index, fill_value=0)
    short = {name: short_name(name) for name in kernels["name"].unique()}
    rows = pd.DataFrame(
        {
            "name": kernels["name"].astype(object).map(short).to_numpy(),
            "ns": kernels["dur"].to_numpy(),
            "gap_ns": before.to_numpy(),
            "gap": (before > 0).to_numpy(),
        }
    )
    table = rows.groupby("name", as_index=False).agg(
        count=("ns", "size"),
        gaps=("gap", "sum"),
        gap_ns=("gap_ns", "sum"),
        longest_ns=("gap_ns", "max"),
        ns=("ns", "sum"),
    )
    table = table[table["gaps"] > 0].sort_values(["gap_ns", "name"], ascending=[False, True], ignore_index=True)
    return frame_of(GapBefore, table)
