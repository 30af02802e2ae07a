"""What rules on traces make of their figures: costs, severities, advice. test_rules.py has a fixture for each rule."""

from functools import partial

import pytest
from msgspec.structs import replace

from builders import LOADER, TraceBuilder
from documents import fill, plain
from findings.fixtures.copy_bound import copies_alone
from findings.fixtures.exposed_communication import communicates_alone, communicates_at_the_end, communicates_in_bits
from findings.fixtures.fp32_where_bf16_fits import SGEMM, multiplies_in_32_bits
from findings.fixtures.kernel_gaps import pauses_between_kernels
from findings.fixtures.straggler import two_ranks
from findings.steps import GPU, MS, US, WORK, made, work
from simulated import simulate, time_of, without
from steptrace.documents.summary import TraceSummary
from steptrace.findings import find_in_ranks, find_in_trace, with_trace_findings


def launches_little_work(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    for k in range(49):
        at = ts + (20 * k + 15) * US
        builder.op("aten::add", at - 15 * US, 17 * US)
        if bad:
            builder.gpu(WORK, at, 4 * US, builder.call("cudaLaunchKernel", at - 13 * US, 12 * US))
        else:
            work(builder, at, at + 19_900, launched=ts + k * US // 2)


def fired(entry: TraceSummary) -> list[str]:
    return [finding.rule for finding in find_in_trace(entry)]


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        (communicates_alone, "Send fewer bytes"),
        (communicates_at_the_end, "The all-reduces run after the computation"),
        (communicates_in_bits, "The all-reduces are small"),
    ],
)
def test_the_advice_on_communication_follows_its_cause(step, advice):
    summary = made(step, faulty=True, **GPU).summary()
    (alone,) = find_in_trace(summary)
    assert (alone.rule, alone.figures["remedies"]) == ("exposed_communication", ("other_ranks",))
    (finding,) = find_in_trace(replace(summary, overview=replace(summary.overview, exposed_wait_ns=0)))
    assert finding.rule == "exposed_communication"
    assert finding.advice.startswith(advice)
    count = "8 all-reduces" if step is communicates_in_bits else "1 all-reduce"
    assert any(text.startswith(f"{count} per step, ") for text in finding.evidence)


def test_products_beside_the_tensor_cores_are_a_warning():
    beside = partial(multiplies_in_32_bits, name=SGEMM)
    (finding,) = find_in_trace(made(beside, faulty=True, **GPU).summary())
    assert (finding.rule, finding.severity, finding.cost_ns_per_step) == ("fp32_where_bf16_fits", "warning", 498 * US)


