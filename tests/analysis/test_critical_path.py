"""Critical paths: hand-made steps with a known path, and random ones against a slow model."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders import AUTOGRAD, D2D, LOADER, MAIN, TraceBuilder
from steptrace.analysis import critical_path as cp
from steptrace.analysis.critical_path_edges import CLASSES, Edges, edges_of, latest
from steptrace.analysis.critical_path_nodes import nodes_of, select
from steptrace.analysis.critical_path_steps import steps_of
from steptrace.analysis.critical_path_waits import CLOCK_SKEW_NS, work_of
from steptrace.trace.model import Trace

_NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def _step_of(length: int) -> TraceBuilder:
    builder = TraceBuilder()
    builder.step(0, 0, length)
    return builder


def _path(builder: TraceBuilder, step: int = 0) -> str:
    """The parts of a step in their order, in us: "host 10, sync 0.5"."""
    table = cp.followed(builder.trace())
    table = table[table["step"].fillna(0) == step]
    return ", ".join(f"{kind} {ns / 1000:g}" for kind, ns in zip(table["class"], table["dur"], strict=True))


def test_another_streams_work_is_waited_for() -> None:
    builder = _step_of(2_000_000)
    builder.op("aten::mm", 10, 100)
    builder.kernel(1_000, 10_000, 1_000_000)
    builder.call("cudaStreamWaitEvent", 5_000, 1_000)
    builder.kernel(7_000, 1_012_000, 300_000, name="nccl", stream=20)
    builder.call("cudaStreamWaitEvent", 1_100_000, 1_000)
    builder.kernel(1_102_000, 1_314_000, 100_000)
    trace = builder.trace()
    assert work_of(trace).event.tolist() == [-1, 0, 1]


def test_a_wait_without_cuda_sync_records_is_the_work_waited_for() -> None:
    builder = _step_of(100_000)
    builder.kernel(10_000, 14_000, 50_000)
    builder.call("cudaDeviceSynchronize", 20_000, 47_000)
    assert _path(builder) == "host 10, launch 4, compute 50, sync 3, host 33"


def test_a_wait_for_nothing_is_the_syncs_own() -> None:
    builder = _step_of(50_000)
    builder.kernel(1_000, 5_000, 1_000)
    builder.call("cudaStreamSynchronize", 20_000, 4_000)
    assert _path(builder) == "host 20, sync 4, host 26"


def test_queued_work_follows_work_and_the_step_ends_with_it() -> None:
    builder = _step_of(10_000)
    builder.kernel(1_000, 3_000, 20_000)
    builder.kernel(4_000, 24_000, 5_000, name="ncclDevKernel_AllGather(x)")
    builder.kernel(6_000, 29_500, 7_000, name=D2D)
    assert _path(builder) == "host 1, launch 2, compute 20, queue 1, comm 5, queue 0.5, memory 7"


def test_a_copy_to_the_host_waits_for_itself_and_what_was_queued_before_it() -> None:
    builder = _step_of(60_000)
    builder.kernel(1_000, 3_000, 30_000)
    builder.kernel(2_000, 4_000, 50_000, stream=9)  # longer, but on another stream
    builder.item(5_000, 30_000, 33_500)
    assert "compute 30, queue 0.5, memory 1, sync 2.5, " in _path(builder)


@pytest.mark.parametrize(
    ("wait", "at", "stream"),
    [
        ("cudaStreamSynchronize", 4_000, 9),  # a stream that is still busy was not the one waited for
        ("cudaEventSynchronize", 13_000, 7),  # an event may lie in the middle of a stream
    ],
)
def test_work_that_goes_on_after_a_wait_was_not_waited_for(wait: str, at: int, stream: int) -> None:
    builder = _step_of(90_000)
    builder.kernel(1_000, 3_000, 10_000)
    builder.kernel(2_000, at, 70_000, stream=stream)
    builder.call(wait, 5_000, 9_000)
    assert "compute 10, sync 1, " in _path(builder)


def test_a_stream_that_waits_for_an_event_follows_the_other_stream() -> None:
    builder = _step_of(30_000)
    builder.kernel(1_000, 3_000, 40_000)
    builder.call("cudaEventRecord", 3_000, 100)
    builder.call("cudaStreamWaitEvent", 4_000, 100)
    builder.kernel(5_000, 44_000, 10_000, name="ncclDevKernel_AllReduce(x)", stream=9)
    assert _path(builder).endswith(" compute 40, queue 1, comm 10")


def test_work_of_a_graph_follows_the_graphs_other_work() -> None:
    builder = _step_of(10_000)
    graph = builder.call("cudaGraphLaunch", 1_000, 500)
    builder.gpu("a", 3_000, 20_000, graph, stream=7)
    builder.gpu("b", 23_000, 30_000, graph, stream=8)
    builder.gpu("c", 23_100, 1_000, graph, stream=7)
    assert _path(builder) == "host 1, launch 2, compute 20, compute 30"


def test_the_loader() -> None:
    builder = _step_of(50_000)
    builder.label(_NEXT, 5_000, 20_000)
    builder.kernel(30_000, 32_000, 1_000)
    assert _path(builder) == "host 5, loader 20, host 25"


def test_a_sync_of_the_autograd_thread_holds_up_the_step() -> None:
    builder = _step_of(100_000)
    builder.op("aten::mm", 1_000, 5_000)
    builder.op("aten::add", 90_000, 5_000)
    builder.op("autograd::engine::evaluate_function: X", 20_000, 50_000, tid=AUTOGRAD)
    builder.kernel(25_000, 30_000, 30_000, tid=AUTOGRAD)
    builder.call("cudaStreamSynchronize", 28_000, 34_000, tid=AUTOGRAD)
    assert _path(builder) == "host 20, host 5, launch 5, compute 30, sync 2, host 8, host 30"
    assert cp.followed(builder.trace())["thread"].fillna(-1).tolist() == [0, 1, 1, -1, 1, 1, 0]


def test_a_sync_of_a_thread_beside_the_step_holds_up_nothing() -> None:
    builder = _step_of(100_000)
    builder.kernel(1_000, 3_000, 40_000)
    builder.call("cudaStreamSynchronize", 2_000, 42_000, tid=LOADER)
    assert _path(builder) == "host 100"


def test_work_of_the_step_before_counts_as_far_as_it_runs_into_the_step() -> None:
    builder = _step_of(10_000)
    builder.kernel(1_000, 3_000, 30_000)
    builder.step(1, 10_000, 10_000)
    builder.kernel(12_000, 33_500, 5_000)
    assert _path(builder, step=1) == "compute 23, queue 0.5, compute 5"


def test_work_without_a_launch_follows_its_stream_or_stands_where_the_host_was() -> None:
    builder = _step_of(200_000)
    builder.op("aten::mm", 0, 10)
    builder.gpu("lost", 50_000, 10_000, None)
    builder.gpu("lost", 61_000, 100_000, None)  # 1 us later: queued
    builder.call("cudaDeviceSynchronize", 70_000, 92_000)
    assert _path(builder) == "host 50, compute 10, queue 1, compute 100, sync 1, host 38"


def test_work_that_starts_before_its_launch_stands_where_the_host_was() -> None:
    builder = _step_of(50_000)
    builder.kernel(10_000, 9_000, 60_000)
    assert _path(builder) == "host 9, compute 60"


def test_a_trace_without_steps_or_gpu_is_one_path_of_the_host() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 7_000)
    builder.op("aten::mm", 8_000, 7_000)
    assert _path(builder) == "host 15"
    assert cp.followed(builder.trace())["step"].isna().all()
    summary = cp.critical_path(builder.trace())
    assert summary is not None
    by_class = {row.class_: row.share for row in summary.classes}
    assert by_class == dict.fromkeys(CLASSES, None) | {"host": 1.0, "loader": 0.0}


def test_summary_adds_up_over_steps() -> None:
    builder = TraceBuilder()
    for step in range(3):
        builder.step(step, step * 100_000, 100_000)
        builder.kernel(step * 100_000 + 10_000, step * 100_000 + 14_000, 50_000 + step * step * 7_500)
        builder.call("cudaDeviceSynchronize", step * 100_000 + 20_000, 75_000)
    summary = cp.critical_path(builder.trace())
    assert summary is not None
    assert (summary.steps, summary.span_ns) == (3, 100_000)
    compute = summary.classes[CLASSES.index("compute")]
    # Means: 50, 57.5 and 80 us are 62.5 on average, as the share of the mean step says too.
    assert compute.path_ns == 62_500
    assert compute.share == pytest.approx(62.5 / 100)
    assert sum(row.share for row in summary.classes) == pytest.approx(1.0)


# ---- Brute force -----------------------------------------------------------------------------------------------------

_KERNEL = st.tuples(
    st.integers(1, 40),  # launch, us
    st.integers(0, 20),  # how much later it starts at the earliest
    st.integers(1, 15),  # length
    st.integers(7, 9),  # stream
    st.sampled_from(["gemm", "ncclDevKernel_AllGather(x)", D2D]),
    st.booleans(),  # whether its launch is recorded
    st.booleans(),  # whether an event was waited for just before
)
_SYNC = st.tuples(
    st.integers(1, 45),
    st.integers(1, 30),
    st.sampled_from(["cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"]),
)


def _made(kernels: list[Any], syncs: list[Any], length: int) -> TraceBuilder:
    """A step of one thread in units of 1 us, in which calls follow each other and streams keep their order."""
    builder = TraceBuilder()
    builder.step(0, 0, length * 1000)
    free: dict[int, int] = {}
    host = 0
    calls = [(start, "kernel", rest) for start, *rest in kernels] + [(start, "sync", rest) for start, *rest in syncs]
    for wanted, what, rest in sorted(calls, key=str):
        at = max(host, wanted * 1000)
        if what == "sync":
            builder.call(rest[1], at, rest[0] * 1000)
            host = at + rest[0] * 1000
            continue
        later, dur, stream, name, recorded, waits = rest
        if waits:
            builder.call("cudaStreamWaitEvent", at, 100)
            at += 100
        start = max(at + later * 1000, free.get(stream, 0))
        correlation = builder.call("cudaLaunchKernel", at, 500) if recorded else None
        builder.gpu(name, start, dur * 1000, correlation, stream=stream)
        free[stream] = start + dur * 1000 + 100
        host = at + 500
    return builder


class _Slow:
    """The same for a single-threaded step, pair by pair and quadratic."""

    def __init__(self, trace: Trace) -> None:
        self.t0 = int(trace.steps["ts"].iloc[0])
        self.t1 = self.t0 + int(trace.steps["dur"].iloc[0])
        self.h1 = self.t0 + int(trace.steps["host_dur"].iloc[0])
        calls = trace.launches.to_dict("records")
        self.k = trace.kernels.assign(end=trace.kernels["ts"] + trace.kernels["dur"]).to_dict("records")
        self.syncs = [s | {"end": s["ts"] + s["dur"]} for s in trace.syncs.to_dict("records")]
        for row, k in enumerate(self.k):
            k["row"] = row
            k["queue"] = (k["device"], k["stream"])
            k["call"] = None
            if k["launch"] is not None and k["launch"] == k["launch"] and calls[int(k["launch"])]["ts"] <= k["ts"]:
                k["call"] = calls[int(k["launch"])]["ts"]
            around = next((s["ts"] for s in self.syncs if s["ts"] <= k["ts"] < s["end"]), None)
            while earlier := [s["ts"] for s in self.syncs if around is not None and s["ts"] < around <= s["end"]]:
                around = earlier[0]  # between waits that touch nothing can be launched
            k["asked"] = k["call"] if k["call"] is not None else k["ts"] if around is None else around - 1
            before = [p for p in self.k[:row] if p["queue"] == k["queue"] and p["end"] <= k["ts"]]
            k["before"] = max(before, key=lambda p: (p["end"], p["row"]), default=None)
            k["event"] = None
            if k["call"] is not None:
                asked = [c["ts"] for c in calls[: int(k["launch"])] if c["name"] == "cudaStreamWaitEvent"]
                launched = [c["ts"] for c in calls[: int(k["launch"])] if c["name"] == "cudaLaunchKernel"]
                if asked and asked[-1] > max(launched, default=-1):
                    others = [p for p in self.k[:row] if p["queue"] != k["queue"] and p["end"] <= k["ts"]]
                    others = [p for p in others if p["asked"] < asked[-1]]
                    k["event"] = max(others, key=lambda p: (p["end"], p["row"]), default=None)

    def waited(self, sync: dict[str, Any]) -> list[dict[str, Any]]:
        begun = [k for k in self.k if k["asked"] < sync["ts"]]
        if "Event" in sync["kind"]:
            return sorted((k for k in begun if k["end"] <= sync["end"]), key=lambda k: k["end"])[-1:]
        lasts = [
            max((k for k in begun if k["queue"] == q), key=lambda k: k["end"]) for q in {k["queue"] for k in begun}
        ]
        # Host and GPU clocks agree to some 20 us: work that was running when the call returned may be what it awaited.
        lasts = [k for k in lasts if k["ts"] <= sync["end"] and k["end"] <= sync["end"] + CLOCK_SKEW_NS]
        lasts = sorted(lasts, key=lambda k: (k["end"], k["row"]))
        drained = [k for k in lasts if k["end"] <= sync["end"]]
        return lasts if "Device" in sync["kind"] else drained[-1:] or lasts[:1]

    def before(self) -> dict[Any, tuple[Any, str]]:
        """Of each instant the one that it waited for, and the class of the time between them."""
        inside = [k for k in self.k if self.t0 < k["end"] <= self.t1 and (k["call"] is None or k["call"] < self.h1)]
        rows = {k["row"] for k in inside}
        points = {self.t0, self.h1}
        edges: list[tuple[Any, Any, dict[str, Any]]] = []
        for k in inside:
            node = ("start", k["row"])
            row = k["row"]
            edges.append((node, ("end", row), {"at": k["ts"], "priority": 0, "kind": k["kind"]}))
            edges.append((("end", row), "last", {"at": k["end"], "priority": 5, "kind": "queue"}))
            follows = k["before"] is not None and k["before"]["row"] in rows and k["ts"] - k["before"]["end"] < 30_000
            if k["call"] is not None:
                points.add(k["call"])
                edges.append((("host", k["call"]), node, {"at": k["call"], "priority": 2, "kind": "launch"}))
            elif not follows:
                at = min(k["ts"], self.h1)
                points.add(at)
                edges.append((("host", at), node, {"at": at, "priority": 2, "kind": "launch"}))
            for name, priority in (("before", 5), ("event", 3)):
                if k[name] is not None and k[name]["row"] in rows:
                    edges.append(
                        (("end", k[name]["row"]), node, {"at": k[name]["end"], "priority": priority, "kind": "queue"})
                    )
        for sync in self.syncs:
            if sync["ts"] >= self.h1:
                continue
            points |= {sync["ts"], min(sync["end"], self.h1)}
            if sync["end"] <= self.h1:
                about = {"priority": 5}
                back = ("host", sync["end"])
                waited = [k for k in self.waited(sync) if k["row"] in rows]
                for k in waited:
                    if k["end"] <= sync["end"]:
                        edges.append((("end", k["row"]), back, {"at": k["end"], "kind": "sync", **about}))
                    elif k["ts"] < sync["end"]:  # what begins as the host goes on cannot be what it waited for
                        edges.append((("start", k["row"]), back, {"at": sync["end"], "kind": k["kind"], **about}))
        ordered = sorted(points)
        for a, b in pairwise(ordered):
            kind = "sync" if any(s["ts"] < b and a < s["end"] for s in self.syncs) else "host"
            edges.append((("host", a), ("host", b), {"at": a, "priority": 0, "kind": kind}))
        edges.append((("host", self.h1), "last", {"at": self.h1, "priority": 0, "kind": "host"}))
        latest: dict[Any, Any] = {}
        for source, target, about in edges:
            key = (about["at"], about["priority"], self.when(source), source[1])
            if target not in latest or key > latest[target][0]:
                latest[target] = (key, source, about["kind"])
        return {target: (source, kind) for target, (_, source, kind) in latest.items()}

    def when(self, node: Any) -> int:
        if node == "last":
            return self.t1
        what, value = node
        return value if what == "host" else self.k[value]["ts" if what == "start" else "end"]


@given(st.lists(_KERNEL, max_size=7), st.lists(_SYNC, max_size=3), st.integers(20, 90))
@example([(1, 8, 11, 7, "gemm", True, False)], [(2, 7, "cudaDeviceSynchronize")], 20)  # begins as the call returns
@example(  # the call returns as the work on one stream ends, and soon afterwards that on another
    [
        *[(1, 0, 1, 7, "gemm", False, False)] * 3,
        (1, 0, 15, 8, "gemm", False, False), (1, 1, 14, 7, "gemm", False, False),
    ],
    [(1, 14, "cudaDeviceSynchronize")], 20,
)  # fmt: skip
@example(  # one call waits right after another
    [
        *[(1, 0, 1, 7, "gemm", False, False)] * 3, (4, 0, 15, 9, D2D, False, False), (4, 0, 3, 9, D2D, False, False),
        *[(at, later, 15, 9, D2D, False, False) for at, later in ((10, 2), (20, 10))],
    ],
    [(20, 1, "cudaDeviceSynchronize"), (3, 25, "cudaStreamSynchronize")], 48,
)  # fmt: skip
def test_paths_equal_those_of_a_slow_model(kernels: list[Any], syncs: list[Any], length: int) -> None:
    trace = _made(kernels, syncs, length).trace()
    slow = _Slow(trace)
    before = slow.before()
    path = cp.followed(trace)
    assert slow.t1 - slow.t0 == path["dur"].sum()
    spent = dict.fromkeys(CLASSES, 0)
    node: Any = "last"
    while node != ("host", slow.t0):
        source, kind = before[node]
        spent[kind] += slow.when(node) - slow.when(source)
        node = source
    assert path.groupby("class", observed=False)["dur"].sum().to_dict() == spent


_NAMES = ["aten::mm", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaStreamWaitEvent", _NEXT]
#: Launch, start and length of an activity, its stream, how it was launched, and the thread.
_ACTIVITY = st.tuples(*(st.integers(low, high) for low, high in ((0, 30), (0, 30), (0, 9), (7, 8), (0, 3), (0, 2))))
_HOST = st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(0, 2), st.sampled_from(_NAMES))


@given(st.lists(_ACTIVITY, max_size=10), st.lists(_HOST, max_size=8), st.lists(st.integers(1, 25), max_size=3))
def test_whatever_the_trace_the_path_is_the_step(activities: list[Any], host: list[Any], lengths: list[int]) -> None:
    """Broken clocks, zero lengths, several threads, graphs, overlapping calls: the parts tile the step all the same."""
    builder = TraceBuilder()
    builder.op("aten::first", 0, 3)
    ts = 0
    for index, length in enumerate(lengths):
        builder.step(index, ts, length)
        ts += length
    graphs = [builder.call("cudaGraphLaunch", at, 1) for at in (0, 12)]
    for launch, start, length, stream, how, thread in activities:
        correlation = graphs[how - 1] if how in (1, 2) else None  # none of a work that is lost
        if how == 3:
            correlation = builder.call("cudaLaunchKernel", launch, 1, tid=MAIN + thread)
        builder.gpu("gemm", start, length, correlation, stream=stream)
    for at, length, thread, name in host:
        add = builder.op if name.startswith("aten") else builder.label if name == _NEXT else builder.call
        add(name, at, length, tid=MAIN + thread)
    trace = builder.trace()
    work = work_of(trace)
    steps = steps_of(trace, work)
    assert steps is not None
    selection = select(trace, work, steps)
    nodes = nodes_of(trace, work, steps, selection)
    before = latest(nodes, edges_of(trace, work, steps, selection, nodes)).before
    waited = before >= 0
    assert (nodes.rank[before[waited]] < nodes.rank[waited]).all()
    assert (nodes.time[before[waited]] <= nodes.time[waited]).all()
    assert np.flatnonzero(~waited).tolist() == [nodes.rank.tolist().index(0)]  # the start of all
    path = cp.followed(trace)
    for step, parts in path.groupby("step", dropna=False):
        ends = (parts["ts"] + parts["dur"]).tolist()
        assert parts["ts"].tolist()[1:] == ends[:-1]
        if len(lengths):
            row = trace.steps.loc[step]
            assert (parts["ts"].iloc[0], ends[-1]) == (row["ts"], row["ts"] + row["dur"])


def test_the_last_source_of_a_node_counts_and_of_several_at_one_instant_the_one_of_the_later_group():
    builder = TraceBuilder()
    builder.step(0, 0, 100)
    builder.kernel(10, 20, 30)
    trace = builder.trace()
    work = work_of(trace)
    steps = steps_of(trace, work)
    nodes = nodes_of(trace, work, steps, select(trace, work, steps))
    first, second, third = np.argsort(nodes.rank)[:3]

    def edge(source: int, at: int, kind: int) -> Edges:
        return Edges(np.array([third]), np.array([source]), np.array([at]), kind)

    early = edge(first, 1, 0)
    late = edge(second, 2, 1)
    same = edge(first, 2, 2)
    for groups, kind in (([early, late], 1), ([late, early], 1), ([late, same], 2), ([same, late], 1)):
        assert latest(nodes, groups).kind[third] == kind
    backwards = Edges(np.array([first]), np.array([third]), np.array([9]), 3)
    assert latest(nodes, [backwards]).before[first] == -1
