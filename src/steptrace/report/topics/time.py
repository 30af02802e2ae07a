"""Where the GPU's time went: over the whole trace, and step by step."""

from steptrace.report.definitions import TRACE_TERMS, definitions
from steptrace.report.draw import parts as draw
from steptrace.report.topics.model import Charts, Topic
from steptrace.report.trace_model import TraceView, gpu_parts

#: How many rows of steps the page lists.
MOST_STEPS = 60


def _charts(view: TraceView, _: int) -> Charts:
    steps = view.trace.steps
    return {
        "span": draw.span_chart([view]),
        "steps": draw.profiled_steps(steps) if view.has_gpu and steps else None,
    }


def _data(view: TraceView) -> dict[str, object]:
    return {"parts": gpu_parts(view.trace.gpu), "names": draw.PART_NAMES, "most_steps": MOST_STEPS}


TOPIC = Topic("time", "GPU time", definitions(TRACE_TERMS), _charts, _data)
