"""What the steps' time was spent on, one thing after the other."""

from steptrace import format as fmt
from steptrace.report.draw import bars as draw
from steptrace.report.draw.bars import Part
from steptrace.report.page.definitions import Definition
from steptrace.report.trace.model import Charts, Topic, unless
from steptrace.report.trace.view import TraceView

_TERMS = (
    Definition(
        "Critical path",
        "From the step's end backwards: of what it had to wait for, that which happened last, and so on to the step's "
        "start. Its parts follow each other without a gap and add up to the step exactly.",
        Definition(
            "Critical path",
            "From the trace's last event backwards: of what it had to wait for, that which happened last, and so on to "
            "the first event. Its parts follow each other without a gap and add up to the trace exactly.",
        ),
    ),
    Definition(
        "Host, data loader, wait's return",
        "Host: Python, operators and calls. Data loader: waiting for its next batch. Wait's return: a synchronisation "
        "beyond the end of the work it waited for, or all of it with nothing left to wait for; the wait itself is on "
        "the path as that work.",
    ),
    Definition(
        "Launch latency, queueing",
        "Launch latency: from the start of a launch to that of its work, where nothing else recorded held it up. "
        "Queueing: from the end of one activity to the start of the next that had to follow it.",
    ),
    Definition(
        "Step without it",
        "The step if everything of the class took no time, on the path or off it, and all else as long as it did; "
        "without waits, the host waits for nothing. What then becomes critical is counted, so the gain is mostly less "
        "than the share.",
        Definition(
            "Trace without it",
            "The trace if everything of the class took no time, on the path or off it, and all else as long as it did; "
            "without waits, the host waits for nothing.",
        ),
    ),
)

NAMES = {
    "host": "host",
    "loader": "data loader",
    "sync": "wait's return",
    "launch": "launch latency",
    "queue": "queueing",
    "compute": "compute",
    "comm": "communication",
    "memory": "memory",
}


def _charts(view: TraceView, _: int) -> Charts:
    path, steps = view.trace.critical_path, view.trace.steps
    if path is None:
        return {"shares": None}
    span = path.span_ns / fmt.NS_PER_MS
    parts = [Part(f"path_{row.class_}", row.share * span) for row in path.classes if row.share]
    title = "step" if steps else "trace, host and GPU"
    unit = "ms, mean over the steps" if len(steps) > 1 else "ms"
    return {"shares": draw.stacked_bars([(title, parts)], unit)}


TOPIC = Topic(
    "critical_path",
    "Critical path",
    _TERMS,
    _charts,
    lambda _: {"names": NAMES},
    unmeasured=unless(lambda t: t.critical_path, "the trace holds no host event"),
)
