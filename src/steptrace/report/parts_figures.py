"""The charts of where time goes: stacked bars of a step's parts, by variant, by rank, by step."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from steptrace.report import format as fmt
from steptrace.report.model import Part
from steptrace.report.svg import (
    COLOURS,
    GREY,
    RULE,
    WIDTH,
    InlineSvg,
    canvas,
    inline,
    label_height,
    row_label,
    rows_axes,
    style,
)
from steptrace.report.trace_model import StepParts, TraceView

PART_COLOURS: dict[str, str] = {
    "compute": COLOURS["blue"],
    "exposed_comm": COLOURS["orange"],
    "exposed_memory": COLOURS["purple"],
    "idle": RULE,
    "sync": COLOURS["vermillion"],
    # A cause of idle time has one colour in every figure: here, in the overview's step and in the picture of a step.
    "loader": COLOURS["green"],
    "host": COLOURS["sky"],
    "dependency": GREY,
    "unknown": RULE,
    "": COLOURS["orange"],
    "data": COLOURS["orange"],
    "forward": COLOURS["sky"],
    "loss": COLOURS["vermillion"],
    "backward": COLOURS["blue"],
    "optimizer": COLOURS["green"],
    "step_compute": COLOURS["blue"],
    "step_memory": COLOURS["purple"],
    "step_comm": COLOURS["orange"],
    "step_input": COLOURS["green"],
    "step_sync": COLOURS["vermillion"],
    "step_host": COLOURS["sky"],
    "step_dependency": GREY,
    "step_unknown": RULE,
    "waiting": COLOURS["orange"],
    "hidden_wait": COLOURS["sky"],
    "rest": RULE,
    "fetch": COLOURS["blue"],
    "transform": COLOURS["sky"],
    "collate": COLOURS["green"],
    "pin": COLOURS["orange"],
    "copy": COLOURS["purple"],
    "path_host": COLOURS["sky"],
    "path_loader": COLOURS["green"],
    "path_sync": COLOURS["vermillion"],
    "path_launch": COLOURS["grey"],
    "path_queue": RULE,
    "path_compute": COLOURS["blue"],
    "path_comm": COLOURS["orange"],
    "path_memory": COLOURS["purple"],
}
PART_NAMES = {
    "exposed_comm": "exposed communication",
    "exposed_memory": "exposed memory",
    "sync": "host blocked in a sync",
    "loader": "waiting for the loader",
    "host": "host busy launching",
    "dependency": "stream or event dependency",
    "step_compute": "compute",
    "step_memory": "exposed copies",
    "step_comm": "exposed communication",
    "step_input": "waiting for input",
    "step_sync": "host blocked in a sync",
    "step_host": "host launching",
    "step_dependency": "dependency",
    "step_unknown": "idle, unknown",
    "waiting": "waiting for data",
    "hidden_wait": "waiting under a busy GPU",
    "rest": "rest of the step",
    "copy": "copy to the device",
    "path_host": "host",
    "path_loader": "data loader",
    "path_sync": "wait's return",
    "path_launch": "launch latency",
    "path_queue": "queueing",
    "path_compute": "compute",
    "path_comm": "communication",
    "path_memory": "memory",
}

#: More profiled steps than this are not drawn.
MOST_STEPS = 100
_GAP = 11.0


def stacked_bars(rows: Sequence[tuple[str, Sequence[Part]]], name: str, unit: str) -> InlineSvg:
    """Stacked horizontal bars of parts in milliseconds, with a legend above and the sum at the right of each name."""
    notes = [(label, fmt.duration_ms(sum(part.ms for part in parts))) for label, parts in rows]
    head, bar = label_height(notes), 16.0
    row = head + bar + _GAP
    labels = list(dict.fromkeys(part.label for _, parts in rows for part in parts if part.ms and part.label))
    longest = max((sum(part.ms for part in parts) for _, parts in rows), default=0.0) or 1.0
    with style():
        legend_lines = _legend_lines(labels)
        top = 6 + 19 * len(legend_lines)
        figure = canvas(row * len(rows) + top + 40)
        axes = rows_axes(figure, row * len(rows), top=top)
        axes.set_xlim(0, longest)
        axes.grid(axis="x", color=RULE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel(unit)
        for index, (_, parts) in enumerate(rows):
            y, left = index * row, 0.0
            row_label(axes, y, head, notes[index])
            for part in parts:
                axes.barh(y + head + bar / 2, part.ms, bar, left, color=PART_COLOURS.get(part.label, GREY), linewidth=0)
                left += part.ms
        _draw_legend(figure, legend_lines)
        alt = " ".join(
            f"{label}: " + ", ".join(f"{PART_NAMES.get(p.label, p.label)} {fmt.duration_ms(p.ms)}" for p in parts) + "."
            for label, parts in rows
        )
        return inline(figure, name, alt)


def one_part(rows: Sequence[tuple[str, Sequence[Part]]], name: str, unit: str) -> InlineSvg:
    """Bars of a single part, which the axis names: no legend."""
    return stacked_bars([(label, [Part("", part.ms) for part in parts]) for label, parts in rows], name, unit)


def span_chart(traces: Sequence[TraceView], name: str) -> InlineSvg | None:
    """Where the GPU's time went from first to last work: one stacked bar a trace; None without GPU work."""
    rows = [(trace.title, trace.parts) for trace in traces if trace.parts]
    return stacked_bars(rows, name, "ms, first to last GPU work") if rows else None


