"""Missing records of a GPU are noticed and placed, what rests on them is not measured, and stale ends are cut."""

from typing import Any

import pytest

from builders import TraceBuilder
from recorded import case_trace
from steptrace.analysis.common.gaps import gap_causes
from steptrace.analysis.overview import busy_pct
from steptrace.analysis.quality import quality
from steptrace.documents.quality import LostRecords
from steptrace.documents.summary import TraceSummary
from steptrace.words.quality import warning

STEP = 1_000_000
WORK = 180_000


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
    (check,) = (check_row for check_row in entry.quality.checks if check_row.check == "kernel_launches_with_work")
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
    builder.call("cudaLaunchKernel", 3_000, 5)
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
    assert {(records.stream, records.recorded_ns, records.kept_ns) for records in cut} == {(7, 1_600_000_000, 100_000)}
    assert len(cut) == len(stale)
    assert trace.kernels["dur"].max() == 3_000_000
    assert trace.window[1] < 5 * STEP
    (check,) = (c for c in quality(trace).checks if c.check == "ends")
    assert (check.wrong, check.warns) == (len(stale), True)


@pytest.mark.parametrize("later", [0, 1, 2])
def test_a_stale_end_of_a_stream_s_last_work_is_cut(later: int) -> None:
    """By what is launched after it; the very last by a wait that has returned."""
    builder = _training(4, lambda *_: False, launches=10)
    builder.call("cudaDeviceSynchronize", 4 * STEP, 1_000)
    builder.kernel(20_000, 30_000, 5_000, stream=20)
    kernels = [event for event in builder.events if event["cat"] == "kernel" and event["tid"] == 7]
    kernels[-1 - later]["dur"] = 3_000_000
    trace = builder.trace()
    (cut,) = trace.meta.records.cut
    assert (cut.stream, cut.recorded_ns) == (7, 3_000_000_000)
    assert cut.kept_ns < 200_000
    assert trace.window[1] < 5 * STEP


def test_long_work_at_the_end_of_a_stream_is_kept() -> None:
    builder = _training(4, lambda *_: False, launches=10)
    kernels = [event for event in builder.events if event["cat"] == "kernel"]
    kernels[-1]["dur"] = 3_000  # the host waits for another event, and for the device before the launch
    builder.call("cudaEventSynchronize", 4 * STEP, 1_000)
    builder.call("cudaDeviceSynchronize", STEP // 2, 1_000)
    builder.kernel(20_000, 30_000, 5_000, stream=20)
    assert not builder.trace().meta.records.cut
    builder.call("cudaDeviceSynchronize", 4 * STEP, 4_000_000)  # it waits to the end
    assert not builder.trace().meta.records.cut
    builder.kernel(20_000, 30_000, 5_000, device=1)  # whose device is not known
    builder.call("cudaDeviceSynchronize", 4 * STEP, 1_000)
    assert not builder.trace().meta.records.cut


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("recorded", [30_000, 1_600_000])
def test_a_stale_end_of_the_very_last_work_is_cut_to_the_longest_run_of_its_kernel(streams: int, recorded: int) -> None:
    builder = _training(4, lambda *_: False, launches=10)
    kernels = _kernels(builder)
    for number, event in enumerate(kernels):
        event["args"]["stream"] = 7 + number % streams
    kernels[-1]["dur"] = recorded
    entry = builder.summary()
    assert [(cut.recorded_ns, cut.kept_ns) for cut in entry.quality.cut] == [(recorded * 1_000, 90_000)]
    assert [step.busy_ns for step in entry.steps] == [900_000] * 4
    assert any("gemm" in text for text in entry.quality.warnings)


@pytest.mark.parametrize(
    ("name", "length_us", "grid"),
    [
        ("sort", 60_000, None),  # nothing to compare it with but the recording, of 4 ms
        ("gemm", 30_000, [64, 1, 1]),  # another grid: another size
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1_600_000, None),  # waits for another rank
        ("gemm", 8_000, None),
    ],
)
def test_long_work_at_the_end_is_kept_where_it_may_be_long(name: str, length_us: int, grid: Any) -> None:
    builder = _training(4, lambda *_: False, launches=10)
    for number, event in enumerate(_kernels(builder)):
        event["args"]["grid"] = [8, 1, 1]
        if number == 39:
            event |= {"name": name, "dur": length_us}
            event["args"]["grid"] = grid or [8, 1, 1]
    assert not builder.trace().meta.records.cut


