"""How fast copies and sets moved bytes."""

from steptrace import format as fmt
from steptrace.report.draw.strips import Strip, strips
from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Charts, Topic
from steptrace.report.trace.view import TraceView

_TERMS = (
    Definition(
        "Bandwidth",
        "A copy's bytes over its length; what runs at once adds up. Mean, median and highest are over the time in "
        "which any copy of the kind ran. A copy that says no bytes has no part in it.",
    ),
)


def _charts(view: TraceView, _: int) -> Charts:
    series = view.trace.series
    if series is None:
        return {"rates": None}
    # The series is rounded to be drawn: rounded once more, its maximum would differ from the table's.
    highest = {row.kind: row.max_bytes_per_second for row in view.trace.copies if row.device == view.trace.device}
    rows = [
        Strip(row.kind, f"up to {fmt.bandwidth(highest.get(row.kind, max(row.max)))}", row.mean, row.max)
        for row in series.copies
    ]
    alt = "Memory bandwidth over time. " + " ".join(f"{row.name}: {row.note}." for row in rows)
    return {"rates": strips(rows, series.edges, alt) if rows else None}


TOPIC = Topic("copies", "Copies", _TERMS, _charts)
