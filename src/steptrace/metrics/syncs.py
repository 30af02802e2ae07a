"""Host synchronisations: how many, how long the host was blocked, and how long the GPU idled because of it.

What one synchronisation is, `steptrace.trace.syncs` decides; here its cost and its place in the program are found.
"""

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.intervals import Ints
from steptrace.metrics.busy import activity
from steptrace.trace.columns import row_numbers
from steptrace.trace.model import Trace
from steptrace.trace.source import SITE_COLUMNS, SourceLines, sites_of_syncs


def sync_costs(trace: Trace, device: int | None, lines: SourceLines | None = None) -> pd.DataFrame:
    """The trace's `syncs` (`op` under the name `op_row`) with `exposed_idle_ns` and the site of each.

    Exposed idle is the GPU's idle time from the sync's start to the start of the first GPU work launched after its
    end: a sync that blocks the host long while the GPU works costs nothing. Null without a GPU.
    """
    syncs = trace.syncs.rename(columns={"op": "op_row"})
    exposed = None if device is None else pd.array(_exposed_idle(trace, device), dtype="Int64")
    table = syncs.assign(exposed_idle_ns=pd.array([pd.NA] * len(syncs), dtype="Int64") if exposed is None else exposed)
    return pd.concat([table, sites_of_syncs(trace, lines)], axis=1)


def sync_sites(costs: pd.DataFrame, steps: int) -> pd.DataFrame:
    """The counted syncs of `sync_costs` per site and kind, the most blocking first.

    Returns the site's columns, `kind`, `count`, `blocked_ns`, `exposed_idle_ns`, and each of the three per step (null
    without steps).
    """
    counted = costs[costs["counted"].to_numpy()]
    keys = [*SITE_COLUMNS, "kind"]
    groups = counted.groupby(keys, dropna=False, sort=False)
    table = groups.agg(
        count=("blocked_ns", "size"),
        blocked_ns=("blocked_ns", "sum"),
        exposed_idle_ns=("exposed_idle_ns", lambda values: values.sum(min_count=1)),
    ).reset_index()
    for column in ("count", "blocked_ns", "exposed_idle_ns"):
        table[f"{column}_per_step"] = table[column] / steps if steps else pd.NA
    return table.sort_values(["blocked_ns", "count"], ascending=False, kind="stable").reset_index(drop=True)


def _exposed_idle(trace: Trace, device: int) -> Ints:
    syncs = trace.syncs
    gpu = activity(trace, device)
    first, last = gpu.span
    idle = intervals.complement(gpu.busy, first, last)
    kernels = trace.kernels[((trace.kernels["device"] == device) & trace.kernels["launch"].notna()).to_numpy()]
    launched = trace.launches["ts"].to_numpy()[row_numbers(kernels["launch"])]
    order = np.argsort(launched, kind="stable")
    # The earliest start among the work launched at or after each launch.
    start = np.minimum.accumulate(kernels["ts"].to_numpy()[order][::-1])[::-1]
    start = np.append(start, last)
    sync_start = syncs["ts"].to_numpy()
    until = start[np.searchsorted(launched[order], sync_start + syncs["dur"].to_numpy(), side="left")]
    return intervals.measure_within(idle, sync_start, until)
