"""What rests on records that a trace lacks is null, with the right reason; all else is as in the whole trace."""

import copy
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from builders import PINNED_H2D, TraceBuilder, training_step
from steptrace.diff import diff, read_sides
from steptrace.documents.summary import TraceSummary
from steptrace.findings.headline import cautions_of
from steptrace.findings.reason import reason_of

STEP = 1_000_000
STEPS = 6

#: What is empty where it is not known what launched the GPU's work.
FOLLOWS_LAUNCHES: Final = ("critical_path", "launches", "queues", "placement", "sequences", "roofline")


def _whole() -> TraceBuilder:
    """Steps of 1 ms, all alike: kernels of two streams, copies, a memory set, a graph, a loader, and two syncs."""
    builder = TraceBuilder()
    for step in range(STEPS):
        at = step * STEP
        training_step(builder, step, at)
        builder.op("aten::copy_", at + 600_000, 20_000)
        builder.gpu(PINNED_H2D, at + 640_000, 3_000, builder.call("cudaMemcpyAsync", at + 605_000, 5_000), bytes=4096)
        graph = builder.call("cudaGraphLaunch", at + 650_000, 5_000)
        for node in range(4):
            builder.gpu(f"node{node}", at + 660_000 + node * 20_000, 15_000, graph, **{"graph id": 3})
        builder.gpu("side", at + 705_000, 40_000, builder.call("cudaLaunchKernel", at + 700_000, 2_000), stream=20)
        builder.call("cudaStreamWaitEvent", at + 745_000, 1_000)
        builder.op("aten::relu", at + 748_000, 10_000)
        builder.kernel(at + 750_000, at + 760_000, 50_000, name="elementwise")
        builder.gpu("Memset (Device)", at + 885_000, 1_000, builder.call("cudaMemsetAsync", at + 880_000, 2_000))
        builder.call("cudaDeviceSynchronize", at + 900_000, 20_000)
    return builder


@functools.cache
def _of_whole() -> TraceSummary:
    return _whole().summary()


def _without(dropped: Callable[[dict[str, Any]], bool]) -> TraceSummary:
    builder = TraceBuilder()
    builder.events = [event for event in copy.deepcopy(_whole().events) if not dropped(event)]
    return builder.summary()


def _is_call(event: dict[str, Any]) -> bool:
    return bool(event["cat"] == "cuda_runtime")


def _is_work(event: dict[str, Any]) -> bool:
    return event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")


def _is_mark(event: dict[str, Any]) -> bool:
    return bool(event["name"].startswith("ProfilerStep#"))


