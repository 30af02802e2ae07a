"""`steptrace analyze --counters`: the copy is the same trace, and its counter tracks say what they should."""

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from builders import D2D, TraceBuilder, training_step
from recorded import recorded
from steptrace.cli import main
from steptrace.trace.link import read_trace
from steptrace.trace.model import TABLES


def _augmented(tmp_path: Path, trace: Path) -> tuple[Path, list[dict[str, Any]], list[dict[str, Any]]]:
    """The copy, its counters, and its other events."""
    before = trace.read_bytes()
    assert main(["analyze", str(trace), "--out", str(tmp_path / "out"), "--no-report", "--counters"]) == 0
    assert trace.read_bytes() == before
    copy = tmp_path / "out" / "counters" / "trace0.json.gz"
    document = json.loads(gzip.decompress(copy.read_bytes()))
    events = document if isinstance(document, list) else document["traceEvents"]
    counters = [event for event in events if event["ph"] == "C"]
    return copy, counters, [event for event in events if event["ph"] != "C"]


def _made() -> TraceBuilder:
    builder = TraceBuilder(baseTimeNanoseconds=1_700_000_000_000_000_000, note='a "traceEvents": [ in a string')
    training_step(builder)
    builder.gpu(D2D, 600_000, 1_000, builder.call("cudaMemcpyAsync", 590_001, 500), bytes=4_000)
    return builder


@pytest.mark.parametrize("form", ["plain", "gzipped", "bare array", "indented"])
def test_the_copy_is_the_trace_and_its_counters(tmp_path: Path, form: str) -> None:
    builder = _made()
    path = tmp_path / ("trace.json.gz" if form == "gzipped" else "trace.json")
    if form == "bare array":
        path.write_text(json.dumps(builder.events))
    elif form == "indented":
        path.write_bytes(builder.text(indent=2))
    else:
        builder.write(path)
    copy, counters, others = _augmented(tmp_path, path)
    assert others == json.loads(json.dumps(builder.events))
    ours = read_trace(copy)
    theirs = read_trace(path)
    for name in TABLES:
        pd.testing.assert_frame_equal(getattr(ours, name), getattr(theirs, name))
    assert ours.meta.base_ns == theirs.meta.base_ns
    for counter in counters:
        assert set(counter) == {"ph", "name", "pid", "ts", "args"}
        assert isinstance(counter["pid"], int)
        assert all(isinstance(value, int | float) and value >= 0 for value in counter["args"].values())
    tracks = {name: [c for c in counters if c["name"] == name] for name in {c["name"] for c in counters}}
    assert set(tracks) == {"queue length, stream 7", f"GB/s, {D2D}"}
    for track in tracks.values():
        times = [counter["ts"] for counter in track]
        assert times == sorted(set(times))
        assert track[-1]["args"]["value"] == 0
    copied = [(c["ts"], c["args"]["value"]) for c in tracks[f"GB/s, {D2D}"]]
    assert copied == [(600.0, 4.0), (601.0, 0.0)]
    assert (590.001, 1) in [(c["ts"], c["args"]["value"]) for c in tracks["queue length, stream 7"]]


def test_a_trace_without_gpu_work_has_no_counters(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10)
    path = builder.write(tmp_path / "trace.json")
    assert main(["analyze", str(path), "--out", str(tmp_path / "out"), "--no-report", "--counters"]) == 0
    assert not (tmp_path / "out" / "counters").exists()


@pytest.mark.parametrize("name", ["nccl", "h100_qwen", "cuda_graphs_vllm"])
def test_real_traces_keep_every_event(tmp_path: Path, name: str) -> None:
    path = recorded(name)
    copy, counters, others = _augmented(tmp_path, path)
    assert others == [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e["ph"] != "C"]
    assert counters
    # The counters lie within the trace's own time, to the nanosecond.
    times = [event["ts"] for event in others if event["ph"] == "X"]
    assert min(times) <= min(c["ts"] for c in counters)
    trace = read_trace(path)
    pd.testing.assert_frame_equal(read_trace(copy).kernels, trace.kernels, check_categorical=False)
    starts = set((trace.kernels["ts"] + trace.meta.file_base_ns).tolist())
    text = gzip.decompress(copy.read_bytes()).decode()
    written = {int(line.split('"ts":')[1].split(",")[0].replace(".", "")) for line in text.split("\n")[:50]
               if line.startswith('{"ph":"C","name":"queue')}  # fmt: skip
    launched = set((trace.launches["ts"] + trace.meta.file_base_ns).tolist())
    assert written <= starts | launched
