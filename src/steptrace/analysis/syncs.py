"""Host syncs: their number, the time they block the host, and the GPU's idle time they cause.

`steptrace.trace.tables` defines a sync. Here are its cost, its place in the program, and an upper bound of the saving
from removing it. Without the wait everything after it moves forward, by at most the time the host was blocked so far,
and by at most the idle time that can close up: the busiest stream's, from the sync's start to the end of the next
sync, of another site, that ends with all launched work done. From there on only the clock differs. Exposed idle is no
bound in either direction: a short wait can precede a long time in Python, and a host that gets ahead hides launches
beyond the next GPU work.
"""

from collections import Counter
from collections.abc import Collection
from typing import Any, Final

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.common.activity import activity, launches_measured, syncs_known, why_calls_unknown
from steptrace.analysis.common.division import gpu_window
from steptrace.analysis.common.registry import part, table
from steptrace.analysis.steps import step_kinds, steps_alike
from steptrace.documents.steps import StepKind
from steptrace.documents.syncs import SyncCost, SyncSite, TracedSyncs
from steptrace.documents.table import rows
from steptrace.intervals import Ints, Spans
from steptrace.periods import period
from steptrace.trace.columns import counted, spans_of, start_end, unmeasured
from steptrace.trace.model import Trace, launched_at, once
from steptrace.trace.names import HOST_PARTS, is_stream_copy, wait_scope
from steptrace.trace.source import PROGRAM_COLUMNS, SITE_COLUMNS, sites_of

#: The key of a site in `sync_sites`.
SITE_KEY: Final = (*SITE_COLUMNS, *PROGRAM_COLUMNS, "kind")


@table("sync_costs", SyncCost)
@once
def sync_costs(trace: Trace) -> pd.DataFrame:
    """The trace's `syncs` (`op` under the name `op_row`) with their cost and site.

    Adds `exposed_idle_ns`, the GPU's idle time from the sync's start to the start of the first GPU work launched after
    its end, and `exposed_until`, when that work started (or the GPU's last work ended). A sync that blocks the host
    long while the GPU works has no exposed idle, and costs nothing. Both are null where launches were not measured.
    """
    table = trace.syncs.rename(columns={"op": "op_row"})
    exposed = until = unmeasured(len(table))
    if launches_measured(trace):
        next_work = _next_work(trace)
        exposed = counted(intervals.measure_within(idle_spans(trace), table["ts"], next_work))
        until = next_work
    return pd.concat(
        [table.assign(exposed_idle_ns=exposed, exposed_until=until), sites_of(trace, trace.syncs, trace.lines)], axis=1
    )


@table("sync_sites", SyncSite)
@once
def sync_sites(trace: Trace) -> pd.DataFrame:
    """The counted syncs of `sync_costs` per site and kind, the most blocking first.

    Returns the site's columns, `kind`, `count`, `blocked_ns`, `exposed_idle_ns`, `ceiling_ns` and `count_per_step`
    (null without steps), and in how many of how many steps it happens. A line that runs in several parts of a step is
    one site, whose `phase` is the part with most of its syncs; its backward pass is another. Idle time that several
    syncs of a site expose is counted once; different sites can share some.
    """
    steps = len(trace.steps)
    costs = _in_main_part(sync_costs(trace))
    sites = [
        {
            **dict(zip(SITE_KEY, key, strict=True)),
            **_in_steps(group["step"], steps),
            "count": len(group),
            "blocked_ns": int(group["blocked_ns"].sum()),
            "exposed_idle_ns": exposed_idle(trace, group),
            "ceiling_ns": ceiling_ns(trace, group.index) if launches_measured(trace) else None,
        }
        for key, group in costs[costs["counted"].to_numpy()].groupby([*SITE_KEY], dropna=False, sort=False)
    ]
    nullable = (*_STEPS, "exposed_idle_ns", "ceiling_ns")
    table = pd.DataFrame(sites, columns=[*SITE_KEY, "count", "blocked_ns", *nullable])
    table = table.astype({"line": "Int64", "program_line": "Int64", "count": "int64", "blocked_ns": "int64"})
    table = table.astype(dict.fromkeys(nullable, "Int64"))
    table["count_per_step"] = table["count"].astype("Float64") / (steps or pd.NA)
    table["per_step_of_all_runs"] = table["count_per_step"]
    return table.sort_values(["blocked_ns", "count"], ascending=False, kind="stable", ignore_index=True)


