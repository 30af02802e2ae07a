"""Where the host waits for the GPU."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from steptrace.documents.summary import SyncSite, TraceSummary
from steptrace.findings.sync_cost import SYNC_SHARE
from steptrace.findings.trace.window import window_of
from steptrace.report.page.places import place, rank_sites, unplaced
from steptrace.report.trace.model import TraceView

#: So many sites without a finding are named.
_MOST_CHEAP: Final = 5


def data(view: TraceView) -> Mapping[str, Any]:
    """What else its template takes."""
    syncs = view.trace.syncs
    sites = syncs.sites if syncs.per_step is not None else [_in_all(site) for site in syncs.sites]
    cheap = [row for row in _cheap(view.trace) if row[2] < SYNC_SHARE]
    return {
        "sync_count": view.sync_count,
        "sites": rank_sites(sites),
        "cheap": cheap[:_MOST_CHEAP],
        "cheaper": len(cheap[_MOST_CHEAP:]),
        # Said only where it is not all of the exposed idle.
        "caused": syncs.caused_idle_ns if syncs.caused_idle_ns != syncs.exposed_idle_ns else None,
    }


def _cheap(trace: TraceSummary) -> list[tuple[str, float, float]]:
    """The sites on which there is no finding, since they cost too little: place, what a step saves at most, share."""
    window = window_of(trace)
    found = [(item.source.file, item.source.line) for item in trace.findings if item.source is not None]
    if not window.steps or any(item.rule == "syncs_together" for item in trace.findings):
        return []
    return [
        (place(site) or unplaced(site), window.each(site.ceiling_ns), window.share(window.each(site.ceiling_ns)))
        for site in rank_sites(trace.syncs.sites)
        if site.ceiling_ns is not None and (site.file, site.line) not in found
    ]


def _in_all(site: SyncSite) -> SyncSite:
    """A site of a trace without steps: in the place of its figures per step those of the whole trace."""
    return replace(
        site,
        count_per_step=site.count,
        blocked_ns_per_step=site.blocked_ns,
        exposed_idle_ns_per_step=site.exposed_idle_ns,
    )
