"""All ranks together say what a rank's communication costs: transfer is traffic, waiting is a late rank."""

import re
from pathlib import Path

import pytest

from builders import TraceBuilder
from recorded import TRACES
from steptrace.analysis import summarize
from steptrace.documents.summary import Summary
from steptrace.findings import find_in_ranks, find_in_trace, with_trace_findings
from steptrace.report.trace.words import first_of_all, trace_views

US, MS = 1_000, 1_000_000
STEPS = 4
KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)",
    "all_to_all": "ncclDevKernel_SendRecv(x)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(x)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(x)",
    "broadcast": "ncclDevKernel_Broadcast_RING_LL(x)",
}
ELEMENTS = 1_000_000


def job(folder: Path, comes: list[list[int]], *, transfer: int = 100 * US, collective: str = "allreduce") -> Summary:
    """Ranks with a collective a step of 10 ms: rank r begins that of step k at `comes[k][r]` ns, all end together."""
    for rank in range(len(comes[0])):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": len(comes[0]), "backend": "nccl"})
        for step, begins in enumerate(comes):
            ts, end = step * 10 * MS, max(begins) + transfer
            builder.step(step, ts, 10 * MS)
            builder.kernel(ts + 10 * US, ts + 20 * US, begins[rank] - 20 * US)
            args = {"Collective name": collective, "Process Group Name": "0", "Group size": len(begins), "Seq": step}
            args |= {"In msg nelems": ELEMENTS, "Out msg nelems": ELEMENTS, "dtype": "BFloat16"}
            builder.kernel(ts + 12 * US, ts + begins[rank], end - begins[rank], KERNELS[collective], stream=20, **args)
            builder.kernel(ts + 14 * US, ts + end, 10 * MS - end)
        builder.write(folder / f"rank{rank}.json")
    return with_trace_findings(summarize([folder])[0])


def fired(summary: Summary) -> list[list[str]]:
    return [[item.rule for item in entry.findings] for entry in summary.traces]


def test_waiting_is_no_traffic_and_the_late_rank_comes_first(tmp_path):
    summary = job(tmp_path, [[2 * MS, 2 * MS, 2 * MS, 9 * MS]] * STEPS)
    for entry in summary.traces[:3]:
        (row,) = entry.collectives.by_name
        assert (row.sum_ns, row.wait_ns, row.transfer_ns) == (STEPS * 7_100 * US, STEPS * 7 * MS, STEPS * 100 * US)
        assert (row.exposed_ns, row.exposed_transfer_ns, row.matched) == (row.sum_ns, STEPS * 100 * US, STEPS)
        # 2 MB, each rank's share of an all-reduce of four 2 x 3/4 times that, in 0.1 ms: 30 GB/s.
        assert row.transfer_bus_bytes_per_s == pytest.approx(30e9)
        assert row.bus_bytes_per_s == pytest.approx(30e9 / 71)
        assert entry.overview.exposed_wait_ns == entry.all_reduce.exposed_wait_ns == STEPS * 7 * MS
    assert fired(summary) == [[]] * 4  # 0.1 ms of a step of 10 ms
    items = first_of_all(trace_views(summary), summary.ranks.findings)["items"]
    assert [(item.rule, item.source.rank, item.cost_ns_per_step) for item in items] == [("straggler", 3, 7 * MS)]
    # Why it is late: its two products take 8.98 and 0.9 ms, those of the others 1.98 and 0.9.
    assert re.findall(r"[\d.]+ ms", items[0].evidence[-1]) == ["4.94 ms", "1.44 ms"]


def test_transfer_is_a_finding_with_its_own_cost_beside_the_waiting(tmp_path):
    summary = job(tmp_path, [[2 * MS, 4 * MS]] * STEPS, transfer=3 * MS)
    for entry in summary.traces:
        (finding,) = entry.findings
        assert (finding.rule, finding.cost_ns_per_step) == ("exposed_communication", 3 * MS)
    (straggler,) = summary.ranks.findings
    assert (straggler.rule, straggler.cost_ns_per_step) == ("straggler", 2 * MS)
    # The dearer of the two comes first.
    items = first_of_all(trace_views(summary), summary.ranks.findings)["items"]
    assert [item.rule for item in items] == ["exposed_communication", "straggler"]


