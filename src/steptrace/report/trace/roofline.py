"""The section on operators against the data sheet: a picture of all, and a table."""

import math
from collections.abc import Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.roofline import OperatorRoofline
from steptrace.report.charts.palette import colour_of
from steptrace.report.charts.scale import Scale
from steptrace.report.charts.scatter import Axis, Dot, scatter
from steptrace.report.page.markup import Html
from steptrace.report.page.rows import listing
from steptrace.report.page.section import Explained, Parts, folded, note
from steptrace.report.trace.registry import section_of
from steptrace.report.trace.view import TraceView
from steptrace.words.pictures import ROOFLINE, ROOFLINE_AXES, operator_text

#: The most operators in the table, and in the picture, where more would be specks.
_MOST_ROWS: Final = 20
_MOST_DOTS: Final = 120
#: The most points with a name beside them, those with the most time.
_NAMED: Final = 3
#: The largest and the smallest radius of a point in pixels.
_LARGEST: Final = 16.0
_SMALLEST: Final = 3.0
#: The picture ends here, in percent of the roofline; more is drawn at its upper end.
_HIGHEST: Final = 120.0
#: What has no FLOP is drawn at this share of the least arithmetic of all others, or at this figure if there are none.
_BELOW: Final = 0.5
_LEAST: Final = 0.1
#: The ends of an axis are apart by at least this factor.
_WIDE: Final = 10.0


@section_of("roofline")
def roofline(view: TraceView) -> Parts | None:
    """How far operators are from what the GPU can do."""
    rows = view.trace.roofline
    if not rows:
        return None
    picture = _picture(rows[:_MOST_DOTS], view.steps or 1)
    return [
        *picture,
        *([folded("As a table", listing(rows, most=_MOST_ROWS, steps=view.steps))] if picture else []),
        *([] if picture else [listing(rows, most=_MOST_ROWS, steps=view.steps)]),
    ]


def _picture(rows: Sequence[OperatorRoofline], steps: int) -> list[Explained]:
    """Each operator as a point: its arithmetic for each byte, its share of the roofline, and its time as its size."""
    shown = [row for row in rows if row.bytes]
    if not shown:
        return []
    with_flop = [row.flop / row.bytes for row in shown if row.flop and row.bytes]
    least = _BELOW * min(with_flop) if with_flop else _LEAST
    longest = max(row.ns for row in shown)
    dots = [
        Dot(
            max((row.flop or 0.0) / (row.bytes or 1.0), least),
            row.roofline_pct,
            max(_LARGEST * math.sqrt(row.ns / longest), _SMALLEST),
            colour_of("compute"),
            operator_text(row, steps),
            row.name if number < _NAMED else "",
        )
        for number, row in enumerate(shown)
    ]
    across = Scale(least * 0.8, max(max(dot.x for dot in dots) * 1.25, least * _WIDE), log=True)
    up = Scale(0.0, _HIGHEST, log=False)
    low, high = min(dot.y for dot in dots), max(dot.y for dot in dots)
    drawn = scatter(
        dots,
        Axis(ROOFLINE_AXES[0], across),
        Axis(ROOFLINE_AXES[1], up),
        f"{fmt.plural(len(dots), 'operator')}, {fmt.percent(low)} to {fmt.percent(high)} of the roofline",
        lines=[[(across.low, 100.0), (across.high, 100.0)]],
    )
    return [note(ROOFLINE), Explained(Html('<div class="picture">{}</div>').format(drawn))]
