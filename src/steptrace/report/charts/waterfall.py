"""A waterfall: from one length to another, and between them a bar for each thing that makes the difference.

Each row is a picture of its own, on a scale that all rows share, so that names and figures stand beside them as text.
Places are in percent of the width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

from steptrace.report.charts.scale import ticks
from steptrace.report.charts.svg import colour, element, image, percent, title

#: Height of a row in pixels; its bar leaves this free above and below.
_ROW: Final = 22
_GAP: Final = 3
#: The axis does not begin at 0 if no level is shorter than this share of the longest, since the changes would be too
#: small to see.
_LONG: Final = 0.6
#: The share of the width that the changes then take.
_CHANGES: Final = 0.5


@dataclass(frozen=True)
class WaterfallChange:
    """One thing that makes the difference: its size, negative where it makes the end shorter, its colour, a tooltip."""

    size: float
    fill: str
    words: str


@dataclass(frozen=True)
class Waterfall:
    """The rows' pictures: the start, the changes in their order, the end; `low` is where the axis begins."""

    rows: tuple[Markup, ...]
    low: float


def waterfall(start: float, changes: Sequence[WaterfallChange], end: float, words: tuple[str, str]) -> Waterfall:
    """The pictures of a way from `start` to `end`; `words` are the tooltips of the two.

    Raises:
        ValueError: the changes do not lead from `start` to `end`, or neither has a length.
    """
    levels = [start]
    for change in changes:
        levels.append(levels[-1] + change.size)
    longest = max(*levels, end)
    if longest <= 0 or abs(levels[-1] - end) > 1e-6 * longest:
        raise ValueError(f"the changes lead from {start} to {levels[-1]}, not to {end}")
    low = _beginning([*levels, end])
    whole = longest - low

    def row(begin: float, end: float, fill: str, tip: str, joints: Sequence[float]) -> Markup:
        left, right = sorted((max(begin - low, 0) / whole, max(end - low, 0) / whole))
        drawn = "".join(
            element("line", f'class="joint" x1="{at}" x2="{at}" y1="{top}" y2="{top + _ROW / 2:g}"')
            for level, top in zip(joints, (0, _ROW / 2), strict=True)
            if (at := percent(max(level - low, 0) / whole))
        )
        place = f'x="{percent(left)}" width="{percent(right - left)}" y="{_GAP}" height="{_ROW - 2 * _GAP}"'
        drawn += element("rect", f'{place} fill="{colour(fill)}"', title(tip))
        return image("waterfall", f'width="100%" height="{_ROW}"', drawn, tip)

    rows = [row(low, start, "ink", words[0], (start, start))]
    for number, change in enumerate(changes):
        before, after = levels[number : number + 2]
        rows.append(row(before, after, change.fill, change.words, (before, after)))
    rows.append(row(low, end, "ink", words[1], (end, end)))
    return Waterfall(tuple(rows), low)


def _beginning(levels: Sequence[float]) -> float:
    """Where the axis begins: at 0, or, where all levels are nearly as long as the longest, at a round value below."""
    longest, shortest = max(levels), min(levels)
    if shortest < _LONG * longest or shortest == longest:
        return 0.0
    wanted = longest - (longest - shortest) / _CHANGES
    return max((tick for tick in ticks(0.0, longest, 40) if tick <= wanted), default=0.0)
