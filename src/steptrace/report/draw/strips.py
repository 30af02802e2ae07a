"""Small charts of values over time, one strip a series."""

from collections.abc import Sequence
from dataclasses import dataclass

from steptrace import format as fmt
from steptrace.report.draw.drawing import WIDTH, Drawing
from steptrace.report.draw.svg import InlineSvg

_LABEL, _PLOT, _GAP, _FOOT = 21.0, 34.0, 8.0, 22.0


@dataclass(frozen=True)
class Strip:
    """One series: its name, what stands at the right of it, and the mean and maximum of each bucket of time."""

    name: str
    note: str
    mean: Sequence[float]
    highest: Sequence[float]


def strips(rows: Sequence[Strip], span_ns: tuple[int, int], alt: str) -> InlineSvg:
    """The strips below each other over one axis of time; each is scaled to its own maximum, which its note should say.

    The maximum of a bucket is drawn pale behind its mean.
    """
    row = _LABEL + _PLOT + _GAP
    height = row * len(rows) + _FOOT
    drawing = Drawing(height)
    for index, strip in enumerate(rows):
        floor = index * row + _LABEL + _PLOT
        scale = max(strip.highest, default=0.0) or 1.0
        drawing.row_label(index * row, _LABEL, (strip.name, strip.note))
        for values, colour, opacity in ((strip.highest, "sky", 0.45), (strip.mean, "blue", 1.0)):
            if values:
                places = [(WIDTH * at / len(values), floor - _PLOT * v / scale) for at, v in enumerate(values)]
                drawing.area([*places, (WIDTH, places[-1][1])], floor, colour, opacity=opacity)
        drawing.line((0, floor), (WIDTH, floor))
    drawing.text((0, height - 10), fmt.duration_ns(span_ns[0]))
    drawing.text((WIDTH, height - 10), fmt.duration_ns(span_ns[1]), anchor="end")
    return drawing.svg(alt)
