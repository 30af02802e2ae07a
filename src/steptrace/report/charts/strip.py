"""Bars of steps or of traces, each divided into parts, on one scale of time: many stand side by side, a few lie."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.report.charts.cells import Piece
from steptrace.report.charts.scale import ticks
from steptrace.report.charts.svg import PlotFrame, Wide

#: Height of the bars, of the margin above them, and of their names below, in pixels.
_PLOT: Final = 140.0
_TOP: Final = 24.0
_FOOT: Final = 20.0
#: The share of the width left of the bars, for the axis.
_AXIS: Final = 0.06
#: The share of a bar's place that is free, and the widest bar as a share of the width.
_GAP: Final = 0.15
_WIDEST: Final = 0.16
#: More bars than this have no room for all their names.
_MOST_NAMES: Final = 16
#: So many bars, or fewer, lie: standing ones would be wider than high, or leave most of the width free.
MOST_LYING: Final = 6
#: A lower part of a standing bar is not seen, in pixels.
_LOWEST: Final = 0.2
#: Height of a lying bar, of the line of its name above it, and of its whole place, in pixels.
_BAR: Final = 20.0
_NAME: Final = 18.0
_PLACE: Final = 44.0
#: On a phone one of so many names below standing bars is shown, unless they are as short as numbers.
_PHONE: Final = 3
_SHORT: Final = 3


@dataclass(frozen=True)
class Bar:
    """One bar: its name, and its parts from the bottom to the top; sizes are in ns."""

    name: str
    pieces: Sequence[Piece]

    @property
    def size(self) -> float:
        """The length of the whole bar."""
        return sum(piece.size for piece in self.pieces)


def parted_bars(bars: Sequence[Bar], alt: str, *, what: str = "") -> Markup:
    """The bars in the way that fills the width: a few lie one below the other, more of them stand side by side.

    Args:
        bars: the bars.
        alt: what they show, in words.
        what: stands before a name that is a number alone, where there is room for it.
    """
    if len(bars) > MOST_LYING:
        return strip(bars, alt)
    return lying([replace(bar, name=f"{what} {bar.name}".lstrip()) for bar in bars], alt)


def lying(bars: Sequence[Bar], alt: str) -> Markup:
    """The bars one below the other, each with its name and length; `alt` says in words what they show.

    Raises:
        ValueError: no bar has a length.
    """
    longest = max((bar.size for bar in bars), default=0.0)
    if longest <= 0:
        raise ValueError("lying bars need a bar with a length")
    drawing = Wide(_PLACE * len(bars))
    for number, bar in enumerate(bars):
        top = number * _PLACE
        left = 0.0
        drawing.text((0.0, top + _NAME / 2), bar.name, kind="name")
        drawing.text((1.0, top + _NAME / 2), fmt.duration_ns(bar.size), anchor="end")
        for piece in bar.pieces:
            share = piece.size / longest
            if share > 0:
                drawing.box(PlotFrame(left, share, top + _NAME, _BAR), piece.colour, words=piece.words)
            left += share
    return drawing.svg(alt, "lying")


def strip(bars: Sequence[Bar], alt: str) -> Markup:
    """The bars side by side, with an axis of time from 0; `alt` says in words what it shows.

    Raises:
        ValueError: no bar has a length.
    """
    longest = max((bar.size for bar in bars), default=0.0)
    if longest <= 0:
        raise ValueError("a strip needs a bar with a length")
    drawing = Wide(_TOP + _PLOT + _FOOT)
    floor = _TOP + _PLOT
    unit, size = fmt.unit_of_ms(longest / fmt.NS_PER_MS)
    scale = size * fmt.NS_PER_MS
    for tick in ticks(0.0, longest / scale, 4):
        y = floor - _PLOT * tick * scale / longest
        drawing.line((_AXIS, y), (1.0, y))
        drawing.text((_AXIS - 0.006, y), fmt.plain(tick), anchor="end")
    drawing.text((_AXIS - 0.006, 5), unit, anchor="end")
    place = min((1 - _AXIS) / len(bars), _WIDEST)
    spacing = -(-len(bars) // _MOST_NAMES)
    for number, bar in enumerate(bars):
        left = _AXIS + number * place + place * _GAP / 2
        below = floor
        for piece in bar.pieces:
            height = _PLOT * piece.size / longest
            if height >= _LOWEST:
                frame = PlotFrame(left, place * (1 - _GAP), below - height, height)
                drawing.box(frame, piece.colour, words=piece.words)
            below -= height
        if number % spacing == 0:
            middle = left + place * (1 - _GAP) / 2
            near_end = number + spacing >= len(bars) and spacing > 1  # a name wider than its bar ends where it does
            at, anchor = (left + place * (1 - _GAP), "end") if near_end else (middle, "middle")
            kind = "" if len(bar.name) <= _SHORT or number % (_PHONE * spacing) == 0 else "roomy"
            drawing.text((at, floor + 11), bar.name, anchor=anchor, kind=kind)
    return drawing.svg(alt, "strip")
