"""Several ranks: which collectives are one, whose clock is off, and who waited for whom."""

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import TraceBuilder
from documents import fill
from recorded import needs_traces, recorded
from steptrace.analysis import ranks
from steptrace.cli import main
from steptrace.documents.ranks import RankKernel, Ranks, RankWait
from steptrace.documents.table import validate
from steptrace.report.trace.page import rank_sections
from steptrace.trace.model import Trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
Part = tuple[int, int]  # start and end of a collective in us


def _rank(rank: int, parts: list[Part], *, clock: int = 0, numbered: bool = False, base: int | None = None) -> Trace:
    """A trace with one collective each 10 ms step; `clock` us are added to all its times."""
    given = {} if base is None else {"baseTimeNanoseconds": base}
    builder = TraceBuilder(distributedInfo={"rank": rank}, **given)
    for number, (start, end) in enumerate(parts):
        begin = clock * 1000 + number * 10_000_000
        builder.step(number, begin, 9_900_000)
        args = {"Collective name": "allreduce", "Process Group Name": "0"} if numbered else {}
        args |= {"Seq": number + 5} if numbered else {}
        launch = builder.call("cudaLaunchKernel", begin + 1_000, 1_000)
        builder.gpu(NCCL, begin + start * 1000, (end - start) * 1000, launch, stream=20 + rank, **args)
        builder.kernel(begin + 3_000, begin + 5_000, (100 + rank) * 1000, "gemm")
    return builder.trace()


@pytest.mark.parametrize("numbered", [False, True])
@pytest.mark.parametrize("base", [None, 1_700_000_000_000_000_000])
def test_waits_are_for_the_last_rank_whatever_the_clocks_say(numbered: Any, base: int | None) -> None:
    ends = [900, 910, 900, 905, 900, 900, 900]
    parts = {0: [(500, end) for end in ends], 1: [(800, end) for end in ends], 2: [(600, end) for end in ends]}
    clocks = {0: 0, 1: 123_456, 2: 77}
    traces = {r: _rank(r, parts[r], clock=clocks[r], numbered=numbered, base=base) for r in parts}
    matched, waits = ranks.matched_collectives(traces)
    assert len(matched) == 21
    assert set(matched["matched_by"]) == {"sequence" if numbered else "time"}
    assert waits["clock_spread_ns"].tolist()[1:] == [0, 0]
    # Without a common zero each trace counts from its own first event, which all mark at the same point of step 0.
    assert waits["clock_offset_ns"].tolist() == [0, -123_456_000, -77_000] if base else [0, 0, 0]
    assert waits["wait_ns"].tolist() == [7 * 300_000, 0, 7 * 200_000]
    assert waits["caused_ns"].tolist() == [0, 7 * 500_000, 0]
    assert waits["delay_ns"].tolist() == [0, 7 * 200_000, 0]
    assert waits["last"].tolist() == [0, 7, 0]
    slowest = ranks.straggler(waits)
    assert slowest == ranks.Straggler(rank=1, share=1.0, caused_ns=3_500_000, delay_ns=1_400_000)


@given(st.lists(st.tuples(*[st.integers(1, 800)] * 3), min_size=3, max_size=6), st.integers(0, 10**6))
def test_brute_force(starts: list[tuple[int, int, int]], clock: int) -> None:
    base = 1_700_000_000_000_000_000
    traces = {r: _rank(r, [(s[r], 900) for s in starts], clock=clock * r, base=base) for r in range(3)}
    matched, waits = ranks.matched_collectives(traces)
    validate(matched, ranks.MatchedCollective)
    validate(waits, RankWait)
    caused = [0, 0, 0]
    delay = [0, 0, 0]
    for each in starts:
        last = each.index(max(each))
        caused[last] += sum(max(each) - start for start in each) * 1000
        delay[last] += (max(each) - sorted(each)[1]) * 1000
    assert waits["wait_ns"].tolist() == [sum(max(s) - s[r] for s in starts) * 1000 for r in range(3)]
    assert waits["caused_ns"].tolist() == caused
    assert waits["delay_ns"].tolist() == delay
    assert waits["caused_ns"].sum() == matched["wait_ns"].sum()


