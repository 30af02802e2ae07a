"""Bytes held over time, as an area, with the peak marked."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.report.charts.scale import ticks
from steptrace.report.charts.svg import WIDTH, Drawing

#: Height of the plot, and of the margins above and below it, in pixels.
_PLOT: Final = 120.0
_TOP: Final = 26.0
_FOOT: Final = 22.0
#: Width of the axis left of the plot.
_LEFT: Final = 64.0


def bytes_over_time(
    points: Sequence[tuple[int, int, int | None]],
    peak: tuple[int, int],
    ends: tuple[str, str],
    alt: str,
    *,
    before: int = 0,
) -> Markup | None:
    """Allocated bytes, with the reserved ones pale behind them; None with too few points.

    The vertical axis begins at 0, and ends at the most that was ever reserved or allocated.

    Args:
        points: time, or the number of an event; allocated bytes; reserved bytes, None where they are not known.
        peak: when the most bytes were allocated, in the unit of the points, and how many.
        ends: what stands at both ends of the horizontal axis.
        alt: what the picture is of, and when its peak is, in words.
        before: bytes that were held from the start on: a dashed line.
    """
    if len(points) < 2:
        return None
    start, end = points[0][0], points[-1][0]
    highest: int = max(max(allocated, reserved or 0) for _, allocated, reserved in points) or 1
    floor = _TOP + _PLOT

    def at(when: int, size: float) -> tuple[float, float]:
        return _LEFT + (WIDTH - _LEFT) * (when - start) / max(end - start, 1), floor - _PLOT * size / highest

    drawing = Drawing(floor + _FOOT)
    reserved = [at(when, size) for when, _, size in points if size is not None]
    if reserved:
        drawing.area(reserved, floor, "band")
    drawing.area([at(when, size) for when, size, _ in points], floor, "grey", opacity=0.6)
    for size in _round_sizes(highest):
        y = at(start, size)[1]
        drawing.line((_LEFT, y), (WIDTH, y))
        drawing.text((_LEFT - 5, y), fmt.size_bytes(size) if size else "0", anchor="end")
    if before:
        y = at(start, before)[1]
        drawing.line((_LEFT, y), (WIDTH, y), "ink", dash="4 4")
    x, y = at(*peak)
    drawing.line((x, _TOP - 8), (x, floor), "ink")
    drawing.dot((x, y), "ink")
    # The words stand on the side of the mark that has more room.
    is_right = x > (WIDTH + _LEFT) / 2
    words = f"peak {fmt.size_bytes(peak[1])}"
    drawing.text((x + (-6 if is_right else 6), _TOP - 15), words, "name", anchor="end" if is_right else "start")
    drawing.text((_LEFT, floor + 12), ends[0])
    drawing.text((WIDTH, floor + 12), ends[1], anchor="end")
    return drawing.svg(alt)


def _round_sizes(highest: int) -> list[int]:
    """Round numbers of bytes, MiB or GiB from 0 to the highest, some four."""
    unit = 1024 ** min(max((highest.bit_length() - 1) // 10, 0), 3)
    return [round(tick * unit) for tick in ticks(0.0, highest / unit, 4)]
