"""Charts of a trace's page: its time on the GPU, whole and step by step, and series over time."""

import math
from collections.abc import Sequence

from steptrace import format as fmt
from steptrace.documents.copies import CopySeries
from steptrace.documents.gpu_time import StepTime
from steptrace.documents.queues import QueueSeries
from steptrace.report.draw.bars import PART_COLOURS, legend_of, stacked_bars, words
from steptrace.report.draw.drawing import WIDTH, Drawing, legend_height, legend_lines, ticks
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.trace.model import TraceView, gpu_parts

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


_LABEL, _STRIP, _GAP, _FOOT = 21.0, 34.0, 8.0, 22.0


def strips(
    what: str, rows: Sequence[tuple[str, str, QueueSeries | CopySeries]], span_ns: tuple[int, int]
) -> InlineSvg | None:
    """Series with a name and their maximum in words, below each other over one axis of time; None without any.

    Each is scaled to its own maximum. The maximum of a bucket of time is drawn pale behind its mean.
    """
    if not rows:
        return None
    row = _LABEL + _STRIP + _GAP
    height = row * len(rows) + _FOOT
    drawing = Drawing(height)
    for index, (name, most, series) in enumerate(rows):
        floor = index * row + _LABEL + _STRIP
        scale = max(series.max, default=0.0) or 1.0
        drawing.row_label(index * row, _LABEL, (name, f"up to {most}"))
        for values, colour, opacity in ((series.max, "sky", 0.45), (series.mean, "blue", 1.0)):
            if values:
                places = [(WIDTH * at / len(values), floor - _STRIP * v / scale) for at, v in enumerate(values)]
                drawing.area([*places, (WIDTH, places[-1][1])], floor, colour, opacity=opacity)
        drawing.line((0, floor), (WIDTH, floor))
    drawing.text((0, height - 10), fmt.duration_ns(span_ns[0]))
    drawing.text((WIDTH, height - 10), fmt.duration_ns(span_ns[1]), anchor="end")
    return drawing.svg(f"{what} over time. " + " ".join(f"{name}: up to {most}." for name, most, _ in rows))
