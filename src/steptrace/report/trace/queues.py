"""What waited in front of each stream."""

from steptrace import format as fmt
from steptrace.report.draw.strips import Strip, strips
from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Charts, Topic, unless
from steptrace.report.trace.view import TraceView

_TERMS = (
    Definition(
        "Queue length",
        "Activities of a stream that the host has begun to launch and the GPU has not begun to run. Mean, median and "
        "95th percentile are weighted by time. The chart holds each stretch's mean, and pale behind it its maximum.",
    ),
    Definition("Empty", "Share of time with nothing queued: the GPU depends on the host's next launch."),
    Definition(
        "Full",
        "Share of time with 1,024 launches or more queued, a graph counting as one: the next launch blocks the host.",
    ),
)


def _charts(view: TraceView, _: int) -> Charts:
    series = view.trace.series
    if series is None:
        return {"lengths": None}
    # The series is rounded to be drawn: its maximum need not be the table's.
    longest = {row.stream: row.max for row in view.trace.queues if row.device == view.trace.device}
    rows = [
        Strip(f"stream {row.stream}", f"up to {fmt.count(longest.get(row.stream, max(row.max)))}", row.mean, row.max)
        for row in series.queues
    ]
    alt = "Queue length over time. " + " ".join(f"{row.name}: {row.note}." for row in rows)
    return {"lengths": strips(rows, series.edges, alt) if rows else None}


TOPIC = Topic(
    "queues",
    "Queues",
    _TERMS,
    _charts,
    unmeasured=unless(lambda t: t.queues, "the trace holds no GPU activity with its launch"),
)
