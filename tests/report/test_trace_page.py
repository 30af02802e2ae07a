import html
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders import TraceBuilder, training_step
from documents import an_estimate, fill
from steptrace.documents.base import columns_of
from steptrace.documents.estimate import Estimate
from steptrace.documents.kernels import Sequence, SequenceEntry
from steptrace.documents.prediction import PredictedStep
from steptrace.documents.program import LineTime
from steptrace.documents.quality import QualityCheck
from steptrace.documents.subject import subjects_of
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.errors import RecordError
from steptrace.findings import with_trace_findings
from steptrace.report.page.parts import cell, listing
from steptrace.report.trace import page as trace_page
from steptrace.report.trace.words import headline, in_words, trace_views

Json = dict[str, Any]


_PER_LAUNCH = ("host_ns", "device_ns", "delay_ns", "queueing_ns", "dependency_ns", "latency_ns")
_FLAGS = {"short_kernels": 2, "slow_launches": 1, "excess_delays": 0}
_ROW = {"count": 40, "activities": 41, "kind": "graph", **dict.fromkeys(_PER_LAUNCH, 9_000), **_FLAGS}
LAUNCHES: Json = {
    "count": 40, "activities": 41, "unlinked": 1, **_FLAGS,
    **{name: {"sum": 9_000, "median": 200.0, "p95": 300.0, "max": 400} for name in _PER_LAUNCH},
    "by_call": [{"call": "cudaGraphLaunch", **_ROW}],
}  # fmt: skip


def trace(**changes: object) -> Json:
    step = {"compute_ns": 6_000_000, "exposed_comm_ns": 0, "exposed_memory_ns": 1_000_000, "idle_ns": 3_000_000}
    raw: Json = {
        "path": "traces/<b>mine</b>.json.gz",
        "sha256": "ab" * 32,
        "rank": 0,
        "device": 0,
        "device_name": "NVIDIA H200",
        "quality": {
            "steps": 2, "launch_coverage": 0.98, "warnings": ["a <i>warning</i>"],
            "checks": [
                {"check": "steps_marked", "wrong": 0, "of": 1, "warns": False, "says": "2 steps"},
                {"check": "linked_to_launch", "wrong": 1, "of": 42, "warns": True, "says": "1 of 42 lost"},
            ],
        },
        "gpu": {**{k: 2 * v for k, v in step.items()}, "activities": 42, "span_ns": 20_000_000, "overlap_pct": None},
        "gpu_busy_pct": 70.0,
        "sm_weighted_pct": 41.0,
        "overview": {
            "kind": "gpu", "steps": 2, "window_ns": 20_000_000, "step_ns": 10e6,
            "operators": [],
            "parts_ns": {"compute": 12_000_000, "exposed_memory": 2_000_000,
                         "idle_sync": 4_000_000, "idle_host": 2_000_000},
        },
        "steps": [{"index": i, "start_ns": 0, "dur_ns": 10_000_000, **step} for i in (4, 5)],
        "idle": {
            "by_stream": [{"device": 0, "stream": 7, "host_wait_ns": 5_000_000, "kernel_wait_ns": 10, "other_ns": 0}],
            "gaps": 3,
            "ended_by": [
                {"cause": "sync", "op": "aten::add", "label": "loss", "gaps": 2, "idle_ns": 4_000_000,
                 "longest_ns": 3_000_000}
            ],
            "longest": [
                {"ts": 5_000, "dur": 3_000_000, "cause": "sync", "name": "add_kernel", "op": "aten::add",
                 "launched_after_ns": 2_500_000},
                {"ts": 9_000, "dur": 2_000, "cause": "unknown", "name": "lost", "op": None, "launched_after_ns": None},
            ],
        },
        "syncs": {
            "count": 4, "per_step": 2.0, "blocked_ns": 1_200_000, "exposed_idle_ns": 4_000_000,
            "by_kind": {"d2h_copy": 4},
            "sites": [
                {"file": "a/b.py", "line": 7, "function": "f", "op": "aten::item", "label": "loss", "kind": "d2h_copy",
                 "count": 4, "blocked_ns": 1_200_000, "exposed_idle_ns": 4_000_000, "count_per_step": 2.0},
            ],
        },
        "kernels": [
            {"name": "void k<float>()", "short_name": "k<float>", "class": "compute", "count": 3, "sum_ns": 900_000,
             "mean_ns": 3e5, "median_ns": 3e5, "min_ns": 1, "max_ns": 400_000, "std_ns": 1.0, "share": 0.6}
        ],
        "operators_per_step": 412.0,
        "kernels_per_step": 21.0,
        "kernel_types": [{"classes": "compute", "ns": 12_000_000, "busy_share": 0.9}],
        "launches": LAUNCHES,
        "queues": [
            {"device": 0, "stream": 7, "activities": 40, "unlinked": 2, "span_ns": 20_000_000, "mean": 1.5, "median": 1,
             "p95": 4, "max": 9, "empty_ns": 5_000_000, "full_ns": 0}
        ],
        "copies": [
            {"device": 0, "kind": "Memset", "count": 2, "unsized": 2, "bytes": None, "ns": 4_000, "median_bytes": None,
             **dict.fromkeys(("mean_bytes_per_second", "median_bytes_per_second", "max_bytes_per_second"))},
            {"device": 0, "kind": "Memcpy HtoD (Pinned -> Device)", "count": 1, "unsized": 0, "bytes": 2**20,
             "ns": 50_000, "median_bytes": 2**20, "mean_bytes_per_second": 2.1e10, "median_bytes_per_second": 2.1e10,
             "max_bytes_per_second": 2.1149e10},
        ],
        "labels": [
            {"label": "## <i>fwd</i> ##", "count": 2, "host_ns": 8_000_000, "host_self_ns": 7_000_000, "kernels": 5,
             "device_ns": 6_000_000, "device_self_ns": 0}
        ],
    }  # fmt: skip
    return {**raw, **changes}


