import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from steptrace.errors import RecordError
from steptrace.report import trace_page
from steptrace.report.trace_model import build

Json = dict[str, Any]


def trace(**changes: object) -> Json:
    step = {"compute_ns": 6_000_000, "exposed_comm_ns": 0, "exposed_memory_ns": 1_000_000, "idle_ns": 3_000_000}
    raw: Json = {
        "path": "traces/<b>mine</b>.json.gz",
        "sha256": "ab" * 32,
        "rank": 0,
        "device": 0,
        "device_name": "NVIDIA H200",
        "quality": {"steps": 2, "launch_coverage": 0.98, "warnings": ["a <i>warning</i>"]},
        "gpu": {**{k: 2 * v for k, v in step.items()}, "activities": 42, "span_ns": 20_000_000, "overlap_pct": None},
        "gpu_busy_pct": 70.0,
        "sm_weighted_pct": 41.0,
        "steps": [{"index": i, "start_ns": 0, "dur_ns": 10_000_000, **step} for i in (4, 5)],
        "idle": {
            "by_stream": [{"device": 0, "stream": 7, "host_wait_ns": 5_000_000, "kernel_wait_ns": 10, "other_ns": 0}],
            "by_cause": {"sync": 4_000_000, "loader": 0, "host": 2_000_000, "dependency": 0, "unknown": 0},
        },
        "syncs": {
            "count": 4, "per_step": 2.0, "blocked_ns": 1_200_000, "exposed_idle_ns": 4_000_000,
            "by_kind": {"d2h_copy": 4},
            "sites": [
                {"file": "a/b.py", "line": 7, "function": "f", "op": "aten::item", "label": "loss", "kind": "d2h_copy",
                 "count": 4, "blocked_ns": 1_200_000, "exposed_idle_ns": 4_000_000, "count_per_step": 2.0,
                 "blocked_ns_per_step": 600_000.0, "exposed_idle_ns_per_step": 2_000_000.0},
            ],
        },
        "sections": [
            {"label": "loss", "count_per_step": 1.0, "host_ns_per_step": 3_000_000, "device_ns_per_step": None}
        ],
        "kernels": [
            {"name": "void k<float>()", "short_name": "k<float>", "class": "compute", "count": 3, "sum_ns": 900_000,
             "mean_ns": 3e5, "median_ns": 3e5, "min_ns": 1, "max_ns": 4e5, "std_ns": 1.0, "share": 0.6}
        ],
        "operators_per_step": 412.0,
        "kernels_per_step": 21.0,
    }  # fmt: skip
    return {**raw, **changes}


def without_gpu() -> Json:
    gpu = {**dict.fromkeys(trace()["gpu"]), "activities": 0}
    syncs = {**trace()["syncs"], "count": 0, "per_step": None, "sites": [], "exposed_idle_ns": None}
    return trace(
        gpu=gpu, device=None, device_name=None, gpu_busy_pct=None, sm_weighted_pct=None, syncs=syncs, kernels=[],
        idle={"by_stream": [], "by_cause": None}, steps=[], kernels_per_step=None, quality={"launch_coverage": None},
    )  # fmt: skip


def written(tmp_path: Path, *traces: Json) -> str:
    trace_page.write({"schema_version": 1, "traces": list(traces)}, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def text_of(page: str) -> str:
    body = page[page.index("<main") :].replace("<wbr>", "")
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def test_one_trace_tells_where_its_time_goes(tmp_path: Path) -> None:
    page = written(tmp_path, trace())
    words = text_of(page)
    assert "GPU busy 70 % of the steps; 67 % of its idle time: host blocked in a sync; 2 syncs per step." in words
    assert "a/b.py:7 in f aten::item d2h copy loss 600 µs 2.00 ms" in words
    assert "k&lt;float&gt; compute 3 900 µs" in words
    assert "loss 1 3.00 ms not measured" in words
    assert "<b>mine" not in page
    assert "<i>warning" not in page


def test_a_trace_without_gpu_work_measures_none_of_it(tmp_path: Path) -> None:
    words = text_of(written(tmp_path, without_gpu()))
    assert "No GPU activity in this trace: its GPU figures were not measured." in words
    assert "GPU busy not measured" in words
    assert words.count("Not measured: the trace holds no GPU activity.") == 3
    assert "0 ns" not in words


def test_a_trace_without_steps_counts_its_whole_length(tmp_path: Path) -> None:
    syncs = {**trace()["syncs"], "per_step": None}
    syncs["sites"] = [{**syncs["sites"][0], "count_per_step": None, "blocked_ns_per_step": None}]
    words = text_of(written(tmp_path, trace(steps=[], syncs=syncs)))
    assert "4 syncs in the whole trace" in words
    assert "In all Site" in words
    assert "4 a/b.py:7" in words
    assert "Not measured: the trace marks no steps." in words


def test_ranks_stand_side_by_side_and_then_each_by_itself(tmp_path: Path) -> None:
    page = written(tmp_path, trace(), trace(rank=1, gpu_busy_pct=50.0), without_gpu())
    words = text_of(page)
    assert "Rank 1 NVIDIA H200 10.0 ms 50 %" in words
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="#([^"]+)"', page):
        assert target in ids


def test_an_empty_summary_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no traces"):
        written(tmp_path)


def test_a_real_trace_makes_a_page(tmp_path: Path) -> None:
    folder = Path(os.environ.get("STEPTRACE_TRACES") or Path(__file__).parents[3] / "shared" / "traces")
    if not (folder / "nccl.json.gz").is_file():
        pytest.skip(f"no recorded traces in {folder}: set STEPTRACE_TRACES to a folder that holds nccl.json.gz")
    from steptrace.summary import summarize

    summary, _ = summarize([folder / "nccl.json.gz"])
    summary = json.loads(json.dumps(summary))
    assert build(summary)[0].activities == summary["traces"][0]["gpu"]["activities"]
    trace_page.write(summary, tmp_path / "report.html")
    assert "ncclKernel_AllReduce" in (tmp_path / "report.html").read_text(encoding="utf-8")
