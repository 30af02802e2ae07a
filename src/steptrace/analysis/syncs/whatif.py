"""What a synchronisation costs at most, and what a step would take without it.

- **Ceiling**: removing the wait brings everything after it forward, by the time the host was blocked at most, and by
  the idle time at most that can close up: that of the busiest stream from the sync's start to the end of the next sync,
  of another site, before which all work launched so far is done. From there on nothing differs but the clock. Exposed
  idle is no such bound, either way: a short wait can stand before a long time in Python, and a host that gets ahead
  hides launches beyond the next GPU work.
- **Saved**: the length of all steps in the graph of `steptrace.analysis.critical_path`, less that without the waits and
  with the time of their calls gone; a copy they made stays, and nobody waits for it. With nothing removed the graph is
  as long as the steps, unless a stream ran several activities at once by the trace, which one stream does not. Where
  its work one after the other would take over 1 % more time than all steps, the trace does not fit the model and
  nothing is said.
"""

from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from steptrace import intervals
from steptrace.analysis.critical_path.build import graph_of
from steptrace.analysis.critical_path.graph import Graph
from steptrace.trace.columns import row_numbers, spans_of, start_end
from steptrace.trace.model import Trace
from steptrace.trace.source import SITE_COLUMNS

#: The largest difference of modelled to measured time, as a share, at which the model counts as fitting.
FIT_TOLERANCE: Final = 0.01
#: So many sites, those with the highest ceilings, are removed one by one.
MOST_REMOVED: Final = 20
#: What tells one site of `sync_sites` from another.
SITE_KEY: Final = (*SITE_COLUMNS, "kind")


@dataclass(frozen=True)
class WhatIf:
    """How the model compares with the trace. Times are those of all steps (0: of the whole trace) together, in ns.

    `replayed_ns` is the model's. `unexplained_ns` is the part of the GPU's waiting that has no known cause and stays.
    """

    steps: int
    measured_ns: int
    replayed_ns: int
    unexplained_ns: int

    @property
    def error(self) -> float:
        """Modelled over measured time, less 1."""
        return self.replayed_ns / self.measured_ns - 1 if self.measured_ns else 0.0

    @property
    def misfit(self) -> str | None:
        """Why nothing can be said; None if the model fits."""
        if self.measured_ns == 0:
            return "the trace holds no host event"
        if abs(self.error) > FIT_TOLERANCE:
            return f"a stream ran several activities at once: one after the other they take {self.error:.1%} more time"
        return None


def fit(graph: Graph | None) -> WhatIf:
    """The graph of a trace with nothing removed."""
    if graph is None:
        return WhatIf(0, 0, 0, 0)
    return WhatIf(graph.steps, graph.span_ns, graph.span_ns + graph.overlap_ns, graph.unexplained_ns)


def saved_ns(graph: Graph, gone: AbstractSet[int]) -> int:
    """By how much all steps together are shorter, in ns, with the syncs `gone` (rows of `syncs`) out of the program."""
    removed = np.isin(graph.sync, list(gone))
    return graph.span_ns - graph.left_without(removed, waits=True) if removed.any() else 0


def rows_by_site(costs: pd.DataFrame) -> dict[tuple[Hashable, ...], set[int]]:
    """The rows of the counted syncs of `sync_costs`, by site and kind; unknown parts of a site are None."""
    found: dict[tuple[Hashable, ...], set[int]] = {}
    keys = site_keys(costs)
    for row in np.flatnonzero(costs["counted"].to_numpy(dtype=bool)):
        found.setdefault(keys[row], set()).add(int(row))
    return found


def site_keys(table: pd.DataFrame) -> list[tuple[Hashable, ...]]:
    """The site and kind of each row of `sync_costs` or `sync_sites`; unknown parts are None."""
    plain = table[list(SITE_KEY)].astype(object)
    return list(plain.where(plain.notna(), None).itertuples(index=False, name=None))


def sync_prices(trace: Trace, costs: pd.DataFrame, sites: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """`sync_sites` with `ceiling_ns` and `saved_ns`, over all steps, were the site's syncs alone gone; and `whatif`.

    `saved_ns` is null where the model does not fit the trace. Of many sites the least promising have null too, unless
    their ceiling is 0. `whatif` is one row: how well the model fits, and what is saved were all counted syncs gone.
    """
    rows = rows_by_site(costs)
    keys = site_keys(sites)
    ceiling = np.array([ceiling_ns(trace, costs, rows[key]) for key in keys], dtype=np.int64)
    every = {row for site in rows.values() for row in site}
    graph = graph_of(trace)
    fitted = fit(graph)
    saved: list[int | None] = [None] * len(keys)
    together = None
    if graph is not None and fitted.misfit is None:
        saved = [None if most else 0 for most in ceiling]
        for place in np.argsort(-ceiling, kind="stable")[:MOST_REMOVED]:
            saved[place] = saved_ns(graph, rows[keys[place]]) if ceiling[place] else 0
        together = saved_ns(graph, every)
    whatif = {
        **asdict(fitted),
        "error": fitted.error,
        "reason": fitted.misfit,
        "all_saved_ns": together,
        "all_ceiling_ns": ceiling_ns(trace, costs, every),
    }
    return sites.assign(ceiling_ns=ceiling, saved_ns=pd.array(saved, dtype="Int64")), pd.DataFrame([whatif])


def ceiling_ns(trace: Trace, costs: pd.DataFrame, gone: AbstractSet[int]) -> int:
    """What all steps together can be shorter at most, in ns, were the syncs `gone` (rows of `syncs`) not there."""
    if not gone:
        return 0
    removed = costs.index.isin(list(gone))
    start, end = start_end(costs)
    fence = np.sort(end[~removed & _waits_for_all(trace, costs, start, end)])
    place = np.searchsorted(fence, end[removed], side="left")
    until = np.append(fence, trace.steps_span[1])[place]
    windows = intervals.union(intervals.spans(start[removed], until))
    closing = windows[:, 1] - windows[:, 0]
    for _, work in trace.kernels.groupby(["device", "stream"]):
        busy = intervals.union(spans_of(work))
        closing = np.minimum(closing, windows[:, 1] - windows[:, 0] - intervals.measure_within(busy, *windows.T))
    return min(int(costs["blocked_ns"].to_numpy()[removed].sum()), int(closing.sum()))


def _waits_for_all(
    trace: Trace, costs: pd.DataFrame, start: intervals.Ints, end: intervals.Ints
) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Which syncs hold a step up until all GPU work launched before them is done, wherever it runs.

    With work on several streams only a wait for the device does, with work on several GPUs none.
    """
    kernels = trace.kernels[trace.kernels["launch"].notna().to_numpy()]
    launched = trace.launches["ts"].to_numpy()[row_numbers(kernels["launch"])]
    order = np.argsort(launched, kind="stable")
    reach = np.maximum.accumulate((kernels["ts"] + kernels["dur"]).to_numpy()[order])
    place = np.searchsorted(launched[order], start, side="right")
    done = costs["counted"].to_numpy(dtype=bool) & (np.append(0, reach)[place] <= end)
    if trace.kernels["device"].nunique() > 1:
        return np.zeros_like(done)
    several = trace.kernels["stream"].nunique() > 1
    waits = "Device|Ctx|Thread" if several else "Device|Ctx|Thread|Stream|copy"
    return np.asarray(done & costs["kind"].astype(object).str.contains(waits).to_numpy(dtype=bool), dtype=bool)