def test_long_work_at_the_end_of_a_stream_is_kept_if_the_recording_goes_on_after_it() -> None:
    """A kernel whose grid is the number of multiprocessors takes as long as its matrices are large."""
    builder = _training(4, lambda *_: False, launches=10)
    for event in _kernels(builder):
        event["args"]["grid"] = [132, 1, 1]
    _kernels(builder)[-1]["dur"] = 20_000
    builder.call("cudaDeviceSynchronize", 4 * STEP + 25_000_000, 5_000)
    assert not builder.trace().meta.records.cut


def test_the_only_work_of_a_short_recording_may_be_long() -> None:
    builder = TraceBuilder()
    builder.gpu("sort", 20_000, 50_000_000, builder.call("cudaLaunchKernel", 0, 10_000))
    builder.call("cudaGetLastError", 30_000, 1_000)
    assert not builder.trace().meta.records.cut


def test_a_stale_end_of_a_kernel_that_ran_once_is_cut_at_the_end_of_the_recording() -> None:
    builder = _training(4, lambda *_: False, launches=10)
    _kernels(builder)[-1] |= {"name": "sort", "dur": 1_600_000}
    trace = builder.trace()
    (cut,) = trace.meta.records.cut
    assert cut.kept_ns == 4 * STEP - (4 * STEP - 95_000)
    assert trace.window[1] == 4 * STEP


def test_a_stale_end_before_a_long_gap_of_its_stream_is_cut_to_the_longest_run_of_its_kernel() -> None:
    """The gap is a wait for data: the GPU did not work through it."""
    builder = TraceBuilder()
    for step in range(4):
        builder.step(step, step * 100 * STEP, 100 * STEP)
        for k in range(5):
            ts = step * 100 * STEP + k * 200_000
            builder.kernel(ts, ts + 5_000, WORK)
    _kernels(builder)[4]["dur"] = 600_000
    entry = builder.summary()
    assert [(cut.recorded_ns, cut.kept_ns) for cut in entry.quality.cut] == [(600_000_000, WORK)]
    assert [step.busy_ns for step in entry.steps] == [5 * WORK] * 4


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
    assert [(item.lost, item.of) for item in trace.meta.records.lost] == ([lost] if lost else [])
    measured = busy_pct(trace)
    assert measured == busy if busy is None else measured == pytest.approx(busy, abs=1)


def _graphs(steps: int, kept: Any, *, ids: bool) -> TraceBuilder:
    """Steps of 1 ms that launch two graphs of ten kernels each; `kept(step, graph)`: how many are in the trace."""
    builder = TraceBuilder()
    for step in range(steps):
        builder.step(step, step * STEP, STEP)
        for graph in range(2):
            ts = step * STEP + graph * STEP // 2
            correlation = builder.call("cudaGraphLaunch", ts, 3_000)
            for node in range(kept(step, graph)):
                args = {"graph id": 7 + graph} if ids else {}
                builder.gpu(f"k{node}", ts + 5_000 + node * 40_000, 30_000, correlation, **args)
    return builder


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("lacking", [1, 5, 9])
def test_a_graph_launch_without_a_part_of_its_work_is_lost(lacking: int, *, ids: bool) -> None:
    entry = _graphs(5, lambda step, graph: 10 - lacking * (step == 3 and graph == 1), ids=ids).summary()
    (lost,) = entry.quality.lost
    assert (lost.launch, lost.lost, lost.of, lost.partly) == ("graph", 1, 10, 1)
    assert [step.index for step in entry.steps] == [0, 1, 2]
    assert {step.busy_ns for step in entry.steps} == {2 * 10 * 30_000}


@pytest.mark.parametrize("ids", [True, False])
def test_graphs_of_different_sizes_have_lost_nothing(*, ids: bool) -> None:
    assert not quality(_graphs(5, lambda _, graph: 10 - 4 * graph, ids=ids).trace()).lost


@pytest.mark.parametrize("steps", [range(1), range(1, 2)])
def test_graphs_without_ids_whose_place_is_not_known_have_lost_nothing(steps: range) -> None:
    builder = _graphs(4, lambda step, graph: 10 - 3 * graph - (step == 2), ids=False)
    for step in steps:  # a further graph in some of the steps
        correlation = builder.call("cudaGraphLaunch", step * STEP + 990_000, 2_000)
        builder.gpu("other", step * STEP + 994_000, 1_000, correlation)
    assert not quality(builder.trace()).lost


