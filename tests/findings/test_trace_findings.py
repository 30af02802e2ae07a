"""Every rule on traces fires on a trace made for it, and stays silent on the same trace with the fault repaired.

A step lasts 1 ms. Unless a case says otherwise one long kernel keeps the GPU busy for nearly all of it.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders import LOADER, PAGEABLE_H2D, PINNED_H2D, TraceBuilder
from documents import fill, plain
from simulated import simulate, time_of, without
from steptrace.analysis import summarize
from steptrace.document_schemas import rule_table, with_table
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.findings import RANK_RULES, STUDY_RULES, TRACE_RULES, find_in_ranks, find_in_trace, with_trace_findings
from steptrace.findings.rule import WORDS

US, MS = 1_000, 1_000_000
WORK = "triton_poi_fused_0"  # its name tells no number format
SGEMM = "volta_sgemm_128x64_nn"
TF32 = "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel_cutlass"
BF16 = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

#: What makes one step, from its first instant; whether it has the fault.
Step = Callable[[TraceBuilder, int, bool], None]


def made(step: Step, *, faulty: bool, steps: int = 3, **metadata: Any) -> TraceBuilder:
    builder = TraceBuilder(**metadata)
    for k in range(steps):
        builder.step(k, k * MS, MS)
        step(builder, k * MS, faulty)
    return builder


def work(builder: TraceBuilder, at: int, until: int, *, launched: int | None = None, name: str = WORK) -> None:
    """A kernel from `at` to `until`, launched a microsecond before if not said otherwise."""
    builder.kernel(at - US if launched is None else launched, at, until - at, name)


def busy(builder: TraceBuilder, ts: int) -> None:
    work(builder, ts + 2 * US, ts + MS - US)


def waits_for_data(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    wait = 100 * US if bad else 20 * US
    builder.label("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", ts, wait)
    work(builder, ts + wait + 2 * US, ts + MS)


def reads_a_value(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    work(builder, ts + 2 * US, ts + 500 * US)
    builder.frame("loss.py(12): loss", ts + 10 * US, 500 * US)
    builder.op("aten::item", ts + 10 * US, 500 * US)
    if not bad:  # the next work is queued before
        work(builder, ts + 502 * US, ts + MS, launched=ts + 8 * US)
    builder.item(ts + 11 * US, 490 * US, ts + 501 * US)
    if bad:
        work(builder, ts + 580 * US, ts + MS, launched=ts + 560 * US)


def reads_two_values(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    work(builder, ts + 2 * US, ts + 500 * US)
    for line, start, wait in ((12, 10, 489), (20, 503, 1)):
        builder.frame(f"loss.py({line}): loss{line}", ts + start * US, (wait + 3) * US)
        if bad or line == 20:
            builder.item(ts + start * US, wait * US, ts + (500 if line == 12 else 504) * US)
    if bad:
        work(builder, ts + 600 * US, ts + MS, launched=ts + 580 * US)
    else:
        work(builder, ts + 510 * US, ts + MS, launched=ts + 508 * US)


def launches_little_work(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    for k in range(49):
        at = ts + (20 * k + 15) * US
        builder.op("aten::add", at - 15 * US, 17 * US)
        if bad:
            builder.gpu(WORK, at, 4 * US, builder.call("cudaLaunchKernel", at - 13 * US, 12 * US))
        else:
            work(builder, at, at + 19_900, launched=ts + k * US // 2)


def pauses_between_kernels(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    pause = 1_700 if bad else 200
    for k in range(41):
        at = ts + (10 + 24 * k) * US
        work(builder, at + pause, at + 24 * US, launched=ts + k * US // 2)


def computes_on_the_host(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    at = ts + (150 if bad else 10) * US
    work(builder, at, ts + MS - 10 * US)


def copies_alone(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    correlation = builder.call("cudaMemcpyAsync", ts + US, US)
    builder.gpu(PINNED_H2D, ts + 2 * US, 100 * US, correlation, stream=7 if bad else 13, bytes=10**6)
    work(builder, ts + (103 if bad else 5) * US, ts + MS, launched=ts + 3 * US)


def copies_pageable(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    correlation = builder.call("cudaMemcpyAsync", ts + US, US)
    builder.gpu(PAGEABLE_H2D if bad else PINNED_H2D, ts + 2 * US, 30 * US, correlation, bytes=10**5)
    work(builder, ts + 33 * US, ts + MS, launched=ts + 3 * US)


def multiplies_in_32_bits(builder: TraceBuilder, ts: int, bad: bool, name: str = TF32) -> None:  # noqa: FBT001
    work(builder, ts + 2 * US, ts + 500 * US, name=name if bad else BF16)
    work(builder, ts + 501 * US, ts + MS, launched=ts + 4 * US)


def allocates(builder: TraceBuilder, ts: int, size: int) -> None:
    builder.kernel(ts + US, ts + 2 * US, MS - 3 * US, WORK, **{"blocks per SM": 10.0 if size > 800 else 0.2})
    args = {"Device Type": 1, "Device Id": 0, "Addr": ts + 1, "Total Reserved": size}
    for at, change in ((ts + 20 * US, size), (ts + 900 * US, -size)):
        event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 100, "ts": at / 1000}
        left = {"Bytes": change, "Total Allocated": max(change, 0)}
        builder.events.append({**event, "s": "t", "args": {**args, **left}})


def leaves_memory_and_gpu_unused(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    allocates(builder, ts, 400 if bad else 600)


def communicates(builder: TraceBuilder, at: int, until: int, elements: int, launched: int) -> None:
    sizes = {"In msg nelems": elements, "Out msg nelems": elements, "dtype": "Float", "Collective name": "allreduce"}
    builder.kernel(launched, at, until - at, NCCL, stream=20, **sizes)


def communicates_alone(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    end = 820 if bad else 990
    work(builder, ts + 2 * US, ts + end * US)
    communicates(builder, ts + 700 * US, ts + 990 * US, 10**7, ts + 5 * US)


def communicates_at_the_end(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    work(builder, ts + 2 * US, ts + (900 if bad else 985) * US)
    communicates(builder, ts + (901 if bad else 850) * US, ts + 990 * US, 10**7, ts + 5 * US)


def communicates_in_bits(builder: TraceBuilder, ts: int, bad: bool) -> None:  # noqa: FBT001
    work(builder, ts + 2 * US, ts + 940 * US)
    for k in range(8):
        at = ts + (903 + k * 11) * US
        communicates(builder, at, at + 10 * US, 10**4 if bad else 10**6, ts + (5 + 2 * k) * US)


GPU = {"deviceProperties": [{"id": 0, "name": "made", "totalGlobalMem": 1000, "numSms": 10}]}

#: rule -> what makes a step. A fault may only set off its own rule.
CASES: dict[str, Step] = {
    "input_bound": waits_for_data,
    "sync_bound": reads_a_value,
    "syncs_together": reads_two_values,
    "host_bound": computes_on_the_host,
    "kernel_gaps": pauses_between_kernels,
    "copy_bound": copies_alone,
    "pageable_copies": copies_pageable,
    "fp32_where_bf16_fits": multiplies_in_32_bits,
    "unused_memory": leaves_memory_and_gpu_unused,
    "exposed_communication": communicates_alone,
}


def fired(entry: TraceSummary) -> list[str]:
    return [finding.rule for finding in find_in_trace(entry)]


@pytest.mark.parametrize("rule", CASES)
def test_rule_fires_on_its_trace_and_its_repaired_twin_is_silent(rule):
    faulty = made(CASES[rule], faulty=True, **GPU).summary()
    assert fired(faulty) == [rule]
    (finding,) = find_in_trace(faulty)
    assert finding.claim
    assert finding.evidence
    assert finding.advice
    assert finding.counter_check
    assert finding.basis
    assert fired(made(CASES[rule], faulty=False, **GPU).summary()) == []


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        (communicates_alone, "Send fewer bytes"),
        (communicates_at_the_end, "The all-reduces run after the computation"),
        (communicates_in_bits, "The all-reduces are small"),
    ],
)
def test_the_advice_on_communication_follows_its_cause(step, advice):
    (finding,) = find_in_trace(made(step, faulty=True, **GPU).summary())
    assert finding.rule == "exposed_communication"
    assert finding.advice.startswith(advice)
    count = "8 all-reduces" if step is communicates_in_bits else "1 all-reduce"
    assert any(text.startswith(f"{count} per step, ") for text in finding.evidence)


def test_products_beside_the_tensor_cores_are_a_warning():
    beside = partial(multiplies_in_32_bits, name=SGEMM)
    (finding,) = find_in_trace(made(beside, faulty=True, **GPU).summary())
    assert (finding.rule, finding.severity, finding.cost_ns_per_step) == ("fp32_where_bf16_fits", "warning", 498 * US)


#: Rules that need another number of traces or steps, sizes of inputs, or figures that no trace holds.
OTHERS = {"slow_kernels", "straggler", "uneven_ranks"}


def test_every_rule_has_a_case_and_says_where_it_comes_from():
    rules = (*TRACE_RULES, *RANK_RULES)
    assert {rule.name for rule in rules} == set(CASES) | OTHERS
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.condition and rule.basis for rule in rules)


def two_ranks(folder: Path, late: int) -> Summary:
    """Two ranks of three steps; rank 1 comes to every second of two all-reduces of a step late."""
    for rank in (0, 1):
        builder = TraceBuilder(distributedInfo={"rank": rank, "world_size": 2, "backend": "nccl"})
        for k in range(3):
            ts = k * MS
            builder.step(k, ts, MS)
            comes = 600 * US + late * rank
            work(builder, ts + 2 * US, ts + comes - 2 * US)
            communicates(builder, ts + comes, ts + 800 * US, 10**6, ts + 5 * US)
            communicates(builder, ts + 850 * US, ts + 900 * US, 10**6, ts + 7 * US)
            work(builder, ts + 901 * US, ts + MS, launched=ts + 8 * US)
        builder.write(folder / f"rank{rank}.json")
    return summarize([folder])[0]


def test_a_straggler_is_a_finding_on_the_ranks_together(tmp_path):
    late, even = two_ranks(tmp_path / "late", 100 * US), two_ranks(tmp_path / "even", 0)
    (finding,) = find_in_ranks(late)
    assert (finding.rule, finding.cost_ns_per_step) == ("straggler", 100 * US)
    assert "rank 1" in finding.claim
    assert finding.advice.startswith("Compare rank 1's trace with another's")
    assert find_in_ranks(even) == []
    traces = tuple(replace(entry, unprofiled_step_ns=MS // 10) for entry in late.traces)
    (unpriced,) = find_in_ranks(replace(late, traces=traces))
    assert (unpriced.cost_ns_per_step, unpriced.severity) == (None, "info")
    assert "in a profile that takes 10.0 times as long as the step itself" in unpriced.claim
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


ROOT = Path(__file__).parents[2]


def test_the_documented_rules_are_the_rules():
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    assert with_table(text, "rules", rule_table()) == text, "python -m steptrace.document_schemas docs"
    assert text.count("| `sync_bound` |") == 1


def test_every_word_of_rules_toml_is_used_and_every_case_is_known():
    """A case that no module names, or a threshold that is not given, would never be seen."""
    rules = {rule.name: rule for rule in (*STUDY_RULES, *TRACE_RULES, *RANK_RULES)}
    assert set(WORDS) == set(rules)
    assert not any("{" in rule.condition + rule.basis for rule in rules.values())


def test_the_studies_that_demonstrate_rules_exist():
    named = {rule.study for rule in (*STUDY_RULES, *TRACE_RULES, *RANK_RULES)} - {None}
    assert named <= {path.stem for path in (ROOT / "config" / "study").glob("*.yaml")}


@pytest.mark.parametrize(("slower", "priced"), [(1.9, True), (10.0, False)])
def test_costs_of_a_profile_far_slower_than_the_step_are_not_given(slower, *, priced):
    entry = made(launches_little_work, faulty=True).summary()
    whole = entry.overview
    assert whole.steps
    entry = replace(entry, unprofiled_step_ns=round(whole.window_ns / whole.steps / slower))
    (finding,) = [item for item in find_in_trace(entry) if item.rule == "host_bound"]
    assert (finding.cost_ns_per_step is not None) == priced
    assert ("in a profile that takes 10.0 times as long" in finding.claim) != priced


def test_waits_of_unprofiled_steps_keep_their_cost_however_slow_the_profile():
    waits = {"share": 0.53, "unprofiled_wait_ns": 53 * MS, "unprofiled_step_ns": 100 * MS, "wait_ns": 1, "window_ns": 9}
    entry = {"profiled_over_unprofiled": 23.0, "unprofiled_step_ns": 20 * MS, "unprofiled_mean_ns": 100 * MS}
    kinds = [{"kind": "usual", "steps": 7, "of": 8}, {"kind": "other", "steps": 1, "of": 8}]
    overview = {"kind": "host", "steps": 3, "window_ns": 900 * MS, "step_ns": 300.0 * MS}
    made = fill(TraceSummary, entry | {"input": waits, "step_kinds": kinds, "overview": overview})
    (finding,) = find_in_trace(made)
    assert (finding.rule, finding.severity) == ("input_bound", "high")
    assert (finding.cost_ns_per_step, finding.cost_share) == (53 * MS, 0.53)
