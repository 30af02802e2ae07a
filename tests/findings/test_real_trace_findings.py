"""What fires on other people's traces, each judged by hand.

Figures that speak for the verdict: the two small H100 models launch 60 and 154 kernels of a few microseconds and leave
the GPU idle for 85-90 % of the step, of which the host spends about a tenth in calls that launch: they are bound by
its operators and its Python. In `triton` it waits 13 s for a compilation, in `alexnet_cuda_sync` 12 s for
the first convolution, in `event_sync` and `mi250` the host launches once in half a millisecond: no matter of launches.
`nccl` is a training whose host is slow with the profiler on, in TF32, its all-reduces exposed for 6 % of the step. In
`two_ranks` rank 1 comes 16 ms late, and all-to-alls stand alone for a quarter of the step. `cpu_only` holds gloo's
all-reduces and no operator: what they cost is not known.
"""

import gzip

import pytest

from figures import figures_in
from recorded import needs_traces, recorded
from steptrace.analysis import summarize
from steptrace.findings import find_in_ranks, find_in_trace
from steptrace.limits import NOISE_FLOOR

pytestmark = needs_traces

FIRES = {
    "alexnet_cuda_sync": ["host_bound"],
    "cpu_only": [],
    "event_sync": ["host_bound", "sync_bound", "sync_bound"],
    "h100_bert_small": ["host_bound", "unused_memory"],
    "h100_vit": ["host_bound", "unused_memory"],
    "mi250": ["host_bound", "sync_bound"],
    "nccl": ["host_bound"],
    "rank_non_gpu": [],
    "triton": ["host_bound"],
}


@pytest.mark.parametrize("name", FIRES)
def test_findings_of_a_real_trace(recorded_summary, name):
    assert [finding.rule for finding in find_in_trace(recorded_summary(name).traces[0])] == FIRES[name]


def test_a_host_bound_training_is_advised_on_its_host_alone_and_its_longest_gaps_are_named(recorded_summary):
    """All of the critical path of `nccl` is the host's: faster kernels and all-reduces would save nothing."""
    (host,) = find_in_trace(recorded_summary("nccl").traces[0])
    assert host.figures["host"][0]["activity"] == "operators"
    assert figures_in(host.evidence[3])[:3] == [3, 15.5, 15.7]
    assert "aten::copy_" in host.evidence[3]


def test_of_two_ranks_of_128_the_waiting_is_only_bounded():
    summary, _ = summarize([recorded(f"two_ranks_{rank}") for rank in (0, 1)])
    assert [(note.code, note.figures) for note in summary.notes] == [("ranks_not_read", {"read": 2, "world_size": 128})]
    assert (summary.ranks.straggler, summary.ranks.all_reduce.wait_ns_per_step) == (None, None)
    assert [entry.overview.exposed_wait_ns for entry in summary.traces] == [None, None]
    assert summary.ranks.waits[0].least_wait_ns > 0
    for entry in summary.traces:
        communication = [item for item in find_in_trace(entry) if item.rule == "exposed_communication"]
        assert [item.figures["remedies"] for item in communication] == [("other_ranks",)]


def test_findings_of_two_real_ranks(tmp_path):
    """As if the two were the whole job."""
    for rank in (0, 1):
        text = gzip.decompress(recorded(f"two_ranks_{rank}").read_bytes())
        assert b'"world_size": 128' in text
        (tmp_path / f"{rank}.json").write_bytes(text.replace(b'"world_size": 128', b'"world_size": 2'))
    summary, _ = summarize([tmp_path])
    for entry in summary.traces:
        rules = [finding.rule for finding in find_in_trace(entry)]
        assert rules == ["host_bound", "exposed_communication"]
    # Rank 0 waits 13 ms a step for rank 1, but computes meanwhile: less than 1 % of its step goes by in waiting alone.
    assert summary.ranks.straggler.rank == 1
    assert summary.ranks.all_reduce.wait_ns_per_step > 6_000_000
    # Half of the collectives are of other groups: waiting in them is not known.
    assert [entry.overview.exposed_wait_ns for entry in summary.traces] == [None, None]
    waits = [entry.overview.least_exposed_wait_ns / entry.overview.window_ns for entry in summary.traces]
    assert 0 < waits[0] < NOISE_FLOOR
    assert waits[1] == 0
    assert find_in_ranks(summary) == []
