"""Pictures in the cells of a table, on a scale that all its rows share: places are in percent of the cell's width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.documents.overview import part_name
from steptrace.report.charts.palette import colour_of
from steptrace.report.charts.scale import Scale
from steptrace.report.charts.svg import element, image, text, title

_ROW: Final = 40
_AXIS: Final = 20
_BAR: Final = 15


@dataclass(frozen=True)
class Interval:
    """A value, the ends of its interval (None without one), and the single points that it is made of."""

    value: float
    ends: tuple[float, float] | None = None
    points: Sequence[float] = ()


def interval_cell(scale: Scale, interval: Interval, baseline: float | None, look: str, alt: str) -> Markup:
    """A value with its interval over single points, and the baseline's value as a line; `look` is the mark's class."""
    drawn = ""
    if baseline is not None:
        at = scale.place(baseline)
        drawn += element("line", f'class="baseline" x1="{at}%" x2="{at}%" y1="0" y2="100%"')
    if interval.ends is not None:
        left, right = map(scale.place, interval.ends)
        drawn += element("line", f'class="interval" x1="{left}%" x2="{right}%" y1="50%" y2="50%"')
    drawn += element("circle", f'class="mark" cx="{scale.place(interval.value)}%" cy="50%" r="5"')
    drawn += "".join(
        element("circle", f'class="run" cx="{scale.place(point)}%" cy="75%" r="2"') for point in interval.points
    )
    return image(f"on-scale {look}", f'width="100%" height="{_ROW}"', drawn, alt)


def difference_cell(scale: Scale, ends: tuple[float, float], look: str, alt: str) -> Markup:
    """A range of differences, and a line at 0; `look` is the class of the range."""
    zero, left, right = map(scale.place, (0.0, *ends))
    drawn = element("line", f'class="baseline" x1="{zero}%" x2="{zero}%" y1="0" y2="100%"')
    drawn += element("line", f'class="interval" x1="{left}%" x2="{right}%" y1="50%" y2="50%"')
    return image(f"on-scale difference {look}", f'width="100%" height="{_ROW}"', drawn, alt)


def time_axis(scale: Scale) -> tuple[Markup, str]:
    """The axis of times in ms below the rows, and its unit and kind for the column's heading: "ms, log scale"."""
    unit, size = fmt.unit_of_ms(max(abs(scale.low), abs(scale.high)))
    drawn = ""
    for value in scale.ticks():
        at = float(scale.place(value))
        if at < 6:
            anchor = "start"
        elif at > 94:
            anchor = "end"
        else:
            anchor = "middle"
        drawn += text(f'x="{at:g}%" y="14" text-anchor="{anchor}"', fmt.plain(value / size))
    words = f"{unit}, log scale" if scale.log else unit
    ends = f"{fmt.duration_ms(scale.low)} to {fmt.duration_ms(scale.high)}"
    return image("on-scale axis", f'width="100%" height="{_AXIS}"', drawn, f"Axis in {words}, {ends}"), words


@dataclass(frozen=True)
class Piece:
    """One piece of a bar: its length, its colour, and its name."""

    size: float
    colour: str
    words: str


def bar_cell(pieces: Sequence[Piece], longest: float) -> Markup:
    """A stacked bar, as wide as its share of the longest."""
    drawn = ""
    left = 0.0
    for piece in pieces:
        width = 100 * piece.size / longest
        if width:
            look = f'x="{left:.4g}%" width="{width:.4g}%"'
            drawn += element("rect", f'{look} fill="var(--{piece.colour})"', title(piece.words))
        left += width
    words = ", ".join(piece.words for piece in pieces)
    return image("parts", f'width="100%" height="{_BAR}"', drawn, words)


def pieces_of(parts_ns: Mapping[str, float]) -> list[Piece]:
    """The parts of a step as pieces."""
    return [Piece(ns, colour_of(name), f"{part_name(name)} {fmt.duration_ns(ns)}") for name, ns in parts_ns.items()]
