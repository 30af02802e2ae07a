"""All ranks together say what a rank's communication costs: transfer is traffic, waiting is a late rank."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders import TraceBuilder
from findings.comparisons import comparison, healthy_variant
from findings.jobs import ELEMENTS, KERNELS, MS, US, job
from recorded import TRACES
from steptrace.analysis import summarize
from steptrace.documents.finding import Finding
from steptrace.documents.summary import Summary
from steptrace.findings import _with_other_ranks, find, find_in_ranks, find_in_trace, with_trace_findings
from steptrace.report.trace.answer import first_of_all
from steptrace.report.trace.view import trace_views

STEPS = 4


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
    items = first_of_all(trace_views(summary), summary.ranks).items
    assert [(item.rule, item.source.rank, item.cost_ns_per_step) for item in items] == [("straggler", 3, 7 * MS)]
    # Why it is late: its two products take 8.98 and 0.9 ms, those of the others 1.98 and 0.9.
    assert re.findall(r"[\d.]+ ms", items[0].evidence[-1]) == ["4.94 ms", "1.44 ms"]


def test_transfer_is_a_finding_with_its_own_cost_beside_the_waiting(tmp_path):
    summary = job(tmp_path, [[2 * MS, 4 * MS]] * STEPS, transfer=3 * MS)
    for entry in summary.traces:
        (finding,) = entry.findings
        assert (finding.rule, finding.cost_ns_per_step) == ("exposed_communication", 3 * MS)
    (straggler,) = summary.ranks.findings
    (single,) = summary.ranks.in_single_ranks
    assert (single.rule, single.ranks) == ("exposed_communication", (0, 1))
    assert (straggler.rule, straggler.cost_ns_per_step) == ("straggler", 2 * MS)
    # The dearer of the two comes first.
    items = first_of_all(trace_views(summary), summary.ranks).items
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


LATE = [[2 * MS, 3 * MS, 2 * MS, 9 * MS]] * STEPS


def _read(folder: Path, *ranks: int) -> Summary:
    return with_trace_findings(summarize([folder / f"rank{rank}.json" for rank in ranks])[0])


@pytest.mark.parametrize(("ranks", "waits"), [((0,), None), ((0, 1), [1, 0]), ((0, 3), [7, 0]), ((0, 1, 2), [1, 0, 1])])
def test_where_ranks_of_a_group_were_not_read_waiting_is_only_bounded(tmp_path, ranks, waits):
    job(tmp_path, LATE)
    summary = _read(tmp_path, *ranks)
    assert [(note.code, note.figures) for note in summary.notes] == [
        ("ranks_not_read", {"read": len(ranks), "world_size": 4})
    ]
    least = [None] if waits is None else [STEPS * wait * MS for wait in waits]
    for entry, least_ns in zip(summary.traces, least, strict=True):
        (row,) = entry.collectives.by_name
        assert (row.wait_ns, row.transfer_ns, row.exposed_transfer_ns, row.transfer_bus_bytes_per_s) == (None,) * 4
        assert (entry.overview.exposed_wait_ns, entry.all_reduce.exposed_wait_ns) == (None, None)
        assert (row.least_wait_ns, entry.overview.least_exposed_wait_ns) == (least_ns, least_ns)
        assert (entry.ranks_read, entry.world_size) == (len(ranks), 4)
        if entry.rank != 3:
            (finding,) = entry.findings
            assert (finding.rule, finding.figures["remedies"]) == ("exposed_communication", ("other_ranks",))
            assert (finding.figures["transfer_ns"], finding.figures["wait_ns"]) == (None, None)
            assert f"{len(ranks)} of 4 ranks read" in finding.claim
    if waits is not None:
        assert (summary.ranks.straggler, summary.ranks.findings, summary.ranks.not_read) == (None, (), 4 - len(ranks))
        assert [row.wait_ns for row in summary.ranks.waits] == [None] * len(ranks)
        assert [row.least_wait_ns for row in summary.ranks.waits] == least
        assert summary.ranks.all_reduce.wait_ns_per_step is None


def test_a_group_of_which_all_ranks_were_read_is_known_beside_one_that_reaches_further(tmp_path):
    """Two of four ranks: their all-gathers are of these two alone, the all-reduces of all four."""
    for rank, begins in enumerate((2 * MS, 5 * MS)):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 4, "backend": "nccl"})
        for step in range(STEPS):
            ts = step * 10 * MS
            builder.step(step, ts, 10 * MS)
            for name, ranks, start, end in (
                ("_allgather_base", "[0, 1]", begins, 6 * MS),
                ("allreduce", "[0, 1, 2, 3]", 7 * MS, 9 * MS),
            ):
                args = {"Collective name": name, "Process Group Name": name, "Seq": step, "Process Group Ranks": ranks}
                builder.kernel(ts + 12 * US, ts + start, end - start, KERNELS[name], stream=20, **args)
        builder.write(tmp_path / f"rank{rank}.json")
    summary = _read(tmp_path, 0, 1)
    rows = {row.collective: row for row in summary.traces[0].collectives.by_name}
    assert (rows["all_gather"].wait_ns, rows["all_gather"].transfer_ns) == (STEPS * 3 * MS, STEPS * MS)
    assert (rows["all_reduce"].wait_ns, rows["all_reduce"].least_wait_ns) == (None, 0)
    overview = summary.traces[0].overview
    assert (overview.exposed_wait_ns, overview.least_exposed_wait_ns) == (None, STEPS * 3 * MS)
    assert [(row.matched, row.complete, row.wait_ns) for row in summary.ranks.waits] == [
        (2 * STEPS, STEPS, STEPS * 3 * MS),
        (2 * STEPS, STEPS, 0),
    ]
    assert summary.ranks.straggler.rank == 1


def test_a_collective_that_one_of_all_ranks_lacks_is_not_complete(tmp_path):
    job(tmp_path, LATE)
    path = tmp_path / "rank3.json"
    trace = json.loads(path.read_text())
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("args", {}).get("Seq") is None]
    path.write_text(json.dumps(trace))
    summary = _read(tmp_path, 0, 1, 2, 3)
    assert summary.notes == ()
    (row,) = summary.traces[0].collectives.by_name
    assert (row.wait_ns, row.least_wait_ns) == (None, STEPS * MS)


def test_traces_that_do_not_say_how_many_ranks_there_are_are_all_ranks_unless_a_number_tells_otherwise(tmp_path):
    for read, not_read in (((0, 1), 0), ((0, 5), 4)):
        folder = tmp_path / str(not_read)
        for rank, begins in zip(read, (2 * MS, 5 * MS), strict=True):
            builder = TraceBuilder(distributedInfo={"rank": rank})
            for step in range(STEPS):
                builder.step(step, step * 10 * MS, 10 * MS)
                args = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": step}
                ts = step * 10 * MS
                builder.kernel(ts + 5, ts + begins, 6 * MS - begins, KERNELS["allreduce"], **args)
            builder.write(folder / f"rank{rank}.json")
        summary = _read(folder, *read)
        assert summary.ranks.not_read == not_read
        assert summary.traces[0].overview.exposed_wait_ns == (None if not_read else STEPS * 3 * MS)


def test_a_job_of_one_rank_waits_for_nobody(tmp_path):
    summary = job(tmp_path, [[2 * MS]] * STEPS, transfer=3 * MS)
    (finding,) = summary.traces[0].findings
    assert finding.figures["transfer_ns"] == 3 * MS
    assert "other_ranks" not in finding.figures["remedies"]
    assert summary.notes == ()


@pytest.mark.parametrize(("gb_per_s", "first"), [(100, True), (0.5, False)], ids=["far too long", "as expected"])
def test_of_one_rank_alone_the_other_ranks_are_read_first_where_the_collective_takes_far_too_long(
    tmp_path, *, gb_per_s, first
):
    job(tmp_path, [[2 * MS, 9 * MS]] * STEPS)
    (entry,) = summarize([tmp_path / "rank0.json"], bus_bytes_per_s=gb_per_s * 1e9)[0].traces
    assert entry.all_reduce.expected_ns
    (finding,) = find_in_trace(entry)
    assert (finding.figures["remedies"][0] == "other_ranks") == first
    both = summarize([tmp_path / "rank0.json", tmp_path / "rank1.json"], bus_bytes_per_s=gb_per_s * 1e9)[0]
    for single in both.traces:
        assert all("other_ranks" not in item.figures.get("remedies", ()) for item in find_in_trace(single))


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
    first = first_of_all(trace_views(summary), summary.ranks).items[0]
    assert (first.rule, first.source.rank, first.cost_ns_per_step) == ("straggler", 3, 7 * MS)
    for entry in summary.traces[:3]:
        division = entry.overview
        assert (division.parts_ns["exposed_comm"] - division.exposed_wait_ns) / division.steps == 100 * US


def _ranks_with_syncs(folder: Path, waits: list[int]) -> Summary:
    """Ranks with steps of 1 ms that read a value once a step, and then spend so long in Python."""
    for rank, wait in enumerate(waits):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": len(waits), "backend": "nccl"})
        for step in range(STEPS):
            ts = step * MS
            builder.step(step, ts, MS)
            builder.frame("train.py(1): loop", ts, MS - US)
            builder.kernel(ts + 10 * US, ts + 20 * US, MS - wait - 60 * US)
            if wait:
                builder.op("aten::item", ts + 30 * US, MS - wait - 40 * US)
                builder.item(ts + 32 * US, MS - wait - 50 * US, ts + MS - wait - 30 * US)
            builder.kernel(ts + MS - 30 * US, ts + MS - 25 * US, 20 * US)
        builder.write(folder / f"rank{rank}.json")
    return with_trace_findings(summarize([folder])[0])


def test_two_syncs_of_one_line_stay_two_findings_of_the_ranks_and_of_a_variant(tmp_path):
    for rank in range(2):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2, "backend": "nccl"})
        for step in range(STEPS):
            ts = step * MS
            builder.step(step, ts, MS)
            builder.frame("train.py(1): loop", ts, MS - US)
            for place, op in enumerate(("aten::item", "aten::nonzero")):
                at = ts + place * 400 * US
                builder.kernel(at + 10 * US, at + 20 * US, 200 * US)
                builder.op(op, at + 30 * US, 250 * US)
                builder.item(at + 32 * US, 200 * US, at + 225 * US)
            builder.kernel(ts + 800 * US, ts + 810 * US, 100 * US)
        builder.write(tmp_path / f"rank{rank}.json")
    summary = with_trace_findings(summarize([tmp_path])[0])
    syncs = [item.figures["site"]["op"] for item in summary.ranks.in_single_ranks if item.rule == "sync_bound"]
    assert syncs == ["aten::item", "aten::nonzero"]
    # Of a study: those of the trace of rank 0, each once, though the ranks' own name a rank.
    trace = summary.traces[0]
    single = summary.ranks.in_single_ranks
    found = _with_other_ranks(list(trace.findings), single, trace.rank)
    assert sorted(item.claim for item in found) == sorted(item.claim for item in trace.findings)


def test_a_fault_of_another_rank_is_raised_once_with_its_ranks(tmp_path):
    summary = _ranks_with_syncs(tmp_path, [0, 0, 200 * US, 400 * US])
    syncs = [item for item in summary.ranks.in_single_ranks if item.rule in ("sync_bound", "syncs_together")]
    assert syncs
    assert {(item.source.rank, item.ranks) for item in syncs} == {(3, (2, 3))}
    assert not [item for item in summary.traces[0].findings if item.rule == syncs[0].rule]
    items = first_of_all(trace_views(summary), summary.ranks).items
    assert any(item.rule == syncs[0].rule and item.source.rank == 3 for item in items)


def _of_study(summary: Summary) -> list[Finding]:
    """The findings on syncs in a study of one variant, of which these are the ranks."""
    study = comparison(healthy_variant())
    variant = replace(study.variants[0], trace=replace(summary.traces[0], findings=()), ranks=summary.ranks)
    return [item for item in find(replace(study, variants=(variant,))) if item.rule == "sync_bound"]


def test_a_study_says_what_only_another_rank_has(tmp_path):
    (finding,) = _of_study(_ranks_with_syncs(tmp_path, [0, 400 * US]))
    assert (finding.variant, finding.source.rank, finding.ranks) == ("v", 1, (1,))
    # What rank 0 has as well is said once, as of its trace.
    (finding,) = _of_study(_ranks_with_syncs(tmp_path / "alike", [400 * US, 400 * US]))
    assert finding.source.rank is None
