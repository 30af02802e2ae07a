"""Call tree, sequences and critical path on every shared trace: what must hold, and what is known."""

import pytest

from recorded import NAMES, needs_traces, trace_of
from steptrace.analysis.common.call_tree import call_tree
from steptrace.analysis.critical_path import critical_paths
from steptrace.analysis.kernels import kernel_sequences
from steptrace.trace.model import Trace

pytestmark = needs_traces


@pytest.fixture(scope="module", params=NAMES or ["none"])
def trace(request: pytest.FixtureRequest) -> Trace:
    return trace_of(request.param)


def test_the_tree_accounts_for_all_host_and_gpu_time(trace: Trace) -> None:
    tree = call_tree(trace)
    roots = tree[tree["parent"].isna()]
    assert tree["host_self_ns"].min() >= 0
    assert tree["host_self_ns"].sum() == roots["host_ns"].sum()
    linked = trace.kernels[trace.kernels["launch"].notna()]
    if len(trace.kernels):
        assert (roots["kernels"].sum(), roots["device_ns"].sum()) == (len(linked), linked["dur"].sum())
    for kind, table in (("op", trace.ops), ("call", trace.launches), ("label", trace.labels)):
        counted = tree["name"][(tree["kind"] == kind).to_numpy()].astype(str).value_counts()
        assert counted.to_dict() == table["name"].astype(str).value_counts().to_dict()


def test_the_path_is_as_long_as_the_step(trace: Trace) -> None:
    path = critical_paths(trace)
    lengths = path.groupby(path["step"].fillna(0))["dur"].sum()
    assert len(lengths) == max(len(trace.steps), 1)
    if len(trace.steps):
        assert lengths.tolist() == trace.steps["dur"].tolist()
    assert (path["dur"] > 0).all()


def test_some_operators_launch_sequences() -> None:
    assert len(kernel_sequences(trace_of("h100_vit")))


def test_sequences_hold_what_their_calls_launched(trace: Trace) -> None:
    tree = call_tree(trace)
    sequences = kernel_sequences(trace)
    outer = tree[(tree["kind"] == "op").to_numpy()]
    for name, rows in sequences[sequences["kind"] == "op"].groupby("name"):
        calls = outer[(outer["name"] == name).to_numpy() & (outer["kernels"].fillna(0) > 0).to_numpy(dtype=bool)]
        assert rows["count"].sum() <= len(calls)
        assert rows["kernel_ns"].sum() <= calls["device_ns"].sum()


@pytest.mark.parametrize(
    ("name", "compute", "waits"),
    [
        # Kernels of graphs are on the path: the GPU starts on the first recorded work 149 ms after its launch; from
        # there on it is never idle.
        ("cuda_graphs_vllm", 0.5, "queue"),
        ("h100_qwen", 0.8, "sync"),  # a wait for unlinked work is that work
    ],
)
def test_a_path_is_of_work_where_the_gpu_is_never_idle(name: str, compute: float, waits: str) -> None:
    sums = critical_paths(trace_of(name)).groupby("class", observed=False)["dur"].sum()
    shares = sums / sums.sum()
    assert shares["compute"] > compute
    assert shares[waits] < 0.01
