"""Host synchronisations: how many, how long the host was blocked, and how long the GPU idled because of it.

What one synchronisation is, `steptrace.trace.syncs` decides; here its cost and its place in the program are found.
"""

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.analysis import Analysis
from steptrace.analysis.common.busy import activity
from steptrace.documents.summary import Syncs, SyncSite
from steptrace.intervals import Ints, Spans
from steptrace.trace.columns import row_numbers, spans_of
from steptrace.trace.model import Trace
from steptrace.trace.source import SITE_COLUMNS, SourceLines, sites_of_syncs


def sync_costs(trace: Trace, device: int | None, lines: SourceLines | None = None) -> pd.DataFrame:
    """The trace's `syncs` (`op` under the name `op_row`) with their cost and site.

    Adds `exposed_idle_ns`, the GPU's idle time from the sync's start to the start of the first GPU work launched after
    its end, and `exposed_until`, when that work started (or the GPU's last work ended). A sync that blocks the host
    long while the GPU works has no exposed idle, and costs nothing. Both are null without a GPU.
    """
    table = trace.syncs.rename(columns={"op": "op_row"})
    if device is None:
        none = pd.array([pd.NA] * len(table), dtype="Int64")
        table = table.assign(exposed_idle_ns=none, exposed_until=none)
    else:
        until = _next_work(trace, device)
        exposed = intervals.measure_within(idle_spans(trace, device), trace.syncs["ts"], until)
        table = table.assign(
            exposed_idle_ns=pd.array(exposed, dtype="Int64"), exposed_until=pd.array(until, dtype="Int64")
        )
    return pd.concat([table, sites_of_syncs(trace, lines)], axis=1)


def sync_sites(trace: Trace, device: int | None, costs: pd.DataFrame) -> pd.DataFrame:
    """The counted syncs of `sync_costs` per site and kind, the most blocking first.

    Returns the site's columns, `kind`, `count`, `blocked_ns`, `exposed_idle_ns`, and each of the three per step (null
    without steps). Idle time that several syncs of a site expose is counted once; different sites can share some.
    """
    steps = len(trace.steps)
    counted = costs[costs["counted"].to_numpy()]
    keys = [*SITE_COLUMNS, "kind"]
    rows = [
        {
            **dict(zip(keys, key, strict=True)),
            "count": len(group),
            "blocked_ns": int(group["blocked_ns"].sum()),
            "exposed_idle_ns": exposed_idle(trace, device, group),
        }
        for key, group in counted.groupby(keys, dropna=False, sort=False)
    ]
    table = pd.DataFrame(rows, columns=[*keys, "count", "blocked_ns", "exposed_idle_ns"])
    table = table.astype({"line": "Int64", "count": "int64", "blocked_ns": "int64", "exposed_idle_ns": "Int64"})
    for column in ("count", "blocked_ns", "exposed_idle_ns"):
        per_step = table[column].astype("Float64") / steps if steps else pd.array([pd.NA] * len(table), dtype="Float64")
        table[f"{column}_per_step"] = per_step
    return table.sort_values(["blocked_ns", "count"], ascending=False, kind="stable").reset_index(drop=True)


def exposed_idle(trace: Trace, device: int | None, costs: pd.DataFrame) -> int | None:
    """The GPU's idle time, each ns once, that any of these rows of `sync_costs` exposes; None without a GPU."""
    if device is None:
        return None
    return intervals.measure(intervals.intersect(idle_spans(trace, device), _windows(costs)))


def caused_idle(costs: pd.DataFrame, gaps: pd.DataFrame) -> int:
    """What of the idle time that these rows of `sync_costs` expose lies in gaps (`idle_gaps`) with the cause `sync`.

    A sync's exposed idle holds every gap until the next launched work begins. Gaps between kernels that were queued
    before it are among them, though the host held nothing up.
    """
    own = gaps[(gaps["cause"] == "sync").to_numpy()]
    spans = intervals.union(spans_of(own))
    return intervals.measure(intervals.intersect(spans, _windows(costs)))


def _windows(costs: pd.DataFrame) -> Spans:
    """From each sync's start to the first GPU work launched after it, united."""
    return intervals.union(intervals.spans(costs["ts"], costs["exposed_until"].astype("int64")))


def idle_spans(trace: Trace, device: int) -> Spans:
    """When the GPU was idle between its first and last work."""
    gpu = activity(trace, device)
    return intervals.complement(gpu.busy, *gpu.span)


def _next_work(trace: Trace, device: int) -> Ints:
    """For each sync the start of the first GPU work launched after its end; the end of all work if there is none."""
    last = activity(trace, device).span[1]
    kernels = trace.kernels[((trace.kernels["device"] == device) & trace.kernels["launch"].notna()).to_numpy()]
    launched = trace.launches["ts"].to_numpy()[row_numbers(kernels["launch"])]
    order = np.argsort(launched, kind="stable")
    # The earliest start among the work launched at or after each launch.
    start = np.minimum.accumulate(kernels["ts"].to_numpy()[order][::-1])[::-1]
    ends = (trace.syncs["ts"] + trace.syncs["dur"]).to_numpy()
    until: Ints = np.append(start, last)[np.searchsorted(launched[order], ends, side="left")]
    return np.asarray(np.maximum(until, trace.syncs["ts"].to_numpy()), dtype=np.int64)


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
        exposed_idle_ns=exposed_idle(trace, analysis.device, counted),
        caused_idle_ns=None if gaps is None else caused_idle(counted, gaps),
        by_kind={str(kind): int(n) for kind, n in counted["kind"].value_counts().sort_index().items()},
        outside_steps=int((~in_step).sum()),
        other_threads=int((in_step & ~costs["counted"]).sum()),
        sites=analysis.rows("sync_sites", SyncSite),
    )
