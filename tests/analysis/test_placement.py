"""Operators of the steps by where they are placed, as the TensorFlow Profiler has them."""

from builders import TraceBuilder
from recorded import needs_traces, trace_of
from steptrace.analysis import summarize_trace
from steptrace.analysis.overview import operators_per_step
from steptrace.analysis.placement import _SIDES
from steptrace.documents.subjects.placement import LONG_NS, SUBJECT

US = 1_000


def a_step() -> TraceBuilder:
    """A step of 1 ms: a product on the GPU with a view in it, a sort on the host, a view, and a loader's own stack."""
    builder = TraceBuilder()
    builder.step(0, 0, 1_000 * US)
    builder.op("aten::linear", 10 * US, 60 * US)
    builder.op("aten::t", 11 * US, 5 * US)
    builder.op("aten::addmm", 20 * US, 40 * US)
    builder.kernel(30 * US, 40 * US, 500 * US)
    builder.op("aten::to", 100 * US, 200 * US)  # a cast on the host
    builder.op("aten::_to_copy", 101 * US, 190 * US)
    builder.op("aten::view", 310 * US, 3 * US)
    builder.label("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 400 * US, 100 * US)
    builder.op("aten::stack", 410 * US, 80 * US)
    return builder


def test_an_operator_is_on_the_gpu_if_one_inside_it_launches_work() -> None:
    rows = {row.placed: row for row in SUBJECT.rows_of(a_step().summary())}
    assert {name: (row.count, row.host_ns, row.device_ns) for name, row in rows.items()} == {
        "gpu": (1, 60 * US, 500 * US),
        "host": (1, 200 * US, None),
        "loader": (1, 80 * US, None),
        "none": (1, 3 * US, None),  # a view
    }
    assert (rows["host"].most, rows["host"].most_ns) == ("aten::to", 200 * US)
    assert rows["host"].long_ns == 200 * US
    assert LONG_NS == 50 * US


def test_operators_outside_the_steps_and_those_without_a_gpu_are_not_placed() -> None:
    builder = a_step()
    builder.op("aten::sort", 2_000 * US, 200 * US)
    assert {row.placed: row.count for row in SUBJECT.rows_of(builder.summary())} == dict.fromkeys(_SIDES, 1)
    without = TraceBuilder()
    without.step(0, 0, 1_000 * US)
    without.op("aten::sort", 10 * US, 20 * US)
    assert SUBJECT.rows_of(without.summary()) == ()


@needs_traces
def test_the_sides_of_a_recorded_trace_hold_all_operators_of_its_steps() -> None:
    trace = trace_of("h100_vit")
    rows = SUBJECT.rows_of(summarize_trace(trace))
    assert sum(row.count for row in rows) == operators_per_step(trace).sum()
    assert {row.placed for row in rows} <= {*_SIDES}


def test_an_operator_that_waits_for_the_gpu_does_not_compute_on_the_host() -> None:
    builder = a_step()
    builder.op("aten::item", 600 * US, 200 * US)  # its copy left no record
    builder.call("cudaStreamSynchronize", 610 * US, 180 * US)
    rows = {row.placed: row for row in SUBJECT.rows_of(builder.summary())}
    assert (rows["gpu"].count, rows["gpu"].device_ns) == (2, 500 * US)
    assert rows["host"].most == "aten::to"
