"""What a finding on a trace promises is an upper bound."""

from pathlib import Path
from typing import Any

from documents import fill
from simulated import simulate, time_of, without
from steptrace.analysis import summarize
from steptrace.documents.summary import TraceSummary
from steptrace.findings import Finding, find_in_trace

MS = 1_000_000


def entry() -> dict[str, Any]:
    """Three steps of 10 ms, most of it in 32-bit matrix products, and 2 ms of communication."""
    parts = {"compute": 21 * MS, "exposed_memory": 0, "exposed_comm": 6 * MS, "idle_host": 3 * MS}
    return {
        "device": 0,
        "gpu_busy_pct": 90.0,
        "overview": {"kind": "gpu", "steps": 3, "window_ns": 30 * MS, "parts_ns": parts},
        "precision": {"kernel_ns": {"bits32": 24 * MS}, "tensor_core_eligible_ns": 24 * MS},
    }


def findings_in(part: dict[str, Any]) -> list[Finding]:
    return find_in_trace(fill(TraceSummary, part))


def figures_of(part: dict[str, Any]) -> list[tuple[str, str, int | None]]:
    return [(item.rule, item.severity, item.cost_ns_per_step) for item in findings_in(part)]


def test_upper_bounds_of_what_the_gpu_does() -> None:
    assert figures_of(entry()) == [
        ("fp32_where_bf16_fits", "warning", 7 * MS),
        ("exposed_communication", "warning", 2 * MS),
    ]


def test_severity_comes_before_the_ceiling() -> None:
    raw = entry()
    raw |= {"input": {"share": 0.21, "wait_ns": 6 * MS, "counted_ns": 6 * MS, "waits": 3}}
    assert [item.rule for item in findings_in(raw)] == ["input_bound", "fp32_where_bf16_fits", "exposed_communication"]
    assert figures_of(raw)[0][1] == "high"


def test_a_wait_whose_end_lets_the_host_run_ahead_costs_no_less_than_its_removal_saves(tmp_path: Path) -> None:
    program = [("python", 500_000), ("kernel", 2 * MS), ("kernel", 20_000), ("item", 10)]
    really = (time_of(program) - time_of(without(program, 10))) // 3
    summary, _ = summarize([simulate(program).write(tmp_path / "trace.json")])
    (finding,) = [item for item in find_in_trace(summary.traces[0]) if item.rule == "sync_bound"]
    assert finding.cost_ns_per_step is not None
    assert 344_000 == really <= finding.cost_ns_per_step < 1.01 * really
