"""The memory of a device over time."""

from steptrace import format as fmt
from steptrace.documents.memory import DeviceMemory
from steptrace.report.draw.drawing import WIDTH, Drawing
from steptrace.report.draw.svg import InlineSvg

_FOOT = 22.0
_TOP, _PLOT = 26.0, 120.0


def memory_curve(entry: DeviceMemory, title: str) -> InlineSvg | None:
    """One device's bytes over time, its peak marked, the reserved ones pale behind; None with too few points."""
    points, peak, peak_ts = entry.curve, entry.peak_allocated_bytes, entry.peak_ts
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
