"""The overview of a study's and of a trace's page: what it shows, what it leaves out, what it never makes up."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builders import TraceBuilder, training_step
from steptrace.analysis import summarize
from steptrace.findings import with_trace_findings
from steptrace.report.page.findings import recommended
from steptrace.report.study import first_screen
from steptrace.report.study.variants import load_study
from steptrace.report.trace import page as trace_page
from steptrace.report.trace.words import build

MakeStudy = Callable[[str], Path]

MS = 1_000_000
PARTS = {"compute": 70, "exposed_memory": 2, "exposed_comm": 0, "idle_loader": 5, "idle_sync": 20, "idle_host": 3}
OVERVIEW: dict[str, Any] = {
    "kind": "gpu",
    "steps": 1,
    "window_ns": 100 * MS,
    "parts_ns": {name: ms * MS for name, ms in PARTS.items()},
    "operators": [{"name": "aten::mm", "calls": 8, "host_self_ns": 90_000, "device_self_ns": 60_000_000, "share": 0.8}],
}
TRACE: dict[str, Any] = {
    "overview": OVERVIEW,
    "quality": {"steps": 1},
    "precision": {
        "kernel_ns": {"bits8": 0, "bits16": 62, "bits32": 30, "bits64": 0, "integer": 1, "unknown": 7},
        "tf32_ns": 10, "tensor_core_eligible_ns": 100, "tensor_core_ns": 91, "tensor_core_unknown_ns": 4,
    },
}  # fmt: skip
SEEN: dict[str, Any] = {"trace": TRACE}


def test_the_first_recommendations_are_of_different_rules_and_lead_to_the_findings(study_builder: Any) -> None:
    study_builder.add("boolean_mask", [100.0], ratio={"value": 1.0, "verdict": "baseline"}, **SEEN)
    study_builder.comparison["findings"] = [
        {
            "rule": rule, "severity": "high", "claim": f"claim {n}", "cost_ns_per_step": 9_000_000 - n,
            "advice": f"advice {n}",
        }
        for n, rule in enumerate(["sync", "sync", "input", "launches", "memory"])
    ]  # fmt: skip
    study = load_study(study_builder.write())
    assert [finding.claim for finding in recommended(study.findings)] == ["claim 0", "claim 2", "claim 3"]
    html = first_screen(study)
    assert "advice 2" in html
    assert "Saves at most 9.00 ms per step" in html
    assert 'href="#findings"' in html
    assert "All findings" in html


def page_of(builder: TraceBuilder, folder: Path) -> str:
    summary, _ = summarize([builder.write(folder / "trace.json")])
    return trace_page.page_html("a trace", build(with_trace_findings(summary)), None)


def test_a_trace_s_page_begins_with_its_overview(tmp_path: Path) -> None:
    builder = TraceBuilder()
    for index in range(2):
        training_step(builder, index, index * 1_000_000)
    page = page_of(builder, tmp_path)
    first = re.search(r"<h2 id=\"([^\"]+)\"", page)
    assert first is not None
    assert first[1] == "overview"
    text = page[: page.index('<h2 id="', first.end())]
    assert "Top operators" in text
    assert "Calls per step" in text
    assert "totals over the 2 steps, divided by 2" in page[: first.start()]
    assert "idle after a sync" in page[: first.start()]


def test_a_trace_without_a_gpu_has_no_formats(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    builder.op("aten::mm", 10_000, 500_000)
    page = page_of(builder, tmp_path)
    assert "<dt>16-bit</dt>" not in page
    assert "aten::mm" in page.replace("<wbr>", "")
