"""What the memory was used for, and how much is left."""

from collections.abc import Mapping
from typing import Any, Final

from steptrace.documents.summary import DeviceMemory
from steptrace.report.draw.memory import CATEGORIES, category_bars, memory_curve
from steptrace.report.trace.model import Charts, TraceView

#: A device with a smaller share of the largest peak than this is only named.
_WORTH_SHOWING: Final = 0.01
#: And with fewer bytes than this not even that.
_WORTH_NAMING: Final = 2**20


def _shown(view: TraceView) -> list[DeviceMemory]:
    entries = view.trace.memory or ()
    most = max((entry.peak_allocated_bytes for entry in entries), default=0)
    return [entry for entry in entries if entry.peak_allocated_bytes >= _WORTH_SHOWING * most]


def device_name(entry: DeviceMemory) -> str:
    """A device as a page says it."""
    return "Host" if entry.device_type == "cpu" else f"GPU {entry.device or 0}"


def charts(view: TraceView, _: int) -> Charts:
    """The charts of the topic."""
    found = {}
    for index, entry in enumerate(_shown(view)):
        name = device_name(entry)
        found[f"curve{index}"] = memory_curve(entry, f"Memory of {name}")
        found[f"peak{index}"] = category_bars([(f"{name}, at the peak", entry.by_category)], "Bytes at the peak.")
    return found


def data(view: TraceView) -> Mapping[str, Any]:
    """What else its template takes."""
    shown = _shown(view)
    names = {name: word for name, (word, _) in CATEGORIES.items()}
    return {
        "devices": shown,
        "left_out": [
            entry
            for entry in view.trace.memory or ()
            if entry not in shown and entry.peak_allocated_bytes >= _WORTH_NAMING
        ],
        "name_of": device_name,
        "categories": names,
    }