def test_a_straggler_is_a_finding_on_the_ranks_together(tmp_path):
    late = two_ranks(tmp_path / "late", 100 * US)
    even = two_ranks(tmp_path / "even", 0)
    (finding,) = find_in_ranks(late)
    assert (finding.rule, finding.cost_ns_per_step) == ("straggler", 100 * US)
    assert "rank 1" in finding.claim
    assert "rank 1" in finding.advice
    assert find_in_ranks(even) == []
    traces = tuple(replace(entry, unprofiled_step_ns=MS // 10) for entry in late.traces)
    (unpriced,) = find_in_ranks(replace(late, traces=traces))
    assert (unpriced.cost_ns_per_step, unpriced.severity) == (None, "info")
    assert unpriced.profile_slower == pytest.approx(10)
    later = replace(late.ranks, straggler=replace(late.ranks.straggler, delay_ns=3 * 900 * US))
    alone = [replace(entry, overview=replace(entry.overview, exposed_wait_ns=None)) for entry in late.traces]
    traces = tuple(replace(entry, unprofiled_step_ns=600 * US, step_kinds=()) for entry in alone)
    (bounded,) = find_in_ranks(replace(late, ranks=later, traces=traces))
    assert (bounded.cost_ns_per_step, bounded.cost_share) == (600 * US, 1.0)
    filled = with_trace_findings(late)
    assert [item.rule for item in filled.ranks.findings] == ["straggler"]


def test_upper_bounds_of_what_the_gpu_does_and_severity_comes_before_them():
    """Three steps of 10 ms, most of it in 32-bit matrix products, and 2 ms of communication."""
    parts = {"compute": 21 * MS, "exposed_memory": 0, "exposed_comm": 6 * MS, "idle_host": 3 * MS}
    entry = {
        "device": 0,
        "gpu_busy_pct": 90.0,
        "overview": {"kind": "gpu", "steps": 3, "window_ns": 30 * MS, "parts_ns": parts},
        "precision": {"kernel_ns": {"bits32": 24 * MS}, "tensor_core_eligible_ns": 24 * MS},
    }
    bounds = [("fp32_where_bf16_fits", "warning", 7 * MS), ("exposed_communication", "warning", 2 * MS)]
    assert figures_of(fill(TraceSummary, entry)) == bounds
    waits = {"input": {"share": 0.21, "wait_ns": 6 * MS, "counted_ns": 6 * MS, "waits": 3}}
    assert figures_of(fill(TraceSummary, entry | waits)) == [("input_bound", "high", 2 * MS), *bounds]


def figures_of(entry: TraceSummary) -> list[tuple[str, str, int | None]]:
    return [(item.rule, item.severity, item.cost_ns_per_step) for item in find_in_trace(entry)]


def test_a_wait_whose_end_lets_the_host_run_ahead_costs_no_less_than_its_removal_saves():
    program = [("python", 500_000), ("kernel", 2 * MS), ("kernel", 20_000), ("item", 10)]
    really = (time_of(program) - time_of(without(program, 10))) // 3
    (finding,) = [item for item in find_in_trace(simulate(program).summary()) if item.rule == "sync_bound"]
    assert 344_000 == really <= finding.cost_ns_per_step < 1.01 * really


def test_a_cost_is_a_share_of_the_step():
    entry = made(copies_alone, faulty=True).summary()
    (finding,) = find_in_trace(entry)
    assert finding.cost_ns_per_step == 100 * US
    assert finding.cost_share == pytest.approx(0.1, rel=0.01)


def test_a_trace_without_steps_is_looked_at_as_a_whole():
    builder = TraceBuilder()
    for k in range(3):
        copies_alone(builder, k * MS, True)
    entry = builder.summary()
    (finding,) = find_in_trace(entry)
    assert (finding.rule, finding.cost_ns_per_step) == ("copy_bound", None)
    assert finding.cost_share == pytest.approx(0.1, rel=0.01)
    assert any("in the whole trace" in line for line in finding.evidence)


def test_what_was_not_measured_fires_nothing():
    builder = TraceBuilder()
    for k in range(3):
        builder.step(k, k * MS, MS)
        builder.op("aten::add", k * MS + US, MS // 2)
    entry = builder.summary()
    assert fired(entry) == []
    assert entry.host_gaps is None
    kept = ("path", "quality", "overview", "window_ns", "device")
    assert fired(fill(TraceSummary, {key: value for key, value in plain(entry).items() if key in kept})) == []


def test_gloo_on_a_host_counts_as_communication():
    builder = TraceBuilder()
    for k in range(3):
        builder.step(k, k * MS, MS)
        builder.op("aten::mm", k * MS + US, 700 * US)
        args = {"External id": builder.number(), "Input Dims": [[10**6]], "Input type": ["float"]}
        builder.add("user_annotation", "gloo:all_reduce", k * MS + 705 * US, 200 * US, tid=LOADER, args=args)
    entry = builder.summary()
    (finding,) = find_in_trace(entry)
    assert (finding.rule, finding.cost_ns_per_step) == ("exposed_communication", 200 * US)
    builder.events = [event for event in builder.events if event["cat"] != "cpu_op"]
    entry = builder.summary()  # now nothing says what was computed meanwhile
    assert (entry.all_reduce.measured_ns, entry.all_reduce.exposed_ns) == (600 * US, None)
    assert entry.collectives.by_name[0].exposed_ns is None
    assert fired(entry) == []


@pytest.mark.parametrize(("slower", "priced"), [(1.9, True), (10.0, False)])
def test_costs_of_a_profile_far_slower_than_the_step_are_not_given(slower, *, priced):
    entry = made(launches_little_work, faulty=True).summary()
    whole = entry.overview
    assert whole.steps
    entry = replace(entry, unprofiled_step_ns=round(whole.window_ns / whole.steps / slower))
    (finding,) = [item for item in find_in_trace(entry) if item.rule == "host_bound"]
    assert (finding.cost_ns_per_step is not None) == priced
    assert finding.profile_slower == (None if priced else pytest.approx(slower))


def test_waits_of_unprofiled_steps_keep_their_cost_however_slow_the_profile():
    waits = {"share": 0.53, "unprofiled_wait_ns": 53 * MS, "unprofiled_step_ns": 100 * MS, "wait_ns": 1, "window_ns": 9}
    entry = {"profiled_over_unprofiled": 23.0, "unprofiled_step_ns": 20 * MS, "unprofiled_mean_ns": 100 * MS}
    kinds = [{"kind": "usual", "steps": 7, "of": 8}, {"kind": "other", "steps": 1, "of": 8}]
    overview = {"kind": "host", "steps": 3, "window_ns": 900 * MS, "step_ns": 300.0 * MS}
    made = fill(TraceSummary, entry | {"input": waits, "step_kinds": kinds, "overview": overview})
    (finding,) = find_in_trace(made)
    assert (finding.rule, finding.severity) == ("input_bound", "high")
    assert (finding.cost_ns_per_step, finding.cost_share) == (53 * MS, 0.53)


@pytest.mark.parametrize(("runtime", "module"), [("xpu", "torch.xpu"), ("cuda", "torch.cuda"), ("npu", "torch.npu")])
@pytest.mark.parametrize("step", [launches_little_work, pauses_between_kernels])
def test_advice_is_for_the_device_that_the_trace_is_of(step, runtime, module):
    builder = made(step, faulty=True, **GPU)
    # Of a runtime of which no call is known to wait, nobody knows why the device was idle.
    builder.call("cudaDeviceSynchronize", round(max(event["ts"] + event.get("dur", 0) for event in builder.events)), 1)
    for event in builder.events:
        event["cat"] = event["cat"].replace("cuda_", f"{runtime}_")
    entry = builder.summary()
    assert entry.device_module == module
    found = find_in_trace(entry)
    assert found
    assert all(("CUDA" in finding.advice) == (runtime == "cuda") for finding in found)
