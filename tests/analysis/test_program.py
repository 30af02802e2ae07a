"""Host and GPU time by function and module of the program."""

from builders import AUTOGRAD, MAIN, TraceBuilder
from steptrace.analysis.program import function_times, program
from steptrace.trace.model import Trace


def _two_layers() -> TraceBuilder:
    builder = TraceBuilder()
    builder.step(0, 0, 100_000)
    for ts in (10_000, 30_000):
        builder.frame("user/model.py(7): forward", ts, 10_000)
        builder.frame("torch/nn/modules/module.py(1): _call_impl", ts + 100, 9_000)
        builder.frame("nn.Module: Linear_0", ts + 200, 8_000)
        builder.op("aten::linear", ts + 1_000, 5_000, **{"Sequence number": ts})
        builder.kernel(ts + 2_000, ts + 3_000, 100, name="void gemm<int>(int)")
    builder.op("LinearBackward", 60_000, 9_000, tid=AUTOGRAD, **{"Sequence number": 30_000, "Fwd thread id": 1})
    builder.kernel(61_000, 70_000, 40, name="gemm", tid=AUTOGRAD)
    return builder


def times(trace: Trace) -> dict[str, tuple[int, int, int | None]]:
    return {row.function: (row.calls, row.host_ns, row.device_ns) for row in program(trace).functions}


def test_functions_and_modules_have_all_that_they_call_pytorchs_own_frames_aside() -> None:
    assert times(_two_layers().trace()) == {
        "forward, user/model.py:7": (2, 20_000, 200),
        "nn.Module: Linear_0": (2, 16_000, 200),
    }


def test_frames_around_a_study_s_loop_and_of_threads_that_do_not_train_are_left_out() -> None:
    builder = _two_layers()
    before = times(builder.trace())
    builder.frame("psutil/__init__.py(1432): __init__", 0, 90_000)
    builder.frame("steptrace/lab/loop.py(49): train_step", 1_000, 80_000)
    builder.frame("tqdm/_monitor.py(60): run", 0, 90_000, tid=77)
    assert times(builder.trace()) == before


def test_a_call_within_another_of_the_same_function_counts_once() -> None:
    builder = TraceBuilder()
    for ts, dur in ((0, 9_000), (1_000, 7_000), (2_000, 500), (20_000, 3_000)):
        builder.frame("tree.py(3): walk", ts, dur)
    builder.op("aten::add", 2_100, 100, tid=MAIN)
    assert times(builder.trace()) == {"walk, tree.py:3": (2, 12_000, None)}


def test_without_frames_there_are_no_functions() -> None:
    builder = TraceBuilder()
    builder.op("aten::add", 0, 1_000)
    assert len(function_times(builder.trace())) == 0
    assert not program(builder.trace()).stacks