def test_messages_between_two_ranks_are_not_matched_by_number() -> None:
    """Each pair of ranks numbers its messages for itself: what rank 2 calls its first is none of rank 0's."""
    made = {}
    for rank, (collective, first, start, end) in enumerate(
        [("send", 1, 100, 200), ("recv", 7, 150, 200), ("recv", 1, 500, 600)]
    ):
        builder = TraceBuilder(distributedInfo={"rank": rank}, baseTimeNanoseconds=1_700_000_000_000_000_000)
        for step in range(4):
            begin = step * 1_000_000
            # Rank 2 talks with a rank that is not here, at times of its own.
            own = 37_000 * step * step if rank == 2 else 0
            builder.step(step, begin, 900_000)
            args = {"Collective name": collective, "Process Group Name": "0", "Seq": first + step}
            builder.kernel(begin + 1_000, begin + own + start * 1000, (end - start) * 1000, NCCL, **args)
        made[rank] = builder.trace()
    matched, waits = ranks.matched_collectives(made)
    assert set(matched["collective"]) == {"send_recv"}
    assert set(matched["matched_by"]) == {"time"}
    assert waits["matched"].tolist()[:2] == [4, 4]
    assert waits["wait_ns"].tolist()[:2] == [200_000, 0]


def test_too_few_pairs_by_order_align_nothing() -> None:
    _, waits = ranks.matched_collectives({r: _rank(r, [(500, 900)] * 2) for r in range(2)})
    assert waits["wait_ns"].isna().all()
    numbered = {r: _rank(r, [(500 + r, 900)], numbered=True) for r in range(2)}
    assert ranks.matched_collectives(numbered)[1]["wait_ns"].tolist() == [1_000, 0]


def test_no_single_rank_stands_out() -> None:
    parts = {r: [(800 if number % 3 == r else 500, 900) for number in range(9)] for r in range(3)}
    _, waits = ranks.matched_collectives({r: _rank(r, p) for r, p in parts.items()})
    assert waits["last"].tolist() == [3, 3, 3]
    assert ranks.straggler(waits) is None


def test_collectives_of_different_groups_are_not_one() -> None:
    """The same names in the same order, but every third only at the same time, and no other clock would fit more."""
    alone = [(500, 900) if number % 3 == 0 else (2_000, 3_000) for number in range(9)]
    others = [(700, 900) if number % 3 == 0 else (4_000 + 300 * number, 5_000 + 310 * number) for number in range(9)]
    matched, waits = ranks.matched_collectives({0: _rank(0, alone), 1: _rank(1, others)})
    assert waits["matched"].tolist() == [3, 3]
    assert matched["wait_ns"].sum() == 3 * 200_000


def test_a_rank_that_shares_nothing_is_not_measured() -> None:
    lonely = TraceBuilder()
    lonely.kernel(1_000, 5_000, 1_000, "gemm")
    traces = {0: _rank(0, [(500, 900)] * 3), 1: _rank(1, [(600, 900)] * 3), 2: lonely.trace()}
    _, waits = ranks.matched_collectives(traces)
    assert waits["wait_ns"].isna().tolist() == [False, False, True]
    assert waits["clock_offset_ns"].isna().tolist() == [False, False, True]
    assert waits["matched"].tolist() == [3, 3, 0]


def test_traces_without_gpu_work_or_collectives() -> None:
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 10)
    matched, waits = ranks.matched_collectives({0: builder.trace(), 1: builder.trace()})
    assert len(matched) == 0
    assert waits["collectives"].tolist() == [0, 0]
    assert ranks.straggler(waits) is None
    assert len(ranks.rank_kernels({0: builder.trace(), 1: builder.trace()})) == 0


def test_kernels_across_ranks() -> None:
    traces = {r: _rank(r, [(500, 900)] * 3) for r in range(3)}
    table = validate(ranks.rank_kernels(traces), RankKernel).set_index("name").loc["gemm"]
    assert (table["ranks"], table["count"], table["slowest_rank"]) == (3, 9, 2)
    assert (table["mean_min_ns"], table["mean_median_ns"], table["mean_max_ns"]) == (100_000, 101_000, 102_000)


