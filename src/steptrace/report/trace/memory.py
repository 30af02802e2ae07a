"""The section on memory: what each device held over time, and at its peak."""

from typing import Final

from markupsafe import Markup
from msgspec.structs import replace

from steptrace import format as fmt
from steptrace.documents.memory import MEMORY_CATEGORIES, DeviceMemory
from steptrace.documents.overview import part_name
from steptrace.limits import COUNTER_AGREES
from steptrace.report.charts.area import bytes_over_time
from steptrace.report.page.markup import Html, definitions
from steptrace.report.page.rows import facts, listing
from steptrace.report.page.section import Explained, Parts, folded, note, picture, subheading
from steptrace.report.page.table import Cell, Head, table
from steptrace.report.trace.registry import section_of
from steptrace.report.trace.view import TraceView

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
    words = {category: part_name(category) for category in MEMORY_CATEGORIES}
    origins = listing(entry.at_peak, most=15, words=words) if entry.at_peak else Explained("")
    curve = memory_curve(entry, f"Memory of {name}")
    return [
        subheading(name),
        facts(entry if entry.complete else replace(entry, before_bytes=None)),
        *notes,
        Explained(_held(entry)),
        picture(curve, "Allocated over time", "Dashed: held since before the trace. Pale: reserved."),
        folded("Live at the peak, by origin", origins),
    ]


def _held(entry: DeviceMemory) -> Html:
    """What memory was held for at the peak, each with a bar of its share; nothing where that is not known."""
    held = {name: size for name in MEMORY_CATEGORIES if (size := entry.by_category.get(name))}
    if not held:
        return Html("")
    whole = sum(held.values())
    rows = [
        ("", [Cell(part_name(name)), Cell(fmt.size_bytes(size), size, size / whole)]) for name, size in held.items()
    ]
    heads = [Head("Held at the peak for"), Head("Memory", number=True, label="Memory")]
    return Html('<div class="narrow-table">{}</div>').format(table(heads, rows))


def memory_curve(entry: DeviceMemory, title: str) -> Markup | None:
    """One device's bytes over time; None with too few points."""
    if not entry.curve:
        return None
    peak = fmt.size_bytes(entry.peak_allocated_bytes)
    return bytes_over_time(
        entry.curve,
        (entry.peak_ts, entry.peak_allocated_bytes),
        (fmt.duration_ns(entry.curve[0][0]), fmt.duration_ns(entry.curve[-1][0])),
        f"{title}: peak {peak} at {fmt.duration_ns(entry.peak_ts)}.",
        before=entry.before_bytes or 0,
    )
