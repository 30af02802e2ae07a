"""The picture of one step."""

from steptrace.report.draw.timeline import timeline_figure
from steptrace.report.page.definitions import TIMELINE_TERMS, definitions
from steptrace.report.trace.model import Charts, Topic, unless
from steptrace.report.trace.view import TraceView

#: Tooltips in a picture of one of several traces: what keeps the page small.
_FEW = 120


def _charts(view: TraceView, level: int) -> Charts:
    found = view.trace.timeline
    return {"step": timeline_figure(found) if level == 2 else timeline_figure(found, most=_FEW)}


TOPIC = Topic(
    "timeline",
    "Trace view",
    definitions(TIMELINE_TERMS),
    _charts,
    unmeasured=unless(lambda t: t.timeline, "the trace holds no operators, labels or GPU work"),
)