@pytest.mark.parametrize(
    ("lost", "place"),
    [
        (lambda step, stream: stream == 20 and step < 2, "start"),
        (lambda step, stream: stream == 20 and step > 3, "end"),
        (lambda step, stream: stream == 20 and step in {2, 3}, "middle"),
        (lambda _, stream: stream == 20, "scattered"),
        (lambda step, stream: stream == 20 and step in {0, 5}, "scattered"),
    ],
)
@pytest.mark.parametrize("device", [0, 1])
def test_the_place_of_a_loss_on_one_of_several_streams_or_gpus(lost: Any, place: str, device: int) -> None:
    builder = TraceBuilder()
    for step in range(6):
        builder.step(step, step * STEP, STEP)
        for k in range(4):
            for stream in (7, 20):
                ts = step * STEP + k * 200_000 + stream * 100
                correlation = builder.call("cudaLaunchKernel", ts, 1_000)
                if not lost(step, stream):
                    where = device if stream == 20 else 0
                    builder.gpu("gemm", ts + 5_000, 150_000, correlation, stream=stream, device=where)
    (record,) = quality(builder.trace()).lost
    assert record.place == place


def _kernels(builder: TraceBuilder) -> list[dict[str, Any]]:
    return [event for event in builder.events if event["cat"] == "kernel"]


@pytest.mark.parametrize("base", [0, 5_000_000_000])
def test_a_record_that_was_not_filled_in_is_a_lost_one(base: int) -> None:
    builder = _training(6, lambda *_: False)
    for event in builder.events:
        event["ts"] += base / 1000
    for event in _kernels(builder)[25:27]:
        event |= {"ts": 0, "dur": 0}
    entry = builder.summary()
    assert [(lost.lost, lost.of) for lost in entry.quality.lost] == [(2, 30)]
    assert [step.index for step in entry.steps] == [0, 1, 2, 3, 4]
    assert entry.gpu_busy_pct == pytest.approx(90, abs=0.5)


def test_a_start_long_before_the_launch_is_moved_to_the_launch() -> None:
    builder = _training(4, lambda *_: False)
    event = _kernels(builder)[12]
    end = event["ts"] + event["dur"]
    event |= {"ts": 50.0, "dur": end - 50.0}
    entry = builder.summary()
    (cut,) = entry.quality.cut_starts
    assert (cut.recorded_ns, cut.kept_ns) == (int((end - 50) * 1000), WORK + 5_000)
    assert not entry.quality.cut
    assert [step.busy_ns for step in entry.steps] == [5 * WORK, 5 * WORK, 5 * WORK + 5_000, 5 * WORK]
    (check,) = (check_row for check_row in entry.quality.checks if check_row.check == "starts")
    assert (check.wrong, check.warns) == (1, True)


def test_work_that_ended_long_before_its_launch_is_lost() -> None:
    builder = _training(6, lambda *_: False)
    _kernels(builder)[27]["ts"] = 1.0
    entry = builder.summary()
    assert [(lost.lost, lost.place) for lost in entry.quality.lost] == [(1, "scattered")]
    assert [step.index for step in entry.steps] == [0, 1, 2, 3, 4]
    assert any(note.code == "impossible_events" for note in entry.quality.notes)


def test_clocks_that_disagree_move_no_start() -> None:
    builder = _training(4, lambda *_: False)
    for event in _kernels(builder):
        event["ts"] -= 3_000
    entry = builder.summary()
    assert not entry.quality.cut_starts
    (check,) = (check_row for check_row in entry.quality.checks if check_row.check == "after_launch")
    assert check.wrong == 20


def test_many_stale_ends_are_cut_where_the_host_has_waited_for_them() -> None:
    builder = _training(4, lambda *_: False)
    for step in range(4):
        builder.call("cudaStreamSynchronize", step * STEP + 985_000, 10_000)
    for k in (2, 6, 9, 13, 17):
        _kernels(builder)[k]["dur"] = 1_600_000
    entry = builder.summary()
    assert len(entry.quality.cut) == 5
    assert all(step.busy_ns is not None and step.busy_ns < 950_000 for step in entry.steps)


def test_a_stale_end_inside_a_graph_is_cut_at_its_next_kernel() -> None:
    builder = _graphs(4, lambda *_: 10, ids=True)
    _kernels(builder)[24]["dur"] = 1_600_000
    entry = builder.summary()
    assert [cut.kept_ns for cut in entry.quality.cut] == [40_000]
    assert [step.busy_ns for step in entry.steps] == [600_000, 610_000, 600_000, 600_000]


