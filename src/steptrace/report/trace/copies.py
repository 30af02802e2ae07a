"""How fast copies and sets moved bytes."""

from typing import Final

from steptrace import format as fmt
from steptrace.documents.rows import Copy
from steptrace.report.draw.strips import Strip, strips
from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Charts, Topic, unless, without_gpu
from steptrace.report.trace.view import TraceView

#: A copy of fewer bytes on average takes the time to begin it: its rate says nothing of the link.
_WORTH_A_RATE: Final = 2**16

_TERMS = (
    Definition(
        "Bandwidth",
        "A copy's bytes over its length; what runs at once adds up. Mean, median and highest are over the time in "
        "which any copy of the kind ran. A copy that says no bytes has no part in it; copies of less than 64 KiB on "
        "average have no rate, since such a copy takes the time that it takes to begin.",
    ),
)


def _charts(view: TraceView, _: int) -> Charts:
    series = view.trace.series
    if series is None:
        return {"rates": None}
    # The series is rounded to be drawn: rounded once more, its maximum would differ from the table's.
    own = [row for row in view.trace.copies if row.device == view.trace.device and _has_rate(row)]
    highest = {row.kind: row.max_bytes_per_second for row in own}
    rows = [
        Strip(row.kind, f"up to {fmt.bandwidth(highest.get(row.kind, max(row.max)))}", row.mean, row.max)
        for row in series.copies
        if row.kind in highest
    ]
    alt = "Memory bandwidth over time. " + " ".join(f"{row.name}: {row.note}." for row in rows)
    return {"rates": strips(rows, series.edges, alt) if rows else None}


def _has_rate(row: Copy) -> bool:
    return row.bytes is None or row.bytes >= _WORTH_A_RATE * (row.count - row.unsized)


TOPIC = Topic(
    "copies",
    "Copies",
    _TERMS,
    _charts,
    lambda _: {"has_rate": _has_rate},
    unmeasured=without_gpu,
    nothing=unless(lambda t: t.copies, "the trace holds no copy and no memory set"),
)