#: The columns of a site that say in how many steps it happens.
_STEPS: Final = ("in_steps", "of_steps", "every")


def _in_steps(step: "pd.Series[Any]", steps: int) -> dict[str, int | None]:
    """The number of steps in which syncs happen, and of all steps, by their rows of `steps`; null without steps."""
    if not steps:
        return dict.fromkeys(_STEPS)
    numbers = sorted({int(number) for number in step.dropna()})
    return dict(zip(_STEPS, (len(numbers), steps, period(numbers, steps)), strict=True))


#: What differs between the parts of a step that a line runs in.
_PART: Final = ("label", "phase")


def _in_main_part(costs: pd.DataFrame) -> pd.DataFrame:
    """`sync_costs` with one part of the step for all syncs of a line, that of most of them.

    Three kinds stay apart: syncs of the backward pass, of labels within a part, and those without a line.
    """
    is_backward = costs["phase"] == "backward"
    label = costs["label"].where(~costs["label"].isin(HOST_PARTS) | costs["file"].isna())
    keys = [costs[name] for name in SITE_KEY if name not in _PART]
    main = costs[[*_PART]].copy()
    for _, group in costs.groupby([*keys, is_backward, label], dropna=False, sort=False):
        places = Counter(zip(group["label"], group["phase"], strict=True))
        label_of_most, phase_of_most = places.most_common(1)[0][0]
        main.loc[group.index, "label"] = label_of_most
        main.loc[group.index, "phase"] = phase_of_most
    return costs.assign(**{name: main[name] for name in _PART})


def exposed_idle(trace: Trace, costs: pd.DataFrame) -> int | None:
    """The GPU's idle time, each ns once, that these rows of `sync_costs` expose; None where launches are unknown."""
    if not launches_measured(trace):
        return None
    exposed = intervals.union(intervals.spans(costs["ts"], costs["exposed_until"].astype("int64")))
    return intervals.measure(intervals.intersect(idle_spans(trace), exposed))


@once
def idle_spans(trace: Trace) -> Spans:
    """The spans in which the GPU was idle between its first and last work."""
    gpu = activity(trace)
    return intervals.complement(gpu.busy, *gpu.span)


def _next_work(trace: Trace) -> Ints:
    """For each sync the start of the first GPU work launched after its end, or the end of all work.

    For a sync in a step it is the end of the steps, if that comes earlier.
    """
    launched, order = _launch_order(trace, trace.device)
    # The earliest start among the work launched at or after each launch.
    start = np.minimum.accumulate(trace.kernels["ts"].to_numpy()[order][::-1])[::-1]
    begin, end = start_end(trace.syncs)
    until: Ints = np.append(start, activity(trace).span[1])[np.searchsorted(launched, end, side="left")]
    if len(trace.steps):
        in_step = trace.syncs["step"].notna().to_numpy()
        until = np.where(in_step, np.minimum(until, trace.steps_span[1]), until)
    return np.maximum(until, begin)


def _launch_order(trace: Trace, device: int | None) -> tuple[Ints, Ints]:
    """Launch times of the activities with a known launch, of one GPU or of all, sorted, and their rows of `kernels`."""
    launched = launched_at(trace)
    here = True if device is None else (trace.kernels["device"] == device).to_numpy()
    rows = np.flatnonzero(here & (launched >= 0))
    rows = rows[np.argsort(launched[rows], kind="stable")]
    return launched[rows], rows


@part("syncs", absent=why_calls_unknown)
@once
def syncs(trace: Trace) -> TracedSyncs:
    """Counts, blocked time and exposed idle of the counted syncs, by kind and by site."""
    costs = sync_costs(trace)
    taken = costs[costs["counted"].to_numpy()]
    steps = len(trace.steps)
    if not syncs_known(trace):
        figures: dict[str, Any] = dict.fromkeys(TracedSyncs.__struct_fields__)
        return TracedSyncs(**(figures | {"by_kind": {}, "sites": ()}))
    # Without a call into a GPU's runtime nothing was measured: `per_step` is null.
    measured = len(trace.launches) > 0
    in_step = costs["step"].notna() if steps else pd.Series(True, index=costs.index)
    per_step = np.bincount(taken["step"].astype("int64"), minlength=steps).tolist() if steps and measured else None
    return TracedSyncs(
        count=len(taken),
        per_step=len(taken) / steps if steps and measured else None,
        by_step=None if per_step is None else tuple(per_step),
        blocked_ns=int(taken["blocked_ns"].sum()),
        exposed_idle_ns=exposed_idle(trace, taken),
        ceiling_ns=ceiling_ns(trace, taken.index) if launches_measured(trace) else None,
        by_kind={str(kind): int(n) for kind, n in taken["kind"].value_counts().sort_index().items()},
        outside_steps=int((~in_step).sum()),
        sites=rows(sync_sites(trace), SyncSite),
    )