def _lost_warning(entry: TraceSummary) -> str:
    (warned,) = (warning(check) for check in entry.quality.checks if check.warns and check.check in _LOST)
    return warned


_LOST = ("kernel_launches_with_work", "graph_launches_with_work")


def test_records_with_impossible_times_are_not_blamed_on_the_profilers_buffers() -> None:
    builder = _training(4, lambda *_: False)
    kernels = [event for event in builder.events if event["cat"] == "kernel"]
    kernels[7]["dur"] = -1
    impossible = _lost_warning(builder.summary())
    kernels[8]["cat"] = "other"  # one more is lost, of which nothing is known
    lost = _lost_warning(builder.summary())
    assert impossible.rsplit("; ", 1)[1] != lost.rsplit("; ", 1)[1]


@pytest.mark.parametrize(("kept", "of_graphs"), [(1, True), (23, False)], ids=["most", "few"])
def test_where_most_graphs_have_no_records_the_remedy_is_that_of_graphs(kept: int, *, of_graphs: bool) -> None:
    """Those without records are at the end of the trace in both cases."""
    builder = TraceBuilder()
    for step in range(24):
        builder.step(step, step * STEP, STEP)
        correlation = builder.call("cudaGraphLaunch", step * STEP, 2_000)
        if step < kept:
            builder.gpu("attention", step * STEP + 5_000, WORK, correlation)
    entry = builder.summary()
    assert [lost.place for lost in entry.quality.lost] == ["end"]
    assert ("_init_for_cuda_graphs" in _lost_warning(entry)) == of_graphs


def _kernel_time(builder: TraceBuilder) -> tuple[float, float]:
    """The time of compute in the steps, by the division and by the names of kernels, in ns."""
    entry = builder.summary()
    assert entry.overview is not None
    return entry.overview.of_step["compute"] * entry.quality.steps, sum(row.sum_ns for row in entry.kernels)


def test_work_of_steps_left_out_is_in_no_figure() -> None:
    """Steps after the loss have their records, and are left out with it: their kernels are none of the kept steps."""
    builder = _training(6, lambda step, _: step == 3)
    entry = builder.summary()
    assert [step.index for step in entry.quality.left_out] == [3, 4, 5]
    divided, named = _kernel_time(builder)
    assert named == pytest.approx(divided)
    assert entry.syncs.exposed_idle_ns is not None
    assert entry.gpu.idle_ns is not None
    assert entry.syncs.exposed_idle_ns <= entry.gpu.idle_ns


def test_work_left_over_from_a_step_left_out_keeps_the_gpu_busy() -> None:
    builder = _training(4, lambda step, launch: step == 0 and launch > 0)
    first = next(event for event in builder.events if event["cat"] == "kernel")
    first["dur"] = STEP * 1.2 / 1000 - first["ts"]
    for event in builder.events:
        if event["cat"] == "kernel" and event is not first and event["ts"] < STEP * 1.2 / 1000:
            event["ts"] += STEP * 0.3 / 1000
    trace = builder.trace()
    assert [step.index for step in trace.meta.records.left_out] == [0]
    assert int(trace.kernels["ts"].min()) == round(first["ts"] * 1000)
    assert trace.kernels["launch"].isna().sum() == 1


