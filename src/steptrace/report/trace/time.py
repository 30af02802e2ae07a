"""Where the GPU's time went: over the whole trace, and step by step."""

import math
from collections.abc import Sequence

import numpy as np

from steptrace import format as fmt
from steptrace.documents.summary import StepTime
from steptrace.report.draw.chart import GREY, WIDTH, canvas, draw_legend, inline, legend_height, legend_lines, style
from steptrace.report.draw.parts import PART_COLOURS, PART_NAMES, legend_of, stacked_bars
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.definitions import TRACE_TERMS, definitions
from steptrace.report.trace.model import Charts, Topic
from steptrace.report.trace.view import TraceView, gpu_parts

#: How many rows of steps the page lists.
MOST_STEPS = 60
#: More profiled steps than this are not drawn.
MOST_DRAWN = 100


def span_chart(traces: Sequence[TraceView]) -> InlineSvg | None:
    """Where the GPU's time went from first to last work: one stacked bar a trace; None without GPU work."""
    rows = [(view.title, gpu_parts(view.trace.gpu)) for view in traces if view.has_gpu]
    return stacked_bars(rows, "ms, first to last GPU work") if rows else None


def profiled_steps(steps: Sequence[StepTime]) -> InlineSvg:
    """The profiled steps in their order, each a bar of its parts on the GPU."""
    shown = [(step, gpu_parts(step)) for step in steps[:MOST_DRAWN]]
    labels = list(dict.fromkeys(part.label for _, parts in shown for part in parts if part.ms))
    with style():
        lines = legend_lines(legend_of(labels))
        height = 170.0 + legend_height(lines) + 44
        figure = canvas(height)
        axes = figure.add_axes((50 / WIDTH, 40 / height, 1 - 54 / WIDTH, 170 / height))
        for side in ("right", "top"):
            axes.spines[side].set_visible(False)
        at = np.arange(len(shown))
        bottom = np.zeros(len(shown))
        for label in labels:
            ms = np.array([sum(part.ms for part in parts if part.label == label) for _, parts in shown])
            axes.bar(at, ms, 0.78, bottom, color=PART_COLOURS.get(label, GREY), linewidth=0)
            bottom += ms
        every = max(1, math.ceil(len(shown) / 12))
        axes.set_xticks(at[::every], [str(step.index) for step, _ in shown[::every]])
        axes.set_xlim(-0.8, max(len(shown), 3) - 0.2)
        axes.locator_params(axis="y", nbins=4)
        axes.yaxis.set_major_formatter(lambda value, _: fmt.duration_ms(value, 2) if value else "0")
        axes.set_xlabel("profiled step")
        draw_legend(figure, lines)
        alt = "Profiled steps. " + " ".join(f"Step {step.index}: {fmt.duration_ns(step.dur_ns)}." for step, _ in shown)
        return inline(figure, alt)


def _charts(view: TraceView, _: int) -> Charts:
    steps = view.trace.steps
    return {
        "span": span_chart([view]),
        "steps": profiled_steps(steps) if view.has_gpu and steps else None,
    }


def _data(view: TraceView) -> dict[str, object]:
    return {"parts": gpu_parts(view.trace.gpu), "names": PART_NAMES, "most_steps": MOST_STEPS}


TOPIC = Topic("time", "GPU time", definitions(TRACE_TERMS), _charts, _data)
