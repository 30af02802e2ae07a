"""The section on memory: what each device held, and at its peak."""

from typing import Final

from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.overview import part_name
from steptrace.limits import COUNTER_AGREES
from steptrace.report.draw.cells import Piece
from steptrace.report.draw.memory_curve import memory_curve
from steptrace.report.draw.names import MEMORY_COLOURS
from steptrace.report.page.definitions import definitions
from steptrace.report.page.parts import Explained, Parts, figure, folded, keyed_bar, note, subheading
from steptrace.report.page.table import facts, listing
from steptrace.report.trace.model import TraceView

#: A device with a smaller share of the largest peak than this is left out.
_WORTH_SHOWING: Final = 0.01


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
        for category, colour in MEMORY_COLOURS.items()
        if (size := entry.by_category.get(category))
    ]
    words = {category: part_name(category) for category in MEMORY_COLOURS}
    origins = listing(entry.at_peak, most=15, words=words) if entry.at_peak else Explained("")
    curve = memory_curve(entry, f"Memory of {name}")
    return [
        subheading(name),
        facts(entry if entry.complete else replace(entry, before_bytes=None)),
        *notes,
        Explained(keyed_bar(held)),
        figure(curve, "Allocated over time", "Dashed: held since before the trace. Pale: reserved."),
        folded("Live at the peak, by origin", origins),
    ]
