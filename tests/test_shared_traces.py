"""Every shared trace against expected.json: figures from a slow independent program and from Holistic Trace Analysis.

Integer counts must be equal; times may differ by 1 us or 0.01 %, since the expected ones were computed with floats.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from steptrace.summary import analyze, summarize_trace

TRACES = Path(os.environ.get("STEPTRACE_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
EXPECTED: dict[str, Any] = (
    json.loads((TRACES / "expected.json").read_text()) if (TRACES / "expected.json").is_file() else {}
)

pytestmark = pytest.mark.skipif(
    not EXPECTED, reason=f"no expected.json in {TRACES}: set STEPTRACE_TRACES to the folder of shared traces"
)

_COUNTS = {"activities", "count", "steps", "outside_steps"}


def _differences(expected: dict[str, Any], actual: dict[str, Any], prefix: str) -> list[str]:
    lines = []
    for key, value in expected.items():
        got = actual[key]
        if isinstance(value, dict):
            wrong = got != value
        elif key in _COUNTS:
            wrong = got != value
        else:
            wrong = got is None or abs(got - value) > max(1_000, 1e-4 * abs(value))
        if wrong:
            lines.append(f"{prefix}.{key}: expected {value}, got {got}")
    return lines


@pytest.fixture(scope="module", params=sorted(EXPECTED) or ["none"])
def case(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any], dict[str, Any]]:
    name = request.param
    return name, EXPECTED[name], summarize_trace(analyze(TRACES / name))


def test_gpu_time_equals_expected(case: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    _, expected, actual = case
    assert _differences(expected["gpu"], actual["gpu"], "gpu") == []


def test_syncs_equal_expected(case: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    _, expected, actual = case
    got = {**actual["syncs"], "steps": actual["quality"]["steps"]}
    assert _differences(expected["syncs"], got, "syncs") == []


def test_per_step_parts_add_up(case: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    _, _, actual = case
    parts = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
    gpu = actual["gpu"]
    if not gpu["activities"]:
        assert all(value is None for key, value in gpu.items() if key != "activities")
        assert all(step[part] is None for step in actual["steps"] for part in parts)
        return
    assert sum(gpu[part] for part in parts) == gpu["span_ns"]
    assert sum(actual["idle"]["by_cause"].values()) == gpu["idle_ns"]
    for step in actual["steps"]:
        assert sum(step[part] for part in parts) == step["dur_ns"]


def test_agrees_with_hta(case: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    name, expected, actual = case
    hta = expected.get("hta_0_5_0_ns")
    if hta is None:
        pytest.skip("HTA gives no right answer for this trace")
    lines = []
    streams = {row["stream"]: row for row in actual["idle"]["by_stream"]}
    for row in hta["idle_by_stream_us"]:
        got = streams[row["stream"]][f"{row['category']}_ns"]
        lines += _differences({"idle_ns": row["idle_us"] * 1e3}, {"idle_ns": got}, str(row))
    temporal = {key.removesuffix("_time(us)"): value * 1e3 for key, value in hta["temporal_us"].items()}
    gpu = actual["gpu"]
    ours = {
        "idle": gpu["idle_ns"],
        "compute": gpu["compute_ns"],
        "non_compute": gpu["exposed_comm_ns"] + gpu["exposed_memory_ns"],
        "kernel": gpu["span_ns"],
    }
    lines += _differences(temporal, ours, "temporal")
    if hta["comm_comp_overlap_pct"] is None:
        assert gpu["overlap_pct"] is None
    else:
        assert round(gpu["overlap_pct"], 2) == float(hta["comm_comp_overlap_pct"])
    if name != "nccl.json.gz":  # there HTA leaves the last step out of its kernel figures
        kernels = {row["name"]: row for row in actual["kernels"]}
        for row in hta["top_kernels"]:
            got = kernels[row["name"]]
            want = {key: row[f"{key[:-3]}_us"] * 1e3 for key in ("sum_ns", "mean_ns", "max_ns")}
            lines += _differences(want, got, row["name"][:40])
    assert lines == []
