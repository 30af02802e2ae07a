"""`syncs`: host synchronisations with their cost and the line that each stands on."""

import numpy as np
import pandas as pd

from steptrace.analysis.common.analysis import Analysis
from steptrace.analysis.syncs import measure
from steptrace.documents.summary import Syncs, SyncSite


def syncs(analysis: Analysis) -> Syncs:
    """Counts, blocked time and exposed idle of the counted syncs, by kind and by site.

    `caused_idle_ns` is what of the exposed idle lies in gaps whose cause is a sync; the rest has another one, such as
    the pause from one queued kernel to the next.
    """
    trace, costs = analysis.trace, analysis.tables["sync_costs"]
    counted = costs[costs["counted"].to_numpy()]
    steps = len(trace.steps)
    # Without a single call into a GPU's runtime nothing was there to synchronise: 0 found, but nothing measured.
    measured = len(trace.launches) > 0
    in_step = costs["step"].notna() if steps else pd.Series(True, index=costs.index)
    per_step = np.bincount(counted["step"].astype("int64"), minlength=steps).tolist() if steps and measured else None
    gaps = analysis.tables.get("idle_gaps")
    return Syncs(
        count=len(counted),
        per_step=len(counted) / steps if steps and measured else None,
        by_step=None if per_step is None else tuple(per_step),
        blocked_ns=int(counted["blocked_ns"].sum()),
        exposed_idle_ns=measure.exposed_idle(trace, analysis.device, counted),
        caused_idle_ns=None if gaps is None else measure.caused_idle(counted, gaps),
        by_kind={str(kind): int(n) for kind, n in counted["kind"].value_counts().sort_index().items()},
        outside_steps=int((~in_step).sum()),
        other_threads=int((in_step & ~costs["counted"]).sum()),
        sites=analysis.rows("sync_sites", SyncSite),
    )
