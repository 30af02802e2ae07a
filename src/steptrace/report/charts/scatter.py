"""Points on two axes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.report.charts.scale import Scale
from steptrace.report.charts.svg import Wide

#: Height of the plot, and of the margins around it, in pixels.
_PLOT: Final = 220.0
_TOP: Final = 22.0
_FOOT: Final = 38.0
#: The share of the width that the names of the vertical axis take.
_LEFT: Final = 0.08
#: Names of points right of it stand left of them.
_MIDDLE: Final = 0.6
#: Height of a line of letters in pixels.
_NAME_LINE: Final = 13.0
#: The share of the width that a letter takes, with the distance to the point, on a page for a laptop.
_LETTER: Final = 0.008


@dataclass(frozen=True)
class Dot:
    """One point: where it lies on both axes, its radius in pixels, its colour, its tooltip, and a name beside it."""

    x: float
    y: float
    radius: float
    fill: str
    words: str
    name: str = ""


@dataclass(frozen=True)
class Axis:
    """An axis: its name with the unit, and its scale."""

    name: str
    scale: Scale


def scatter(
    dots: Sequence[Dot], x: Axis, y: Axis, alt: str, *, lines: Sequence[Sequence[tuple[float, float]]] = ()
) -> Markup:
    """The points, the largest at the back, and lines through values of both axes; `alt` says in words what it shows.

    A name that would lie on another point or on the name of an earlier one is left out: the tooltip has it.
    """
    drawing = Wide(_TOP + _PLOT + _FOOT)
    floor = _TOP + _PLOT

    def at(across: float, up: float) -> tuple[float, float]:
        return _LEFT + (1 - _LEFT) * x.scale.share(across), floor - _PLOT * y.scale.share(up)

    for value in y.scale.ticks():
        height = at(x.scale.low, value)[1]
        drawing.line((_LEFT, height), (1.0, height))
        drawing.text((_LEFT - 0.008, height), fmt.tick(value), anchor="end")
    for value in x.scale.ticks():
        place = at(value, y.scale.low)[0]
        drawing.line((place, _TOP), (place, floor))
        drawing.text((place, floor + 11), fmt.tick(value), anchor="middle")
    drawing.text((_LEFT, _TOP - 12), y.name)
    drawing.text((1.0, floor + 28), x.name, anchor="end")
    for line in lines:
        points = [at(*point) for point in line]
        for start, end in pairwise(points):
            drawing.line(start, end, "ink")
    for dot in sorted(dots, key=lambda dot: -dot.radius):
        drawing.dot(at(dot.x, dot.y), dot.radius, dot.fill, words=dot.words)
    named: list[tuple[str, float]] = []
    places = [(*at(dot.x, dot.y), dot.radius) for dot in dots]
    for dot, (place, height, _) in zip(dots, places, strict=True):
        # Letters have their size in pixels, and the picture any width: a name stands on the side that has more room.
        anchor = "start" if place < _MIDDLE else "end"
        # How far a name reaches across is known to the browser alone: names of one side need a line each.
        free = all(side != anchor or abs(height - other) >= _NAME_LINE for side, other in named)
        reach = len(dot.name) * _LETTER
        left, right = (place, place + reach) if anchor == "start" else (place - reach, place)
        free = free and not any(
            left < other < right and other != place and abs(height - up) < radius + _NAME_LINE / 2
            for other, up, radius in places
        )
        if dot.name and free:
            named.append((anchor, height))
            drawing.text((place, height), dot.name, anchor=anchor, kind=f"beside-{anchor}")
    return drawing.svg(alt, "scatter")
