"""Where the host waits for the GPU."""

from steptrace.report.definitions import SYNC_TERMS, definitions
from steptrace.report.html import rank_sites
from steptrace.report.topics.model import Topic

TOPIC = Topic(
    "syncs", "Where the host waits", definitions(SYNC_TERMS), data=lambda trace: {"sites": rank_sites(trace.sites)}
)