def without_gpu() -> Json:
    gpu = {**dict.fromkeys(trace()["gpu"]), "activities": 0}
    syncs = {**trace()["syncs"], "count": 0, "per_step": None, "sites": [], "exposed_idle_ns": None}
    return trace(
        gpu=gpu, device=None, device_name=None, gpu_busy_pct=None, sm_weighted_pct=None, syncs=syncs, kernels=[],
        idle={"by_stream": [], "gaps": None, "ended_by": [], "longest": []}, steps=[],
        kernels_per_step=None, quality={"launch_coverage": None, "checks": []},
        kernel_types=[], launches=None, queues=[], copies=[], sequences=[], overview=None,
        labels=[{**trace()["labels"][0], "kernels": None, "device_ns": None, "device_self_ns": None}],
    )  # fmt: skip


def summary_of(*traces: Json, **more: object) -> Summary:
    return fill(Summary, {"traces": list(traces), **more})


def written(*traces: Json, predicted: Any = None, **more: object) -> str:
    """The page of these traces."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.html"
        trace_page.write(summary_of(*traces, **more), path, predicted=predicted)
        return path.read_text(encoding="utf-8")


def words_of(*traces: Json, **more: Any) -> str:
    """The text of their page."""
    return text_of(written(*traces, **more))


def page_of(builder: TraceBuilder) -> str:
    summary = Summary(warnings=(), traces=(builder.summary(),))
    return trace_page.page_html("a trace", trace_views(with_trace_findings(summary)), None)


def text_of(page: str) -> str:
    body = page[page.index("<main") :].replace("<wbr>", "")
    body = re.sub(r'<span class="nowrap">(\w+:\d+)</span>', r"\1", body)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def test_kinds_of_steps_stand_on_the_page_with_mean_and_median():
    usual = {
        "kind": "usual", "steps": 15, "of": 16, "median_ns": 12_000_000, "share": 0.2, "comes": "mostly", "syncs": 11,
    }  # fmt: skip
    long = {"kind": "other", "steps": 1, "of": 16, "median_ns": 710_000_000, "share": 0.8, "comes": "once"}
    times = {"unprofiled_step_ns": 12_000_000, "unprofiled_mean_ns": 55_625_000}
    words = words_of(trace(step_kinds=[usual, long], **times))
    assert "Unprofiled step, median 12.0 ms Unprofiled step, mean 55.6 ms" in words
    assert "usual 15 16 12.0 ms 20 % mostly 11" in words
    assert "other 1 16 710 ms 80 % once not measured" in words
    assert "Unprofiled step, mean" not in words_of(trace(**times))


@pytest.mark.parametrize("complete", [True, False])
def test_what_was_held_before_a_trace_is_a_figure_where_it_is_known(*, complete):
    entry = {"device_type": "cuda", "device": 0, "peak_allocated_bytes": 2**30, "before_bytes": 0}
    page = written(trace(memory=[{**entry, "complete": complete, "by_category": {"unknown": 2**30}}]))
    assert ("Before the trace 0 B" in text_of(page)) == complete
    assert ("the peak is without it" in text_of(page)) != complete


def test_syncs_are_counted_as_often_as_each_kind_of_step_comes():
    """Of the steps profiled one is of each kind: their mean is not that of the program's steps."""
    kind = {"of": 16, "median_ns": 12_000_000, "share": 0.5, "comes": "mostly"}
    kinds = [{**kind, "kind": "usual", "steps": 15, "syncs": 11}, {**kind, "kind": "other", "steps": 1, "syncs": 787}]
    raw = trace(step_kinds=kinds)
    raw["syncs"] |= {"per_step": 399.0, "by_step": [11, 787]}
    (view,) = trace_views(summary_of(raw))
    assert "59.5 syncs per step on average (11 and 787 in the profiled steps)" in headline(view)
    (view,) = trace_views(summary_of(raw | {"step_kinds": []}))
    assert "399 syncs per step on average" in headline(view)


