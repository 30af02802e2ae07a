"""The call tree: times that add up, and the GPU work that hangs on it."""

import numpy as np
import pandas as pd
import pytest

from builders import AUTOGRAD, TraceBuilder, training_step
from steptrace.analysis.common import call_tree as ct


def test_where_spans_are_equal_frames_hold_labels_hold_operators() -> None:
    builder = TraceBuilder()
    builder.op("op", 0, 100)
    builder.label("label", 0, 100)
    builder.frame("frame", 0, 100)
    tree = ct.call_tree(builder.trace())
    assert tree["name"].tolist() == ["frame", "label", "op"]
    assert tree["depth"].tolist() == [0, 1, 2]
    assert tree["host_self_ns"].tolist() == [0, 0, 100]


def test_gpu_time_hangs_on_every_event_around_its_launch() -> None:
    builder = TraceBuilder()
    builder.frame("model.py(3): forward", 0, 10_000)
    builder.op("aten::linear", 1_000, 8_000)
    builder.op("aten::addmm", 2_000, 4_000)
    builder.kernel(3_000, 20_000, 700)  # in both
    builder.kernel(7_000, 30_000, 50)  # in linear alone
    graph = builder.call("cudaGraphLaunch", 9_200, 100)  # in neither: one call, two activities
    builder.gpu("a", 40_000, 3, graph)
    builder.gpu("b", 40_010, 4, graph)
    tree = ct.call_tree(builder.trace()).set_index("name")
    assert tree.loc["model.py(3): forward", ["kernels", "device_ns", "device_self_ns"]].tolist() == [4, 757, 7]
    assert tree.loc["aten::linear", ["kernels", "device_ns", "device_self_ns"]].tolist() == [2, 750, 50]
    assert tree.loc["aten::addmm", ["kernels", "device_ns", "device_self_ns"]].tolist() == [1, 700, 700]
    assert tree.loc["cudaGraphLaunch", ["kernels", "device_ns"]].tolist() == [2, 7]
    builder.gpu("lost", 50_000, 1_000, None)  # too much of the work
    tree = ct.call_tree(builder.trace())
    assert tree[["kernels", "device_ns", "device_self_ns"]].isna().to_numpy().all()


def test_a_driver_call_inside_a_runtime_call_is_a_part_of_it() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 1_000)
    builder.call("cudaLaunchKernel", 100, 500)
    inner = builder.call("cuLaunchKernel", 200, 300, category="cuda_driver")
    builder.gpu("gemm", 2_000, 90, inner)
    tree = ct.call_tree(builder.trace()).set_index("name")
    assert tree.loc["aten::mm", "device_self_ns"] == 90
    assert tree.loc["cudaLaunchKernel", ["device_ns", "device_self_ns"]].tolist() == [90, 90]
    assert "cuLaunchKernel" not in tree.index


def test_without_gpu_work_device_times_are_unknown_not_zero() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 1_000)
    trace = builder.trace()
    tree = ct.call_tree(trace)
    assert tree[["kernels", "device_ns", "device_self_ns"]].isna().all(axis=None)


def test_backward_work_is_found_under_its_forward_operator_and_line() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 100_000)
    builder.frame("user/model.py(7): forward", 1_000, 20_000)
    builder.op("aten::mm", 2_000, 5_000, **{"Sequence number": 5})
    builder.kernel(3_000, 4_000, 100)
    node = "autograd::engine::evaluate_function: MmBackward0"
    numbered = {"Sequence number": 5, "Fwd thread id": 1}
    builder.op(node, 40_000, 9_000, tid=AUTOGRAD, **numbered)
    builder.op("MmBackward0", 41_000, 7_000, tid=AUTOGRAD, **numbered)
    builder.op("aten::mm", 42_000, 5_000, tid=AUTOGRAD)
    builder.kernel(43_000, 50_000, 300, tid=AUTOGRAD)
    trace = builder.trace()
    tree = ct.call_tree(trace)
    outer = tree[tree["name"] == node].iloc[0]
    assert tree.loc[outer["forward"], "ts"] == 2_000
    origins = ct.kernel_origins(trace)
    assert origins["phase"].tolist() == [None, "backward"]
    assert origins["op"].tolist() == ["aten::mm", "aten::mm"]
    by_line = ct.device_time_by(trace, ["file", "line"])
    assert by_line.to_dict("records") == [
        {"file": "user/model.py", "line": 7, "kernels": 2, "device_ns": 400, "backward_ns": 300, "share": 1.0}
    ]


def test_a_deep_stack_costs_no_recursion() -> None:
    depth = 5_000
    rows = np.arange(depth, dtype=np.int64)
    tree = ct.tree_of([pd.DataFrame({"thread": np.zeros(depth, dtype=np.int64), "ts": rows, "dur": depth - rows})])
    assert tree["depth"].tolist() == list(range(depth))
    assert tree["size"].tolist() == list(range(depth, 0, -1))


def test_activities_without_a_launch_are_a_group_of_their_own() -> None:
    builder = TraceBuilder()
    training_step(builder)
    builder.gpu("lost", 900_000, 25_000, None)
    trace = builder.trace()
    table = ct.device_time_by(trace, ["op"])
    assert table["kernels"].sum() == len(trace.kernels)
    assert table["share"].sum() == pytest.approx(1.0)
    assert table.loc[table["op"].isna(), "device_ns"].tolist() == [25_000 + 100_000]
