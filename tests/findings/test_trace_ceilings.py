"""A finding on a trace promises no more than the critical path of the same trace grants."""

from typing import Any

import pytest

from documents import fill
from steptrace.documents.summary import TraceSummary
from steptrace.findings import Finding, find_in_trace

MS = 1_000_000


def entry(**saved: int) -> dict[str, Any]:
    """Three steps of 10 ms, most of it in 32-bit matrix products, 2 ms of communication, and what a path says of it."""
    path = [{"class": name, "saved_ns": ns} for name, ns in saved.items()]
    parts = {"compute": 21 * MS, "exposed_memory": 0, "exposed_comm": 6 * MS, "idle_host": 3 * MS}
    precision = {"kernel_ns": {"bits32": 24 * MS}, "tensor_core_eligible_ns": 24 * MS}
    return {
        "device": 0,
        "gpu_busy_pct": 90.0,
        "step_parts": {"kind": "gpu", "steps": 3, "window_ns": 30 * MS, "parts_ns": parts},
        "precision": precision,
        "critical_path": {"steps": 3, "span_ns": 10 * MS, "classes": path},
    }


def found_in(part: dict[str, Any]) -> list[Finding]:
    return find_in_trace(fill(TraceSummary, part))


def told(part: dict[str, Any]) -> list[tuple[str, str, int | None]]:
    return [(item.rule, item.severity, item.cost_ns_per_step) for item in found_in(part)]


def test_a_ceiling_is_at_most_what_the_critical_path_saves_without_the_class() -> None:
    (finding, _) = found_in(entry(compute=3 * MS, comm=MS))[::-1]
    assert (finding.rule, finding.cost_ns_per_step, finding.cost_share) == ("fp32_where_bf16_fits", 3 * MS, 0.3)
    assert "by its critical path a step would be 3 ms shorter without any compute" in finding.evidence
    assert "hardly" not in finding.claim


def test_a_ceiling_below_that_of_the_path_stays() -> None:
    assert told(entry(compute=9 * MS, comm=9 * MS)) == [
        ("exposed_communication", "warning", 2 * MS),
        ("fp32_where_bf16_fits", "info", 3_500_000),
    ]


def test_what_the_path_grants_nothing_is_no_warning_and_says_so() -> None:
    found = found_in(entry(compute=0, comm=0))
    assert [(item.severity, item.cost_ns_per_step, item.cost_share) for item in found] == [("info", 0, 0.0)] * 2
    assert all("; yet a step would hardly be shorter without any com" in item.claim for item in found)


def test_a_trace_without_steps_is_held_to_its_path_by_share() -> None:
    raw = entry(compute=3 * MS, comm=3 * MS)
    gpu = {
        "activities": 9,
        "span_ns": 30 * MS,
        "compute_ns": 21 * MS,
        "exposed_memory_ns": 0,
        "exposed_comm_ns": 6 * MS,
    }
    raw |= {"step_parts": None, "gpu": gpu, "idle": {"by_cause": {"host": 3 * MS}}}
    shares = {item.rule: (item.cost_ns_per_step, item.cost_share) for item in found_in(raw)}
    assert shares["fp32_where_bf16_fits"] == shares["exposed_communication"] == (None, 0.1)


def test_severity_comes_before_the_ceiling() -> None:
    raw = entry(compute=9 * MS, comm=9 * MS)
    raw |= {"input": {"share": 0.21, "wait_ns": 6 * MS, "counted_ns": 6 * MS, "waits": 3}}
    assert [item.rule for item in found_in(raw)] == ["input_bound", "exposed_communication", "fp32_where_bf16_fits"]
    assert told(raw)[0][1] == "high"


@pytest.mark.parametrize("path", [None, {"steps": 3, "span_ns": MS, "classes": [{"class": "comm", "saved_ns": None}]}])
def test_without_a_path_the_rule_speaks_alone(path: Any) -> None:
    assert told({**entry(), "critical_path": path})[0] == ("exposed_communication", "warning", 2 * MS)
