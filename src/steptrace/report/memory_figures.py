"""The figures of memory: a device's curve with its peak, and what held the bytes at a peak."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from markupsafe import escape

from steptrace.report import format as fmt
from steptrace.report.svg import WIDTH, InlineSvg, shorten

#: Category -> its name on a page and its colour (a custom property of page.css), in the order of a bar.
CATEGORIES: Final = {
    "parameters": ("parameters", "blue"),
    "gradients": ("gradients", "sky"),
    "optimizer_state": ("optimizer state", "green"),
    "activations": ("activations", "orange"),
    "inputs": ("inputs", "purple"),
    "temporary": ("temporary", "vermillion"),
    "unknown": ("unknown", "grey"),
}

_TOP, _PLOT, _FOOT = 26.0, 120.0, 22.0
_ROW, _BAR, _LINE = 44.0, 16.0, 19.0
_FIT_PLOT, _LABEL = 170.0, 62.0
#: A foretold batch more times as large as the largest measured one is told, not drawn.
_REACH: Final = 6


def memory_curve(entry: Mapping[str, Any], title: str) -> InlineSvg | None:
    """The bytes of one device over time, its peak marked and the reserved ones pale behind; None with too few points.

    `entry` is one of `memory` in summary.json.
    """
    points: Sequence[Sequence[Any]] = entry.get("curve") or ()
    if len(points) < 2:
        return None
    start, end = int(points[0][0]), int(points[-1][0])
    highest: int = max(max(point[1], point[2] or 0) for point in points) or 1
    floor = _TOP + _PLOT

    def x(ts: int) -> float:
        return round(WIDTH * (ts - start) / max(end - start, 1), 1)

    def y(size: int) -> float:
        return round(floor - _PLOT * size / highest, 1)

    peak_x, peak_y = x(entry["peak_ts"]), y(entry["peak_allocated_bytes"])
    note = f"peak {fmt.size_bytes(entry['peak_allocated_bytes'])}"
    anchor = "end" if peak_x > WIDTH / 2 else "start"
    reserved = [(x(ts), y(size)) for ts, _, size in points if size is not None]
    base = y(entry.get("before_bytes") or 0)
    parts = [
        _head(_TOP + _PLOT + _FOOT, f"{title}: {note} at {fmt.duration_ns(entry['peak_ts'])}."),
        _area(reserved, floor, 'fill="var(--band)"') if reserved else "",
        _area([(x(ts), y(size)) for ts, size, _ in points], floor, 'fill="var(--sky)" fill-opacity="0.6"'),
        _line(f"M0 {base:g}H{WIDTH:g}", 'stroke="var(--blue)" stroke-dasharray="4 4"') if base < floor else "",
        _line(f"M0 {floor:g}H{WIDTH:g}", 'stroke="var(--rule)"'),
        _line(f"M{peak_x:g} {_TOP - 8:g}V{floor:g}", 'stroke="var(--vermillion)"'),
        f'<circle cx="{peak_x:g}" cy="{peak_y:g}" r="3.5" fill="var(--vermillion)"/>',
        _text(peak_x + (-6 if anchor == "end" else 6), _TOP - 11, note, f'text-anchor="{anchor}" {_BOLD}'),
        _text(0, floor + 16, fmt.duration_ns(start), _SMALL),
        _text(WIDTH, floor + 16, fmt.duration_ns(end), f'text-anchor="end" {_SMALL}'),
        "</svg>",
    ]  # fmt: skip
    return InlineSvg("".join(parts))


def category_bars(rows: Sequence[tuple[str, Mapping[str, int]]], alt: str) -> InlineSvg | None:
    """One stacked bar a row of bytes by category on a common scale, with a legend; None where nothing is known."""
    longest = max((sum(sizes.values()) for _, sizes in rows), default=0)
    if longest <= 0:
        return None
    used = [name for name in CATEGORIES if any(sizes.get(name) for _, sizes in rows)]
    legend, lines = _legend(used)
    top = _LINE * lines + 6
    said = " ".join(f"{label}: {_words(sizes)}." for label, sizes in rows)
    parts = [_head(top + _ROW * len(rows), f"{alt} {said}"), legend]
    for index, (label, sizes) in enumerate(rows):
        y, left = top + index * _ROW, 0.0
        parts.append(_text(0, y + 14, shorten(label), _BOLD))
        parts.append(_text(WIDTH, y + 14, fmt.size_bytes(sum(sizes.values())), f'text-anchor="end" {_SMALL}'))
        for name in used:
            width = WIDTH * sizes.get(name, 0) / longest
            if width > 0:
                title = f"<title>{CATEGORIES[name][0]}: {fmt.size_bytes(sizes[name])}</title>"
                place = f'x="{left:.2f}" y="{y + 20:g}" width="{width:.2f}" height="{_BAR:g}"'
                parts.append(f'<rect {place} fill="var(--{CATEGORIES[name][1]})">{title}</rect>')
            left += width
    return InlineSvg("".join([*parts, "</svg>"]))


_BOLD: Final = 'font-weight="bold" font-size="12" fill="var(--ink)"'
_SMALL: Final = 'font-size="11" fill="var(--muted)"'


def _head(height: float, alt: str) -> str:
    return f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {WIDTH:g} {height:g}" class="chart">'


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(text)}</text>'


def _line(path: str, style: str) -> str:
    return f'<path d="{path}" {style} fill="none"/>'


def _area(points: Sequence[tuple[float, float]], floor: float, style: str) -> str:
    """A filled step line: each value holds until the next."""
    path = [f"M{points[0][0]:g} {floor:g}V{points[0][1]:g}"]
    path += [f"H{x:g}V{y:g}" for x, y in points[1:]]
    return f'<path d="{"".join(path)}V{floor:g}Z" {style}/>'


def _legend(names: Sequence[str]) -> tuple[str, int]:
    """The legend as SVG, and how many lines it takes."""
    parts, x, line = [], 0.0, 1
    for name in names:
        word, colour = CATEGORIES[name]
        width = 15 + 6.4 * len(word) + 14
        if x and x + width > WIDTH:
            x, line = 0.0, line + 1
        y = _LINE * line - 6
        parts.append(f'<rect x="{x:g}" y="{y - 9:g}" width="10" height="10" rx="2" fill="var(--{colour})"/>')
        parts.append(_text(x + 15, y, word, 'font-size="11.5" fill="var(--ink)"'))
        x += width
    return "".join(parts), line


def _words(sizes: Mapping[str, int]) -> str:
    shown = [f"{CATEGORIES[name][0]} {fmt.size_bytes(sizes[name])}" for name in CATEGORIES if sizes.get(name)]
    return ", ".join(shown) or "nothing known"


def fit_chart(fit: Mapping[str, Any]) -> InlineSvg:
    """Measured peaks against the batch size with the line through them, and the capacity where it is near.

    `fit` is one of `memory_fit` in comparison.json.
    """
    peaks: Sequence[tuple[int, int]] = fit["peaks"]
    largest, capacity = fit["largest_batch"], fit["capacity_bytes"]
    near = largest is not None and 0 < largest <= _REACH * peaks[-1][0]
    right = 1.1 * max(peaks[-1][0], largest if near else 0)
    fixed, slope = fit["fixed_bytes"], fit["per_sample_bytes"]
    top = 1.1 * max(peaks[-1][1], capacity if near and capacity else 0, fixed + slope * right)
    floor = _TOP + _FIT_PLOT

    def at(size: float, peak: float) -> tuple[float, float]:
        return round(WIDTH * size / right, 1), round(floor - _FIT_PLOT * max(peak, 0) / top, 1)

    x0, y0 = at(0, fixed)
    x1, y1 = at(right, fixed + slope * right)
    said = ", ".join(f"{fmt.size_bytes(peak)} at {size}" for size, peak in peaks)
    parts = [
        _head(floor + _FOOT, f"Peak against batch size: {said}."),
        _line(f"M0 {floor:g}H{WIDTH:g}", 'stroke="var(--rule)"'),
        _line(f"M{x0:g} {y0:g}L{x1:g} {y1:g}", 'stroke="var(--blue)" stroke-width="1.5"'),
    ]
    if near and capacity:
        y, x = at(0, capacity)[1], at(largest, 0)[0]
        parts += [
            _line(f"M0 {y:g}H{WIDTH:g}", 'stroke="var(--vermillion)" stroke-dasharray="5 4"'),
            _line(f"M{x:g} {y:g}V{floor:g}", 'stroke="var(--vermillion)" stroke-dasharray="2 3"'),
            _text(0, y - 6, f"capacity {fmt.size_bytes(capacity)}", _SMALL),
            _text(x, floor + 16, f"{largest} should fit", f'text-anchor="end" {_SMALL}'),
        ]
    for index, (size, peak) in enumerate(peaks):
        (x, y), word = at(size, peak), fmt.size_bytes(peak)
        parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="4" fill="var(--blue)"><title>{size}: {word}</title></circle>')
        # The largest has its label; of the others those that leave room for the next.
        if index == len(peaks) - 1 or at(peaks[index + 1][0], 0)[0] - x >= _LABEL:
            parts.append(_text(max(x, _LABEL / 2), y - 9, word, f'text-anchor="middle" {_SMALL}'))
            parts.append(_text(x, floor + 16, str(size), f'text-anchor="middle" {_SMALL}'))
    return InlineSvg("".join([*parts, "</svg>"]))
