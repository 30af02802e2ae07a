"""The pictures of a page as SVG: charts, pictures in cells of a table, and the lanes of a step.

A `Drawing` is `WIDTH` pixels wide and scaled as a whole to its column by the page. What is stretched to the width of a
page or a column while its letters keep their size (the lanes of a step, cells on a scale that all rows share) has its
elements placed in percent. Colours are names of page.css's custom properties.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from markupsafe import Markup, escape

from steptrace import format as fmt
from steptrace.documents.overview import part_name
from steptrace.documents.timeline import Lane, Timeline
from steptrace.format import NS_PER_MS


def _image(kind: str, size: str, drawn: str, alt: str) -> Markup:
    """A whole picture: its class, the attributes of its size, what it holds, and what it shows in words."""
    return Markup(_element("svg", f'class="{kind}" role="img" aria-label="{escape(alt)}" {size}', drawn))


def _element(name: str, attributes: str, inside: str = "") -> str:
    """An element with its attributes, such as `x="4" width="10%"`, and what is inside it."""
    return f"<{name} {attributes}>{inside}</{name}>" if inside else f"<{name} {attributes}/>"


def _text(place: str, words: str) -> str:
    """Words at a place, such as `x="4" y="12"`."""
    return _element("text", place, str(escape(words)))


def _title(words: str) -> str:
    """The tooltip of the element that it is put into."""
    return f"<title>{escape(words)}</title>"


#: Natural width of a chart in CSS pixels: legible at 400 px, and two fit beside each other on a laptop.
WIDTH = 440.0
#: Height of a row's label.
ONE_LINE = 21.0
_BOLD_LETTER = 8.2

Point = tuple[float, float]


class Drawing:
    """A chart to draw on; x and y in pixels, y downwards."""

    def __init__(self, height: float) -> None:
        self.height = height
        self._parts: list[str] = []

    def rect(self, corner: Point, size: Point, colour: str) -> None:
        """A box with its upper left corner at a place."""
        (x, y), (width, height) = corner, size
        place = f'x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}"'
        self._add("rect", f'{place} fill="{_colour(colour)}"')

    def line(self, start: Point, end: Point, colour: str = "rule", *, dash: str = "") -> None:
        """A straight line; `dash` as SVG's stroke-dasharray has it."""
        ends = f'x1="{_n(start[0])}" y1="{_n(start[1])}" x2="{_n(end[0])}" y2="{_n(end[1])}"'
        self._add("line", f'{ends} stroke="{_colour(colour)}"' + (f' stroke-dasharray="{dash}"' if dash else ""))

    def dot(self, centre: Point, colour: str) -> None:
        """A filled circle."""
        self._add("circle", f'cx="{_n(centre[0])}" cy="{_n(centre[1])}" r="3.5" fill="{_colour(colour)}"')

    def area(self, points: Sequence[Point], floor: float, colour: str, *, opacity: float = 1.0) -> None:
        """The area between `floor` and steps that each hold their value until the next point."""
        places = [f"M{_n(points[0][0])} {_n(floor)}V{_n(points[0][1])}"]
        places += [f"H{_n(x)}V{_n(y)}" for x, y in points[1:]]
        pale = "" if opacity == 1.0 else f' fill-opacity="{opacity:g}"'
        self._add("path", f'd="{"".join(places)}V{_n(floor)}z" fill="{_colour(colour)}"{pale}')

    def curve(self, points: Sequence[Point], colour: str) -> None:
        """A line through points."""
        places = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._add("polyline", f'points="{places}" fill="none" stroke="{_colour(colour)}" stroke-width="1.1"')

    def text(self, place: Point, words: str, kind: str = "note", *, anchor: str = "start") -> None:
        """Words on a line whose middle is at a height; `kind` is "note", small and pale, or "name", bold."""
        look = f' class="{kind}"' if kind != "note" else ""
        look += f' text-anchor="{anchor}"' if anchor != "start" else ""
        self._parts.append(_text(f'x="{_n(place[0])}" y="{_n(place[1] + 4)}"{look}', words))

    def row_label(self, top: float, name: str, note: str) -> None:
        """A row's name, and at the right end of its line the note on it."""
        self.text((0, top + ONE_LINE / 2), fmt.clipped(name, int(WIDTH / _BOLD_LETTER) - 1), "name")
        if note:
            self.text((WIDTH, top + ONE_LINE / 2), note, anchor="end")

    def svg(self, alt: str) -> Markup:
        """The drawing, with what it shows in words."""
        return _image("chart drawn", f'viewBox="0 0 {_n(WIDTH)} {_n(self.height)}"', "".join(self._parts), alt)

    def _add(self, name: str, attributes: str) -> None:
        self._parts.append(_element(name, attributes))


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values from `low` to `high`, at most so many and one more: multiples of 1, 2 or 5 times a power of ten."""
    least = (high - low) / most
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _colour(name: str) -> str:
    return f"var(--{name})"


def _n(value: float) -> str:
    """A coordinate to tenths of a pixel."""
    return f"{value:.1f}".removesuffix(".0")


#: Values that lie further apart than this need a logarithmic axis.
LOG_FROM = 6.0
_ROW, _AXIS, _BAR = 40, 20, 15
#: The colour of each part of a step; a cause of idle time has one colour in every picture.
_COLOURS: Final = {
    "compute": "blue",
    "exposed_comm": "orange",
    "exposed_memory": "purple",
    "communication": "orange",
    "copies": "purple",
    "sync": "vermillion",
    "data": "orange",
    "forward": "sky",
    "loss": "vermillion",
    "backward": "blue",
    "optimizer": "green",
    "idle_sync": "vermillion",
    "idle_loader": "green",
    "idle_host": "sky",
    "idle_dependency": "grey",
    "idle_between_kernels": "brown",
    "idle_unknown": "rule",
}


def colour_of(part: str) -> str:
    """The name of a part's colour in page.css."""
    return _COLOURS.get(part, "grey")


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high`; what lies beyond is drawn at its ends."""

    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: Sequence[float]) -> "Scale":
        """The scale that shows these positive values, logarithmic where they lie far apart."""
        low, high = min(values), max(values)
        if high > LOG_FROM * low:
            margin = (high / low) ** 0.05
            return cls(low / margin, high * margin, log=True)
        margin = 0.06 * (high - low) or 0.1 * high
        return cls(max(low - margin, 0.0), high + margin, log=False)

    def place(self, value: float) -> str:
        """Where a value lies, as a share of the width in percent."""
        ends = (self.low, value, self.high)
        low, at, high = (math.log(max(end, 1e-300)) for end in ends) if self.log else ends
        return f"{min(max(100 * (at - low) / (high - low), 0), 100):.4g}"

    def ticks(self) -> list[float]:
        """Round values within it, some five."""
        if not self.log:
            return ticks(self.low, self.high, 5)
        powers = [10.0**n for n in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)]
        values = [power * factor for power in powers for factor in (1, 2, 5) if self.low <= power * factor <= self.high]
        return values if len(values) <= 6 else [tick for tick in values if math.isclose(math.log10(tick) % 1, 0)]


def interval_cell(
    scale: Scale, value: float, ends: tuple[float, float] | None, baseline: float | None, look: str, alt: str
) -> Markup:
    """A value with its interval, and the baseline's value as a line; `look` names the class of the mark."""
    drawn = ""
    if baseline is not None:
        at = scale.place(baseline)
        drawn += _element("line", f'class="baseline" x1="{at}%" x2="{at}%" y1="0" y2="100%"')
    if ends is not None:
        left, right = map(scale.place, ends)
        drawn += _element("line", f'class="interval" x1="{left}%" x2="{right}%" y1="50%" y2="50%"')
    drawn += _element("circle", f'class="mark" cx="{scale.place(value)}%" cy="50%" r="5"')
    return _image(f"on-scale {look}", f'width="100%" height="{_ROW}"', drawn, alt)


def time_axis(scale: Scale) -> tuple[Markup, str]:
    """The axis of times in ms below the rows, and its unit and kind for the column's heading: "ms, log scale"."""
    unit, size = fmt.unit_of_ms(scale.high)
    drawn = ""
    for value in scale.ticks():
        at = float(scale.place(value))
        anchor = "start" if at < 6 else "end" if at > 94 else "middle"
        drawn += _text(f'x="{at:g}%" y="14" text-anchor="{anchor}"', f"{value / size:g}")
    words = f"{unit}, log scale" if scale.log else unit
    ends = f"{fmt.duration_ms(scale.low)} to {fmt.duration_ms(scale.high)}"
    return _image("on-scale axis", f'width="100%" height="{_AXIS}"', drawn, f"Axis in {words}, {ends}"), words


@dataclass(frozen=True)
class Piece:
    """One piece of a bar: its length, its colour, and what it is."""

    size: float
    colour: str
    words: str


def bar_cell(pieces: Sequence[Piece], longest: float) -> Markup:
    """A stacked bar, as wide as its share of the longest."""
    drawn, left = "", 0.0
    for piece in pieces:
        width = 100 * piece.size / longest
        if width:
            look = f'x="{left:.4g}%" width="{width:.4g}%"'
            drawn += _element("rect", f'{look} fill="var(--{piece.colour})"', _title(piece.words))
        left += width
    words = ", ".join(piece.words for piece in pieces)
    return _image("parts", f'width="100%" height="{_BAR}"', drawn, words)


def pieces_of(parts_ns: Mapping[str, float]) -> list[Piece]:
    """The parts of a step as pieces."""
    return [Piece(ns, colour_of(name), f"{part_name(name)} {fmt.duration_ns(ns)}") for name, ns in parts_ns.items()]


#: Units of a lane's height. What runs for less than this of a piece is drawn as high, so that it is seen.
_HEIGHT, _LEAST = 100, 12


def timeline_figure(timeline: Timeline) -> Markup:
    """Each lane with the keys of its parts, and the axis of time."""
    axis, unit = time_axis(Scale(0.0, max(timeline.span_ns, 1) / NS_PER_MS, log=False))
    lanes = Markup("").join(map(_lane, timeline.lanes))
    return Markup('{}{}<p class="note">Time in {}; the height is the share of the time.</p>').format(lanes, axis, unit)


def _lane(lane: Lane) -> Markup:
    names, pieces = {part: part_name(part) for part in lane.parts}, max(map(len, lane.parts.values()))
    below, drawn = [0] * pieces, ""
    for part, heights in lane.parts.items():
        seen = [max(height, _LEAST) if height else 0 for height in heights]
        tops = [min(low + height, _HEIGHT) for low, height in zip(below, seen, strict=True)]
        drawn += _element("path", f'fill="var(--{colour_of(part)})" d="{_outline(below, tops)}"')
        below = tops
    frame = f'width="100%" height="20" viewBox="0 0 {pieces} {_HEIGHT}" preserveAspectRatio="none"'
    words = f"{lane.name}: {', '.join(names.values())}"
    key = Markup('<span class="key {}">{}</span>')
    keys = Markup("").join(key.format(colour_of(part), name) for part, name in names.items())
    return Markup('<div class="goes"><b>{}</b> {}{}</div>').format(lane.name, keys, _image("lane", frame, drawn, words))


def _outline(low: list[int], high: list[int]) -> str:
    """The area between two heights in each piece; pieces of the same heights that follow each other are one box."""
    boxes, x = [], 0
    for (bottom, top), alike in groupby(zip(low, high, strict=True)):
        width = len(list(alike))
        if top > bottom:
            boxes.append(f"M{x} {_HEIGHT - top}h{width}v{top - bottom}h-{width}z")
        x += width
    return "".join(boxes)