def test_of_one_rank_alone_waiting_is_not_known(tmp_path):
    job(tmp_path, [[2 * MS, 9 * MS]] * STEPS)
    (entry,) = summarize([tmp_path / "rank0.json"])[0].traces
    (row,) = entry.collectives.by_name
    assert (row.matched, row.wait_ns, row.transfer_ns, row.transfer_bus_bytes_per_s) == (None, None, None, None)
    assert row.bus_bytes_per_s == pytest.approx(2 * ELEMENTS / 7.1e-3)
    assert (entry.overview.exposed_wait_ns, entry.all_reduce.exposed_wait_ns) == (None, None)
    (finding,) = find_in_trace(entry)
    assert finding.cost_ns_per_step == 7_100 * US


def test_ranks_that_wait_in_turn_are_a_finding_and_none_is_the_straggler(tmp_path):
    turns = [[2 * MS if rank != step % 3 else 5 * MS for rank in range(3)] for step in range(6)]
    summary = job(tmp_path, turns)
    (finding,) = find_in_ranks(summary)
    # Each rank waits 3 ms in four of six steps.
    assert (finding.rule, finding.severity, finding.cost_ns_per_step) == ("uneven_ranks", "warning", 2 * MS)
    assert fired(summary) == [[]] * 3
    assert find_in_ranks(job(tmp_path / "even", [[2 * MS] * 3] * 6)) == []


def test_a_straggler_whose_delays_are_little_of_the_waiting_stands_behind_it(tmp_path):
    """Most ranks are late and one a bit later, as in the eight of facebookresearch/param's dlrm_kineto."""
    summary = job(tmp_path, [[2 * MS, 8 * MS, 8_500 * US, 9 * MS]] * STEPS)
    uneven, straggler = find_in_ranks(summary)
    assert (uneven.rule, uneven.cost_ns_per_step) == ("uneven_ranks", (7_000 + 1_000 + 500) * US // 4)
    assert (straggler.rule, straggler.cost_ns_per_step) == ("straggler", 500 * US)


def test_waiting_beside_computation_costs_nothing(tmp_path):
    """Both ranks compute until the collective is over, so nobody loses anything by the late rank."""
    for rank, begins in enumerate((2 * MS, 8 * MS)):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2, "backend": "nccl"})
        for step in range(STEPS):
            ts = step * 10 * MS
            builder.step(step, ts, 10 * MS)
            args = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": step}
            builder.kernel(ts + 5 * US, ts + begins, 9 * MS - begins, KERNELS["allreduce"], stream=20, **args)
            builder.kernel(ts + 7 * US, ts + 20 * US, 9_970 * US)
        builder.write(tmp_path / f"rank{rank}.json")
    summary = with_trace_findings(summarize([tmp_path])[0])
    assert summary.ranks.straggler.rank == 1
    assert [entry.overview.exposed_wait_ns for entry in summary.traces] == [0, 0]
    assert summary.ranks.findings == ()
    assert fired(summary) == [[], []]


@pytest.mark.parametrize("collective", KERNELS)
def test_the_advice_is_for_the_collective_that_takes_most(tmp_path, collective):
    summary = job(tmp_path, [[2 * MS] * 2] * STEPS, transfer=3 * MS, collective=collective)
    (finding,) = summary.traces[0].findings
    assert finding.rule == "exposed_communication"
    on_gradients = "DistributedDataParallel" in finding.advice
    assert on_gradients == (collective in ("allreduce", "broadcast"))
    assert ("MixedPrecisionPolicy" in finding.advice) == (collective in ("_allgather_base", "_reduce_scatter_base"))
    assert ("hook" in finding.advice) <= (collective == "allreduce")


def test_the_given_case_of_a_late_rank():
    case = TRACES.parent / "cases" / "traces" / "waiting_is_not_traffic"
    if not case.is_dir():
        pytest.skip(f"no {case.name} beside the recorded traces")
    summary = with_trace_findings(summarize([case])[0])
    first = first_of_all(trace_views(summary), summary.ranks.findings)["items"][0]
    assert (first.rule, first.source.rank, first.cost_ns_per_step) == ("straggler", 3, 7 * MS)
    for entry in summary.traces[:3]:
        division = entry.overview
        assert (division.parts_ns["exposed_comm"] - division.exposed_wait_ns) / division.steps == 100 * US