def profiled_steps(steps: Sequence[StepParts], name: str) -> InlineSvg:
    """The profiled steps in their order, each a bar of its parts on the GPU."""
    shown = steps[:MOST_STEPS]
    labels = list(dict.fromkeys(part.label for step in shown for part in step.parts if part.ms))
    with style():
        legend_lines = _legend_lines(labels)
        top = 10 + 19 * len(legend_lines)
        height = 170.0 + top + 40
        figure = canvas(height)
        axes = figure.add_axes((50 / WIDTH, 40 / height, 1 - 54 / WIDTH, 170 / height))
        for side in ("right", "top"):
            axes.spines[side].set_visible(False)
        at = np.arange(len(shown))
        bottom = np.zeros(len(shown))
        for label in labels:
            ms = np.array([sum(part.ms for part in step.parts if part.label == label) for step in shown])
            axes.bar(at, ms, 0.78, bottom, color=PART_COLOURS.get(label, GREY), linewidth=0)
            bottom += ms
        every = max(1, math.ceil(len(shown) / 12))
        axes.set_xticks(at[::every], [str(step.index) for step in shown[::every]])
        axes.set_xlim(-0.8, max(len(shown), 3) - 0.2)
        axes.locator_params(axis="y", nbins=4)
        axes.yaxis.set_major_formatter(lambda value, _: fmt.duration_ms(value, 2) if value else "0")
        axes.set_xlabel("profiled step")
        _draw_legend(figure, legend_lines)
        alt = "Profiled steps. " + " ".join(f"Step {step.index}: {fmt.duration_ms(step.ms)}." for step in shown)
        return inline(figure, name, alt)


def _legend_lines(labels: Sequence[str]) -> list[list[tuple[float, str]]]:
    lines: list[list[tuple[float, str]]] = [[]]
    x = 4.0
    for label in labels:
        width = 15 + 6.8 * len(PART_NAMES.get(label, label)) + 12
        if x + width > WIDTH and lines[-1]:
            lines.append([])
            x = 4.0
        lines[-1].append((x, label))
        x += width
    return lines


def _draw_legend(figure: Figure, lines: Sequence[Sequence[tuple[float, str]]]) -> None:
    for line, entries in enumerate(lines):
        for x, label in entries:
            y = 1 - (9 + 19 * line) / (figure.get_figheight() * 72)
            figure.text(x / WIDTH, y, "■", color=PART_COLOURS.get(label, GREY), va="center_baseline", fontsize=13)
            figure.text((x + 15) / WIDTH, y, PART_NAMES.get(label, label), va="center_baseline", fontsize=11.5)