def test_a_prediction_whose_steps_differ_says_so_on_the_page():
    prediction = fill(PredictedStep, {"total": 3.5, "by_step": [2, 2, 2, 8]})
    words = words_of(trace(), predicted=(prediction, []))
    assert "3.5 syncs per step on average: 3 of 4 steps: 2 syncs; 1 of 4 steps: 8 syncs." in words


def test_a_sum_over_steps_is_shown_per_step():
    """Of three steps the page has a third of what summary.json has, as its heading says."""
    rows = [fill(LineTime, {"file": "train.py", "line": 7, "device_ns": 118_000_000})]
    shown = listing(rows, ("device_ns",), steps=3).html
    assert "GPU time per step" in shown
    assert "39.3 ms" in shown
    assert "118 ms" in listing(rows, ("device_ns",)).html


def test_one_trace_tells_where_its_time_goes():
    page = written(trace())
    words = text_of(page)
    assert "GPU busy 70 % of the profiled step; idle 20 % after a sync; 2 syncs per step." in words
    assert "idle after a sync 20 %" in words  # the bar below it
    assert "a/b.py:7 in f aten::item d2h_copy loss 2 600 µs 2.00 ms" in words
    assert "k&lt;float&gt; compute 1.5 450 µs" in words
    assert "4 10.0 ms 6.00 ms 1.00 ms 3.00 ms" in words
    assert "after a sync aten::add loss 1 2.00 ms 3.00 ms" in words
    assert "for an unknown reason lost not measured none" in words
    assert "cudaGraphLaunch graph 20 20.5 4.50 µs" in words
    assert "7 20 2 20.0 ms 1.5 4 9 2.50 ms" in words
    assert "Memset 1 1 not measured 2.00 µs not measured" in words
    assert "Device) 0.5 0 512 KiB 25.0 µs 21.0 GB/s" in words
    assert "GPU work linked to its launch 1 42 yes 1 of 42 lost" in words
    assert "<b>mine" not in page
    assert "<i>fwd" not in page
    assert "<i>warning" not in page


def test_a_page_begins_with_its_overview():
    builder = TraceBuilder()
    for index in range(2):
        training_step(builder, index, index * 1_000_000)
    page = page_of(builder)
    before, overview, *_ = page.split("<h2 ")
    assert overview.startswith('id="overview"')
    assert "Top operators" in overview
    assert "Calls per step" in overview
    assert "totals over the 2 steps, divided by 2" in before
    assert "idle after a sync" in before


def test_a_trace_without_a_gpu_has_no_formats(pages):
    page = pages["cpu_trace"].read_text(encoding="utf-8").replace("<wbr>", "")
    assert "<dt>16-bit</dt>" not in page
    assert "aten::addmm" in page


def test_waiting_for_data_has_its_verdict_its_share_and_each_step():
    step = {"index": 3, "host_ns": 10_000_000, "waits": 1, "wait_ns": 2_000_000}
    wait = {"source": "loader", "steps": 2, "waits": 2, "wait_ns": 8_000_000, "share": 0.2, "verdict": "high"}

    def section(**changes: object) -> str:
        page = written(trace(input=wait | {"by_step": 2 * [step]} | changes))
        return page[page.index('id="input"') :].split("</section>")[0]

    page = section()
    for text in ("<dd>high</dd>", "20 %", "4.00 ms"):
        assert text in page
    assert page.count("<tr>") == 3
    assert "without <code>copy data</code>" in section(source="label")
    assert 'id="input"' not in written(trace(input={}))


