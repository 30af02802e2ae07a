"""What the topics of a trace's page draw, and what else their templates take; what takes more has a module by its name.

A chart is a function of a trace and of the level of its heading, or of several ranks.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from steptrace import format as fmt
from steptrace.documents.comparison import PrecisionOfVariant
from steptrace.documents.copies import Copy, CopySeries
from steptrace.documents.memory import DeviceMemory
from steptrace.documents.queues import QueueSeries
from steptrace.documents.ranks import Ranks
from steptrace.documents.summary import TraceSummary
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import Part
from steptrace.report.draw.drawing import WIDTH, Drawing
from steptrace.report.draw.flame import flame
from steptrace.report.draw.memory import CATEGORIES, category_bars, memory_curve
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.draw.timeline import timeline_figure
from steptrace.report.page.findings import recommended
from steptrace.report.page.overview import FORMAT_NAMES, device_share, formats_shown, parts_chart
from steptrace.report.trace.model import Charts, TraceView, trace_parts

#: Tooltips in a picture of one of several traces: what keeps the page small.
_FEW = 120
#: Of one of several traces a flame graph's boxes below this share are left out, for the same reason.
_SMALLEST_OF_MANY = 0.01
#: A copy of fewer bytes on average takes the time to begin it: its rate says nothing of the link.
_WORTH_A_RATE = 2**16


def timeline(view: TraceView, level: int) -> Charts:
    """The picture of one step."""
    found = view.trace.timeline
    return {"step": timeline_figure(found) if level == 2 else timeline_figure(found, most=_FEW)}


def critical_path(view: TraceView, _: int) -> Charts:
    """The critical path by class."""
    path, steps = view.trace.critical_path, view.trace.steps
    if path is None:
        return {"shares": None}
    span = path.span_ns / fmt.NS_PER_MS
    parts = [Part(f"path_{row.class_}", row.share * span) for row in path.classes if row.share]
    title = "step" if steps else "trace, host and GPU"
    unit = "ms, mean over the steps" if len(steps) > 1 else "ms"
    return {"shares": draw.stacked_bars([(title, parts)], unit)}


def program(view: TraceView, level: int) -> Charts:
    """GPU and host time by place in the program."""
    smallest = 0.0 if level == 2 else _SMALLEST_OF_MANY
    return {
        "device": flame(view.trace.program.device_flame, "GPU time", smallest),
        "host": flame(view.trace.program.host_flame, "host time", smallest),
    }


#: How many kernels stand in the overview; the section on kernels has all.
MOST_KERNELS = 8


def overview(view: TraceView, _: int) -> Charts:
    """Where a step goes."""
    title = "step" if view.trace.steps else "GPU's span"
    return {"parts": parts_chart(trace_parts(view.trace.overview), title)}


def _rate_note(trace: TraceSummary) -> str | None:
    """Why the time per step is not the mean of the steps' lengths: steps overlap, or something lies between them."""
    seen = trace.overview
    if seen is None or not seen.steps:
        return None
    between = seen.window_ns - sum(step.dur_ns for step in trace.steps)
    if between == 0:
        return None
    if between > 0:
        return f"of it {fmt.duration_ns(between / seen.steps)} between steps"
    return f"steps overlap by {fmt.duration_ns(-between / seen.steps)} each on average"


def overview_data(view: TraceView) -> Mapping[str, Any]:
    """The first look at a trace: its step, where operators run, in which formats, and what to do first."""
    trace, precision = view.trace, PrecisionOfVariant.of_trace(view.trace.precision)
    step_ns = None if trace.overview is None else trace.overview.step_ns
    operators = () if trace.overview is None else trace.overview.operators
    return {
        "step_ms": None if step_ns is None else step_ns / fmt.NS_PER_MS,
        "rate_note": _rate_note(trace),
        "placement": trace.placement if trace.placement is not None and trace.placement.ops_total else None,
        "device_share": device_share,
        "precision": precision,
        "top_operators": operators,
        "on_device": any(row.device_self_ns for row in operators),
        "formats": formats_shown([precision]),
        "format_names": FORMAT_NAMES,
        "kernels": trace.kernels[:MOST_KERNELS],
        "found": (found := recommended(trace.findings)),
        "more": len(trace.findings) - len(found),
    }


