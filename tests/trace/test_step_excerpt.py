"""A step as a trace that a page can carry: what it holds, and how small it stays."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from builders import TraceBuilder
from recorded import NAMES, needs_traces, trace_of
from steptrace.analysis.build import load_trace, summarize_trace
from steptrace.trace.model import Trace
from steptrace.trace.step_excerpt import step_excerpt

US = 1_000


def content(trace: Trace, **more: Any) -> dict[str, Any]:
    excerpt = step_excerpt(trace, **more)
    assert excerpt is not None
    found: dict[str, Any] = json.loads(gzip.decompress(excerpt.data))
    assert found["steptraceExcerpt"]["events"] == excerpt.events
    return found


def three_steps() -> TraceBuilder:
    builder = TraceBuilder()
    for index, ts in enumerate((0, 1_000_000, 2_000_000)):
        builder.step(index, ts, 900_000)
        builder.frame("train.py(3): step", ts + 500, 100_000)
        builder.op("aten::mm", ts + 1_000, 50_000)
        builder.kernel(ts + 2_000, ts + 10_000, 400_000 + index, name=f"gemm{index}")
    return builder


def test_it_is_the_median_step_alone_from_its_start_in_microseconds() -> None:
    spans = [event for event in content(three_steps().trace())["traceEvents"] if event["ph"] == "X"]
    assert {(event["cat"], event["name"]) for event in spans} == {
        ("user_annotation", "ProfilerStep#1"),
        ("python_function", "train.py(3): step"),
        ("cpu_op", "aten::mm"),
        ("cuda_runtime", "cudaLaunchKernel"),
        ("kernel", "gemm1"),
    }
    (kernel,) = (event for event in spans if event["cat"] == "kernel")
    assert (kernel["ts"], kernel["dur"], kernel["tid"]) == (10.0, 400.001, 7)


def test_an_arrow_leads_from_a_launch_to_its_work() -> None:
    events = content(three_steps().trace())["traceEvents"]
    start, end = (next(event for event in events if event["ph"] == phase) for phase in "sf")
    assert start["id"] == end["id"]
    assert (start["ts"], end["ts"]) == (2.0, 10.0)


def test_it_is_read_as_any_trace_is(tmp_path: Path) -> None:
    trace = three_steps().trace()
    file = tmp_path / "step.json.gz"
    excerpt = step_excerpt(trace)
    assert excerpt is not None
    file.write_bytes(excerpt.data)
    again = summarize_trace(load_trace(file))
    assert [step.index for step in again.steps] == [1]
    assert [(row.name, row.sum_ns) for row in again.kernels] == [("gemm1", 400_001)]


def test_of_too_many_events_the_longest_and_their_launches_are_kept() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 30_000_000)
    for number in range(3_000):
        builder.op(f"aten::op{number * 7919}", number * 10_000, 500 + number % 7)
    builder.kernel(29_000_000, 29_100_000, 800_000, name="long")
    found = content(builder.trace(), most_bytes=4_000)
    kept = found["steptraceExcerpt"]
    assert kept["events"] < kept["of_events"] == 3_003
    names = {event["name"] for event in found["traceEvents"]}
    assert {"long", "cudaLaunchKernel", "ProfilerStep#0"} <= names


def test_a_trace_without_steps_is_whole_and_one_without_events_has_none() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 50_000)
    builder.kernel(2_000, 20_000, 60_000)
    assert content(builder.trace())["steptraceExcerpt"]["of_events"] == 3
    empty = TraceBuilder()
    empty.step(0, 0, 1_000)
    assert content(empty.trace())["steptraceExcerpt"]["of_events"] == 1


def test_what_crosses_the_step_s_borders_is_cut_there_so_that_all_of_it_nests() -> None:
    builder = TraceBuilder()
    builder.step(0, 10 * US, 80 * US)
    builder.frame("train.py(1): <module>", 0, 200 * US)
    builder.frame("train.py(9): before", 5 * US, 20 * US)
    builder.frame("train.py(12): step", 80 * US, 30 * US)
    builder.op("aten::mm", 30 * US, 20 * US)
    builder.kernel(35 * US, 95 * US, 25 * US)
    spans = [event for event in content(builder.trace())["traceEvents"] if event["ph"] == "X"]
    assert min(event["ts"] for event in spans) == 0
    by_name = {event["name"]: (event["ts"], event["ts"] + event["dur"]) for event in spans}
    assert by_name["train.py(1): <module>"] == (0, 80)
    assert by_name["train.py(9): before"] == (0, 15)
    assert by_name["train.py(12): step"] == (70, 80)
    assert by_name["gemm"] == (85, 110)
    assert _overlapping([event for event in spans if event["pid"] == 1]) == []


def test_of_two_steps_with_one_number_the_median_one_is_cut_at_its_own_end() -> None:
    """Two recordings in one trace number their steps alike; the second step is the shorter one."""
    builder = TraceBuilder()
    for start, length in ((0, 200), (250, 100)):
        builder.step(0, start * US, length * US)
        builder.frame("train.py(9): loop", (start + 10) * US, 200 * US)
        builder.kernel((start + 20) * US, (start + 30) * US, (length - 40) * US)
    spans = {event["name"]: event for event in content(builder.trace())["traceEvents"] if event["ph"] == "X"}
    assert spans["ProfilerStep#0"]["dur"] == 100
    assert (spans["train.py(9): loop"]["ts"], spans["train.py(9): loop"]["dur"]) == (10, 90)


def _overlapping(spans: list[Any]) -> list[str]:
    """The events of one track that another one holds in part."""
    found: list[str] = []
    ends: list[float] = []
    for event in sorted(spans, key=lambda event: (event["ts"], -event["dur"])):
        ends = [end for end in ends if end > event["ts"]]
        if ends and event["ts"] + event["dur"] > ends[-1]:
            found.append(event["name"])
        ends.append(event["ts"] + event["dur"])
    return found


@needs_traces
@pytest.mark.parametrize("name", NAMES)
def test_the_excerpt_of_a_recorded_trace_is_in_the_trace_event_format(name: str) -> None:
    excerpt = step_excerpt(trace_of(name))
    if excerpt is None:
        return
    events = json.loads(gzip.decompress(excerpt.data))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == excerpt.events
    assert {event["ph"] for event in events} <= {"X", "M", "s", "f"}
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans)
    begun, ended = ({event["id"] for event in events if event["ph"] == phase} for phase in "sf")
    assert begun == ended
    named = {(event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    assert {(event["pid"], event["tid"]) for event in spans} <= named