def test_sections_stand_in_the_order_of_the_subjects_and_explain_their_figures():
    page = written(trace())
    ids = re.findall(r'<h2 id="(\w+)"', page)
    names = [subject.name for subject in subjects_of(TraceSummary)]
    assert [name for name in names if name in ids] == [id_ for id_ in ids if id_ in names]
    for subject in subjects_of(TraceSummary):
        if subject.name not in ids:
            not_shown = text_of(page)[text_of(page).index("Not shown: ") :]
            assert (subject.heading in not_shown) == bool(subject.absent)
            continue
        part = page[page.index(f'id="{subject.name}"') :]
        assert "What the figures mean" in part[: part.index("</section>")], subject.name
        before = page[: page.index(f'id="{subject.name}"')][-80:]
        assert ("folded" in before) == subject.folded, subject.name


def test_a_trace_without_gpu_work_measures_none_of_it():
    words = words_of(without_gpu())
    assert "No GPU activity in this trace: its GPU figures were not measured." in words
    assert "GPU busy" not in words  # one sentence says it of all figures of a GPU
    absent = words[words.index("Not shown: ") :]
    of_gpu = [one.heading for one in subjects_of(TraceSummary) if one.needs_gpu or one.name in ("kernels", "gpu")]
    assert f"{', '.join(of_gpu)} (the trace holds no GPU activity)" in absent
    assert "Memory (the trace holds no allocations; the profiler records them with profile_memory=True )" in absent
    assert "## &lt;i&gt;fwd&lt;/i&gt; ## 2 8.00 ms 7.00 ms" in words
    assert "Not measured: " in words  # below the table, whose columns without any value are left out
    assert "Excess delays" not in words
    assert "0 ns" not in words


@pytest.mark.parametrize(
    ("code", "name", "why"),
    [
        ("no_input_sizes", "NVIDIA H100 80GB HBM3", "the trace holds no sizes of inputs"),
        ("no_data_sheet", "AMD Instinct MI250X", "steptrace has no data sheet of AMD Instinct MI250X"),
        ("no_gpu_name", None, "the trace does not name its GPU"),
    ],
)
def test_a_page_says_why_operators_are_not_compared_with_a_data_sheet(code, name, why):
    words = html.unescape(words_of(trace(device_name=name, roofline=[], absent={"roofline": code})))
    assert f"Operators against the data sheet ({why}" in words[words.index("Not shown: ") :]


def test_a_single_activity_leaves_idle_time_unmeasured():
    gpu = {**trace()["gpu"], "activities": 1, "idle_ns": 0}
    idle = {**trace()["idle"], "gaps": None, "ended_by": []}
    words = words_of(trace(gpu=gpu, idle=idle))
    assert "Idle 0 ns" not in words
    assert "Why the GPU is idle (the trace holds fewer than two GPU activities)" in words
    assert "No gap" not in words


def test_a_trace_without_steps_counts_its_whole_length():
    syncs = {**trace()["syncs"], "per_step": None}
    syncs["sites"] = [{**syncs["sites"][0], "count_per_step": None}]
    words = words_of(trace(steps=[], syncs=syncs))
    assert "4 syncs in the whole trace" in words
    assert "a/b.py:7 in f aten::item d2h_copy loss 4 1.20 ms" in words


def test_a_page_without_steps_speaks_of_none():
    builder = TraceBuilder()
    builder.op("aten::mm", 0, 9_000_000)
    builder.kernel(1_000, 1_000_000, 2_000_000)
    builder.call("cudaDeviceSynchronize", 10_000, 3_500_000)
    builder.kernel(4_000_000, 5_000_000, 1_000_000)
    words = html.unescape(text_of(page_of(builder)))
    for wrong in ("rofiled step", "over 1 step", "median step", "whole trace 9"):
        assert wrong not in words, wrong
    # Two lengths, each by its name.
    assert "GPU's span 5.00 ms" in words
    assert "The trace from its first event to its last, 9.00 ms" in words
    assert "All of the trace, 9.00 ms." in words