def _per_step(entry: TraceSummary) -> dict[str, Any]:
    """The figures of a mean step, by their names."""
    overview = entry.overview
    path = entry.critical_path
    assert overview is not None
    assert path is not None
    return {
        "parts": {name: round(ns) for name, ns in overview.of_step.items() if not name.startswith("idle_")},
        "step_ns": overview.step_ns,
        "busy": entry.gpu_busy_pct,
        "kernels": entry.kernels_per_step,
        "operators": entry.operators_per_step,
        "syncs": entry.syncs.per_step,
        "path": {row.class_: row.path_ns for row in path.classes},
        "rows": {row.name: row.count // len(entry.steps) for row in entry.kernels},
        "launches": entry.launches and entry.launches.count // len(entry.steps),
    }


#: A number on the left of the half of the third step.
_HALF: Final = 2.5 * STEP / 1000


@pytest.mark.parametrize(
    ("dropped", "kept"),
    [
        (lambda event: _is_work(event) and event["ts"] < _HALF, [3, 4, 5]),
        (lambda event: _is_work(event) and event["ts"] > _HALF, [0, 1]),
        (lambda event: _is_call(event) and event["ts"] < _HALF, [3, 4, 5]),
        (lambda event: _is_call(event) and event["ts"] > _HALF, [0, 1]),
        (lambda event: not _is_mark(event) and event["ts"] < _HALF, [3, 4, 5]),
        (lambda event: not _is_mark(event) and event["ts"] > _HALF, [0, 1]),
        (lambda event: not _is_mark(event) and STEP / 1000 <= event["ts"] < _HALF, [3, 4, 5]),
    ],
    ids=["work before", "work after", "calls before", "calls after", "all before", "all after", "all within"],
)
def test_figures_of_the_steps_that_are_left_are_those_of_the_whole_trace(
    dropped: Callable[[dict[str, Any]], bool], kept: list[int]
) -> None:
    entry = _without(dropped)
    assert [step.index for step in entry.steps] == kept
    assert [step.index for step in entry.quality.left_out] == [step for step in range(STEPS) if step not in kept]
    assert _per_step(entry) == _per_step(_of_whole())
    assert entry.quality.warnings


@pytest.mark.parametrize(
    ("dropped", "code", "syncs"),
    [
        (_is_call, "no_runtime_calls", None),
        (lambda event: event["name"] == "cudaLaunchKernel", "launches_lost", 2.0),
        (lambda event: event["name"] == "cudaGraphLaunch", "launches_lost", 2.0),
        (lambda event: event["name"] == "cudaMemcpyAsync", "launches_lost", 2.0),
        (lambda event: _is_call(event) and event["ts"] % 7 < 4, "launches_lost", None),
    ],
    ids=["all calls", "kernel launches", "graph launches", "copies", "here and there"],
)
@pytest.mark.parametrize("steps", [True, False])
def test_without_launches_nothing_follows_from_them(
    dropped: Callable[[dict[str, Any]], bool], code: str, syncs: float | None, *, steps: bool
) -> None:
    entry = _without(lambda event: dropped(event) or (not steps and _makes_steps(event)))
    assert {name: entry.absent.get(name) for name in FOLLOWS_LAUNCHES} == dict.fromkeys(FOLLOWS_LAUNCHES, code)
    assert entry.device == 0
    overview = entry.overview
    assert overview is not None
    causes = ("idle_host", "idle_dependency", "idle_between_kernels", *(["idle_sync"] if syncs is None else []))
    assert [overview.parts_ns[name] for name in causes] == [None] * len(causes)
    assert sum(overview.known_ns.values()) == overview.window_ns
    assert all(step.parts_ns[name] is None for step in overview.by_step for name in causes)
    (idle,) = (caution for caution in cautions_of(entry) if caution.code == "unknown_idle")
    assert (idle.lacks, reason_of(entry)) == (code, None)
    assert {row.device_self_ns for row in overview.operators} == {None}
    assert None not in {row.name for row in overview.operators}
    assert sum(row.share for row in overview.operators) == pytest.approx(1)
    assert (entry.host_gaps, entry.idle.by_stream, entry.idle.ended_by) == (None, (), ())
    assert {(row.kernels, row.device_ns) for row in entry.labels} == {(None, None)}
    assert entry.program.by_line is None
    assert {row.device_ns for row in entry.program.functions} == {None}
    assert (entry.syncs.exposed_idle_ns, entry.syncs.ceiling_ns) == (None, None)
    assert {site.ceiling_ns for site in entry.syncs.sites} <= {None}
    if syncs is None:
        assert entry.syncs.count is None
        assert entry.absent["syncs"] == code
    elif steps:
        assert entry.syncs.per_step == syncs
    # The GPU's own records are whole.
    whole = _of_whole()
    assert [(row.name, row.sum_ns) for row in entry.kernels] == [(row.name, row.sum_ns) for row in whole.kernels]
    assert entry.gpu == whole.gpu
    if steps:
        assert (entry.gpu_busy_pct, overview.step_ns) == (whole.gpu_busy_pct, STEP)


def _makes_steps(event: dict[str, Any]) -> bool:
    return bool(event["name"].startswith(("ProfilerStep#", "enumerate(DataLoader)#")))


@pytest.mark.parametrize(("lost", "launches"), [(0, 100), (20, None)])
def test_work_from_before_the_recording_needs_no_launch_without_steps_either(lost: int, launches: int | None) -> None:
    """Unless the first operators have no call, which they have later."""
    builder = TraceBuilder()
    for number in range(20):
        builder.gpu("gemm", number * 10_000, 8_000, None)
    for number in range(100 + lost):
        builder.op("aten::mm", number * 10_000, 8_000)
        if number >= lost:
            builder.kernel(number * 10_000 + 1_000, 600_000 + number * 20_000, 15_000)
    entry = builder.summary()
    assert (entry.launches and entry.launches.count) == launches
    assert (entry.absent.get("critical_path") is None) is (launches is not None)


@pytest.mark.parametrize(
    "dropped",
    [
        _is_work,
        lambda event: event["cat"] == "kernel",
        lambda event: event["name"].startswith("node"),
        lambda event: event["cat"] == "gpu_memcpy",
    ],
    ids=["all work", "kernels", "graph kernels", "copies"],
)
def test_without_the_gpus_records_there_is_no_figure_of_it(dropped: Callable[[dict[str, Any]], bool]) -> None:
    entry = _without(dropped)
    assert entry.device is None
    assert entry.quality.gpu_measured is False
    assert {name: entry.absent.get(name) for name in FOLLOWS_LAUNCHES} == dict.fromkeys(
        FOLLOWS_LAUNCHES, "gpu_records_lost"
    )
    assert entry.absent["idle"] == "gpu_records_lost"
    gpu = msgspec.to_builtins(entry.gpu)
    assert {value for name, value in gpu.items() if name != "activities"} == {None}
    assert (entry.gpu_busy_pct, entry.kernels_per_step, entry.streams_per_step) == (None, None, None)
    assert entry.overview is not None
    assert {row.device_self_ns for row in entry.overview.operators} == {None}
    assert entry.syncs.per_step == 2.0
    assert "not measured" in json.dumps(entry.quality.warnings)


def test_calls_of_a_runtime_that_nobody_knows_are_no_launches_without_syncs() -> None:
    builder = TraceBuilder()
    builder.events = [
        event | ({"cat": "foo_runtime", "name": event["name"].replace("cuda", "foo")} if _is_call(event) else {})
        for event in _whole().events
        if not (_is_call(event) and "Synchronize" in event["name"])
    ]
    entry = builder.summary()
    assert (entry.syncs.count, entry.absent["syncs"]) == (None, "unknown_runtime")
    assert (entry.critical_path, entry.absent["critical_path"]) == (None, "unknown_runtime")
    assert entry.overview is not None
    assert entry.overview.parts_ns["idle_sync"] is None
    builder.events = [event for event in builder.events if not _is_work(event) and "Launch" not in event["name"]]
    entry = builder.summary()  # nor where the device's work is of categories that nobody reads
    assert (entry.device, entry.critical_path, entry.absent["critical_path"]) == (None, None, "unknown_runtime")


def test_a_short_step_without_events_at_the_end_was_only_begun() -> None:
    builder = _whole()
    builder.step(STEPS, STEPS * STEP, STEP // 20)
    entry = builder.summary()
    assert [step.index for step in entry.steps] == [*range(STEPS + 1)]
    assert [check.warns for check in entry.quality.checks if check.check == "steps_with_work"] == [True]


def test_a_short_step_without_events_in_the_middle_is_that_of_a_batch_that_was_skipped() -> None:
    builder = TraceBuilder()
    for number in range(STEPS):
        training_step(builder, number + (number > 2), number * STEP + 3_000 * (number > 2))
    builder.step(3, 3 * STEP, 3_000)
    entry = builder.summary()
    assert (len(entry.steps), entry.quality.left_out) == (STEPS + 1, ())


def test_a_step_that_an_event_of_an_earlier_one_fills_is_not_empty() -> None:
    builder = _whole()
    builder.label("wait", STEPS * STEP - 100, STEP)
    builder.step(STEPS, STEPS * STEP, STEP)
    assert len(builder.summary().steps) == STEPS + 1
    assert len(_with_an_empty_step().summary().steps) == STEPS


def _with_an_empty_step() -> TraceBuilder:
    builder = _whole()
    builder.step(STEPS, STEPS * STEP, STEP)
    return builder


def test_steps_without_events_here_and_there_are_how_the_program_marks_them() -> None:
    """As of a loop that calls `step()` twice."""
    builder = TraceBuilder()
    for number in range(10):
        builder.step(number, number * STEP, STEP)
        for k in range(12 * (number % 2)):
            builder.op("aten::mm", number * STEP + k * 50_000, 10_000)
    assert len(builder.summary().steps) == 10


def test_memory_sets_without_work_are_no_loss() -> None:
    """Those of cuBLAS leave none."""
    entry = _without(lambda event: event["cat"] == "gpu_memset")
    assert entry.quality.gpu_measured
    assert not entry.quality.warnings


def test_a_single_copy_without_work_may_be_of_no_bytes() -> None:
    builder = _whole()
    builder.call("hipMemcpyAsync", 10_000, 1_000)
    assert builder.summary().quality.gpu_measured


@pytest.mark.parametrize(
    ("between", "kept"), [("nothing", [0, 1, 2]), ("operator", [0, 1, 2, 3, 4]), ("frame", [0, 1, 2, 3, 4])]
)
def test_a_long_time_without_events_is_a_gap_where_the_numbers_go_on(between: str, kept: list[int]) -> None:
    """As of two windows in one file; an evaluation between two steps, and a frame around both, are in the trace."""
    builder = TraceBuilder()
    for number in range(5):
        at = number * STEP + 20 * STEP * (number > 2)
        builder.step(number, at, STEP)
        builder.op("aten::mm", at, 500_000)
        builder.kernel(at + 5_000, at + 10_000, 700_000)
    if between == "operator":
        builder.op("aten::evaluate", 10 * STEP, 500_000)
    if between == "frame":
        builder.frame("train.py(1): main", 0, 26 * STEP)
    entry = builder.summary()
    assert [step.index for step in entry.steps] == kept
    assert bool(entry.quality.left_out) is (between == "nothing")


def test_steps_far_apart_as_they_always_are_have_no_gap() -> None:
    builder = TraceBuilder()
    for number in range(4):
        builder.step(number, number * 5 * STEP, STEP)
        builder.kernel(number * 5 * STEP + 5_000, number * 5 * STEP + 10_000, 700_000)
    assert len(builder.summary().steps) == 4


def test_a_diff_with_a_trace_without_launches_compares_what_both_know(tmp_path: Path) -> None:
    whole = _whole()
    without = TraceBuilder()
    without.events = [event for event in whole.events if not _is_call(event)]
    sides = read_sides([whole.write(tmp_path / "a.json")], [without.write(tmp_path / "b.json")])
    result = diff(*sides)
    assert {"syncs", "lines"} <= set(result.not_measured)
    assert result.parts_ns["compute"].a == result.parts_ns["compute"].b
    assert (result.parts_ns["idle_sync"].a is None, result.parts_ns["idle_sync"].b) == (False, None)
    assert not result.lines
    assert not result.syncs
