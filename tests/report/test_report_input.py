"""The topic of waiting for data on a trace's page."""

from documents import fill
from steptrace.documents.summary import TraceSummary
from steptrace.report.trace.sections import waiting_for_data
from steptrace.report.trace.words import TraceView


def trace(**changes):
    step = {"index": 3, "host_ns": 10_000_000, "waits": 1, "wait_ns": 2_000_000, "gpu_idle_wait_ns": None}
    fields = {"source": "loader", "steps": 2, "waits": 2, "wait_ns": 4_000_000, "gpu_idle_wait_ns": None, "share": 0.2}
    made = fill(TraceSummary, {"input": fields | {"verdict": "high", "by_step": 2 * [step]} | changes})
    parts = waiting_for_data(TraceView("t", made))
    return None if parts is None else "".join(part.html for part in parts)


def test_the_topic_of_a_trace():
    page = trace()
    assert "<dd>high</dd>" in page
    assert "20 %" in page
    assert "4.00 ms" in page
    assert page.count("<tr>") == 3
    assert "without <code>copy data</code>" in trace(source="label")
    assert trace(source=None, waits=None, wait_ns=None, share=None, verdict=None) is None
