"""Where the host waits for the GPU."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from steptrace.documents.summary import SyncSite
from steptrace.report.page.definitions import SYNC_TERMS, definitions
from steptrace.report.page.places import rank_sites
from steptrace.report.trace.model import Topic
from steptrace.report.trace.view import TraceView


def _data(view: TraceView) -> Mapping[str, Any]:
    syncs = view.trace.syncs
    sites = syncs.sites if syncs.per_step is not None else [_in_all(site) for site in syncs.sites]
    return {
        "sync_count": view.sync_count,
        "sites": rank_sites(sites),
        # Said only where it is not all of the exposed idle.
        "caused": syncs.caused_idle_ns if syncs.caused_idle_ns != syncs.exposed_idle_ns else None,
    }


def _in_all(site: SyncSite) -> SyncSite:
    """A site of a trace without steps: in the place of its figures per step those of the whole trace."""
    return replace(
        site,
        count_per_step=site.count,
        blocked_ns_per_step=site.blocked_ns,
        exposed_idle_ns_per_step=site.exposed_idle_ns,
    )


TOPIC = Topic("syncs", "Where the host waits", definitions(SYNC_TERMS), data=_data)
