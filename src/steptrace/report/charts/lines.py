"""Lines over a few values, side by side: how a figure of each row changes with them, with its intervals."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.documents.step_times import StepTimes
from steptrace.report.charts.scale import Scale
from steptrace.report.charts.svg import Wide

#: Height of the plot, and of the margins around it, in pixels.
_PLOT: Final = 190.0
_TOP: Final = 14.0
_FOOT: Final = 24.0
#: The share of the width that the vertical axis takes at the left, and the lines' names at the right.
_LEFT: Final = 0.1
_NAMES: Final = 0.24
#: Letters of a line's name that are shown; the tooltips of its points have the whole name.
_LONGEST: Final = 22
#: How far apart the names of two lines are at least, in pixels.
_APART: Final = 13.0
#: The dashes of lines, which tell them apart beside their names: SVG's stroke-dasharray.
_DASHES: Final = ("", "7 3", "2 3", "9 3 2 3")
_RADIUS: Final = 3.0


@dataclass(frozen=True)
class Point:
    """A value, the two ends of its interval where there is one, and its tooltip."""

    value: float
    ends: tuple[float, float] | None
    words: str


@dataclass(frozen=True)
class Series:
    """A line's name and its points, one for each column; None where it was not measured."""

    name: str
    points: Sequence[Point | None]


def measured_point(times: StepTimes | None, prefix: str = "") -> Point | None:
    """A measured step time with its interval, unless that is too wide to say anything; None without a step time.

    Args:
        times: the step time, in ms.
        prefix: the text before the time in the tooltip.
    """
    if times is None:
        return None
    has_ends = times.low is not None and times.high is not None and not fmt.is_too_wide(times.low, times.high)
    ends = (times.low or 0.0, times.high or 0.0) if has_ends else None
    return Point(times.value, ends, f"{prefix}{fmt.duration_ms(times.value)}")


def scale_of(series: Sequence[Series]) -> Scale | None:
    """The vertical axis that shows all points and their intervals; None without a positive value."""
    points = [point for line in series for point in line.points if point is not None]
    values = [value for point in points for value in (point.value, *(point.ends or ())) if value > 0]
    return Scale.showing(values) if values else None


def lines(columns: Sequence[str], series: Sequence[Series], scale: Scale, alt: str) -> Markup:
    """The lines, with a column for each value that they go over, evenly apart.

    Args:
        columns: the values' names, from left to right.
        series: the lines.
        scale: of the vertical axis, whose values are times in ms.
        alt: what the picture shows, in words.

    Raises:
        ValueError: a line has another number of points than there are columns, or nothing was measured.
    """
    if any(len(line.points) != len(columns) for line in series):
        raise ValueError(f"each line needs {len(columns)} points")
    if not any(point is not None for line in series for point in line.points):
        raise ValueError("lines need a point")
    floor = _TOP + _PLOT
    drawing = Wide(floor + _FOOT)
    width = (1 - _LEFT - _NAMES) / len(columns)

    def across(column: int) -> float:
        return _LEFT + (column + 0.5) * width

    def down(value: float) -> float:
        return floor - _PLOT * scale.share(value)

    for tick in scale.ticks():
        drawing.line((_LEFT, down(tick)), (1 - _NAMES, down(tick)))
        drawing.text((_LEFT - 0.01, down(tick)), fmt.duration_ms(tick, 2), anchor="end")
    for number, name in enumerate(columns):
        drawing.text((across(number), floor + _FOOT / 2), name, anchor="middle")
    ends: list[tuple[float, str]] = []
    for number, line in enumerate(series):
        dash = _DASHES[number % len(_DASHES)]
        places = [
            (across(column), down(point.value), point) for column, point in enumerate(line.points) if point is not None
        ]
        for (left, top, _), (right, bottom, _) in pairwise(places):
            drawing.line((left, top), (right, bottom), "ink", dash=dash)
        for at, height, point in places:
            if point.ends is not None:
                low, high = map(down, point.ends)
                drawing.line((at, low), (at, high), "grey")
            drawing.dot((at, height), _RADIUS, "ink", words=f"{line.name}, {point.words}")
        if places:
            ends.append((places[-1][1], line.name))
    for top, height, name in _apart(ends, floor):
        drawing.line((1 - _NAMES, height), (1 - _NAMES + 0.015, top), "grey")
        drawing.text((1 - _NAMES + 0.02, top), fmt.clipped(name, _LONGEST), kind="name")
    return drawing.svg(alt, "lines")


def _apart(ends: Sequence[tuple[float, str]], floor: float) -> list[tuple[float, float, str]]:
    """The places of the lines' names, so that none covers another: the name's height, the line's, and the name."""
    placed: list[tuple[float, float, str]] = []
    free = -_APART
    for height, name in sorted(ends):
        free = max(height, free + _APART)
        placed.append((free, height, name))
    over = max(placed[-1][0] - floor, 0.0) if placed else 0.0
    # A name that would be below the plot pushes the names above it up.
    moved: list[tuple[float, float, str]] = []
    limit = floor
    for top, height, name in reversed(placed):
        limit = min(top, limit)
        moved.append((limit, height, name))
        limit -= _APART
    return moved[::-1] if over else placed
