"""Where the GPU's time went: over the whole trace, and step by step."""

from steptrace.report.definitions import TRACE_TERMS, definitions
from steptrace.report.draw import parts as draw
from steptrace.report.topics.model import Charts, Topic
from steptrace.report.trace_model import TraceView

#: How many rows of steps the page lists.
MOST_STEPS = 60


def _charts(trace: TraceView, _: int) -> Charts:
    return {
        "span": draw.span_chart([trace]),
        "steps": draw.profiled_steps(trace.steps) if trace.has_gpu and trace.steps else None,
    }


def _data(_: TraceView) -> dict[str, object]:
    return {"names": draw.PART_NAMES, "most_steps": MOST_STEPS}


TOPIC = Topic("time", "GPU time", definitions(TRACE_TERMS), _charts, _data)
