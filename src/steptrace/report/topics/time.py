"""Where the GPU's time went: over the whole trace, and step by step."""

from steptrace.report import parts_figures
from steptrace.report.definitions import TRACE_TERMS, definitions
from steptrace.report.topics.model import Charts, Topic
from steptrace.report.trace_model import TraceView

#: How many rows of steps the page lists.
MOST_STEPS = 60


def _charts(trace: TraceView, name: str) -> Charts:
    return {
        "span": parts_figures.span_chart([trace], f"{name}-span"),
        "steps": parts_figures.profiled_steps(trace.steps, f"{name}-steps") if trace.has_gpu and trace.steps else None,
    }


def _data(_: TraceView) -> dict[str, object]:
    return {"names": parts_figures.PART_NAMES, "most_steps": MOST_STEPS}


TOPIC = Topic("time", "GPU time", definitions(TRACE_TERMS), _charts, _data)