#: A device with a smaller share of the largest peak than this is only named.
_WORTH_SHOWING: Final = 0.01
#: And with fewer bytes than this not even that.
_WORTH_NAMING: Final = 2**20


def _devices(view: TraceView) -> list[DeviceMemory]:
    entries = view.trace.memory or ()
    most = max((entry.peak_allocated_bytes for entry in entries), default=0)
    return [entry for entry in entries if entry.peak_allocated_bytes >= _WORTH_SHOWING * most]


def device_name(entry: DeviceMemory) -> str:
    """A device as a page says it."""
    return "Host" if entry.device_type == "cpu" else f"GPU {entry.device or 0}"


def memory(view: TraceView, _: int) -> Charts:
    """What the memory of each device was used for."""
    found = {}
    for index, entry in enumerate(_devices(view)):
        name = device_name(entry)
        found[f"curve{index}"] = memory_curve(entry, f"Memory of {name}")
        found[f"peak{index}"] = category_bars([(f"{name}, at the peak", entry.by_category)], "Bytes at the peak.")
    return found


def memory_data(view: TraceView) -> Mapping[str, Any]:
    """The devices, those that are only named, and names."""
    shown = _devices(view)
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


def copies(view: TraceView, _: int) -> Charts:
    """The rate of each kind of copy over time."""
    series = view.trace.series
    if series is None:
        return {"rates": None}
    # The series is rounded to be drawn: rounded once more, its maximum would differ from the table's.
    own = [row for row in view.trace.copies if row.device == view.trace.device and has_rate(row)]
    highest = {row.kind: row.max_bytes_per_second for row in own}
    known = [row for row in series.copies if row.kind in highest]
    rows = [(row.kind, fmt.bandwidth(highest.get(row.kind, max(row.max))), row) for row in known]
    return {"rates": strips("Memory bandwidth", rows, series.edges)}


def has_rate(row: Copy) -> bool:
    """Whether the copies are so large on average that their rate says something of the link."""
    return row.bytes is None or row.bytes >= _WORTH_A_RATE * (row.count - row.unsized)


_LABEL, _PLOT, _GAP, _FOOT = 21.0, 34.0, 8.0, 22.0


def strips(
    what: str, rows: Sequence[tuple[str, str, QueueSeries | CopySeries]], span_ns: tuple[int, int]
) -> InlineSvg | None:
    """Series with a name and their maximum in words, below each other over one axis of time; None without any.

    Each is scaled to its own maximum. The maximum of a bucket of time is drawn pale behind its mean.
    """
    if not rows:
        return None
    row = _LABEL + _PLOT + _GAP
    height = row * len(rows) + _FOOT
    drawing = Drawing(height)
    for index, (name, most, series) in enumerate(rows):
        floor = index * row + _LABEL + _PLOT
        scale = max(series.max, default=0.0) or 1.0
        drawing.row_label(index * row, _LABEL, (name, f"up to {most}"))
        for values, colour, opacity in ((series.max, "sky", 0.45), (series.mean, "blue", 1.0)):
            if values:
                places = [(WIDTH * at / len(values), floor - _PLOT * v / scale) for at, v in enumerate(values)]
                drawing.area([*places, (WIDTH, places[-1][1])], floor, colour, opacity=opacity)
        drawing.line((0, floor), (WIDTH, floor))
    drawing.text((0, height - 10), fmt.duration_ns(span_ns[0]))
    drawing.text((WIDTH, height - 10), fmt.duration_ns(span_ns[1]), anchor="end")
    return drawing.svg(f"{what} over time. " + " ".join(f"{name}: up to {most}." for name, most, _ in rows))


def rank_waits(ranks: Ranks) -> Charts:
    """How long each rank waited for the others."""
    rows = [
        (f"rank {row.rank}", [Part("exposed_comm", row.wait_ns / fmt.NS_PER_MS)])
        for row in ranks.waits
        if row.wait_ns is not None
    ]
    return {"waits": draw.one_part(rows, "ms waited for other ranks") if rows else None}
