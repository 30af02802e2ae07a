"""Flame graphs: merged chains of names, backward work at its forward operator, and widths that add up."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders import AUTOGRAD, MAIN, TraceBuilder
from steptrace.analysis import program as flame
from steptrace.analysis.common.call_tree import call_tree
from steptrace.trace.model import Trace


def _paths(trace: Trace, graph: Any) -> dict[str, int]:
    """Width of each box by its chain of names."""
    table = graph(trace)
    chains: list[str] = []
    for row in table.to_dict("records"):
        below = "" if row["parent"] is None or row["depth"] == 0 else chains[int(row["parent"])] + " > "
        chains.append(below + row["name"])
    return dict(zip(chains, table["ns"], strict=True))


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


def test_device_time_stands_on_the_chain_of_callers() -> None:
    base = "GPU time > user/model.py(7): forward > nn.Module: Linear_0 > aten::linear"
    assert _paths(_two_layers().trace(), flame.device_flame) == {
        "GPU time": 240,
        "GPU time > user/model.py(7): forward": 240,
        "GPU time > user/model.py(7): forward > nn.Module: Linear_0": 240,
        base: 240,
        f"{base} > gemm": 200,
        f"{base} > backward": 40,
        f"{base} > backward > LinearBackward": 40,
        f"{base} > backward > LinearBackward > gemm": 40,
    }


def test_host_time_is_that_of_threads_that_train() -> None:
    builder = _two_layers()
    before = flame.host_flame(builder.trace())["ns"].iloc[0]
    builder.frame("tqdm/_monitor.py(60): run", 0, 90_000, tid=77)
    trace = builder.trace()
    graph = flame.host_flame(trace)
    assert not graph["name"].str.contains("tqdm").any()
    assert graph["ns"].iloc[0] == before


def test_each_of_a_hundred_kernels_keeps_its_name() -> None:
    builder = TraceBuilder()
    for k in range(100):
        builder.kernel(1_000 + k * 2_000, 500_000 + k * 1_000, 100 + k, name=f"kernel_{k:03}")
    expected = {f"GPU time > kernel_{k:03}": 100 + k for k in range(100)}
    paths = _paths(builder.trace(), flame.device_flame)
    assert {path: ns for path, ns in paths.items() if path != "GPU time"} == expected


def test_host_time_stands_on_its_thread() -> None:
    trace = _two_layers().trace()
    paths = _paths(trace, flame.host_flame)
    assert paths["host time"] == 100_000 + 9_000
    assert paths["host time > thread 100 > user/model.py(7): forward"] == 20_000
    assert paths["host time > thread 101 > LinearBackward"] == 9_000
    assert not any("_call_impl" in path or "ProfilerStep" in path for path in paths)


def test_work_without_a_launch_is_named_so() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10)
    builder.gpu("lost", 5, 30, None)
    assert _paths(builder.trace(), flame.device_flame)["GPU time > launched outside the trace > lost"] == 30


def test_without_gpu_work_there_is_no_graph_of_it() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10)
    trace = builder.trace()
    assert flame.shown(flame.device_flame(trace)) is None
    assert flame.shown(flame.host_flame(trace)) is not None


def test_the_summary_leaves_out_narrow_boxes_and_keeps_parents() -> None:
    builder = TraceBuilder()
    builder.op("outer", 0, 1_000_000)
    builder.op("wide", 0, 400_000)
    builder.op("narrow", 500_000, 500)
    trace = builder.trace()
    summary = flame.shown(flame.host_flame(trace))
    assert summary is not None
    assert summary.total_ns == 1_000_000
    assert [(box.name, box.parent, box.ns) for box in summary.boxes] == [
        ("host time", None, 1_000_000),
        ("thread 100", 0, 1_000_000),
        ("outer", 1, 1_000_000),
        ("wide", 2, 400_000),
    ]


def test_of_many_boxes_the_widest_are_in_the_summary() -> None:
    builder = TraceBuilder()
    for k in range(2 * flame.MOST_BOXES):
        builder.kernel(k * 1_000, 10_000_000 + k * 1_000, 500 + k, name=f"kernel_{k:03}")
    every = flame.device_flame(builder.trace())
    summary = flame.shown(every)
    assert summary is not None
    assert len(summary.boxes) == flame.MOST_BOXES
    assert min(box.ns for box in summary.boxes) > sorted(every["ns"])[-flame.MOST_BOXES - 1]


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 2), st.sampled_from("abc"), st.booleans()),
        max_size=12,
    )
)
def test_widths_add_up(events: list[Any]) -> None:
    builder = TraceBuilder()
    builder.op("first", 0, 1)
    for ts, dur, thread, name, work in events:
        if work:
            builder.gpu(name, ts + 5, dur, builder.call("cudaLaunchKernel", ts, 1, tid=MAIN + thread))
        else:
            more = {"Sequence number": dur, "Fwd thread id": thread}
            builder.op(name, ts, dur, tid=MAIN + thread, **more)
    trace = builder.trace()
    tree = call_tree(trace)
    training = trace.threads["training"].to_numpy(dtype=bool)
    for graph, total in (
        (flame.device_flame(trace), trace.kernels["dur"].sum()),
        (flame.host_flame(trace), tree["host_self_ns"][training[tree["thread"]]].sum()),
    ):
        assert graph["ns"].iloc[0] == total == graph["self_ns"].sum()
        inside = graph.dropna(subset=["parent"]).groupby("parent")["ns"].sum()
        assert (graph["ns"] - graph["self_ns"]).loc[list(inside.index)].tolist() == inside.tolist()
        assert not graph.duplicated(["name", "kind", "parent"]).any()
