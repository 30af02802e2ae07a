"""What syncs cost: blocked host time, and GPU idle time that nothing hid."""

from builders import PAGEABLE_D2H, TraceBuilder, training_step
from steptrace.analysis.syncs import exposed_idle, sync_costs, sync_sites


def test_exposed_idle_runs_to_the_next_launched_work() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.op("aten::mm", 0, 900)
    builder.kernel(10, 100, 200)
    builder.call("cudaStreamSynchronize", 150, 160)
    builder.kernel(400, 450, 100)
    builder.kernel(500, 700, 100)
    costs = sync_costs(builder.trace())
    assert costs[["blocked_ns", "exposed_idle_ns", "exposed_until"]].to_numpy().tolist() == [[160, 150, 450]]


def test_a_long_block_while_the_gpu_works_exposes_nothing() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.op("aten::mm", 0, 900)
    builder.kernel(10, 100, 800)
    builder.call("cudaEventSynchronize", 150, 500)
    builder.kernel(700, 900, 100)
    costs = sync_costs(builder.trace())
    assert costs[["blocked_ns", "exposed_idle_ns"]].to_numpy().tolist() == [[500, 0]]


def test_without_later_work_the_gpus_end_is_the_end() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 900)
    builder.kernel(10, 100, 100)
    builder.kernel(20, 300, 100)
    builder.call("cudaDeviceSynchronize", 150, 300)
    builder.call("cudaDeviceSynchronize", 500, 5)
    assert sync_costs(builder.trace())["exposed_idle_ns"].tolist() == [100, 0]


def test_without_a_gpu_there_is_no_exposed_idle() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 900)
    builder.call("cudaDeviceSynchronize", 150, 300)
    trace = builder.trace()
    costs = sync_costs(trace)
    assert costs["exposed_idle_ns"].isna().all()
    assert exposed_idle(trace, costs) is None
    assert sync_sites(trace)["exposed_idle_ns"].isna().all()


def test_syncs_in_a_row_share_their_idle_time_once() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.op("aten::mm", 0, 900)
    builder.kernel(10, 100, 100)
    builder.call("cudaStreamSynchronize", 120, 90)
    builder.call("cudaEventSynchronize", 220, 30)
    builder.kernel(300, 400, 100)
    trace = builder.trace()
    costs = sync_costs(trace)
    assert costs["exposed_idle_ns"].tolist() == [200, 180]
    assert exposed_idle(trace, costs) == 200


def test_sites_gather_what_belongs_together() -> None:
    builder = TraceBuilder()
    for index in range(2):
        training_step(builder, index, index * 1_100_000)
    builder.gpu(PAGEABLE_D2H, 700_000, 500, builder.call("cudaMemcpyAsync", 650_000, 60_000))
    trace = builder.trace()
    sites = sync_sites(trace)
    assert sites["kind"].tolist() == ["d2h_copy", "d2h_copy"]
    assert sites[["file", "line", "op", "label"]].to_numpy(dtype=object, na_value=None).tolist() == [
        ["train.py", None, None, None],
        ["model.py", 10, "aten::_local_scalar_dense", "forward"],
    ]
    assert sites[["count", "blocked_ns", "count_per_step"]].to_numpy().tolist() == [
        [1, 60_000, 0.5],
        [2, 44_000, 1],
    ]


def test_exposed_idle_holds_the_gaps_between_work_queued_before_the_sync() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, 1_000)
    builder.op("aten::mm", 0, 900)
    builder.kernel(10, 100, 100)
    builder.kernel(20, 210, 90)  # queued before the wait, 10 ns behind the other
    builder.call("cudaStreamSynchronize", 150, 160)
    builder.kernel(400, 450, 100)
    trace = builder.trace()
    assert exposed_idle(trace, sync_costs(trace)) == 10 + 150
