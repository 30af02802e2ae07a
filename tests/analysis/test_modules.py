"""Time by module: which calls a module's are, what lies in it, and to which module backward work belongs."""

from builders import AUTOGRAD, TraceBuilder
from steptrace.analysis.modules import MOST_DEPTH, modules
from steptrace.documents.subjects.modules import ModuleTime
from steptrace.documents.table import rows
from steptrace.trace.model import Trace


def by_path(trace: Trace) -> dict[str, ModuleTime]:
    return {row.path: row for row in rows(modules(trace), ModuleTime)}


def two_layers() -> TraceBuilder:
    """A model of two linear layers, the first with a kernel of 5 us, the second with one of 7 us."""
    builder = TraceBuilder()
    builder.step(0, 0, 1_000_000)
    builder.frame("nn.Module: Net_0", 10_000, 200_000)
    for number, ts in enumerate((20_000, 120_000)):
        builder.frame(f"nn.Module: Linear_{number}", ts, 50_000)
        builder.frame("net.py(7): forward", ts + 1_000, 40_000)
        builder.op("aten::addmm", ts + 2_000, 20_000, **{"Sequence number": 10 + number, "Fwd thread id": 0})
        builder.kernel(ts + 3_000, ts + 10_000, 5_000 + 2_000 * number)
    return builder


def test_layers_of_one_class_in_one_place_are_one_row_with_the_longest_and_the_shortest() -> None:
    found = by_path(two_layers().trace())
    net = found["Net"]
    layers = found["Net / Linear"]
    assert (net.modules, net.calls, net.device_ns, net.parent) == (1, 1, 12_000, None)
    assert (layers.modules, layers.calls, layers.device_ns, layers.parent) == (2, 2, 12_000, "Net")
    assert (layers.largest, layers.largest_ns, layers.smallest_ns) == ("Linear_1", 7_000, 5_000)
    assert (net.host_ns, layers.host_ns) == (200_000, 100_000)


def test_lines_stand_in_their_modules_and_work_with_neither_is_the_rest() -> None:
    builder = two_layers()
    builder.kernel(500_000, 510_000, 3_000)
    found = by_path(builder.trace())
    line = found["Net / Linear / net.py:7"]
    assert (line.kind, line.parent, line.device_ns, line.modules) == ("line", "Net / Linear", 12_000, None)
    rest = [row for row in found.values() if row.kind == "rest"]
    assert [(row.device_ns, row.parent) for row in rest] == [(3_000, None)]
    assert sum(row.device_ns or 0 for row in found.values() if row.parent is None) == 15_000


def test_backward_work_belongs_to_the_module_of_its_forward_operator() -> None:
    builder = two_layers()
    names = {"Sequence number": 11, "Fwd thread id": 1}
    builder.op("autograd::engine::evaluate_function: AddmmBackward0", 400_000, 30_000, tid=AUTOGRAD, **names)
    builder.op("AddmmBackward0", 401_000, 20_000, tid=AUTOGRAD, **names)
    builder.kernel(402_000, 410_000, 9_000, tid=AUTOGRAD)
    found = by_path(builder.trace())
    assert (found["Net / Linear"].device_ns, found["Net / Linear"].backward_ns) == (21_000, 9_000)
    assert found["Net / Linear"].largest_ns == 16_000
    assert found["Net"].backward_ns == 9_000


def test_without_a_gpu_modules_have_host_time_alone() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100_000)
    builder.frame("nn.Module: Net_0", 10_000, 80_000)
    builder.frame("nn.Module: Linear_0", 20_000, 30_000)
    found = by_path(builder.trace())
    assert {path: row.time_ns for path, row in found.items()} == {"Net": 80_000, "Net / Linear": 30_000}
    assert found["Net"].device_ns is None


def test_a_trace_without_frames_of_modules_has_no_rows() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100_000)
    builder.frame("net.py(7): forward", 0, 50_000)
    builder.kernel(1_000, 2_000, 500)
    assert by_path(builder.trace()) == {}


def test_modules_deeper_than_the_most_belong_to_the_one_around_them() -> None:
    builder = TraceBuilder()
    count = MOST_DEPTH + 10
    builder.step(0, 0, 1_000_000)
    for depth in range(count):
        builder.frame(f"nn.Module: Block_{depth}", 1_000 + 100 * depth, 200_000 - 200 * depth)
    builder.kernel(50_000, 60_000, 5_000)
    builder.frame("nn.Module: Head_0", 400_000, 10_000)
    builder.kernel(401_000, 410_000, 3_000)
    found = {path: row for path, row in by_path(builder.trace()).items() if row.kind == "module"}
    assert len(found) == MOST_DEPTH + 1
    deepest = found[" / ".join(["Block"] * MOST_DEPTH)]
    assert (deepest.calls, deepest.device_ns) == (1, 5_000)
    assert (found["Block"].device_ns, found["Head"].device_ns) == (5_000, 3_000)
