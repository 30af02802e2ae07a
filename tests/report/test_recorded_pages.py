"""Pages of real traces: small enough to send, with a picture at the top whose boxes and bars lose no time."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from recorded import TRACES, needs_traces, trace_of
from steptrace.documents.summary import Summary
from steptrace.findings import with_trace_findings
from steptrace.report.trace import page as trace_page
from steptrace.trace.step_excerpt import step_excerpt

pytestmark = needs_traces

NAMES = sorted(file.name.removesuffix(".json.gz") for file in TRACES.glob("*.json.gz")) or ["none"]
#: Bytes of a page with the trace that it carries.
MOST_BYTES = 400_000


@pytest.mark.parametrize("name", NAMES)
def test_a_page_with_its_excerpt_is_below_400_kb_and_asks_for_nothing(
    name: str, recorded_summary: Callable[[str], Summary], tmp_path: Path
) -> None:
    excerpt = step_excerpt(trace_of(f"{name}.json.gz"))
    carried = tmp_path / "step.json.gz"
    carried.write_bytes(excerpt.data if excerpt else b"")
    page = tmp_path / "report.html"
    trace_page.write(with_trace_findings(recorded_summary(name)), page, excerpt=carried if excerpt else None)
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < MOST_BYTES
    assert not re.search(r'(?:src|href)="(?!data:|#)', text)


@pytest.mark.parametrize("name", NAMES)
def test_boxes_and_steps_lose_no_time(name: str, recorded_summary: Callable[[str], Summary]) -> None:
    (summary,) = recorded_summary(name).traces
    if summary.timeline is not None:
        for lane in summary.timeline.lanes:
            last = max(box.start_ns + box.dur_ns for box in lane.boxes)
            assert last <= summary.timeline.span_ns * 1.01, lane.name
            if lane.kind == "gpu" and summary.timeline.step is not None:
                assert sum(box.dur_ns for box in lane.boxes) == summary.timeline.span_ns
    if summary.overview is not None and summary.overview.by_step:
        of_steps = [sum(step.parts_ns.values()) for step in summary.overview.by_step]
        assert sum(of_steps) == summary.overview.window_ns
    whole = sum(row.device_ns or 0 for row in summary.modules if row.parent is None)
    inside = max((row.device_ns or 0 for row in summary.modules if row.parent is not None), default=0)
    assert inside <= whole
