"""Why the GPU idled."""

from steptrace.report import parts_figures
from steptrace.report.definitions import IDLE_TERMS, definitions
from steptrace.report.topics.model import Charts, Topic
from steptrace.report.trace_model import TraceView


def _charts(trace: TraceView, name: str) -> Charts:
    idle = any(part.ms for part in trace.idle_causes)
    bar = parts_figures.stacked_bars([("idle time", trace.idle_causes)], f"{name}-causes", "ms") if idle else None
    return {"causes": bar}


TOPIC = Topic(
    "idle", "Why the GPU is idle", definitions(IDLE_TERMS), _charts, lambda _: {"names": parts_figures.PART_NAMES}
)
