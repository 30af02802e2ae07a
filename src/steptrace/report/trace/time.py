"""Where the GPU's time went: over the whole trace, and step by step."""

import math
from collections.abc import Sequence

from steptrace import format as fmt
from steptrace.documents.summary import StepTime
from steptrace.report.draw.bars import PART_COLOURS, PART_NAMES, legend_of, stacked_bars, words
from steptrace.report.draw.drawing import WIDTH, Drawing, legend_height, legend_lines, ticks
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Charts, Topic, without_gpu
from steptrace.report.trace.view import TraceView, gpu_parts

TERMS = (
    Definition(
        "Compute, exposed, idle",
        "Compute is the union of compute kernels; exposed communication and memory are what runs outside of it; idle "
        "is the rest. Together they are the step's span on the GPU.",
        Definition(
            "Compute, exposed, idle",
            "Compute is the union of compute kernels; exposed communication and memory are what runs outside of it; "
            "idle is the rest. Together they are the GPU's span, from its first to its last work.",
        ),
    ),
    Definition("Overlap", "Share of communication time during which compute kernels run too."),
    Definition("Launches found", "Share of GPU activities whose launching call is in the trace."),
)
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


def _charts(view: TraceView, _: int) -> Charts:
    steps = view.trace.steps
    return {
        "span": span_chart([view]),
        "steps": profiled_steps(steps) if view.has_gpu and steps else None,
    }


TOPIC = Topic(
    "time",
    "GPU time",
    TERMS,
    _charts,
    lambda view: {"parts": gpu_parts(view.trace.gpu), "names": PART_NAMES},
    most=60,
    unmeasured=without_gpu,
)
