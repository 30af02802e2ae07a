"""The charts of where time and memory go: stacked bars of parts, by variant, by rank, by step."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from steptrace import format as fmt
from steptrace.report.draw.drawing import WIDTH, Drawing, label_height, legend_height, legend_lines
from steptrace.report.draw.svg import InlineSvg

#: Of each part: its colour and its name on a page. A cause of idle time has one colour in every figure.
_PARTS: dict[str, tuple[str, str]] = {
    "compute": ("blue", "compute"),
    "exposed_comm": ("orange", "exposed communication"),
    "exposed_memory": ("purple", "exposed copies and memsets"),
    "idle": ("rule", "idle"),
    "sync": ("vermillion", "sync"),
    "loader": ("green", "host waits for data"),
    "host": ("sky", "nothing launched"),
    "dependency": ("grey", "stream or event dependency"),
    "unknown": ("rule", "unknown"),
    "": ("orange", ""),
    "data": ("orange", "data"),
    "forward": ("sky", "forward"),
    "loss": ("vermillion", "loss"),
    "backward": ("blue", "backward"),
    "optimizer": ("green", "optimizer"),
    "idle_sync": ("vermillion", "idle after a sync"),
    "idle_loader": ("green", "idle, host waits for data"),
    "idle_host": ("sky", "idle, nothing launched"),
    "idle_dependency": ("grey", "idle, stream or event dependency"),
    "idle_unknown": ("rule", "idle, unknown"),
    "waiting": ("orange", "waiting for data"),
    "hidden_wait": ("sky", "waiting under a busy GPU"),
    "rest": ("rule", "rest of the step"),
    "fetch": ("blue", "fetch"),
    "collate": ("green", "collate"),
    "pin": ("orange", "pin"),
    "copy": ("purple", "copy to the device"),
    "path_host": ("sky", "host"),
    "path_loader": ("green", "data loader"),
    "path_sync": ("vermillion", "sync overhead"),
    "path_launch": ("grey", "launch latency"),
    "path_queue": ("rule", "queueing"),
    "path_compute": ("blue", "compute"),
    "path_comm": ("orange", "communication"),
    "path_memory": ("purple", "memory"),
}
IDLE_CAUSES = ("sync", "loader", "host", "dependency", "unknown")
PART_COLOURS = {part: colour for part, (colour, _) in _PARTS.items()}
PART_NAMES = {part: name for part, (_, name) in _PARTS.items()}

_BAR, _GAP = 16.0, 11.0


@dataclass(frozen=True)
class Part:
    """One part of a step's time."""

    label: str
    ms: float


@dataclass(frozen=True)
class Piece:
    """One piece of a bar: its length, colour and tooltip, and how opaque it is."""

    length: float
    colour: str
    tip: str
    opacity: float = 1.0


@dataclass(frozen=True)
class Bar:
    """One stacked bar.

    Attributes:
        name: what stands above it.
        note: what stands at the right of the name.
        pieces: what it is made of, from the left.
    """

    name: str
    note: str
    pieces: Sequence[Piece]


def bars(rows: Sequence[Bar], legend: Iterable[tuple[str, str, float]], alt: str, unit: str | None = None) -> InlineSvg:
    """Stacked horizontal bars on a common scale under a legend of words and colours; with a unit an axis, too."""
    head = label_height((bar.name, bar.note) for bar in rows)
    row = head + _BAR + _GAP
    longest = max((sum(p.length for p in bar.pieces) for bar in rows), default=0.0) or 1.0
    lines = legend_lines(legend)
    top, floor = legend_height(lines), legend_height(lines) + row * len(rows)
    drawing = Drawing(floor + (38 if unit else 0))
    if unit:
        drawing.x_axis(top, floor, (0, longest), unit)
    for index, bar in enumerate(rows):
        drawing.row_label(top + index * row, head, (bar.name, bar.note))
        _draw_bar(drawing, bar, top + index * row + head, WIDTH / longest)
    drawing.legend(lines)
    return drawing.svg(alt)


def _draw_bar(drawing: Drawing, bar: Bar, top: float, scale: float) -> None:
    left = 0.0
    for piece in bar.pieces:
        width = scale * piece.length
        if width:
            drawing.rect((left, top), (width, _BAR), piece.colour, opacity=piece.opacity, tip=piece.tip)
        left += width


def stacked_bars(rows: Sequence[tuple[str, Sequence[Part]]], unit: str) -> InlineSvg:
    """Stacked bars of parts in milliseconds, with the sum at the right of each name."""
    labels = dict.fromkeys(part.label for _, parts in rows for part in parts if part.ms and part.label)
    shown = [
        Bar(
            label,
            fmt.duration_ms(sum(part.ms for part in parts)),
            [Piece(part.ms, PART_COLOURS.get(part.label, "grey"), words(part)) for part in parts],
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


def legend_of(labels: Iterable[str]) -> list[tuple[str, str, float]]:
    """The name and colour of each of these parts."""
    return [(PART_NAMES.get(label, label), PART_COLOURS.get(label, "grey"), 1.0) for label in labels]
