"""The figures of memory: a device's curve with its peak, and what held the bytes at a peak."""

from collections.abc import Mapping, Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.memory import DeviceMemory
from steptrace.report.draw.bars import Bar, Piece, bars
from steptrace.report.draw.drawing import WIDTH, Drawing
from steptrace.report.draw.svg import InlineSvg

#: Category -> its name on a page and its colour, in the order of a bar.
CATEGORIES: Final = {
    "parameters": ("parameters", "blue"),
    "gradients": ("gradients", "sky"),
    "optimizer_state": ("optimizer state", "green"),
    "activations": ("activations", "orange"),
    "inputs": ("inputs", "purple"),
    "workspaces": ("cuBLAS workspaces", "muted"),
    "temporary": ("temporary", "vermillion"),
    "unknown": ("unknown", "grey"),
}

_TOP, _PLOT, _FOOT = 26.0, 120.0, 22.0


def memory_curve(entry: DeviceMemory, title: str, step: tuple[int, int] | None = None) -> InlineSvg | None:
    """One device's bytes over time, its peak marked, the reserved ones pale behind; None with too few points.

    `step` is the part to draw, from where to where; without it all is drawn.
    """
    points, peak, peak_ts = entry.curve, entry.peak_allocated_bytes, entry.peak_ts
    if step is not None:
        begin = [(step[0], allocated, reserved) for ts, allocated, reserved in points if ts < step[0]][-1:]
        points = (*begin, *(point for point in points if step[0] <= point[0] <= step[1]))
    if len(points) < 2:
        return None
    start, end = points[0][0], points[-1][0]
    highest: int = max(max(point[1], point[2] or 0) for point in points) or 1
    floor = _TOP + _PLOT

    def at(ts: int, size: float) -> tuple[float, float]:
        return WIDTH * (ts - start) / max(end - start, 1), floor - _PLOT * size / highest

    peak_x, peak_y = at(peak_ts, peak)
    note = f"peak {fmt.size_bytes(peak)}"
    reserved = [at(ts, size) for ts, _, size in points if size is not None]
    before = entry.before_bytes or 0
    drawing = Drawing(floor + _FOOT)
    if reserved:
        drawing.area(reserved, floor, "band")
    drawing.area([at(ts, size) for ts, size, _ in points], floor, "sky", opacity=0.6)
    if before:
        y = at(start, before)[1]
        drawing.line((0, y), (WIDTH, y), "blue", dash="4 4")
    drawing.line((0, floor), (WIDTH, floor))
    drawing.line((peak_x, _TOP - 8), (peak_x, floor), "vermillion")
    drawing.dot((peak_x, peak_y), "vermillion")
    left = peak_x > WIDTH / 2
    drawing.text((peak_x + (-6 if left else 6), _TOP - 15), note, "name", anchor="end" if left else "start")
    drawing.text((0, floor + 12), fmt.duration_ns(start))
    drawing.text((WIDTH, floor + 12), fmt.duration_ns(end), anchor="end")
    return drawing.svg(f"{title}: {note} at {fmt.duration_ns(peak_ts)}.")


def category_bars(rows: Sequence[tuple[str, Mapping[str, float]]], alt: str) -> InlineSvg | None:
    """One stacked bar a row of bytes by category on a common scale, with a legend; None without any."""
    used = [name for name in CATEGORIES if any(sizes.get(name) for _, sizes in rows)]
    if not used:
        return None
    drawn, texts = [], [alt]
    for label, sizes in rows:
        pieces = [
            Piece(sizes[name], colour, f"{word} {fmt.size_bytes(sizes[name])}")
            for name, (word, colour) in CATEGORIES.items()
            if sizes.get(name)
        ]
        drawn.append(Bar(label, fmt.size_bytes(sum(sizes.values())), pieces))
        texts.append(f"{label}: {', '.join(piece.tip for piece in pieces) or 'not recorded'}.")
    return bars(drawn, [(*CATEGORIES[name], 1.0) for name in used], " ".join(texts))