def test_one_sync_is_in_the_singular():
    assert "1 sync per step." in words_of(trace(syncs={**trace()["syncs"], "per_step": 1.0}))


def test_ranks_stand_side_by_side_and_then_each_by_itself():
    page = written(trace(), trace(rank=1, gpu_busy_pct=50.0), {**without_gpu(), "rank": 2})
    words = text_of(page)
    assert "Rank 1 NVIDIA H200 10.0 ms 50 %" in words
    assert "GPU busy 50 % to 70 %, syncs per step 2." in words
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="#([^"]+)"', page):
        assert target in ids


def a_finding(severity: str, rule: str, cost: int | None) -> Json:
    advice = {"claim": f"it is {rule}", "evidence": ["seen"], "advice": f"mend {rule}", "counter_check": "look again"}
    return {"rule": rule, "severity": severity, "cost_ns_per_step": cost, **advice}


def test_the_headline_takes_its_shares_from_the_parts_of_the_steps():
    """The causes of idle time over the GPU's span know nothing of the time before its first work."""
    parts = {"compute": 200_000, "exposed_memory": 0, "idle_sync": 800_000, "idle_host": 19 * 10**6}
    shown = trace(gpu_busy_pct=1.0, overview={**trace()["overview"], "parts_ns": parts})
    words = words_of(shown)
    assert "GPU busy 1.0 % of the profiled step; idle 95 % because nothing was launched; 2 syncs" in words


def test_the_first_screen_says_what_the_record_is_of():
    step = trace()["steps"][0]
    stacks = {"program": {"functions": [], "stacks": True}}
    few = trace(steps=[step], training=False, **stacks)
    words = words_of(few)
    before = words[: words.index("What to do first")]
    assert "One step only; it may be untypical." in before
    assert "Python stacks were recorded: they slow the host, so idle time is an upper bound." in before
    assert "probably inference" in before
    many = words_of(trace(steps=[step] * 3, training=True, unprofiled_step_ns=9_000_000, **stacks))
    for remark in ("untypical", "Python stacks were", "probably inference"):
        assert remark not in many


def test_warnings_do_not_repeat_the_headline():
    raw = without_gpu()
    check = {"check": "gpu_work", "wrong": 1, "of": 1, "warns": True, "says": "none", "figures": {"activities": 0}}
    raw["quality"]["checks"] = [check]
    words = words_of(raw)
    assert "No GPU activity in this trace" in words
    assert "Read with care" not in words


@pytest.mark.parametrize("raw", [trace(), without_gpu()])
def test_what_to_do_first_stands_there_or_that_there_is_nothing(raw):
    assert "What to do first No findings" in words_of(raw)
    small = [a_finding("info", "small", None)]
    assert "What to do first mend small It is small" in words_of({**raw, "findings": small})


def test_findings_stand_behind_the_overview_and_what_has_nothing_to_show_in_one_line():
    good = {"check": "one_gpu", "wrong": 0, "of": 1, "warns": False, "says": "GPU work on 1 device"}
    tiny = {**trace()["copies"][1], "bytes": 2, "kind": "Memcpy DtoH (Device -> Pinned)"}
    site = {**trace()["syncs"]["sites"][0], "ceiling_ns": 100_000}
    raw = trace(
        findings=[a_finding("info", "small", None)], labels=[], copies=[tiny],
        quality={**trace()["quality"], "checks": [good] * 10},
        syncs={**trace()["syncs"], "sites": [site], "outside_steps": 1},
    )  # fmt: skip
    page = written(raw)
    words = html.unescape(text_of(page))
    ids = re.findall(r'<h2 id="(\w+)"', page)
    assert ids[:2] == ["overview", "findings"]
    assert "labels" not in ids
    assert "Labels (the trace holds no label)" in words[words.index("Not shown:") :]
    assert "All 10 checks passed" in words
    assert "1 B 25.0 µs" in words
    assert "1 sync outside the steps is in no figure per step." in words


