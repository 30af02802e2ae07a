"""The section on memory: what each device held over time, and at its peak."""

from typing import Final

from markupsafe import Markup
from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.overview import part_name
from steptrace.limits import COUNTER_AGREES
from steptrace.report.draw import WIDTH, Drawing, Piece
from steptrace.report.page.markup import definitions
from steptrace.report.page.parts import Explained, Parts, facts, folded, keyed_bar, listing, note, picture, subheading
from steptrace.report.trace.registry import section_of
from steptrace.report.trace.words import TraceView

#: What memory is held for, in the order of a bar, with the colour.
_COLOURS: Final = {
    "parameters": "blue",
    "gradients": "sky",
    "optimizer_state": "green",
    "activations": "orange",
    "inputs": "purple",
    "workspaces": "muted",
    "temporary": "vermillion",
    "unknown": "grey",
}
#: A device with a smaller share of the largest peak than this is left out.
_WORTH_SHOWING: Final = 0.01


@section_of("memory")
def memory(view: TraceView) -> Parts | None:
    """What the memory of each device was used for."""
    entries = view.trace.memory or ()
    if not entries:
        return None
    most = max(entry.peak_allocated_bytes for entry in entries)
    shown = [entry for entry in entries if entry.peak_allocated_bytes >= _WORTH_SHOWING * most]
    terms = Explained("", definitions(["DeviceMemory.by_category"]))
    return [part for entry in shown for part in _device_memory(entry)] + [terms]


def _device_memory(entry: DeviceMemory) -> list[Explained]:
    name = "Host" if entry.device_type == "cpu" else f"GPU {entry.device or 0}"
    notes = []
    if not entry.complete:
        notes.append(
            note("Memory that the program held before the trace began is not in the trace: the peak is without it.")
        )
    if entry.counter_agrees is not None and entry.counter_agrees < COUNTER_AGREES:
        agrees = fmt.share(entry.counter_agrees)
        notes.append(
            note(
                f"Allocations are missing: the allocator's counter fits the recorded blocks at {agrees} of the events."
            )
        )
    held = [
        Piece(size, colour, f"{part_name(category)} {fmt.size_bytes(size)}")
        for category, colour in _COLOURS.items()
        if (size := entry.by_category.get(category))
    ]
    words = {category: part_name(category) for category in _COLOURS}
    origins = listing(entry.at_peak, most=15, words=words) if entry.at_peak else Explained("")
    curve = memory_curve(entry, f"Memory of {name}")
    return [
        subheading(name),
        facts(entry if entry.complete else replace(entry, before_bytes=None)),
        *notes,
        Explained(keyed_bar(held)),
        picture(curve, "Allocated over time", "Dashed: held since before the trace. Pale: reserved."),
        folded("Live at the peak, by origin", origins),
    ]


_FOOT = 22.0
_TOP, _PLOT = 26.0, 120.0


def memory_curve(entry: DeviceMemory, title: str) -> Markup | None:
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
    words = f"peak {fmt.size_bytes(peak)}"
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
    drawing.text((peak_x + (-6 if left else 6), _TOP - 15), words, "name", anchor="end" if left else "start")
    drawing.text((0, floor + 12), fmt.duration_ns(start))
    drawing.text((WIDTH, floor + 12), fmt.duration_ns(end), anchor="end")
    return drawing.svg(f"{title}: {words} at {fmt.duration_ns(peak_ts)}.")
