"""The first look at a trace: its step, where that goes, where operators run, in which formats, and what to do first."""

from collections.abc import Mapping
from typing import Any

from steptrace import format as fmt
from steptrace.documents.comparison import PrecisionOfVariant
from steptrace.documents.summary import TraceSummary
from steptrace.report.page.findings import recommended
from steptrace.report.page.overview import FORMAT_NAMES, device_share, formats_shown, parts_chart
from steptrace.report.trace.model import Charts, TraceView, trace_parts

#: How many kernels stand in the overview; the section on kernels has all.
MOST_KERNELS = 8


def charts(view: TraceView, _: int) -> Charts:
    """The charts of the topic."""
    title = "step" if view.trace.steps else "GPU's span"
    return {"parts": parts_chart(trace_parts(view.trace.overview), title)}


def _rate_note(trace: TraceSummary) -> str | None:
    """Why the time per step is not the mean of the steps' lengths: steps overlap, or something lies between them."""
    seen = trace.overview
    if seen is None or not seen.steps:
        return None
    between = seen.window_ns - sum(step.dur_ns for step in trace.steps)
    if between == 0:
        return None
    if between > 0:
        return f"of it {fmt.duration_ns(between / seen.steps)} between steps"
    return f"steps overlap by {fmt.duration_ns(-between / seen.steps)} each on average"


def data(view: TraceView) -> Mapping[str, Any]:
    """What else its template takes."""
    trace, precision = view.trace, PrecisionOfVariant.of_trace(view.trace.precision)
    step_ns = None if trace.overview is None else trace.overview.step_ns
    operators = () if trace.overview is None else trace.overview.operators
    return {
        "step_ms": None if step_ns is None else step_ns / fmt.NS_PER_MS,
        "rate_note": _rate_note(trace),
        "placement": trace.placement if trace.placement is not None and trace.placement.ops_total else None,
        "device_share": device_share,
        "precision": precision,
        "top_operators": operators,
        "on_device": any(row.device_self_ns for row in operators),
        "formats": formats_shown([precision]),
        "format_names": FORMAT_NAMES,
        "kernels": trace.kernels[:MOST_KERNELS],
        "found": (found := recommended(trace.findings)),
        "more": len(trace.findings) - len(found),
    }
