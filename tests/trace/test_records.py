"""Missing records of a GPU are noticed and placed, what rests on them is not measured, and stale ends are cut."""

from typing import Any

import pytest

from builders import TraceBuilder
from recorded import case_trace
from steptrace.analysis.overview import busy_pct
from steptrace.analysis.quality import quality
from steptrace.documents.quality import LostRecords
from steptrace.documents.summary import TraceSummary

STEP, WORK = 1_000_000, 180_000


def _training(steps: int, lost: Any, *, launches: int = 5, call: str = "cudaLaunchKernel") -> TraceBuilder:
    """Steps of 1 ms with launches of 180 us of work each; `lost(step, launch)`: whether the work is missing."""
    builder = TraceBuilder()
    for step in range(steps):
        builder.step(step, step * STEP, STEP)
        for k in range(launches):
            ts = step * STEP + k * STEP // launches
            correlation = builder.call(call, ts, 2_000)
            if not lost(step, k):
                builder.gpu("gemm", ts + 5_000, WORK * 5 // launches, correlation)
    return builder


def _figures(entry: TraceSummary) -> list[Any]:
    """Figures of the GPU, which rest on its records."""
    gpu = entry.gpu
    times = [gpu.span_ns, gpu.busy_ns, gpu.idle_ns, gpu.compute_ns]
    return [
        *times,
        entry.gpu_busy_pct,
        entry.device,
        entry.launches,
        entry.precision,
        *(s.busy_ns for s in entry.steps),
    ]


@pytest.mark.parametrize(
    ("lost", "place", "kept"),
    [
        (lambda step, _: step < 2, "start", [2, 3, 4, 5]),
        (lambda step, k: step == 0 and k < 3, "start", [1, 2, 3, 4, 5]),
        (lambda step, _: step >= 4, "end", [0, 1, 2, 3]),
        (lambda step, k: step == 5 and k == 4, "end", [0, 1, 2, 3, 4]),
        (lambda step, _: step == 2, "middle", [3, 4, 5]),
        (lambda step, k: step in {0, 4} and k in {1, 3}, "scattered", [1, 2, 3]),
    ],
)
def test_steps_with_lost_records_are_left_out(lost: Any, place: str, kept: list[int]) -> None:
    builder = _training(6, lost)
    entry = builder.summary()
    count = sum(lost(step, k) for step in range(6) for k in range(5))
    assert entry.quality.lost == (LostRecords(launch="kernel", place=place, lost=count, of=30),)  # type: ignore[arg-type]
    assert [step.index for step in entry.steps] == kept
    assert [step.index for step in entry.quality.left_out] == [k for k in range(6) if k not in kept]
    assert entry.quality.gpu_measured
    assert entry.gpu_busy_pct == pytest.approx(90, abs=0.5)
    assert all(step.busy_ns == 5 * WORK for step in entry.steps)
    (check,) = (one for one in entry.quality.checks if one.check == "kernel_launches_with_work")
    assert (check.wrong, check.of, check.warns) == (count, 30, True)


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"])
def test_graph_launches_without_work_leave_the_gpu_unmeasured(call: str) -> None:
    entry = _training(3, lambda _, k: k > 0, launches=8, call=call).summary()
    assert entry.quality.lost == (LostRecords(launch="graph", place="scattered", lost=21, of=24),)
    assert entry.quality.gpu_measured is False
    assert entry.gpu.activities == 3
    assert _figures(entry) == [None] * len(_figures(entry))
    assert (entry.syncs.per_step, len(entry.steps), entry.idle.by_stream, entry.queues) == (0.0, 3, (), ())
    assert not entry.findings


@pytest.mark.parametrize(
    "call", ["cudaLaunchKernel", "cuLaunchKernelEx", "hipExtModuleLaunchKernel", "cudaLaunchCooperativeKernel"]
)
def test_launches_and_no_work_at_all(call: str) -> None:
    builder = _training(3, lambda *_: True, call=call)
    builder.call("cudaStreamSynchronize", 1_500_000, 10_000)
    entry = builder.summary()
    assert entry.quality.lost == (LostRecords(launch="kernel", place="all", lost=15, of=15),)
    assert entry.quality.gpu_measured is False
    assert _figures(entry) == [None] * len(_figures(entry))
    assert entry.syncs.by_step == (0, 1, 0)


def test_without_steps_the_span_between_the_first_and_the_last_record_counts() -> None:
    def whole(lost: Any) -> bool | None:
        builder = _training(6, lost)
        builder.events = [event for event in builder.events if event["cat"] != "user_annotation"]
        return builder.summary().quality.gpu_measured

    assert whole(lambda step, _: step < 2)
    assert whole(lambda step, _: step > 4)
    assert whole(lambda step, _: step == 3) is False


def test_what_leaves_no_record_is_not_lost() -> None:
    builder = _training(2, lambda *_: False)
    builder.call("cudaLaunchHostFunc", 10, 5)
    builder.call("cudaMemcpyAsync", 20, 5)  # of no bytes
    builder.call("cudaStreamBeginCapture", 100, 5)
    for ts in range(110, 150, 10):
        builder.call("cudaLaunchKernel", ts, 5, tid=101)  # the backward pass is captured, too
    builder.call("cudaStreamEndCapture", 160, 5)
    assert not quality(builder.trace()).lost
    builder.call("cudaLaunchKernel", 170, 5)
    assert [lost.lost for lost in quality(builder.trace()).lost] == [1]


def test_work_without_a_known_launch_may_be_that_of_one_without_work() -> None:
    builder = _training(2, lambda *_: False)
    for event in builder.events:
        if event["cat"] == "kernel":
            del event["args"]["correlation"]
    checked = quality(builder.trace())
    assert not checked.lost
    assert checked.gpu_measured


def test_an_operator_in_a_step_left_out_is_not_outside_the_steps() -> None:
    builder = _training(4, lambda step, _: step == 0)
    for step in range(4):
        builder.op("aten::mm", step * STEP, 10)
    (check,) = (c for c in quality(builder.trace()).checks if c.check == "operators_within_steps")
    assert check.wrong == 0


@pytest.mark.parametrize("stale", [[3], [12], [3, 30]])
def test_a_stale_end_is_cut_at_the_next_start_of_its_stream(stale: list[int]) -> None:
    builder = _training(4, lambda *_: False, launches=10)
    kernels = [event for event in builder.events if event["cat"] == "kernel"]
    for k in stale:
        kernels[k]["dur"] = 1_600_000
    builder.kernel(20_000, 30_000, 3_000_000, stream=20)  # another stream may work all the time
    trace = builder.trace()
    cut = trace.meta.records.cut
    assert {(one.stream, one.recorded_ns, one.kept_ns) for one in cut} == {(7, 1_600_000_000, 100_000)}
    assert len(cut) == len(stale)
    assert trace.kernels["dur"].max() == 3_000_000
    assert trace.window[1] < 5 * STEP
    (check,) = (c for c in quality(trace).checks if c.check == "ends")
    assert (check.wrong, check.warns) == (len(stale), True)


def test_ends_are_kept_where_work_may_overlap() -> None:
    builder = TraceBuilder()
    graph = builder.call("cudaGraphLaunch", 0, 1_000)
    builder.gpu("long branch", 2_000, 100_000, graph)
    for k in range(8):
        builder.gpu("short branch", 3_000 + k * 5_000, 4_000, graph)
    for k in range(20):  # dependent launches: each begins before the one before it has ended
        builder.kernel(200_000 + k * 10_000, 210_000 + k * 10_000, 15_000)
    assert not builder.trace().meta.records.cut
    several = TraceBuilder()
    for k in range(20):  # a number that stands for several queues
        several.kernel(k * 1_000, 10_000 + k * 1_000, 50_000)
    assert not several.trace().meta.records.cut


@pytest.mark.parametrize(
    ("name", "lost", "busy"),
    [
        ("graph_launch_without_kernels", (21, 24), None),
        ("launches_no_kernels", (24, 24), None),
        ("records_lost_at_start", (10, 30), 90.0),
        ("stale_completion_rocm", None, 70.0),
    ],
)
def test_public_reports(name: str, lost: tuple[int, int] | None, busy: float | None) -> None:
    trace = case_trace(name)
    assert [(one.lost, one.of) for one in trace.meta.records.lost] == ([lost] if lost else [])
    measured = busy_pct(trace)
    assert measured == busy if busy is None else measured == pytest.approx(busy, abs=1)
