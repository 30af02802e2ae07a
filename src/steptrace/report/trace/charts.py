"""The charts of topics that need few lines each: a function of a trace, or of several ranks, to a chart by its name."""

from collections.abc import Sequence

from steptrace import format as fmt
from steptrace.documents.rows import Copy
from steptrace.documents.summary import CopySeries, QueueSeries, Ranks
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import Part
from steptrace.report.draw.flame import flame
from steptrace.report.draw.strips import Strip, strips
from steptrace.report.draw.timeline import timeline_figure
from steptrace.report.trace.model import Charts, TraceView

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


def queues(view: TraceView, _: int) -> Charts:
    """The length of each stream's queue over time."""
    series = view.trace.series
    if series is None:
        return {"lengths": None}
    # The series is rounded to be drawn: its maximum need not be the table's.
    longest = {row.stream: row.max for row in view.trace.queues if row.device == view.trace.device}
    rows = [
        _strip(f"stream {row.stream}", fmt.count(longest.get(row.stream, max(row.max))), row) for row in series.queues
    ]
    return {"lengths": strips(rows, series.edges, _alt("Queue length", rows)) if rows else None}


def copies(view: TraceView, _: int) -> Charts:
    """The rate of each kind of copy over time."""
    series = view.trace.series
    if series is None:
        return {"rates": None}
    # The series is rounded to be drawn: rounded once more, its maximum would differ from the table's.
    own = [row for row in view.trace.copies if row.device == view.trace.device and has_rate(row)]
    highest = {row.kind: row.max_bytes_per_second for row in own}
    known = [row for row in series.copies if row.kind in highest]
    rows = [_strip(row.kind, fmt.bandwidth(highest.get(row.kind, max(row.max))), row) for row in known]
    return {"rates": strips(rows, series.edges, _alt("Memory bandwidth", rows)) if rows else None}


def has_rate(row: Copy) -> bool:
    """Whether the copies are so large on average that their rate says something of the link."""
    return row.bytes is None or row.bytes >= _WORTH_A_RATE * (row.count - row.unsized)


def _strip(name: str, most: str, row: QueueSeries | CopySeries) -> Strip:
    return Strip(name, f"up to {most}", row.mean, row.max)


def _alt(what: str, rows: Sequence[Strip]) -> str:
    return f"{what} over time. " + " ".join(f"{row.name}: {row.note}." for row in rows)


def rank_waits(ranks: Ranks) -> Charts:
    """How long each rank waited for the others."""
    rows = [
        (f"rank {row.rank}", [Part("exposed_comm", row.wait_ns / fmt.NS_PER_MS)])
        for row in ranks.waits
        if row.wait_ns is not None
    ]
    return {"waits": draw.one_part(rows, "ms waited for other ranks") if rows else None}
