"""Where the GPU's time went: over the whole trace and step by step, and why it was idle."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from steptrace import format as fmt
from steptrace.documents.gpu_time import StepTime
from steptrace.documents.summary import TraceSummary
from steptrace.report.draw.bars import PART_COLOURS, Part, legend_of, stacked_bars, words
from steptrace.report.draw.drawing import WIDTH, Drawing, legend_height, legend_lines, ticks
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.trace.model import Charts, TraceView, gpu_parts, without_gpu

#: More profiled steps than this are not drawn.
MOST_DRAWN = 100
_PLOT, _LEFT = 170.0, 50.0


def span_chart(traces: Sequence[TraceView]) -> InlineSvg | None:
    """Where the GPU's time went from first to last work: one stacked bar a trace; None without GPU work."""
    rows = [(view.title, gpu_parts(view.trace.gpu)) for view in traces if view.has_gpu]
    return stacked_bars(rows, "ms, first to last GPU work") if rows else None


def profiled_steps(steps: Sequence[StepTime]) -> InlineSvg:
    """The profiled steps in their order, each a bar of its parts on the GPU."""
    shown = [(step, gpu_parts(step)) for step in steps[:MOST_DRAWN]]
    labels = list(dict.fromkeys(part.label for _, parts in shown for part in parts if part.ms))
    lines = legend_lines(legend_of(labels))
    floor = legend_height(lines) + _PLOT
    highest = max((sum(part.ms for part in parts) for _, parts in shown), default=0.0) or 1.0
    pitch = (WIDTH - _LEFT) / max(len(shown), 4)
    drawing = Drawing(floor + 38)
    for ms in ticks(0, highest, 4):
        y = floor - _PLOT * ms / highest
        drawing.line((_LEFT, y), (WIDTH, y))
        drawing.text((_LEFT - 5, y), fmt.duration_ms(ms, 2) if ms else "0", anchor="end")
    every = max(1, math.ceil(len(shown) / 12))
    for index, (step, parts) in enumerate(shown):
        x, y = _LEFT + pitch * (index + 0.1), floor
        for part in parts:
            height = _PLOT * part.ms / highest
            y -= height
            if height:
                drawing.rect((x, y), (0.8 * pitch, height), PART_COLOURS.get(part.label, "grey"), tip=words(part))
        if index % every == 0:
            drawing.text((x + 0.4 * pitch, floor + 11), str(step.index), anchor="middle")
    drawing.text(((_LEFT + WIDTH) / 2, floor + 28), "profiled step", anchor="middle")
    drawing.legend(lines)
    return drawing.svg(
        "Profiled steps. " + " ".join(f"Step {step.index}: {fmt.duration_ns(step.dur_ns)}." for step, _ in shown)
    )


def charts(view: TraceView, _: int) -> Charts:
    """The charts of the topic `time`."""
    steps = view.trace.steps
    return {
        "span": span_chart([view]),
        "steps": profiled_steps(steps) if view.has_gpu and steps else None,
    }


def idle_charts(view: TraceView, _: int) -> Charts:
    """Idle time by cause: the chart of the topic `idle`."""
    causes = [Part(cause, ns / fmt.NS_PER_MS) for cause, ns in (view.trace.idle.by_cause or {}).items()]
    return {"causes": stacked_bars([("idle time", causes)], "ms") if any(part.ms for part in causes) else None}


def idle_data(view: TraceView) -> Mapping[str, Any]:
    """The window of the figures, and the idle time of the steps, which is another window."""
    trace = view.trace
    parts = {} if trace.step_parts is None or trace.step_parts.kind != "gpu" else trace.step_parts.parts_ns
    whole = sum(ns for name, ns in parts.items() if name.startswith("idle_"))
    window = "From the step's begin to its end" if len(trace.steps) == 1 else "In the steps, from begin to end,"
    of_steps = f" {window} the GPU is idle for {fmt.duration_ns(whole)}." if parts else ""
    return {"caption": f"Between the GPU's first and last work.{of_steps}"}


def without_idle(trace: TraceSummary) -> str | None:
    """Why a trace cannot tell of idle time."""
    alone = trace.gpu.activities == 1
    return "idle time lies between activities, and the trace holds one" if alone else without_gpu(trace)
