"""Why the GPU idled."""

from steptrace.report.definitions import IDLE_TERMS, definitions
from steptrace.report.draw import parts as draw
from steptrace.report.topics.model import Charts, Topic
from steptrace.report.trace_model import TraceView


def _charts(trace: TraceView, _: int) -> Charts:
    idle = any(part.ms for part in trace.idle_causes)
    bar = draw.stacked_bars([("idle time", trace.idle_causes)], "ms") if idle else None
    return {"causes": bar}


TOPIC = Topic("idle", "Why the GPU is idle", definitions(IDLE_TERMS), _charts, lambda _: {"names": draw.PART_NAMES})
