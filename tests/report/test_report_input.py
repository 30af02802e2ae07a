"""The page's section on the input pipeline, and the topic of a trace's page."""

import re

from documents import fill
from steptrace.documents.summary import TraceSummary
from steptrace.report.study import input_pipeline
from steptrace.report.study.model import load_study
from steptrace.report.trace.model import TraceView
from steptrace.report.trace.sections import Spot, waiting_for_data

PARTS = {"fetch": 15.5, "collate": 0.5, "pin": None, "copy": None}


def waiting(share, step_ms, **changes):
    wait_ms = None if share is None else share * step_ms
    verdict = None if share is None else "high" if share >= 0.2 else "moderate" if share >= 0.05 else "none"
    fields = {
        "wait_ms": wait_ms,
        "counted_ms": wait_ms,
        "step_ms": step_ms,
        "idle_part": None,
        "share": share,
        "verdict": verdict,
    }
    return fields | {"traced_share": share, "breakdown_ms": PARTS} | changes


def rows(page):
    return [
        [" ".join(re.sub("<[^>]+>", " ", cell).split()) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)]
        for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL)
    ]


def test_waits_verdicts_and_parts_stand_side_by_side(study_builder):
    study_builder.add("workers_0", [40.0, 40.0], input=waiting(0.4, 40.0))
    study_builder.add("offline", [25.0, 25.0], input=waiting(0.04, 25.0))
    study_builder.fail("broken", "failed", {"error": "no"})
    page = input_pipeline(load_study(study_builder.write()))
    assert page is not None
    head, *body = rows(page)
    assert head[1:] == ["Input-bound", "Share of the step", "Wait", "Fetch", "Collate"]
    assert body == [
        ["workers_ 0", "highly input-bound", "40 %", "16.0", "15.5", "0.500"],
        ["offline", "not input-bound", "4.0 %", "1.00", "15.5", "0.500"],
    ]
    assert page.count("<svg") == 2
    for term in ("Waiting for data", "Input-bound", "Parts of loading"):
        assert f"<dt>{term}</dt>" in page


def test_under_a_gpu_the_part_with_it_idle_is_shown(study_builder):
    found = waiting(0.1, 40.0, wait_ms=16.0, idle_part=0.25, breakdown_ms=None)
    study_builder.add("workers_0", [40.0, 40.0], input=found)
    page = input_pipeline(load_study(study_builder.write()))
    head, row = rows(page)
    assert head[1:] == ["Input-bound", "Share of the step", "Wait", "of it with the GPU idle"]
    assert row[1:3] == ["moderately input-bound", "10 %"]
    assert row[4] == "25 %"
    assert "waiting under a busy GPU 12.0 ms" in page
    assert "Parts of loading" not in page


def test_what_was_not_measured_is_said(study_builder):
    study_builder.add("a", [40.0, 40.0], input=waiting(0.4, 40.0))
    study_builder.add("b", [40.0, 40.0], input=waiting(None, 40.0, breakdown_ms=None))
    (_, _, row) = rows(input_pipeline(load_study(study_builder.write())))
    assert row[1:] == 5 * ["not measured"]


def test_a_study_that_neither_waits_nor_asks_has_no_such_section(study_builder):
    study_builder.add("a", [40.0, 40.0], input=waiting(0.01, 40.0, breakdown_ms=None))
    study_builder.add("b", [40.0, 40.0])
    assert input_pipeline(load_study(study_builder.write())) is None


def trace(**found):
    step = {"index": 3, "host_ns": 10_000_000, "waits": 1, "wait_ns": 2_000_000, "gpu_idle_wait_ns": None}
    fields = {"source": "loader", "steps": 2, "waits": 2, "wait_ns": 4_000_000, "gpu_idle_wait_ns": None, "share": 0.2}
    made = fill(TraceSummary, {"input": fields | {"verdict": "high", "by_step": 2 * [step]} | found})
    parts = waiting_for_data(TraceView("t", made), Spot(alone=True, prefix=""))
    return None if parts is None else "".join(part.html for part in parts)


def test_the_topic_of_a_trace():
    page = trace()
    assert "<dd>high</dd>" in page
    assert "20 %" in page
    assert "4.00 ms" in page
    assert page.count("<tr>") == 3
    assert "without <code>copy data</code>" in trace(source="section")
    assert trace(source=None, waits=None, wait_ns=None, share=None, verdict=None) is None
