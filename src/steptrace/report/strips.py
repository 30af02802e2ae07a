"""Small charts of values over time, one strip a series, drawn as plain SVG: a few kilobytes each."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import escape

from steptrace.report import format as fmt
from steptrace.report.svg import WIDTH, InlineSvg, shorten

_LABEL, _PLOT, _GAP, _FOOT = 20.0, 34.0, 8.0, 22.0


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
    parts = [f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {WIDTH:g} {height:g}" class="chart">']
    for index, strip in enumerate(rows):
        top = index * row
        floor = top + _LABEL + _PLOT
        scale = max(strip.highest, default=0.0) or 1.0
        parts += [
            _text(0, top + 13, shorten(strip.name), 'font-weight="bold" font-size="12" fill="var(--ink)"'),
            _text(WIDTH, top + 13, strip.note, 'text-anchor="end" font-size="11" fill="var(--muted)"'),
            _area(strip.highest, floor, scale, 'fill="var(--sky)" fill-opacity="0.45"'),
            _area(strip.mean, floor, scale, 'fill="var(--blue)"'),
            f'<path d="M0 {floor:g}H{WIDTH:g}" stroke="var(--rule)" fill="none"/>',
        ]
    low, high = span_ns
    parts += [
        _text(0, height - 6, fmt.duration_ns(low), 'font-size="11" fill="var(--muted)"'),
        _text(WIDTH, height - 6, fmt.duration_ns(high), 'text-anchor="end" font-size="11" fill="var(--muted)"'),
        "</svg>",
    ]
    return InlineSvg("".join(parts))


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>'


def _area(values: Sequence[float], floor: float, scale: float, style: str) -> str:
    """A filled step line; neighbours of one height share a stroke."""
    if not values:
        return ""
    width = WIDTH / len(values)
    path, last = [f"M0 {floor:g}"], None
    for index, value in enumerate(values):
        y = round(floor - _PLOT * value / scale, 1)
        if y != last:
            path.append(f"{'H' + format(round(index * width, 1), 'g') if index else ''}V{y:g}")
            last = y
    return f'<path d="{"".join(path)}H{WIDTH:g}V{floor:g}Z" {style}/>'