def test_several_traces_begin_with_what_costs_most_in_any():
    first = trace(findings=[a_finding("info", "dear", 9_000_000), a_finding("warning", "both", 1_000_000)])
    second = trace(rank=1, findings=[a_finding("high", "severe", 10), a_finding("warning", "both", 2_000_000)])
    page = written(first, second)
    words = text_of(page)
    box = words[words.index("What to do first") : words.rindex(" findings", 0, words.index("What to do first") + 2000)]
    assert re.findall(r"(Rank \d) ?: mend (\w+) Saves at most", box) == [
        ("Rank 0", "dear"),
        ("Rank 1", "both"),
        ("Rank 1", "severe"),
    ]
    assert words.index("What to do first") < words.index("GPU work with its launch")
    for target in re.findall(r'href="#([^"]+)"', page):
        assert f'id="{target}"' in page
    assert in_words(summary_of(first, second)) == (
        "2 traces: GPU busy 70 %, syncs per step 2.\n"
        "First: Rank 0: it is dear\n  Saves at most 9.00 ms per step.\n  mend dear"
    )


def test_the_terminal_tells_profiled_from_unprofiled_steps():
    raw = trace(findings=[a_finding("info", "dear", 9_000_000)], unprofiled_step_ns=8_000_000)
    assert in_words(summary_of(raw)).splitlines()[1:3] == [
        "Of profiled steps (10.0 ms each, unprofiled 8.00 ms):",
        "First: it is dear",
    ]
    assert "Unprofiled step, median" in written(raw)


def test_where_the_host_runs_ahead_a_step_takes_its_share_of_the_time():
    """Two steps of 20 ms of time end 16 ms after their start each; unprofiled ones take 10 ms, so nothing is slower."""
    steps = [{**step, "dur_ns": 16_000_000} for step in trace()["steps"]]
    raw = trace(steps=steps, unprofiled_step_ns=10_000_000)
    assert "Profiled step, mean 10.0 ms" in words_of(raw)
    assert "the time of an unprofiled one" not in in_words(summary_of(raw))
    slow = in_words(summary_of({**raw, "unprofiled_step_ns": 5_000_000}))
    assert "A profiled step took 2.00× the time of an unprofiled one" in slow


def test_exposed_communication_of_several_traces_is_that_of_their_steps():
    """As their findings have it: the GPU's span is not the time of the steps."""
    made = trace()
    parts = {**made["overview"]["parts_ns"], "idle_host": 0, "exposed_comm": 2_000_000}
    gpu = {**made["gpu"], "exposed_comm_ns": 2_000_000, "span_ns": 15_000_000}
    raw = {**made, "gpu": gpu, "overview": {**made["overview"], "parts_ns": parts}}
    words = words_of(raw, {**raw, "rank": 1})
    table = words[words.index("All traces") :][:2000]
    assert "10 %" in table
    assert "13 %" not in table


def test_traces_that_repeat_a_rank_go_by_their_files():
    raw = [trace(path=f"{folder}/one.json.gz") for folder in ("a", "b")]
    assert [view.title for view in trace_views(summary_of(*raw))] == ["a/one.json.gz", "b/one.json.gz"]
    words = words_of(*raw, warnings=["these are two jobs"])
    assert words.count("These are two jobs.") == 1
    assert "Rank 0" not in words
    assert "Which rank" not in words


def test_gpus_of_two_ranks_are_not_called_by_one_number():
    raw = [trace(rank=rank, device_name=None) for rank in (0, 1)]
    words = words_of(*raw)
    assert "Rank 1 GPU without a name" in words
    assert "Device GPU 0" not in words
    named = words_of(trace(), trace(rank=1))
    assert "Device 2 × NVIDIA H200" in named


def test_an_empty_summary_is_one_clear_error():
    with pytest.raises(RecordError, match="no traces"):
        written()


def test_a_real_trace_makes_a_page(recorded_summary):
    summary = recorded_summary("nccl")
    assert trace_views(summary)[0].has_gpu
    page = trace_page.page_html("nccl", trace_views(summary), None)
    assert len(page.encode()) < 1_000_000
    assert "ncclKernel_AllReduce" in page.replace("<wbr>", "")


def test_a_column_without_any_value_is_left_out():
    counts = {"count": 2, "activities": 2, "host_ns": 9_000, "device_ns": 5_000, "short_kernels": 2}
    calls = [{"call": "cudaMemcpyAsync", "kind": "copy"}, {"call": "cudaLaunchKernel", "kind": "kernel"}]
    raw = trace(launches={**LAUNCHES, "by_call": [call | counts for call in calls]})
    words = words_of(raw)
    heads = (
        "Call Kind Launches per step Activities per step Host time per step GPU time per step Short kernels per step"
    )
    assert f"{heads} cudaMemcpyAsync copy 1 1 4.50 µs 2.50 µs 1 cudaLaunchKernel kernel" in words
    assert "copy to the device" not in words  # copies go any way


