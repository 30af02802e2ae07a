"""What findings on a trace advise: what the recorded GPU can do, what fills the gaps, what is wrong with the trace."""

import functools
import re
from typing import Any

import pytest
from msgspec.structs import replace

from builders import TraceBuilder
from documents import fill
from figures import figures_in
from findings.fixtures.fp32_where_bf16_fits import SGEMM, TF32
from findings.steps import MS, NCCL, US
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.findings import Finding, find_in_trace, with_trace_findings
from steptrace.findings.headline import cautions_of
from steptrace.findings.recommended import recommended
from steptrace.findings.window import window_of
from steptrace.report.trace.answer import answer


def by_rule(entry: TraceSummary, rule: str) -> list[Finding]:
    return [finding for finding in find_in_trace(entry) if finding.rule == rule]


def multiplying(name: str, **gpu: Any) -> TraceBuilder:
    builder = TraceBuilder(deviceProperties=[{"id": 0, "name": "made", **gpu}])
    for k in range(3):
        builder.step(k, k * MS, MS)
        builder.kernel(k * MS + US, k * MS + 3 * US, 900 * US, name)
    return builder


@functools.cache
def multiplied(name: str) -> TraceSummary:
    return multiplying(name).summary()


@pytest.mark.parametrize("kernel", [SGEMM, TF32])
@pytest.mark.parametrize(
    ("gpu", "contains", "lacks"),
    [
        ({"computeMajor": 7, "warpSize": 32}, "fp16 autocast with a gradient scaler", "bf16 autocast"),
        ({"computeMajor": 8, "warpSize": 32}, "bf16 autocast", "fp16"),
        ({}, "before Ampere", "This GPU"),
        ({"computeMajor": 9, "warpSize": 64}, "before Ampere", "This GPU"),  # AMD's number says nothing of NVIDIA's
    ],
)
def test_advice_on_formats_fits_the_gpu(kernel, gpu, contains, lacks):
    major = multiplying(kernel, **gpu).trace().meta.compute_major(0)
    (finding,) = by_rule(replace(multiplied(kernel), compute_major=major), "fp32_where_bf16_fits")
    assert contains in finding.advice
    assert lacks not in finding.advice
    assert ("allow TF32" in finding.advice) == (kernel == SGEMM and gpu == {"computeMajor": 8, "warpSize": 32})


def test_a_gpu_without_tensor_cores_loses_none_of_their_gain():
    costs = {}
    for major in (6, 7):
        gpu = {"computeMajor": major, "warpSize": 32}
        (finding,) = by_rule(multiplying(SGEMM, **gpu).summary(), "fp32_where_bf16_fits")
        costs[major] = finding.cost_ns_per_step
        assert finding.severity == ("info" if major == 6 else "warning")
    assert costs[6] == costs[7] / 2


def waiting(call: str, length: int, *, steps: bool = True) -> TraceBuilder:
    """Three steps whose first begins with one call, the kernels a while after it."""
    builder = TraceBuilder()
    for k in range(3):
        ts = k * MS
        if steps:
            builder.step(k, ts, MS)
        if k == 0:
            builder.call(call, ts + 10 * US, length)
        builder.op("aten::add", ts + 549 * US, 50 * US)
        builder.kernel(ts + 550 * US, ts + 553 * US, 440 * US, "triton_poi_fused_0")
    return builder


def test_a_long_first_call_is_named_and_so_is_the_gap_before_the_first_work():
    builder = waiting("cudaFree", 530 * US)
    for k in (1, 2):  # nothing else to wait for
        builder.kernel(k * MS - 5 * US, k * MS, 540 * US, "triton_poi_fused_0")
    (finding,) = by_rule(builder.summary(), "host_bound")
    first = finding.figures["gaps"][0]
    assert (first["where"], first["dur"]) == ("before", 553 * US)
    assert (first["calls"][0]["name"], first["calls"][0]["ns"]) == ("cudaFree", 530 * US)
    assert finding.figures["remedy"] == "first_calls"


