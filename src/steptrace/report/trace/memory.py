"""The section on memory: what each device held, and at its peak."""

from typing import Final

from steptrace import format as fmt
from steptrace.documents.memory import DeviceMemory
from steptrace.limits import COUNTER_AGREES
from steptrace.report.draw.memory import CATEGORIES, category_bars, memory_curve
from steptrace.report.page.definitions import definitions
from steptrace.report.page.markup import render
from steptrace.report.page.table import Explained, facts, listing
from steptrace.report.trace.model import TraceView
from steptrace.report.trace.parts import Parts, chart, note

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
    figures = ["peak_allocated_bytes", "peak_reserved_bytes", "before_bytes", "capacity_bytes", "headroom_bytes"]
    if not entry.complete:
        figures.remove("before_bytes")
    if entry.device_type != "cpu":
        figures.append("fragmentation")
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
    peak = category_bars([(f"{name}, at the peak", entry.by_category)], "Bytes at the peak.")
    origins = entry.at_peak
    words = {key: word for key, (word, _) in CATEGORIES.items()}
    table = listing(origins, most=15, words=words) if origins else Explained("")
    return [
        Explained(render("page/subheading", text=name)),
        facts(entry, [name for name in figures if getattr(entry, name) is not None]),
        *notes,
        chart(
            memory_curve(entry, f"Memory of {name}"),
            "Allocated over time",
            "Dashed: held since before the trace. Pale: reserved.",
        ),
        chart(peak, "What held it at the peak"),
        Explained(render("page/folded", title="Live at the peak, by origin", body=table.html), table.meanings),
    ]
