"""Where the host is while no operator runs inside a step."""

from typing import Any

from builders import AUTOGRAD, MAIN, TraceBuilder
from recorded import needs_traces, trace_of
from steptrace.analysis import summarize_trace
from steptrace.analysis.host_stretches import host_stretches
from steptrace.documents.subjects.host_stretches import LEAST_NS, SUBJECT, HostStretch
from steptrace.documents.summary import TraceSummary

US = 1_000


def _step() -> TraceBuilder:
    """A step of 1 ms: `augment` works for 300 us before `forward` calls an operator; 40 us between two operators."""
    builder = TraceBuilder()
    builder.step(0, 0, 1_000 * US)
    builder.frame("train.py(1): <module>", 0, 1_000 * US)
    builder.op("aten::zeros", 0, 100 * US)
    builder.frame("data.py(7): augment", 100 * US, 290 * US)
    builder.frame("model.py(3): forward", 395 * US, 300 * US)
    builder.op("aten::mm", 400 * US, 100 * US)
    builder.op("aten::add", 540 * US, 100 * US)
    builder.op("autograd::engine::evaluate_function: MulBackward0", 800 * US, 150 * US, tid=AUTOGRAD)
    builder.label("backward", 640 * US, 350 * US)
    return builder


def _places(builder: TraceBuilder) -> list[tuple[Any, ...]]:
    return [(row.file, row.function, row.op, row.host_ns) for row in SUBJECT.rows_of(builder.summary())]


def test_a_stretch_is_of_the_function_that_runs_in_its_middle() -> None:
    (longest, *others) = SUBJECT.rows_of(_step().summary())
    assert (longest.file, longest.line, longest.function) == ("data.py", 7, "augment")
    assert (longest.op, longest.count, longest.longest_ns) == ("aten::mm", 1, 300 * US)
    assert [row.host_ns for row in others] == [160 * US, 50 * US]  # 40 us between operators are no stretch
    assert LEAST_NS == 50 * US


def test_operators_of_the_backward_pass_end_a_stretch_and_the_end_of_the_step_another() -> None:
    by_op = {row.op: row for row in SUBJECT.rows_of(_step().summary())}
    backward = by_op["autograd::engine::evaluate_function: MulBackward0"]
    assert (backward.host_ns, backward.label) == (160 * US, "backward")
    assert by_op[None].host_ns == 50 * US


def test_stretches_at_one_line_add_up_over_the_steps_and_end_with_each() -> None:
    builder = TraceBuilder()
    for k in range(3):
        builder.step(k, k * 1_000 * US, 1_000 * US)
        builder.op("aten::mm", k * 1_000 * US + 200 * US, 500 * US)
    summary = builder.summary()
    before, after = sorted(SUBJECT.rows_of(summary), key=lambda row: row.host_ns)
    assert (before.op, before.count, before.host_ns, before.longest_ns) == ("aten::mm", 3, 600 * US, 200 * US)
    assert (after.op, after.count, after.host_ns, after.longest_ns) == (None, 3, 900 * US, 300 * US)


def test_waits_within_a_stretch_are_told_apart() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000 * US)
    builder.label("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 10 * US, 150 * US)
    builder.op("aten::mm", 200 * US, 100 * US)
    builder.call("cudaDeviceSynchronize", 350 * US, 400 * US)
    builder.op("aten::add", 900 * US, 100 * US)
    by_op = {row.op: row for row in SUBJECT.rows_of(builder.summary())}
    assert (by_op["aten::mm"].host_ns, by_op["aten::mm"].loader_ns, by_op["aten::mm"].calls_ns) == (
        200 * US,
        150 * US,
        0,
    )
    assert (by_op["aten::add"].host_ns, by_op["aten::add"].loader_ns, by_op["aten::add"].calls_ns) == (
        600 * US,
        0,
        400 * US,
    )


def test_threads_that_do_not_train_run_no_operator_of_the_step() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000 * US)
    builder.op("aten::mm", 0, 100 * US, tid=MAIN)
    builder.op("aten::stack", 200 * US, 700 * US, tid=999)
    assert [(op, ns) for _, _, op, ns in _places(builder)] == [(None, 900 * US)]


def test_a_trace_without_steps_says_what_it_lacks_and_steps_without_stretches_lack_nothing() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 100 * US)
    assert builder.summary().absent["host_stretches"] == "no_steps_with_operators"
    builder.step(0, 1_000 * US, 500 * US)  # no operator was recorded in it
    assert builder.summary().absent["host_stretches"] == "no_steps_with_operators"
    builder.step(1, 0, 100 * US)
    summary = builder.summary()
    assert SUBJECT.rows_of(summary) == ()
    assert summary.absent["host_stretches"] is None


@needs_traces
def test_stretches_and_operators_of_a_recorded_trace_fill_its_steps() -> None:
    trace = trace_of("h100_vit")
    table = host_stretches(trace)
    summary: TraceSummary = summarize_trace(trace)
    rows: tuple[HostStretch, ...] = SUBJECT.rows_of(summary)
    assert len(rows) == len(table) > 0
    assert sum(row.host_ns for row in rows) < trace.steps["host_dur"].sum()
    assert [row.longest_ns for row in rows] == sorted((row.longest_ns for row in rows), reverse=True)