def test_a_page_without_a_gpu_begins_with_what_was_measured_and_what_is_predicted():
    raw = {**without_gpu(), "unprofiled_step_ns": 750_000}
    words = words_of(raw)
    assert "A step takes 750 µs on this CPU (median); GPU figures were not measured." in words
    assert "All figures but the unprofiled step time were recorded under the profiler" in words
    for heading in ("GPU busy", "Kernels per step", "GPU work with its launch"):
        assert heading not in words[: words.index("Overview")]
    (view,) = trace_views(summary_of(raw))
    predicted = fill(PredictedStep, {"total": 3})
    line = headline(view, (predicted, [fill(Estimate, an_estimate(0.12, 0.48))]))
    assert line.endswith("Predicted for a GPU: 3 syncs per step, 120 µs to 480 µs on H100.")


def test_without_a_gpu_the_lines_of_predicted_syncs_are_what_to_do_first():
    site = {"kind": "d2h_copy", "phase": "forward", "label": None, "file": "train.py", "function": "main"}
    sites = [
        {**site, "op": "aten::_local_scalar_dense", "line": 17, "code": "total += loss.item()", "count": 1},
        {**site, "op": "aten::nonzero", "line": 13, "code": "index = mask.nonzero()", "count": 2},
    ]
    prediction = fill(PredictedStep, {"total": 3, "sites": sites})
    words = words_of(without_gpu(), predicted=(prediction, []))
    first = words[words.index("What to do first") : words.index("All findings")]
    assert first.index("2 syncs per step predicted, at train.py:13.") < first.index("1 sync per step predicted, at")
    assert "Keep the value on the device" in first
    measured = words_of(trace(), predicted=(prediction, []))
    assert "syncs per step predicted, at" not in measured  # a GPU measured them


def test_the_idle_time_after_syncs_and_what_they_cost_stand_in_one_sentence():
    syncs = {**trace()["syncs"], "blocked_ns": 1_200_000, "ceiling_ns": 1_000_000}
    words = words_of(trace(syncs=syncs))
    assert "idle after a sync 20 % (of which the syncs cost at most 5.0 %)" in words
    assert (
        "2 syncs per step block the host for 600 µs; without them a step is at most 500 µs (5.0 %) shorter. "
        "The GPU is idle for 2.00 ms (20 %) after them: the rest is the time that the host needs to launch"
    ) in words


def test_a_sentence_in_a_table_is_whole_and_a_long_name_is_not():
    columns = {column.name: column for column in columns_of(QualityCheck)}
    sentence = (
        "1 of 2 steps begin while GPU work of the one before runs: a step is the window over their number, 401 ms"
    )
    row = QualityCheck(check="k" * 200, wrong=1, of=2, warns=False, says=sentence)
    assert cell(row, columns["says"]).text == sentence
    assert "…" in cell(row, columns["check"]).text


@pytest.mark.parametrize(
    ("exposed_ns", "words"), [(None, "1 all-reduce per step, 4.00 KiB: 3.00 ms under way."),
                              (2_000_000, "3.00 ms under way, 1.00 ms of it exposed.")],
)  # fmt: skip
def test_time_of_communication_that_was_not_measured_is_not_in_the_sentence_on_it(exposed_ns, words):
    by_name = {"collective": "all_reduce", "group": None, "count": 2, "sum_ns": 6_000_000, "median_ns": 3e6,
               "max_ns": 3_000_000, "exposed_ns": exposed_ns, "bytes": 8192, "hidden_pct": None}  # fmt: skip
    reduced = {"source": "gpu", "count": 2, "bytes": 8192, "measured_ns": 6_000_000, "exposed_ns": exposed_ns}
    raw = trace(collectives={"count": 2, "by_name": [by_name]}, all_reduce={**reduced, "overlap": None})
    assert words in words_of(raw)


def test_names_in_a_list_break_on_a_phone():
    column = next(column for column in columns_of(Sequence) if column.name == "kernels")
    entries = tuple(SequenceEntry(name=f"fused_{number}_of_all_elementwise_kernels", times=1) for number in range(9))
    row = fill(Sequence, {"kind": "op", "name": "aten::mm", "kernels": []})
    text = cell(replace(row, kernels=entries), column).text
    assert text.count("fused_<wbr>") == 8
    assert text.endswith(", …")
