"""Why the GPU idled."""

from steptrace import format as fmt
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import Part
from steptrace.report.page.definitions import IDLE_TERMS, definitions
from steptrace.report.trace.model import Charts, Topic
from steptrace.report.trace.view import TraceView


def _charts(view: TraceView, _: int) -> Charts:
    causes = [Part(cause, ns / fmt.NS_PER_MS) for cause, ns in (view.trace.idle.by_cause or {}).items()]
    return {"causes": draw.stacked_bars([("idle time", causes)], "ms") if any(part.ms for part in causes) else None}


TOPIC = Topic("idle", "Why the GPU is idle", definitions(IDLE_TERMS), _charts, lambda _: {"names": draw.PART_NAMES})