def test_ranks_by_number_or_by_place() -> None:
    first, second = _rank(3, [(500, 900)]), _rank(3, [(500, 900)])
    assert list(ranks.by_rank([first, _rank(5, [(500, 900)])])) == [3, 5]
    assert list(ranks.by_rank([first, second])) == [0, 1]


def _real(rank: int) -> dict[str, Any]:
    return dict(json.loads(gzip.decompress(recorded(f"two_ranks_{rank}").read_bytes())))


def _four_ranks(folder: Path, delayed: int, delay_us: int) -> None:
    """Ranks 0 and 2 from the first real trace and the others from the second, each with a clock of its own.

    On one rank every collective begins later, as if what comes before it took longer; it ends as it did.
    """
    rng = random.Random(8)
    for rank in range(4):
        trace = _real(rank % 2)
        trace["distributedInfo"] = {**trace["distributedInfo"], "rank": rank, "world_size": 4}
        clock = rng.randrange(-3_000_000, 3_000_000)
        for event in trace["traceEvents"]:
            if "ts" in event:
                event["ts"] += clock
            if rank == delayed and event.get("cat") == "kernel" and event["name"].startswith("nccl"):
                event["ts"] += min(delay_us, event["dur"] - 1)
                event["dur"] -= min(delay_us, event["dur"] - 1)
        (folder / f"rank{rank}.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


@needs_traces
@pytest.mark.parametrize("delayed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_four_ranks_make_one_report_that_names_the_straggler(tmp_path: Path, delayed: int) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    # What comes from the second trace is 22 ms later than the first in one collective: a delay must beat that.
    _four_ranks(folder, delayed, 5_000 if delayed % 2 else 35_000)
    assert main(["analyze", str(folder), "--out", str(tmp_path / "out")]) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [entry["rank"] for entry in summary["traces"]] == list(range(4))
    slowest = summary["ranks"]["straggler"]
    assert slowest["rank"] == delayed
    assert slowest["share"] > 0.5
    waits = {row["rank"]: row for row in summary["ranks"]["waits"]}
    assert waits[delayed]["caused_ns"] == max(row["caused_ns"] for row in waits.values())
    assert summary["ranks"]["collectives"]["total"] == 40
    page = (tmp_path / "out" / "report.html").read_text()
    answer = re.search(r'<p class="headline[^>]*>(.*?)<span class="reasons">', page, re.DOTALL)
    assert answer
    assert f"rank {delayed}:" in answer[1]


def test_where_collectives_overlap_a_rank_waits_only_once() -> None:
    def rank(number: int, start: int) -> Trace:
        builder = TraceBuilder(distributedInfo={"rank": number, "world_size": 2}, baseTimeNanoseconds=10**18)
        builder.step(0, 0, 9_900_000)
        for k in range(2):  # both begin and end together, on streams of their own
            args = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": k}
            launch = builder.call("cudaLaunchKernel", 1_000 * (k + 1), 500)
            builder.gpu(NCCL, start, 900_000 - start, launch, stream=20 + k, **args)
        return builder.trace()

    matched, waits = ranks.matched_collectives({0: rank(0, 100_000), 1: rank(1, 700_000)})
    assert matched["wait_ns"].tolist().count(600_000) == 2
    assert waits["wait_ns"].tolist() == [600_000, 0]
    assert waits["caused_ns"].tolist() == [0, 600_000]
    assert waits["delay_ns"].tolist() == [0, 600_000]


def test_the_page_says_of_a_straggler_what_a_step_loses() -> None:
    straggler = {"rank": 1, "share": 0.9, "caused_ns": 32_000_000, "delay_ns": 8_000_000}
    waits = [{"rank": rank, "collectives": 4, "matched": 4} for rank in (0, 1)]
    ranks = fill(Ranks, {"straggler": straggler, "waits": waits, "collectives": {"total": 8, "matched": 8,
                         "by_name": [{"collective": "all_reduce", "count": 4}]}})  # fmt: skip
    (_, _, parts), *_ = rank_sections(ranks, 2)
    assert "<dt>Made others wait per step</dt><dd>16.0 ms</dd>" in parts[0].html
    assert "<dt>Delay per step</dt><dd>4.00 ms</dd>" in parts[0].html
