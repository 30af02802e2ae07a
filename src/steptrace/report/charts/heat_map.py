"""A matrix as colours: the paler, the nearer to the smallest value."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from steptrace.report.charts.svg import DARK, PlotFrame, Wide

#: Height of a row and of the names of the columns, in pixels.
_ROW: Final = 24.0
_HEAD: Final = 18.0
#: The share of the width that the names of the rows take.
_NAMES: Final = 0.12
#: A cell of a higher opacity has its own colour for letters.
_HALF: Final = 0.5
#: How pale the smallest value is.
_PALEST: Final = 0.08
#: More columns than this have no room for values and for all their names.
_MOST_WITH_WORDS: Final = 12
#: The space above and below a cell, in pixels.
_GAP: Final = 1.0


def heat_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float | None]],
    words: Sequence[Sequence[str]],
    alt: str,
    *,
    fill: str = "blue",
) -> Markup:
    """The matrix.

    Args:
        rows, columns: their names.
        values: by row and column; None: not measured, which stays empty.
        words: of each value, in its cell where there is room, and in its tooltip.
        alt: what the picture shows, in words.
        fill: the colour of the largest value.

    Raises:
        ValueError: no value was measured.
    """
    measured = [value for row in values for value in row if value is not None]
    if not measured:
        raise ValueError("a heat map needs a value")
    low, high = min(measured), max(measured)
    drawing = Wide(_HEAD + _ROW * len(rows))
    width = (1 - _NAMES) / len(columns)
    spacing = -(-len(columns) // _MOST_WITH_WORDS)
    for number, name in enumerate(columns):
        if number % spacing == 0:
            drawing.text((_NAMES + (number + 0.5) * width, _HEAD / 2), name, anchor="middle")
    for at, (name, row) in enumerate(zip(rows, values, strict=True)):
        top = _HEAD + at * _ROW
        drawing.text((0.0, top + _ROW / 2), name)
        for number, value in enumerate(row):
            if value is None:
                continue
            share = (value - low) / (high - low) if high > low else 0.0
            tip = f"{name}, {columns[number]}: {words[at][number]}"
            left = _NAMES + number * width
            opacity = _PALEST + (1 - _PALEST) * share
            drawing.box(PlotFrame(left, width, top + _GAP, _ROW - 2 * _GAP), fill, words=tip, opacity=opacity)
            if spacing == 1:
                if opacity < _HALF:
                    kind = "on-plain"
                elif fill in DARK:
                    kind = "on-dark"
                else:
                    kind = "on-light"
                drawing.text((left + width / 2, top + _ROW / 2), words[at][number], anchor="middle", kind=kind)
    return drawing.svg(alt, "heat-map")
