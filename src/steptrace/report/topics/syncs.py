"""Where the host waits for the GPU."""

from collections.abc import Mapping
from typing import Any

from steptrace.report.definitions import SYNC_TERMS, definitions
from steptrace.report.html import rank_sites
from steptrace.report.topics.model import Topic
from steptrace.report.trace_model import TraceView


def _data(trace: TraceView) -> Mapping[str, Any]:
    return {
        "sites": rank_sites(trace.sites),
        # Said only where it is not all of the exposed idle, and where the summary is new enough to say it.
        "caused": caused
        if (caused := (trace.raw.get("syncs") or {}).get("caused_idle_ns")) != trace.exposed_idle_ns
        else None,
    }


TOPIC = Topic("syncs", "Where the host waits", definitions(SYNC_TERMS), data=_data)
