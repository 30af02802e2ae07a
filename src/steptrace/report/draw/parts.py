"""The charts of where time and memory go: stacked bars of parts, by variant, by rank, by step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.patches import Rectangle

from steptrace import format as fmt
from steptrace.report.draw.chart import (
    COLOURS,
    GREY,
    INK,
    RULE,
    canvas,
    draw_legend,
    inline,
    label_height,
    legend_height,
    legend_lines,
    row_label,
    rows_axes,
    style,
    tip,
)
from steptrace.report.draw.svg import InlineSvg

#: Of each part: its colour and its name on a page. A cause of idle time has one colour in every figure.
_PARTS: dict[str, tuple[str, str]] = {
    "compute": ("blue", "compute"),
    "exposed_comm": ("orange", "exposed communication"),
    "exposed_memory": ("purple", "exposed memory"),
    "idle": ("rule", "idle"),
    "sync": ("vermillion", "host blocked in a sync"),
    "loader": ("green", "waiting for the loader"),
    "host": ("sky", "host busy launching"),
    "dependency": ("grey", "stream or event dependency"),
    "unknown": ("rule", "unknown"),
    "": ("orange", ""),
    "data": ("orange", "data"),
    "forward": ("sky", "forward"),
    "loss": ("vermillion", "loss"),
    "backward": ("blue", "backward"),
    "optimizer": ("green", "optimizer"),
    "step_compute": ("blue", "compute"),
    "step_memory": ("purple", "exposed copies"),
    "step_comm": ("orange", "exposed communication"),
    "step_input": ("green", "waiting for input"),
    "step_sync": ("vermillion", "host blocked in a sync"),
    "step_host": ("sky", "host launching"),
    "step_dependency": ("grey", "dependency"),
    "step_unknown": ("rule", "idle, unknown"),
    "waiting": ("orange", "waiting for data"),
    "hidden_wait": ("sky", "waiting under a busy GPU"),
    "rest": ("rule", "rest of the step"),
    "fetch": ("blue", "fetch"),
    "transform": ("sky", "transform"),
    "collate": ("green", "collate"),
    "pin": ("orange", "pin"),
    "copy": ("purple", "copy to the device"),
    "path_host": ("sky", "host"),
    "path_loader": ("green", "data loader"),
    "path_sync": ("vermillion", "wait's return"),
    "path_launch": ("grey", "launch latency"),
    "path_queue": ("rule", "queueing"),
    "path_compute": ("blue", "compute"),
    "path_comm": ("orange", "communication"),
    "path_memory": ("purple", "memory"),
}
PART_COLOURS = {part: COLOURS[colour] for part, (colour, _) in _PARTS.items()}
PART_NAMES = {part: name for part, (_, name) in _PARTS.items()}

_BAR, _GAP = 16.0, 11.0


@dataclass(frozen=True)
class Part:
    """One part of a step's time."""

    label: str
    ms: float


@dataclass(frozen=True)
class Bar:
    """One stacked bar.

    Attributes:
        name: what stands above it.
        note: what stands at the right of the name.
        parts: length, colour and tooltip of each part.
        mark: where a dark mark stands, if anywhere.
    """

    name: str
    note: str
    parts: Sequence[tuple[float, Any, str]]
    mark: float | None = None


def bars(rows: Sequence[Bar], legend: Iterable[tuple[str, Any]], alt: str, unit: str | None = None) -> InlineSvg:
    """Stacked horizontal bars on a common scale under a legend of words and colours; with a unit an axis, too."""
    head = label_height((bar.name, bar.note) for bar in rows)
    row = head + _BAR + _GAP
    longest = max((max(sum(length for length, *_ in bar.parts), bar.mark or 0) for bar in rows), default=0.0) or 1.0
    with style():
        lines = legend_lines(legend)
        top = legend_height(lines)
        figure = canvas(row * len(rows) + top + (40 if unit else 0))
        axes = rows_axes(figure, row * len(rows), top=top, margin=4 if unit else 0)
        axes.set_xlim(0, longest)
        if unit:
            axes.grid(axis="x", color=RULE, linewidth=0.8)
            axes.set_xlabel(unit)
        else:
            axes.set_axis_off()
        for index, bar in enumerate(rows):
            y, left = index * row, 0.0
            row_label(axes, y, head, (bar.name, bar.note))
            for length, colour, words in bar.parts:
                if length:
                    place, size = (left, y + head), (length, _BAR)
                    axes.add_patch(Rectangle(place, *size, facecolor=colour, linewidth=0, gid=tip(words)))
                left += length
            if bar.mark is not None:
                ends = [y + head - 3, y + head + _BAR + 3]
                axes.plot([bar.mark] * 2, ends, color=INK, linewidth=2, clip_on=False)
        draw_legend(figure, lines)
        return inline(figure, alt)


def stacked_bars(rows: Sequence[tuple[str, Sequence[Part]]], unit: str) -> InlineSvg:
    """Stacked bars of parts in milliseconds, with the sum at the right of each name."""
    labels = dict.fromkeys(part.label for _, parts in rows for part in parts if part.ms and part.label)
    shown = [
        Bar(
            label,
            fmt.duration_ms(sum(part.ms for part in parts)),
            [(part.ms, PART_COLOURS.get(part.label, GREY), words(part)) for part in parts],
        )
        for label, parts in rows
    ]
    alt = " ".join(f"{label}: {', '.join(words(part) for part in parts)}." for label, parts in rows)
    return bars(shown, legend_of(labels), alt, unit)


def one_part(rows: Sequence[tuple[str, Sequence[Part]]], unit: str) -> InlineSvg:
    """Bars of a single part, which the axis names: no legend."""
    return stacked_bars([(label, [Part("", part.ms) for part in parts]) for label, parts in rows], unit)


def words(part: Part) -> str:
    """A part with its name and time: "forward 1.20 ms"."""
    return f"{PART_NAMES.get(part.label, part.label)} {fmt.duration_ms(part.ms)}".strip()


def legend_of(labels: Iterable[str]) -> list[tuple[str, str]]:
    """The name and colour of each of these parts."""
    return [(PART_NAMES.get(label, label), PART_COLOURS.get(label, GREY)) for label in labels]