@part("step_kinds")
def kinds_of_steps(trace: Trace) -> tuple[StepKind, ...]:
    """The kinds of the steps before the trace, with the syncs of the profiled steps of each kind."""
    return step_kinds(steps_alike(trace), None if trace.device is None else syncs(trace).by_step)


def ceiling_ns(trace: Trace, gone: Collection[int]) -> int:
    """Upper bound, in ns, of the time that all steps together save without the syncs `gone` (rows of `syncs`).

    What comes before a sync is earlier by at most the waits before it, and what comes after by at most the idle time
    after it more. So the smallest sum of the two over all syncs is a bound, too.
    """
    if len(gone) == 0:
        return 0
    costs = sync_costs(trace)
    removed = np.sort(np.fromiter(gone, dtype=np.int64, count=len(gone)))
    start, end = start_end(costs)
    waits = _waits_for_all(trace)
    fence = end[waits[np.isin(waits, removed, assume_unique=True, invert=True)]]
    place = np.searchsorted(fence, end[removed], side="left")
    # Gaps in work launched before the recording are not the steps' idle time, and close by no sync of theirs.
    begin, stop = gpu_window(trace)
    until = np.minimum(np.append(fence, stop)[place], stop)
    begins = np.maximum(start[removed], begin)
    windows = intervals.union(intervals.spans(begins, until))
    # Without steps the window is the GPU's span: a wait before it only moves the span as a whole.
    within = until > begins if len(trace.steps) else (until > begins) & (end[removed] > begin)
    order = np.flatnonzero(within)
    order = order[np.argsort(start[removed][order], kind="stable")]
    if len(order) == 0:
        return 0
    begins = begins[order]
    blocked = costs["blocked_ns"].to_numpy()[removed][order]
    window = np.searchsorted(windows[:, 0], begins, side="right") - 1
    first = np.searchsorted(window, np.arange(len(windows)))
    waited = np.cumsum(blocked) - blocked
    waited -= waited[first][window]
    least = np.add.reduceat(blocked, first)
    for busy in _busy_by_stream(trace):
        ends = windows[window, 1]
        idle = ends - begins - intervals.measure_within(busy, begins, ends)
        least = np.minimum(least, np.minimum.reduceat(waited + idle, first))
    return int(least.sum())


@once
def _busy_by_stream(trace: Trace) -> tuple[Spans, ...]:
    """The busy spans of each stream of each GPU."""
    return tuple(intervals.union(spans_of(work)) for _, work in trace.kernels.groupby(["device", "stream"]))


def _scope(kind: str) -> str | None:
    """The scope that a sync waits for: for a copy it is the copy's stream."""
    return "stream" if kind in ("d2h_copy", "h2d_copy") or is_stream_copy(kind) else wait_scope(kind)


@once
def _waits_for_all(trace: Trace) -> Ints:
    """The rows of the counted syncs that wait for all GPU work launched before them, in order of their ends.

    With work on several streams only a device sync does, with work on several GPUs none.
    """
    costs = sync_costs(trace)
    start, end = start_end(costs)
    launched, order = _launch_order(trace, None)
    reach = np.maximum.accumulate(start_end(trace.kernels)[1][order])
    place = np.searchsorted(launched, start, side="right")
    done = costs["counted"].to_numpy(dtype=bool) & (np.append(0, reach)[place] <= end)
    if trace.kernels["device"].nunique() > 1:
        return np.empty(0, dtype=np.int64)
    several = trace.kernels["stream"].nunique() > 1
    scopes = {kind: _scope(str(kind)) for kind in costs["kind"].unique()}
    for_all = [scopes[kind] == "device" or (scopes[kind] == "stream" and not several) for kind in costs["kind"]]
    rows_for_all = np.flatnonzero(done & np.array(for_all, dtype=bool))
    return rows_for_all[np.argsort(end[rows_for_all], kind="stable")]
