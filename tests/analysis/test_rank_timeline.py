"""The picture of one step of several ranks: which step, on which clock, and what its lanes hold."""

import pytest

from builders import TraceBuilder
from steptrace.analysis import ranks
from steptrace.analysis.build import light
from steptrace.analysis.rank_timeline import MOST_LANES, rank_timeline
from steptrace.documents.ranks import Straggler

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"
US = 1000
BASE = 1_700_000_000_000_000_000


def rank_trace(rank, start, *, lengths=(9_000, 8_000, 7_000), clock=0, collectives=True, world=None):
    """A rank whose steps begin every 10 ms and take these us; its collective begins at `start` us and ends at 5 ms."""
    builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": world}, baseTimeNanoseconds=BASE)
    for number, length in enumerate(lengths):
        begin = (clock + number * 10_000) * US
        builder.step(number, begin, length * US)
        builder.kernel(begin + 100 * US, begin + 200 * US, 300 * US, "gemm")
        if collectives:
            launch = builder.call("cudaLaunchKernel", begin + 20 * US, 10 * US)
            args = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": number}
            builder.gpu(NCCL, begin + start * US, (5_000 - start) * US, launch, stream=20, **args)
    return builder.trace()


def picture(traces, straggler=None):
    by_rank = ranks.by_rank(traces)
    return rank_timeline(by_rank, ranks.tables(traces), straggler)


def parts(lane):
    """The time of each part of a lane, idle time left out."""
    times = {}
    for box in lane.boxes:
        if not box.part.startswith("idle"):
            times[box.part] = times.get(box.part, 0) + box.dur_ns
    return times


def test_the_median_step_of_all_ranks_on_one_clock_with_waiting_apart():
    shown = picture([rank_trace(0, 1_000), rank_trace(1, 4_000, clock=77_000)])
    assert (shown.step, shown.span_ns, shown.is_aligned) == (1, 8_000 * US, True)
    first, second = shown.lanes
    assert [lane.name for lane in shown.lanes] == ["Rank 0", "Rank 1"]
    assert parts(first) == {"compute": 300 * US, "exposed_wait": 3_000 * US, "exposed_transfer": 1_000 * US}
    assert parts(second) == {"compute": 300 * US, "exposed_transfer": 1_000 * US}
    ends = [
        max(box.start_ns + box.dur_ns for box in lane.boxes if box.part == "exposed_transfer") for lane in shown.lanes
    ]
    assert ends[0] == ends[1]


def test_where_ranks_were_not_read_only_the_known_waiting_stands_apart():
    first, second = picture([rank_trace(0, 1_000, world=4), rank_trace(1, 4_000, world=4)]).lanes
    assert parts(first) == {"compute": 300 * US, "exposed_wait": 3_000 * US, "exposed_comm": 1_000 * US}
    assert parts(second) == {"compute": 300 * US, "exposed_comm": 1_000 * US}


def test_without_a_common_collective_each_rank_begins_at_its_own_step():
    shown = picture([rank_trace(0, 1_000, collectives=False), rank_trace(1, 1, clock=50_000, collectives=False)])
    assert not shown.is_aligned
    assert shown.span_ns == 8_000 * US
    starts = [min(box.start_ns for box in lane.boxes if box.part == "compute") for lane in shown.lanes]
    assert starts == [200 * US, 200 * US]


def test_ranks_without_a_common_step_have_no_picture():
    late = TraceBuilder(distributedInfo={"rank": 1, "world_size": 2}, baseTimeNanoseconds=BASE)
    late.step(7, 0, 9_000 * US)
    late.kernel(100 * US, 200 * US, 300 * US, "gemm")
    assert picture([rank_trace(0, 1_000), late.trace()]) is None


def test_traces_without_steps_are_shown_as_wholes():
    shown = picture([rank_trace(0, 1_000), rank_trace(1, 4_000)])
    assert shown.step is not None
    traces = []
    for rank in (0, 1):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2}, baseTimeNanoseconds=BASE)
        builder.kernel(100 * US, 200 * US, 300 * US, "gemm")
        traces.append(builder.trace())
    whole = picture(traces)
    assert whole.step is None
    assert [parts(lane) for lane in whole.lanes] == [{"compute": 300 * US}] * 2


def test_of_many_ranks_the_straggler_has_a_lane():
    traces = [rank_trace(rank, 1_000, lengths=(9_000,)) for rank in range(32)]
    shown = picture(traces, Straggler(rank=17, share=1.0, caused_ns=1, delay_ns=1))
    names = [lane.name for lane in shown.lanes]
    assert len(names) == MOST_LANES
    assert {"Rank 0", "Rank 17"} <= set(names)


@pytest.mark.parametrize("starts", [(1_000, 4_000), (2_000, 2_000)])
def test_a_trace_without_its_large_tables_has_the_same_lane(starts):
    traces = [rank_trace(rank, start) for rank, start in enumerate(starts)]
    assert picture([light(trace) for trace in traces]) == picture(traces)


def test_ranks_without_a_gpu_show_the_parts_of_the_loop():
    traces = []
    for rank in (0, 1):
        builder = TraceBuilder(distributedInfo={"backend": "gloo", "rank": rank, "world_size": 2})
        builder.step(0, 0, 9_000 * US)
        for name, start, dur in (("forward", 1_000, 2_000), ("backward", 4_000, 3_000)):
            builder.label(name, start * US, dur * US)
            builder.op("aten::mm", (start + 1) * US, (dur - 2) * US)
        traces.append(builder.trace())
    shown = picture([light(trace) for trace in traces])
    assert [lane.kind for lane in shown.lanes] == ["host", "host"]
    assert parts(shown.lanes[0]) == {"forward": 2_000 * US, "backward": 3_000 * US}