def test_gaps_without_a_call_are_named_by_what_ends_them():
    (finding,) = by_rule(waiting("cudaFree", US).summary(), "host_bound")
    places = [(gap["where"], gap["op"]) for gap in finding.figures["gaps"]]
    assert places == [("between", "aten::add"), ("between", "aten::add"), ("before", None)]
    alike, first = finding.evidence[3:]
    assert [part for part in ("2 gaps", "560 µs", "aten::add") if part not in alike] == []
    assert "553 µs" in first


def test_one_long_gap_is_looked_at_though_all_kernels_are_short():
    builder = TraceBuilder()
    builder.step(0, 0, 4 * MS)
    for k in range(50):
        at = k * 20 * US + (3 * MS if k >= 25 else 0)
        builder.op("aten::add", at + US, 14 * US)
        builder.kernel(at + 14 * US, at + 15 * US, 4 * US, "triton_poi_fused_0")
    (finding,) = by_rule(builder.summary(), "host_bound")
    assert finding.advice.startswith("Look at the longest gaps")


@pytest.mark.parametrize(
    ("op", "call", "most", "advice"),
    [
        (2, 1, "outside operators", "Let less Python run"),
        (14, 1, "in operators", "Call fewer operators"),
        (14, 12, "in calls into the GPU's runtime", "Launch less"),
    ],
)
def test_the_advice_on_a_slow_host_follows_what_it_does_most(op, call, most, advice):
    """Every 20 µs a kernel of 4 µs: of the 16 µs before it `op` in an operator, of which `call` in the launch."""
    builder = TraceBuilder()
    for k in range(150):
        at = k * 20 * US
        if k % 50 == 0:
            builder.step(k // 50, at, MS)
        builder.op("aten::add", at + (15 - op) * US, op * US)
        launch = builder.call("cudaLaunchKernel", at + (15 - call) * US, call * US)
        builder.gpu("triton_poi_fused_0", at + 15 * US, 4 * US, launch)
    entry = builder.summary()
    (finding,) = [row for row in find_in_trace(entry) if row.rule.endswith("_bound")]
    assert finding.figures["most_share"] == pytest.approx(0.8, abs=0.005)
    assert figures_in(finding.claim)[0] == 80
    assert finding.claim.endswith(f"mostly while the host is {most}")
    assert re.match(rf"the host meanwhile: [\d.]+ [mµ]s {most},", finding.evidence[1])
    assert finding.advice.startswith(advice)
    gaps = entry.host_gaps
    assert (gaps.call_ns, gaps.op_ns) == (150 * call * US, 150 * (op - call) * US)


def launching(*, kernel: int, frames: bool = False) -> TraceBuilder:
    """Three steps of 1 ms: every 20 µs a kernel of so many µs, each tenth an all-reduce."""
    builder = TraceBuilder()
    for k in range(150):
        at = k * 20 * US
        if k % 50 == 0:
            builder.step(k // 50, at, MS)
            if frames:
                builder.frame("train.py(9): step", at, MS)
        builder.op("aten::add", at + US, 3 * US)
        launch = builder.call("cudaLaunchKernel", at + 3 * US, US)
        builder.gpu(NCCL if k % 10 == 0 else "triton_poi_fused_0", at + 4 * US, kernel * US, launch)
    return builder


def test_what_is_not_on_the_critical_path_saves_nothing_and_is_no_finding():
    entry = launching(kernel=8).summary()
    (host,) = find_in_trace(entry)  # none on the all-reduces, which computation does not hide
    assert (host.rule, host.severity) == ("host_bound", "high")


def test_work_of_a_gpu_that_seldom_waits_keeps_its_cost():
    (reduces,) = by_rule(launching(kernel=14).summary(), "exposed_communication")
    assert reduces.cost_ns_per_step == 5 * 14 * US


def test_with_python_stacks_the_advice_is_to_profile_without_them_first():
    """The profiler may be why the host is slow; where an unprofiled step time is recorded, it says by how much."""
    entry = launching(kernel=8, frames=True).summary()
    (host,) = find_in_trace(entry)  # none on GPU work: its cost is not known
    assert host.severity == "info"
    assert host.figures["slowed_by_stacks"]
    assert "with_stack=False" in host.advice
    (timed,) = find_in_trace(replace(entry, unprofiled_step_ns=MS))
    assert timed.severity == "high"
    assert not timed.figures["slowed_by_stacks"]
    assert "with_stack=False" not in timed.advice


def test_idle_time_that_the_profiler_added_is_none_of_an_unprofiled_step():
    """The GPU works 400 us of the profiled 1 ms: an unprofiled step of 600 us has 200 us to gain, not 600."""
    entry = launching(kernel=8).summary()
    (profiled,) = by_rule(entry, "host_bound")
    assert figures_in(profiled.claim)[0] == 60
    (timed,) = by_rule(replace(entry, unprofiled_step_ns=600 * US), "host_bound")
    assert timed.cost_ns_per_step == pytest.approx(200 * US, rel=0.05)
    assert timed.cost_share == pytest.approx(1 / 3, rel=0.05)
    # One share names the step, sets the severity and is the cost: of a step without the profiler.
    assert timed.severity == "warning"
    assert figures_in(timed.claim)[:2] == [33, 60]  # of an unprofiled step, and of a profiled one
    assert any(figures_in(line)[:1] == [600] for line in timed.evidence)
    busy = launching(kernel=14).summary()
    assert by_rule(busy, "host_bound")
    assert not by_rule(replace(busy, unprofiled_step_ns=707 * US), "host_bound")  # all of it is the profiler's
    (quick,) = by_rule(replace(entry, unprofiled_step_ns=2 * MS), "host_bound")
    assert quick.cost_ns_per_step == profiled.cost_ns_per_step


@pytest.mark.parametrize(
    ("idle", "severity", "name"),
    [
        (0.09, "info", "slightly"),
        (0.16, "warning", "partly"),
        (0.49, "warning", "partly"),
        (0.51, "high", "host-bound"),
    ],
)
def test_host_bound_has_one_definition_and_a_name_for_each_severity(idle, severity, name):
    builder = TraceBuilder()
    for k in range(3):
        at = round((k + idle) * 10 * MS)
        builder.step(k, k * 10 * MS, 10 * MS)
        builder.kernel(at - 2 * US, at, (k + 1) * 10 * MS - at)
    entry = builder.summary()
    assert entry.gpu_busy_pct == pytest.approx(100 - 100 * idle, abs=0.2)
    (finding,) = by_rule(entry, "host_bound")
    assert (finding.severity, finding.claim.split(" ")[0].strip(":")) == (severity, name)
    assert window_of(entry).host_bound == (severity == "high")


def waiting_for(ceiling_ns: int) -> TraceSummary:
    """A step of 10 ms with one sync that costs at most so much."""
    site = {"file": "a.py", "line": 1, "count": 1, "blocked_ns": 9 * MS, "ceiling_ns": ceiling_ns}
    overview = {"kind": "gpu", "steps": 1, "window_ns": 10 * MS, "parts_ns": {"compute": 10 * MS, "exposed_comm": 0}}
    return fill(TraceSummary, {"syncs": {"sites": [site]}, "overview": overview, "step_kinds": []})


@pytest.mark.parametrize(("ceiling_ns", "listed"), [(0, False), (99 * US, False), (101 * US, True)])
def test_what_saves_less_than_a_hundredth_of_a_step_is_no_finding(ceiling_ns, *, listed):
    assert bool(by_rule(waiting_for(ceiling_ns), "sync_bound")) == listed


def test_nothing_saves_more_than_an_unprofiled_step_takes():
    entry = waiting_for(9 * MS)
    (profiled,) = by_rule(entry, "sync_bound")
    assert (profiled.cost_ns_per_step, profiled.cost_share) == (9 * MS, 0.9)
    (bounded,) = by_rule(replace(entry, unprofiled_step_ns=7 * MS), "sync_bound")
    assert (bounded.cost_ns_per_step, bounded.cost_share) == (7 * MS, 1.0)


def test_a_trace_of_one_step_has_a_caution_and_no_finding():
    """`--profile 1` leaves a trace of one step, which is a caution and nothing to change in the program."""
    builder = TraceBuilder()
    builder.step(0, 0, MS)
    builder.kernel(0, 0, MS)
    summary = with_trace_findings(Summary(warnings=(), traces=(builder.summary(),)))
    assert summary.traces[0].findings == ()
    assert not [line for line in answer(summary) if line.look == "first"]
    assert [one.code for one in cautions_of(summary.traces[0])] == ["few_steps"]


def test_what_costs_most_is_recommended_first_whatever_its_severity():
    """A sync is severe from 5 % of the step on, a slow host a warning at 60 %."""
    sync = fill(Finding, {"rule": "sync_bound", "severity": "high", "cost_ns_per_step": 60})
    host = fill(Finding, {"rule": "host_bound", "severity": "warning", "cost_ns_per_step": 600})
    error = fill(Finding, {"rule": "failed_run", "severity": "high"})
    assert recommended([error, sync, host]) == [error, host, sync]


def test_a_sync_outside_of_functions_is_named_by_its_file():
    builder = TraceBuilder()
    for k in range(3):
        at = k * MS
        builder.step(k, at, MS)
        builder.frame("train.py(1): <module>", at, MS)
        builder.kernel(at + US, at + 2 * US, 400 * US)
        builder.item(at + 10 * US, 390 * US, at + 402 * US)
        builder.kernel(at + 600 * US, at + 602 * US, 390 * US)
    (sync,) = by_rule(builder.summary(), "sync_bound")
    assert "train.py" in sync.claim
    assert sync.source is None


def test_one_long_call_among_many_short_kernels_is_no_matter_of_launches():
    builder = TraceBuilder()
    for k in range(150):
        at = k * 12 * US
        if k % 50 == 0:
            builder.step(k // 50, at, 600 * US)
        if not 50 <= k < 90:
            builder.gpu("triton_poi_fused_0", at + 2 * US, 9 * US, builder.call("cudaLaunchKernel", at, US))
    builder.call("cudaMalloc", 600 * US, 475 * US)
    (finding,) = [row for row in find_in_trace(builder.summary()) if row.rule.endswith("_bound")]
    assert finding.rule == "host_bound"
    assert any("475 µs in cudaMalloc" in line for line in finding.evidence)


def test_what_tells_training_from_a_forward_pass():
    forward, labelled, graph = (TraceBuilder() for _ in range(3))
    for builder in (forward, labelled, graph):
        builder.op("aten::mm", US, US)
    labelled.label("Optimizer.step#SGD.step", 3 * US, US)
    graph.call("cudaGraphLaunch", 3 * US, US)
    assert [builder.summary().training for builder in (forward, labelled, graph)] == [False, True, None]
    bare = TraceBuilder()
    bare.call("cudaLaunchKernel", US, US)
    assert bare.summary().training is None


def test_without_steps_the_time_beside_the_gpus_work_is_named_but_counts_for_nothing():
    entry = waiting("cudaFree", 530 * US, steps=False).summary()
    assert (entry.host_gaps.gap_ns, entry.host_gaps.long_call_ns) == (2 * 560 * US, 0)
    (finding,) = by_rule(entry, "host_bound")
    (first,) = (gap for gap in finding.figures["gaps"] if gap["where"] == "before")
    assert (first["calls"][0]["name"], first["calls"][0]["ns"]) == ("cudaFree", 530 * US)


def test_places_that_cost_together_are_named_with_one_figure():
    sites = [
        {"file": "a.py", "line": n, "count": 3, "blocked_ns": 3 * n * US, "exposed_idle_ns": 0, "ceiling_ns": 0}
        for n in (10, 20, 30, 40)
    ]  # fmt: skip
    parts = {"compute": 30 * MS, "exposed_memory": 0, "exposed_comm": 0, "idle_sync": 0}
    entry = {
        "syncs": {"sites": sites, "ceiling_ns": 6 * MS},
        "overview": {"kind": "gpu", "steps": 3, "window_ns": 30 * MS, "parts_ns": parts},
    }
    (finding,) = find_in_trace(fill(TraceSummary, entry))
    assert (finding.rule, finding.cost_ns_per_step) == ("syncs_together", 2 * MS)
    assert (finding.figures["sites"], finding.figures["places"]) == (4, 4)
    assert re.findall(r"a\.py:\d+", finding.claim) == ["a.py:40", "a.py:30", "a.py:20"]  # the costliest
    assert (figures_in(finding.claim)[0], figures_in(finding.claim)[-1]) == (4, 1)  # all, and those that are not named
