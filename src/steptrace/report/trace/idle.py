"""Why the GPU idled."""

from collections.abc import Mapping
from typing import Any

from steptrace import format as fmt
from steptrace.documents.summary import TraceSummary
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import Part
from steptrace.report.page.definitions import Definition, definitions
from steptrace.report.trace.model import Charts, Topic, without_gpu
from steptrace.report.trace.view import TraceView

_TERMS = (
    *definitions(("idle_cause", "host_bound")),
    Definition(
        "Idle by stream",
        "The gap before an activity is host wait if it was launched after the previous one ended, kernel wait if the "
        "gap is under 30 µs, else other.",
    ),
)


def _charts(view: TraceView, _: int) -> Charts:
    causes = [Part(cause, ns / fmt.NS_PER_MS) for cause, ns in (view.trace.idle.by_cause or {}).items()]
    return {"causes": draw.stacked_bars([("idle time", causes)], "ms") if any(part.ms for part in causes) else None}


def _data(view: TraceView) -> Mapping[str, Any]:
    """The window of the figures, and the idle time of the steps, which is another window."""
    trace = view.trace
    parts = {} if trace.step_parts is None or trace.step_parts.kind != "gpu" else trace.step_parts.parts_ns
    whole = sum(ns for name, ns in parts.items() if name.startswith("idle_"))
    window = "From the step's begin to its end" if len(trace.steps) == 1 else "In the steps, from begin to end,"
    of_steps = f" {window} the GPU is idle for {fmt.duration_ns(whole)}." if parts else ""
    return {"names": draw.PART_NAMES, "caption": f"Between the GPU's first and last work.{of_steps}"}


def _unmeasured(trace: TraceSummary) -> str | None:
    alone = trace.gpu.activities == 1
    return "idle time lies between activities, and the trace holds one" if alone else without_gpu(trace)


TOPIC = Topic("idle", "Why the GPU is idle", _TERMS, _charts, _data, unmeasured=_unmeasured)
