"""GPU idle time by the activity that ends each gap, beside the activity's own time."""

import numpy as np
import pandas as pd

from steptrace.analysis.common.kernel_names import short_name
from steptrace.analysis.idle import idle_gaps
from steptrace.documents.gaps_before import GapBefore
from steptrace.documents.table import frame_of
from steptrace.trace.columns import row_numbers
from steptrace.trace.model import Trace, once


@once
def gaps_before(trace: Trace) -> pd.DataFrame:
    """The table `gaps_before` of the analysed GPU, by the name of the first activity after each gap, longest first."""
    gaps = idle_gaps(trace)
    gap_ns = np.zeros(len(trace.kernels), dtype=np.int64)
    gap_ns[row_numbers(gaps["kernel"])] = gaps["dur"].to_numpy()
    analysed = (trace.kernels["device"] == trace.device).to_numpy()
    gap_ns = gap_ns[analysed]
    rows = pd.DataFrame(
        {
            "name": trace.kernels["name"].array[analysed],
            "count": 1,
            "gaps": gap_ns > 0,
            "gap_ns": gap_ns,
            "longest_ns": gap_ns,
            "ns": trace.kernels["dur"].to_numpy()[analysed],
        }
    )
    of_names = {"count": "sum", "gaps": "sum", "gap_ns": "sum", "longest_ns": "max", "ns": "sum"}
    table = rows.groupby("name", observed=True, as_index=False).agg(of_names)
    table["name"] = table["name"].map(short_name).astype(object)
    table = table.groupby("name", as_index=False).agg(of_names)
    table = table[table["gaps"] > 0].sort_values(["gap_ns", "name"], ascending=[False, True], ignore_index=True)
    return frame_of(GapBefore, table)
