"""The figures of memory: a device's curve with its peak, what held the bytes at a peak, peaks against batch sizes."""

from collections.abc import Mapping, Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import MemoryFit, MemoryOfVariant
from steptrace.documents.summary import DeviceMemory
from steptrace.report.draw.chart import (
    BAND,
    COLOURS,
    RULE,
    WIDTH,
    canvas,
    inline,
    plain_axes,
    small,
    step_line,
    style,
    tip,
    write,
)
from steptrace.report.draw.parts import Bar, bars
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
_FIT_PLOT, _LABEL = 170.0, 62.0
#: A predicted batch more times as large as the largest measured one is told, not drawn.
_REACH: Final = 6


def memory_curve(entry: DeviceMemory | MemoryOfVariant, title: str) -> InlineSvg | None:
    """One device's bytes over time, its peak marked, the reserved ones pale behind; None with too few points."""
    points, peak, peak_ts = entry.curve or (), entry.peak_allocated_bytes, entry.peak_ts
    if len(points) < 2 or peak is None or peak_ts is None:
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
    with style():
        figure = canvas(floor + _FOOT)
        axes = plain_axes(figure)
        if reserved:
            step_line(axes, reserved, floor, color=BAND)
        step_line(axes, [at(ts, size) for ts, size, _ in points], floor, color=COLOURS["sky"], alpha=0.6)
        if before:
            axes.hlines(at(start, before)[1], 0, WIDTH, color=COLOURS["blue"], linewidth=1, linestyles=(0, (4, 4)))
        axes.hlines(floor, 0, WIDTH, color=RULE, linewidth=1)
        axes.vlines(peak_x, _TOP - 8, floor, color=COLOURS["vermillion"], linewidth=1)
        axes.plot([peak_x], [peak_y], "o", color=COLOURS["vermillion"], markersize=7)
        left = peak_x > WIDTH / 2
        beside = (peak_x + (-6 if left else 6)) / WIDTH
        write(axes, (beside, _TOP - 15), note, ha="right" if left else "left", fontweight="bold", fontsize=12)
        small(axes, (0, floor + 12), fmt.duration_ns(start))
        small(axes, (1, floor + 12), fmt.duration_ns(end), ha="right")
        return inline(figure, f"{title}: {note} at {fmt.duration_ns(peak_ts)}.")


def category_bars(rows: Sequence[tuple[str, Mapping[str, float]]], alt: str) -> InlineSvg | None:
    """One stacked bar a row of bytes by category on a common scale, with a legend; None where nothing is known."""
    used = [name for name in CATEGORIES if any(sizes.get(name) for _, sizes in rows)]
    if not used:
        return None
    legend = [(CATEGORIES[name][0], COLOURS[CATEGORIES[name][1]]) for name in used]
    shown, told = [], [alt]
    for label, sizes in rows:
        parts = [
            (sizes[name], colour, f"{word} {fmt.size_bytes(sizes[name])}")
            for name, (word, colour) in zip(used, legend, strict=True)
            if sizes.get(name)
        ]
        shown.append(Bar(label, fmt.size_bytes(sum(sizes.values())), parts))
        told.append(f"{label}: {', '.join(words for *_, words in parts) or 'nothing known'}.")
    return bars(shown, legend, " ".join(told))


def fit_chart(fit: MemoryFit) -> InlineSvg:
    """Measured peaks against the batch size with the line through them, and the capacity where it is near."""
    peaks, capacity, largest = fit.peaks, fit.capacity_bytes or 0, fit.largest_batch or 0
    near = 0 < largest <= _REACH * peaks[-1][0]
    right = 1.1 * max(peaks[-1][0], largest if near else 0)
    fixed, slope = fit.fixed_bytes, fit.per_sample_bytes
    top = 1.1 * max(peaks[-1][1], capacity if near else 0, fixed + slope * right)
    floor = _TOP + _FIT_PLOT

    def at(size: float, peak: float) -> tuple[float, float]:
        return WIDTH * size / right, floor - _FIT_PLOT * max(peak, 0) / top

    with style():
        figure = canvas(floor + _FOOT)
        axes = plain_axes(figure)
        axes.hlines(floor, 0, WIDTH, color=RULE, linewidth=1)
        ends = (at(0, fixed), at(right, fixed + slope * right))
        axes.plot(*zip(*ends, strict=True), color=COLOURS["blue"], linewidth=1.5)
        if near and capacity:
            x, y = at(largest, capacity)
            axes.hlines(y, 0, WIDTH, color=COLOURS["vermillion"], linewidth=1, linestyles=(0, (5, 4)))
            axes.vlines(x, y, floor, color=COLOURS["vermillion"], linewidth=1, linestyles=(0, (2, 3)))
            small(axes, (0, y - 10), f"capacity {fmt.size_bytes(capacity)}")
            small(axes, (x / WIDTH, floor + 12), f"{largest} should fit", ha="right")
        for index, (size, peak) in enumerate(peaks):
            (x, y), word = at(size, peak), fmt.size_bytes(peak)
            axes.plot([x], [y], "o", color=COLOURS["blue"], markersize=8, gid=tip(f"{size}: {word}"))
            # The largest has its label; of the others those that leave room for the next.
            if index == len(peaks) - 1 or at(peaks[index + 1][0], 0)[0] - x >= _LABEL:
                small(axes, (max(x, _LABEL / 2) / WIDTH, y - 13), word, ha="center", bbox=None)
                small(axes, (x / WIDTH, floor + 12), str(size), ha="center", bbox=None)
        told = ", ".join(f"{fmt.size_bytes(peak)} at {size}" for size, peak in peaks)
        return inline(figure, f"Peak against batch size: {told}.")
