"""Collectives of one rank: their times, what computation hides of them, and all-reduces."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import AUTOGRAD, MAIN, TraceBuilder
from steptrace.analysis.communication import (
    CollectiveTime,
    all_reduce,
    collective_times,
    collectives_by_name,
    host_collectives,
)
from steptrace.analysis.ranks import by_rank, matched_collectives, straggler
from steptrace.analysis.steps import gpu_time
from steptrace.documents.table import validate
from steptrace.estimate.collectives import expected_seconds
from steptrace.estimate.gpus import gpu_named, gpu_of_driver

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


RUNLOOP = (900, 901)
US = 1000


def gloo(builder, ts, dur, *, tid=RUNLOOP[0], elements=256, kind="float", name="gloo:all_reduce"):
    args = {"External id": builder.number(), "Input Dims": [[elements]], "Input type": [kind]}
    builder.add("user_annotation", name, ts, dur, tid=tid, args=args)


def cpu_step(builder, index, ts, reduces):
    """A step of 1 ms: operators for 300 us, a call of a collective, and all-reduces (start, length, thread)."""
    builder.step(index, ts, 1_000 * US)
    builder.op("aten::mm", ts + 100 * US, 200 * US)
    builder.op("c10d::allreduce_", ts + 310 * US, 50 * US)
    builder.op("aten::add_", ts + 700 * US, 100 * US)
    for start, dur, tid in reduces:
        gloo(builder, ts + start * US, dur * US, tid=tid)


def two_steps():
    builder = TraceBuilder(distributedInfo={"backend": "gloo", "rank": 0, "world_size": 2})
    # Two at once, the second under the add; one in the second step, hidden by the product.
    cpu_step(builder, 0, 0, [(250, 300, RUNLOOP[0]), (400, 350, RUNLOOP[1])])
    cpu_step(builder, 1, 1_000 * US, [(120, 100, RUNLOOP[1])])
    return builder


def test_the_host_s_collectives_with_what_operators_hide():
    trace = two_steps().trace()
    collectives = host_collectives(trace)
    assert collectives["collective"].tolist() == ["all_reduce"] * 3
    assert collectives["dur_ns"].tolist() == [300 * US, 350 * US, 100 * US]
    # The call of the collective hides nothing: only the end of mm (50 us) and the add (50 us), and all of the third.
    assert collectives["exposed_ns"].tolist() == [250 * US, 300 * US, 0]
    assert collectives["bytes"].tolist() == [1024] * 3
    assert collectives["step"].tolist() == [0, 0, 1]


def test_instants_count_once_and_steps_add_up():
    figures = all_reduce(two_steps().trace())
    assert (figures.source, figures.count, figures.bytes) == ("host", 3, 3072)
    assert figures.measured_ns == 500 * US + 100 * US
    assert figures.exposed_ns == 500 * US - 50 * US - 50 * US
    assert figures.overlap == pytest.approx(1 - 400 / 600)


def test_without_recorded_operators_overlap_is_not_measured():
    builder = TraceBuilder()
    builder.step(0, 0, 1_000 * US)
    gloo(builder, 100 * US, 300 * US)
    builder.op("aten::empty", 1_500 * US, US)  # after the step
    trace = builder.trace()
    assert host_collectives(trace)["exposed_ns"].isna().all()
    figures = all_reduce(trace)
    assert (figures.measured_ns, figures.exposed_ns, figures.overlap) == (300 * US, None, None)


def test_what_other_threads_compute_hides_nothing():
    builder = TraceBuilder()
    cpu_step(builder, 0, 0, [(500, 100, RUNLOOP[0])])
    builder.op("aten::mm", 500 * US, 100 * US, tid=AUTOGRAD)
    assert all_reduce(builder.trace()).exposed_ns == 100 * US


def test_other_collectives_and_labels_are_no_all_reduces():
    builder = TraceBuilder()
    cpu_step(builder, 0, 0, [])
    gloo(builder, 500 * US, 10 * US, name="gloo:broadcast")
    builder.label("all_reduce of mine", 600 * US, 10 * US)
    trace = builder.trace()
    assert host_collectives(trace)["collective"].tolist() == ["broadcast"]
    assert all_reduce(trace) is None


@pytest.mark.parametrize(("kind", "size"), [("c10::BFloat16", 512), ("double", 2048), ("something", None)])
def test_bytes_by_the_element_s_type(kind, size):
    builder = TraceBuilder()
    cpu_step(builder, 0, 0, [])
    gloo(builder, 500 * US, 10 * US, kind=kind)
    assert all_reduce(builder.trace()).bytes == size


def test_a_gpu_s_all_reduces_by_the_kernels():
    builder = TraceBuilder()
    builder.step(0, 0, 1_000 * US)
    described = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": 256, "Out msg nelems": 256}
    builder.kernel(10 * US, 100 * US, 200 * US, name="gemm")
    builder.kernel(20 * US, 250 * US, 150 * US, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", stream=20, **described)
    figures = all_reduce(builder.trace())
    assert (figures.source, figures.count, figures.bytes) == ("gpu", 1, 1024)
    assert (figures.measured_ns, figures.exposed_ns) == (150 * US, 100 * US)


def reducing(elements=(2**20,), ranks=4, gpu="NVIDIA H100 80GB HBM3", **described):
    """A step with all-reduces of float32 between so many ranks, one for each size."""
    builder = TraceBuilder(
        deviceProperties=[{"id": 0, "name": gpu}], distributedInfo={"rank": 0, "world_size": ranks, "backend": "nccl"}
    )
    builder.step(0, 0, 100_000 * US)
    for place, size in enumerate(elements):
        sizes = {"dtype": "Float", "In msg nelems": size, "Out msg nelems": size, **described}
        at = (10 + 1000 * place) * US
        builder.kernel(at, at + 100 * US, 200 * US, NCCL, stream=20, **{"Collective name": "allreduce", **sizes})
    return builder.trace()


def test_expected_is_the_sum_over_messages_of_nccl_s_published_times_on_this_gpu():
    small, large = 2**10, 2**26
    each = [all_reduce(reducing([size])).expected_ns for size in (small, large)]
    both = all_reduce(reducing([small, large]))
    assert both.expected_by == "published"
    assert both.expected_ns == pytest.approx(sum(each), abs=2)
    seconds, _ = expected_seconds("all_reduce", 4 * large, 4, gpu_named("H100"))
    assert each[1] == round(1e9 * seconds)
    assert all_reduce(reducing([large, large])).expected_ns == pytest.approx(2 * each[1], abs=2)


@pytest.mark.parametrize(
    ("gpu", "by"),
    [("NVIDIA L40S", "published"), ("Tesla V100-SXM2-16GB", "nvlink"), ("NVIDIA GeForce RTX 3090", "pcie"),
     ("NVIDIA A10G", "pcie")],
)  # fmt: skip
def test_a_gpu_without_published_times_has_those_of_another_by_its_link(gpu, by):
    figures = all_reduce(reducing([2**24], ranks=2, gpu=gpu))
    assert figures.expected_by == by
    # No link is faster than its data sheet, and none of these is under a tenth of it.
    sheet = gpu_of_driver(gpu)
    fastest = 4 * 2**24 / (1e9 * (sheet.link_gbs or sheet.pcie_gbs))  # of two ranks each sends the message once
    assert fastest <= figures.expected_ns / 1e9 <= 10 * fastest


@pytest.mark.parametrize("ranks", [2, 3, 64])
def test_a_bandwidth_that_a_person_names_comes_before_published_times(ranks):
    trace = replace(reducing([2**20, 2**20], ranks=ranks), bus_bytes_per_s=50e9)
    figures = all_reduce(trace)
    assert figures.expected_by == "given"
    assert figures.expected_ns == round(1e9 * 2 * 4 * 2**20 * 2 * (ranks - 1) / ranks / 50e9)


@pytest.mark.parametrize(
    "unknown", [{"dtype": "other"}, {"gpu": "Some GPU"}, {"ranks": 64}, {"ranks": 1}], ids=lambda what: str(what)
)
def test_nothing_is_expected_where_size_gpu_or_the_machine_s_ranks_are_not_known(unknown):
    figures = all_reduce(reducing(**unknown))
    assert (figures.expected_ns, figures.expected_by) == (None, None)


def test_the_group_s_own_ranks_count_and_not_those_of_the_job():
    described = {"Process Group Ranks": "[0, 1]", "Group size": 2}
    assert collective_times(reducing(ranks=64, **described))["ranks"].tolist() == [2]
    assert all_reduce(reducing(ranks=64, **described)).expected_by == "published"


def test_what_the_host_reduces_for_a_gpu_is_hidden_by_kernels_alone():
    builder = TraceBuilder()
    cpu_step(builder, 0, 0, [(100, 300, RUNLOOP[0])])  # beside an operator for 200 us
    builder.kernel(50 * US, 350 * US, 200 * US, name="gemm")
    figures = all_reduce(builder.trace())
    assert (figures.source, figures.measured_ns, figures.exposed_ns) == ("host", 300 * US, 250 * US)


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)), max_size=6)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 15)), min_size=1, max_size=6), spans)
def test_against_a_count_of_every_instant(reduces, ops):
    builder = TraceBuilder()
    builder.step(0, 0, 100 * US)
    builder.op("aten::empty", 99 * US, 0)
    for start, dur in ops:
        builder.op("aten::mm", start * US, dur * US)
    for number, (start, dur) in enumerate(reduces):
        gloo(builder, start * US, dur * US, tid=RUNLOOP[0] + number)
    figures = all_reduce(builder.trace())
    instants = {t for start, dur in reduces for t in range(start, start + dur)}
    computing = {t for start, dur in ops for t in range(start, start + dur)}
    assert figures.measured_ns == len(instants) * US
    assert figures.exposed_ns == len(instants - computing) * US


def rank_trace(rank, starts, *, base=10**18):
    """A rank whose all-reduces start at the given times, in us, and end together with those of the other rank."""
    builder = TraceBuilder(distributedInfo={"backend": "gloo", "rank": rank, "world_size": 2}, baseTimeNanoseconds=base)
    for step in range(4):
        at = step * 1_000
        builder.step(step, at * US, 1_000 * US)
        builder.op("aten::mm", (at + 1) * US, 50 * US, tid=MAIN)
        for number, start in enumerate(starts):
            # Which of the two threads takes one is chance, and differs between the ranks.
            tid = RUNLOOP[(number + rank + step) % 2]
            gloo(builder, (at + start) * US, (500 + number - start) * US, tid=tid, elements=256 << number)
    return builder.trace()


def test_two_ranks_on_cpus_are_matched_by_order_and_size():
    traces = by_rank([rank_trace(0, [100, 110]), rank_trace(1, [400, 410])])
    matched, waits = matched_collectives(traces)
    assert matched["match"].nunique() == 8
    assert set(matched["matched_by"]) == {"order"}
    assert matched["kernel"].isna().all()
    assert matched["label"].notna().all()
    by_collective = matched.merge(matched, on="match", suffixes=("", "_other")).query("rank < rank_other")
    assert len(by_collective) == 8
    waits = waits.set_index("rank")
    assert waits.loc[0, "wait_ns"] == 4 * 310 * US  # from 100 to 400, and meanwhile from 110 to 410
    assert waits.loc[1, "wait_ns"] == 0
    slowest = straggler(waits.reset_index())
    assert slowest is not None
    assert slowest.rank == 1


def test_of_two_ranks_one_that_is_last_by_chance_is_no_straggler():
    traces = [rank_trace(0, [100, 400]), rank_trace(1, [300, 230])]  # 200 us wait for rank 1, 170 us for rank 0
    _, waits = matched_collectives(by_rank(traces))
    assert waits["caused_ns"].tolist() == [4 * 170 * US, 4 * 200 * US]
    assert straggler(waits) is None