@pytest.mark.parametrize("before", [False, True], ids=["after", "before"])
def test_work_outside_the_steps_is_in_no_figure_per_step(*, before: bool) -> None:
    builder = _training(3, lambda *_: False)
    divided, named = _kernel_time(builder)
    assert named == pytest.approx(divided)
    for k in range(20):
        at = (-21 + k) * STEP // 5 if before else (3 * STEP + (5 + k) * STEP // 5)
        builder.op("aten::mm", at, 3_000)
        builder.kernel(at + 500, at + 5_000, STEP // 6, name="other")
    now = _kernel_time(builder)
    assert now == (pytest.approx(divided), pytest.approx(named))
    entry = builder.summary()
    assert {row.name for row in entry.kernels} == {"gemm"}


@pytest.mark.parametrize(
    ("lost", "kept", "per_step"),
    [
        (lambda step, _: step < 2, [2, 3, 4, 5], 1),
        (lambda step, _: step >= 4, [0, 1, 2, 3], 1),
        (lambda step, _: step == 2, [3, 4, 5], 1),
        (lambda _step, k: k in {1, 5}, [0, 1, 2, 3, 4, 5], None),  # here and there: a wait may be lost in any step
        (lambda step, k: (step, k) == (0, 5), [0, 1, 2, 3, 4, 5], 5 / 6),  # a wait alone leaves no gap in the records
    ],
)
def test_calls_that_the_profiler_lost_are_noticed_by_the_work_that_they_launched(
    lost: Any, kept: list[int], per_step: float | None
) -> None:
    """Syncs are counted in steps with all calls; the GPU's own records are whole."""
    builder = _training(6, lambda *_: False)
    for step in range(6):
        builder.call("cudaStreamSynchronize", step * STEP + 985_000, 10_000)
    calls = [event for event in builder.events if event["cat"] == "cuda_runtime"]
    place = {id(event): number for number, event in enumerate(sorted(calls, key=lambda event: event["ts"]))}
    builder.events = [e for e in builder.events if id(e) not in place or not lost(*divmod(place[id(e)], 6))]
    entry = builder.summary()
    assert [step.index for step in entry.steps] == kept
    assert entry.syncs.per_step == per_step
    assert [step.busy_ns for step in entry.steps] == [5 * WORK] * len(kept)
    warned = [check.check for check in entry.quality.checks if check.warns]
    assert ("linked_to_launch" in warned) is (per_step in {1, None})
    assert "steps_with_work" not in warned


def test_calls_that_are_recorded_only_before_the_steps_leave_no_step_with_calls() -> None:
    builder = _training(3, lambda *_: False)
    builder.events = [event for event in builder.events if event["cat"] != "cuda_runtime"]
    for event in builder.events:
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] += 1_000  # later calls have greater numbers
    builder.kernel(-50_000, -40_000, WORK)
    entry = builder.summary()
    assert entry.syncs.count is None
    assert [check.wrong for check in entry.quality.checks if check.check == "linked_to_launch"] == [15]


def test_where_calls_are_missing_here_and_there_no_gap_is_the_hosts() -> None:
    """A sync may be among the calls that are missing."""
    builder = _training(6, lambda *_: False)
    calls = [event for event in builder.events if event["cat"] == "cuda_runtime"]
    dropped = {id(event) for event in calls[::2]}
    builder.events = [event for event in builder.events if id(event) not in dropped]
    trace = builder.trace()
    assert not trace.meta.records.calls_whole
    assert set(gap_causes(trace)[1]) == {"unknown"}


def test_steps_whose_launches_lost_their_work_did_launch_some() -> None:
    entry = _training(6, lambda step, _: step > 0, call="hipGraphLaunch").summary()
    assert "steps_with_work" not in {check.check for check in entry.quality.checks if check.warns}


@pytest.mark.parametrize(
    ("numbers", "kept"),
    [
        ([0, 1, 5, 6, 7], [5, 6, 7]),
        ([0, 1, 2, 5, 6], [0, 1, 2]),
        ([0, 1, 0, 1, 2], [0, 1, 2]),
    ],
)
@pytest.mark.parametrize("gpu", [True, False])
def test_the_longest_run_of_steps_without_a_gap_counts(numbers: list[int], kept: list[int], *, gpu: bool) -> None:
    """As of two windows of a profiler in one file: nobody recorded what is between them."""
    before_gap = 5 - len(kept) if numbers[-1] == kept[-1] and numbers[:3] != kept else len(kept)
    builder = TraceBuilder()
    for place, number in enumerate(numbers):
        ts = place * STEP + 20 * STEP * (place >= before_gap)
        builder.step(number, ts, STEP)
        builder.op("aten::mm", ts, 500_000)
        if gpu:
            builder.kernel(ts + 5_000, ts + 10_000, 700_000)
    entry = builder.summary()
    assert [step.index for step in entry.steps] == kept
    assert len(entry.quality.left_out) == 2
    overview = entry.overview
    assert overview is not None
    assert (overview.window_ns, overview.step_ns) == (3 * STEP, STEP)
    assert entry.gpu_busy_pct == (pytest.approx(70) if gpu else None)
    (check,) = (check for check in entry.quality.checks if check.check == "step_numbers")
    assert (check.warns, check.figures["numbers"]) == (True, numbers)


def test_steps_whose_numbers_jump_without_a_gap_all_count() -> None:
    builder = TraceBuilder()
    for place, number in enumerate([3, 4, 5, 13, 14]):
        builder.step(number, place * STEP, STEP - 10_000)
        builder.kernel(place * STEP + 5_000, place * STEP + 10_000, 700_000)
    assert [step.index for step in builder.summary().steps] == [3, 4, 5, 13, 14]
