"""Communication on one rank: what of each collective computation did not hide, each and by name."""

from hypothesis import given
from hypothesis import strategies as st

from builders import TraceBuilder
from steptrace.analysis.communication import CollectiveTime, collective_times, collectives_by_name
from steptrace.analysis.steps import gpu_time
from steptrace.documents.table import validate

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def test_exposed_is_what_computation_on_any_stream_leaves() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 50_000)
    builder.step(1, 50_000, 50_000)
    args = {"Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 8, "Out msg nelems": 10}
    builder.kernel(1_000, 10_000, 20_000, NCCL, stream=20, **args)
    builder.kernel(2_000, 15_000, 5_000, "gemm")
    builder.kernel(51_000, 60_000, 8_000, NCCL, stream=20)
    trace = builder.trace()
    times = collective_times(trace)
    assert times["exposed_ns"].tolist() == [15_000, 8_000]
    assert times["bytes"].tolist()[0] == 20
    assert times["bytes"].isna().tolist() == [False, True]
    (row,) = collectives_by_name(times).to_dict("records")
    assert (row["collective"], row["count"], row["sum_ns"], row["exposed_ns"]) == ("all_reduce", 2, 28_000, 23_000)
    assert row["hidden_pct"] == 100 * 5 / 28
    assert times["step"].tolist() == [0, 1]


_SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20), st.integers(1, 3), st.booleans()), min_size=1)


@given(_SPANS)
def test_brute_force(spans: list[tuple[int, int, int, bool]]) -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 1)
    for start, length, stream, is_comm in spans:
        builder.gpu(NCCL if is_comm else "gemm", start * 1000, length * 1000, None, stream=stream)
    trace = builder.trace()
    if not len(trace.collectives):
        assert all(not is_comm for *_, is_comm in spans)
        return
    times = validate(collective_times(trace), CollectiveTime)
    computing = {us for s, n, _, is_comm in spans if not is_comm for us in range(s, s + n)}
    want = sorted((s, n, sum(us not in computing for us in range(s, s + n))) for s, n, _, is_comm in spans if is_comm)
    got = times[["ts", "dur_ns", "exposed_ns"]].to_numpy() // 1000
    assert sorted(map(tuple, got.tolist())) == want
    # Those running at once may count an instant twice; the GPU's own figure never does.
    assert times["exposed_ns"].sum() >= gpu_time(trace).exposed_comm_ns
