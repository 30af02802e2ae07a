"""The first look at a trace: its step, where that goes, where operators run, in which formats, and what to do first."""

from collections.abc import Mapping
from typing import Any

from steptrace.report import format as fmt
from steptrace.report import overview as first_look
from steptrace.report.definitions import definitions
from steptrace.report.overview_model import FORMAT_NAMES, trace_overview
from steptrace.report.topics.model import Charts, Topic
from steptrace.report.trace_model import TraceView

#: How many kernels stand in the overview; the section on kernels has all.
MOST_KERNELS = 8


def _charts(trace: TraceView, _: int) -> Charts:
    title = "step" if trace.steps else "GPU's span"
    return {"parts": first_look.parts_chart(trace_overview(trace.raw), title)}


def _rate_note(trace: TraceView) -> str | None:
    """Why the time per step is not the mean of the steps' lengths: steps overlap, or something lies between them."""
    seen = trace.raw.get("overview") or {}
    if not seen.get("steps"):
        return None
    lengths = sum(step["dur_ns"] for step in trace.raw.get("steps") or ())
    between = seen["window_ns"] - lengths
    if between == 0:
        return None
    if between > 0:
        return f"of it {fmt.duration_ns(between / seen['steps'])} between steps"
    return f"steps overlap by {fmt.duration_ns(-between / seen['steps'])} each on average"


def _data(trace: TraceView) -> Mapping[str, Any]:
    view = trace_overview(trace.raw)
    return {
        "view": view,
        "rate_note": _rate_note(trace),
        "on_device": any(row.device_self_ns for row in view.operators),
        "formats": first_look.formats_shown([view.precision]),
        "format_names": FORMAT_NAMES,
        "kernels": trace.kernels[:MOST_KERNELS],
        "found": first_look.recommended(trace.findings),
        "more": max(len(trace.findings) - first_look.MOST_FINDINGS, 0),
    }


TOPIC = Topic(
    "overview",
    "Overview",
    definitions(("step_window_gpu", "device_compute", "placement", "number_format", "tensor_core")),
    _charts,
    _data,
)
