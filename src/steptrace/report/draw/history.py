"""A figure of one variant over its kept results, oldest at the left; a dashed line where the environment changed."""

from collections.abc import Sequence
from dataclasses import dataclass

from steptrace import format as fmt
from steptrace.report.draw.drawing import LEGEND_LINE, WIDTH, Drawing, shorten
from steptrace.report.draw.svg import InlineSvg

_TOP, _PLOT, _FOOT, _SIDE = 14.0, 120.0, 22.0, 10.0
_COLOURS = ("blue", "vermillion", "green", "purple", "orange", "sky")


@dataclass(frozen=True)
class Dot:
    """One result.

    Attributes:
        name: what it is called.
        ms: lower end of the interval, median, upper end; the ends may be unknown.
        machine: results of one machine have one colour and a line through them.
        changed: what of the environment changed before it, "" for nothing.
    """

    name: str
    ms: tuple[float | None, float, float | None]
    machine: str
    changed: str


def over_time(dots: Sequence[Dot], alt: str) -> InlineSvg:
    """The step times in their order, from 0 to the largest."""
    machines = list(dict.fromkeys(dot.machine for dot in dots))
    floor = _TOP + _PLOT
    drawing = Drawing(floor + _FOOT + LEGEND_LINE * len(machines))
    highest = max((value for dot in dots for value in dot.ms if value is not None), default=0.0) or 1.0
    wide = (WIDTH - 2 * _SIDE) / max(len(dots), 1)

    def place(index: int, ms: float) -> tuple[float, float]:
        return _SIDE + wide * (index + 0.5), floor - _PLOT * ms / highest

    drawing.line((0, floor), (WIDTH, floor))
    drawing.line((0, _TOP), (WIDTH, _TOP))
    drawing.text((0, _TOP - 8), fmt.duration_ms(highest))
    last: dict[str, tuple[float, float]] = {}
    for index, dot in enumerate(dots):
        low, median, high = dot.ms
        where, colour = place(index, median), _COLOURS[machines.index(dot.machine) % len(_COLOURS)]
        if dot.changed:
            left = where[0] - wide / 2
            drawing.line((left, _TOP), (left, floor), "grey", dash="3 3")
        if dot.machine in last:
            drawing.line(last[dot.machine], where, colour)
        if low is not None and high is not None:
            drawing.line(place(index, low), place(index, high), colour, width=2)
        changed = f"; changed before it: {dot.changed}" if dot.changed else ""
        drawing.dot(where, colour, tip=f"{dot.name}: {fmt.duration_ms(median)}, {dot.machine}{changed}")
        last[dot.machine] = where
    for index, name in ((0, dots[0].name), (len(dots) - 1, dots[-1].name)) if len(dots) > 1 else ():
        drawing.text((WIDTH if index else 0, floor + 12), shorten(name), anchor="end" if index else "start")
    for line, machine in enumerate(machines):
        y = floor + _FOOT + LEGEND_LINE * (line + 0.5)
        drawing.dot((5, y), _COLOURS[line % len(_COLOURS)])
        drawing.text((16, y), machine)
    return drawing.svg(alt)
