import html
import re
import tempfile
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders import TraceBuilder, training_step
from documents import an_estimate, fill
from figures import figures_in
from shown import Page, with_plain_spaces
from steptrace.analysis import summarize
from steptrace.documents.base import Document, columns_of, is_described
from steptrace.documents.communication import ExpectedBy
from steptrace.documents.estimate import Estimate
from steptrace.documents.headline import Range
from steptrace.documents.kernels import Sequence, SequenceEntry
from steptrace.documents.overview import part_name
from steptrace.documents.prediction import PredictedStep
from steptrace.documents.program import LineTime
from steptrace.documents.quality import QualityCheck
from steptrace.documents.subject import subjects_of
from steptrace.documents.summary import Summary, TraceSummary
from steptrace.errors import RecordError
from steptrace.findings import with_trace_findings
from steptrace.findings.headline import cautions_of, headline_of, headline_of_several, why_nothing_is_advised
from steptrace.format import NOT_MEASURED
from steptrace.report.page.rows import cell, listing
from steptrace.report.trace import page as trace_page
from steptrace.report.trace.answer import answer, headline, why
from steptrace.report.trace.view import TraceView, title_of_several, trace_views
from steptrace.trace.step_excerpt import step_excerpt
from steptrace.words.codes import ABSENCES, EXPECTED_BY
from steptrace.words.headline import caution_text, headline_of_several_text, nothing_to_advise_text

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
    page = Page(written(trace(step_kinds=[usual, long], **times)))
    facts = page.facts()
    assert (facts["Unprofiled step, median"], facts["Unprofiled step, mean"]) == ("12.0 ms", "55.6 ms")
    kinds = [[*row.values()] for row in page.section("step_kinds").rows()]
    assert kinds == [
        ["usual", "15", "16", "12.0 ms", "20 %", "mostly", "11"],
        ["other", "1", "16", "710 ms", "80 %", "once", NOT_MEASURED],
    ]
    assert "Unprofiled step, mean" not in Page(written(trace(**times))).facts()


def test_uneven_unprofiled_steps_of_one_kind_are_a_caution():
    def codes(**figures):
        return [
            caution.code for caution in cautions_of(fill(TraceSummary, trace(unprofiled_step_ns=12_000_000, **figures)))
        ]

    kind = {"kind": "usual", "steps": 8, "of": 16, "median_ns": 12_000_000, "share": 0.2, "comes": "mostly"}
    assert "uneven_steps" in codes(unprofiled_iqr_over_median=0.4)
    assert "uneven_steps" not in codes(unprofiled_iqr_over_median=0.2)
    assert "uneven_steps" not in codes(unprofiled_iqr_over_median=0.4, step_kinds=[kind])


@pytest.mark.parametrize("complete", [True, False])
def test_what_was_held_before_a_trace_is_a_figure_where_it_is_known(*, complete):
    entry = {"device_type": "cuda", "device": 0, "peak_allocated_bytes": 2**30, "before_bytes": 0}
    page = written(trace(memory=[{**entry, "complete": complete, "by_category": {"unknown": 2**30}}]))
    assert (Page(page).facts().get("Before the trace") == "0 B") == complete


def test_syncs_are_counted_as_often_as_each_kind_of_step_comes():
    """Of the steps profiled one is of each kind: their mean is not that of the program's steps."""
    kind = {"of": 16, "median_ns": 12_000_000, "share": 0.5, "comes": "mostly"}
    kinds = [{**kind, "kind": "usual", "steps": 15, "syncs": 11}, {**kind, "kind": "other", "steps": 1, "syncs": 787}]
    raw = trace(step_kinds=kinds)
    raw["syncs"] |= {"per_step": 399.0, "by_step": [11, 787]}
    (view,) = trace_views(summary_of(raw))
    syncs = headline_of(view.trace).syncs
    assert (syncs.per_step, syncs.in_steps) == (59.5, (11, 787))
    assert {59.5, 11, 787} <= set(figures_in(headline(view.trace)))
    (view,) = trace_views(summary_of(raw | {"step_kinds": []}))
    assert headline_of(view.trace).syncs.per_step == 399


def test_a_prediction_whose_steps_differ_says_so_on_the_page():
    prediction = fill(PredictedStep, {"total": 3.5, "by_step": [2, 2, 2, 8]})
    predicted = Page(written(trace(), predicted=(prediction, []))).section("predicted")
    figures = figures_in(predicted.text)
    assert 3.5 in figures
    first = figures.index(3)
    assert figures[first : first + 6] == [3, 4, 2, 1, 4, 8]  # three of four steps have 2, one of four has 8


def test_idle_time_without_a_known_cause_has_what_is_known_of_it_where_it_is_long():
    parts = {"compute": 12_000_000, "idle_unknown": 8_000_000}
    overview = {**trace()["overview"], "parts_ns": parts}
    said = [
        cautions_of(fill(TraceSummary, trace(overview=overview, idle={**trace()["idle"], "longest": [gap]})))
        for gap in ({"cause": "unknown", "dur": 9, "launched_after_ns": after} for after in (-4, None))
    ]
    assert [
        (caution.idle, caution.queued) for found in said for caution in found if caution.code == "unknown_idle"
    ] == [
        (0.4, True),
        (0.4, False),
    ]
    short = {**overview, "parts_ns": {"compute": 99_000_000, "idle_unknown": 1_000_000}}
    assert all(caution.code != "unknown_idle" for caution in cautions_of(fill(TraceSummary, trace(overview=short))))


@pytest.mark.parametrize(
    ("kinds", "explicit"),
    [
        (["cudaDeviceSynchronize"], True),
        (["hipDeviceSynchronize"] * 2, True),
        (["cudaDeviceSynchronize", "d2h_copy"], False),
        ([], False),
    ],
)
def test_a_trace_whose_syncs_are_all_explicit_says_so(kinds, explicit):
    syncs = {**trace()["syncs"], "sites": [{"kind": kind, "count": 1} for kind in kinds]}
    found = cautions_of(fill(TraceSummary, trace(syncs=syncs)))
    assert any(caution.code == "explicit_syncs" for caution in found) == explicit


def test_a_sum_over_steps_is_shown_per_step():
    """Of three steps the page has a third of what summary.json has, as its heading says."""
    rows = [fill(LineTime, {"file": "train.py", "line": 7, "device_ns": 118_000_000})]
    shown = with_plain_spaces(listing(rows, ("device_ns",), steps=3).html)
    assert "GPU time per step" in shown
    assert "39.3 ms" in shown
    assert "118 ms" in with_plain_spaces(listing(rows, ("device_ns",)).html)


def test_one_trace_tells_where_its_time_goes():
    html_page = written(trace())
    page = Page(html_page)
    head = headline_of(fill(TraceSummary, trace()))
    assert (head.busy_pct, head.idle_cause, head.idle_share, head.syncs.per_step) == (70.0, "sync", 0.2, 2.0)
    assert figures_in(page.with_class("headline")[0])[:3] == [70, 20, 2]
    assert f"{part_name('idle_sync')} 20.0 %" in page.with_class("key")  # the bar below it
    (answer,) = re.findall(r'<p class="headline[^>]*>([^<]+)', html_page)
    assert "70\N{NO-BREAK SPACE}%" in answer  # no line ends before a unit

    def cells(section: str, row: int = 0, table: int = 0) -> list[str]:
        return [*page.section(section).rows(table)[row].values()]

    assert cells("syncs")[1:6] == ["aten::item", "d2h_copy", "loss", "2", "600 µs"]
    assert cells("kernels")[:4] == ["k<float>", "compute", "1.5", "450 µs"]
    assert cells("gpu")[:5] == ["4", "10.0 ms", "6.00 ms", "1.00 ms", "3.00 ms"]
    assert cells("idle")[1:6] == ["aten::add", "loss", "1", "2.00 ms", "3.00 ms"]
    assert "lost" in cells("idle", row=1, table=1)
    assert cells("launches", table=1)[:5] == ["cudaGraphLaunch", "graph", "20", "20.5", "4.50 µs"]
    assert cells("queues")[:6] == ["7", "20", "2", "20.0 ms", "1.5", "4"]
    assert cells("copies")[:5] == ["Memset", "1", "1", NOT_MEASURED, "2.00 µs"]
    assert cells("copies", row=1)[1:5] == ["0.5", "0", "512 KiB", "25.0 µs"]
    assert cells("quality", row=-1)[1:] == ["1", "42", "yes", "1 of 42 lost"]
    assert "<b>mine" not in html_page
    assert "<i>fwd" not in html_page
    assert "<i>warning" not in html_page


def test_a_page_begins_with_its_overview():
    builder = TraceBuilder()
    for index in range(2):
        training_step(builder, index, index * 1_000_000)
    page = page_of(builder)
    before, overview, *_ = page.split("<h2 ")
    assert overview.startswith('id="overview"')
    assert "Top operators" in overview
    assert "Calls per step" in overview
    assert part_name("idle_sync") in before


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
    main, _, tables = page.partition('id="tables"')
    subjects = [subject for subject in subjects_of(TraceSummary) if "at_top" not in subject.traits]
    for part, folded in ((main, False), (tables, True)):
        ids = re.findall(r'<h[23] id="(\w+)"', part)
        names = [subject.name for subject in subjects if subject.folded == folded]
        in_order = [name for name in names if name in ids]
        assert len(in_order) > 2
        assert in_order == [id_ for id_ in ids if id_ in names]
    for subject in subjects:
        if f'id="{subject.name}"' not in page:
            not_shown = text_of(page)[text_of(page).index("Not shown: ") :]
            assert (subject.heading in not_shown) == bool(subject.absent)
            continue
        part = page[page.index(f'id="{subject.name}"') :]
        assert "What the figures mean" in part[: part.index("</section>")], subject.name


def test_a_trace_without_gpu_work_measures_none_of_it():
    words = words_of(without_gpu())
    assert not headline_of(fill(TraceSummary, without_gpu())).gpu_measured
    assert "GPU busy" not in words  # one sentence says it of all figures of a GPU
    absent = words[words.index("Not shown: ") :]
    of_gpu = [
        subject.heading
        for subject in subjects_of(TraceSummary)
        if subject.needs_gpu or subject.name in ("kernels", "gpu")
    ]
    assert [heading for heading in (*of_gpu, "Memory") if heading not in absent] == []
    assert "## &lt;i&gt;fwd&lt;/i&gt; ## 2 8.00 ms 7.00 ms" in words
    assert "Not measured: " in words  # below the table, whose columns without any value are left out
    assert "Excess delays" not in words
    assert "0 ns" not in words


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("no_input_sizes", "NVIDIA H100 80GB HBM3"),
        ("no_data_sheet", "AMD Instinct MI250X"),
        ("no_gpu_name", None),
    ],
)
def test_a_page_says_why_operators_are_not_compared_with_a_data_sheet(code, name):
    words = html.unescape(words_of(trace(device_name=name, roofline=[], absent={"roofline": code})))
    why = ABSENCES[code].partition(";")[0].format(device_name=name)
    assert f"Roofline ({why}" in words[words.index("Not shown: ") :]


def test_a_single_activity_leaves_idle_time_unmeasured():
    gpu = {**trace()["gpu"], "activities": 1, "idle_ns": 0}
    idle = {**trace()["idle"], "gaps": None, "ended_by": []}
    words = words_of(trace(gpu=gpu, idle=idle))
    assert "Idle 0 ns" not in words
    absent = words[words.index("Not shown: ") :]
    assert f"Why the GPU is idle ({ABSENCES['fewer_than_two_gpu_activities']}" in absent


def test_a_trace_without_steps_counts_its_whole_length():
    syncs = {**trace()["syncs"], "per_step": None}
    syncs["sites"] = [{**syncs["sites"][0], "count_per_step": None}]
    page = Page(written(trace(steps=[], syncs=syncs)))
    syncs_of_trace = headline_of(fill(TraceSummary, trace(steps=[], syncs=syncs))).syncs
    assert (syncs_of_trace.per_step, syncs_of_trace.whole) == (None, 4)
    assert [*page.section("syncs").rows()[0].values()][1:6] == ["aten::item", "d2h_copy", "loss", "4", "1.20 ms"]


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
    assert words.count("9.00 ms") >= 2  # the trace, under its own name


def test_one_sync_is_in_the_singular():
    assert "1 sync per step." in words_of(trace(syncs={**trace()["syncs"], "per_step": 1.0}))


def test_ranks_stand_side_by_side_and_then_each_by_itself():
    page = written(trace(), trace(rank=1, gpu_busy_pct=50.0), {**without_gpu(), "rank": 2})
    assert [*Page(page).section("ranks").rows()[1].values()][:4] == ["Rank 1", "NVIDIA H200", "10.0 ms", "50 %"]
    several = headline_of_several(summary_of(trace(), trace(rank=1, gpu_busy_pct=50.0)).traces, None)
    assert several.busy_pct == Range(50.0, 70.0)
    assert several.syncs_per_step == Range(2.0, 2.0)
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
    head = headline_of(fill(TraceSummary, shown))
    assert (head.busy_pct, head.idle_cause, round(head.idle_share, 2)) == (1.0, "host", 0.95)


def test_the_first_screen_says_what_the_record_is_of():
    step = trace()["steps"][0]
    stacks = {"program": {"functions": [], "stacks": True}}
    few = trace(steps=[step], training=False, **stacks)
    found = cautions_of(fill(TraceSummary, few))
    assert [place.code for place in found] == ["few_steps", "python_stacks", "probably_inference"]
    words = html.unescape(words_of(few))
    before = words[: words.index("What to do first")]
    assert [place.code for place in found if caution_text(place) not in before] == []
    many = trace(steps=[step] * 3, training=True, unprofiled_step_ns=9_000_000, **stacks)
    assert not {place.code for place in found} & {caution.code for caution in cautions_of(fill(TraceSummary, many))}


def test_warnings_do_not_repeat_the_headline():
    raw = without_gpu()
    check = {"check": "gpu_work", "wrong": 1, "of": 1, "warns": True, "says": "none", "figures": {"activities": 0}}
    raw["quality"]["checks"] = [check]
    assert "Read with care" not in words_of(raw)


@pytest.mark.parametrize("raw", [trace(), without_gpu()])
def test_what_to_do_first_stands_there_or_that_there_is_nothing(raw):
    nothing = nothing_to_advise_text(why_nothing_is_advised([fill(TraceSummary, raw)]))
    assert Page(written(raw)).with_class("first") == [f"What to do first {nothing}"]
    small = [a_finding("info", "small", None)]
    (box,) = Page(written({**raw, "findings": small})).with_class("first")
    assert box.index("mend small") < box.index("t is small")


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
    assert "Labels (" in words[words.index("Not shown:") :]
    assert "All 10 checks passed" in words
    assert "1 B 25.0 µs" in words
    assert "1 sync outside the steps" in words


def test_findings_are_shown_where_there_is_no_overview():
    raw = trace(findings=[a_finding("info", "small", None)], overview=None)
    ids = re.findall(r'<h2 id="(\w+)"', written(raw))
    assert "findings" in ids


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
    lines = answer(summary_of(first, second))
    assert [line.look for line in lines] == ["answer", "why", "first", "plain", "plain", "note"]
    told = (["2", "70 %"], ["Rank 0"], ["Rank 0", "dear"], ["9.00 ms"], ["mend"], ["step"])
    for line, facts in zip(lines, told, strict=True):
        assert all(fact in line.text for fact in facts)


def test_the_terminal_tells_profiled_from_unprofiled_steps():
    raw = trace(findings=[a_finding("info", "dear", 9_000_000)], unprofiled_step_ns=8_000_000)
    of_profile, why, first = answer(summary_of(raw))[1:4]
    assert all(time in of_profile.text for time in ("10.0 ms", "8.00 ms"))
    assert (why.look, first.look) == ("why", "first")
    assert "Unprofiled step, median" in written(raw)


def test_where_the_host_runs_ahead_a_step_takes_its_share_of_the_time():
    """Two steps of 20 ms of time end 16 ms after their start each; unprofiled ones take 10 ms, so nothing is slower."""
    steps = [{**step, "dur_ns": 16_000_000} for step in trace()["steps"]]
    raw = trace(steps=steps, unprofiled_step_ns=10_000_000)
    assert Page(written(raw)).facts()["Profiled step, mean"] == "10.0 ms"

    def slower(raw: Json) -> list[float]:
        return [caution.slower for caution in cautions_of(fill(TraceSummary, raw)) if caution.code == "slow_profile"]

    assert slower(raw) == []
    assert slower({**raw, "unprofiled_step_ns": 5_000_000}) == [2.0]


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


def test_of_ranks_without_a_gpu_the_length_of_a_step_is_said():
    steps = [{"kind": "host", "steps": 2, "window_ns": 2 * ns, "step_ns": ns, "parts_ns": {"forward": 2 * ns},
              "operators": []}
             for ns in (20_000_000, 30_000_000)]  # fmt: skip
    raw = [{**without_gpu(), "rank": rank, "overview": overview} for rank, overview in enumerate(steps)]
    head = headline_of_several(summary_of(*raw).traces, None)
    assert not head.gpu_measured
    assert figures_in(headline_of_several_text(head)) == [20.0, 30.0]
    assert headline_of_several(summary_of(trace(), raw[0]).traces, None).gpu_measured


@pytest.mark.parametrize(("longest", "is_alike"), [("forward", True), ("backward", False)])
def test_other_ranks_are_alike_only_if_the_same_takes_most_of_their_steps(longest, is_alike):
    parts = [{"forward": 90, "backward": 10}, {"forward": 20, "backward": 20, longest: 80}]
    raw = []
    for rank, of_rank in enumerate(parts):
        overview = {"kind": "host", "steps": 1, "window_ns": sum(of_rank.values()), "parts_ns": of_rank}
        raw.append({**without_gpu(), "rank": rank, "overview": {**overview, "operators": []}})
    views = trace_views(summary_of(*raw))
    of_one = why([views[0]])
    assert why(views).endswith(of_one)
    others = why(views).removesuffix(of_one)
    assert ("other" in others) == is_alike


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
    head = headline_of(fill(TraceSummary, raw))
    assert (head.gpu_measured, head.unprofiled_step_ns) == (False, 750_000)
    for heading in ("GPU busy", "Kernels per step", "GPU work with its launch"):
        assert heading not in words[: words.index("Overview")]
    (view,) = trace_views(summary_of(raw))
    predicted = fill(PredictedStep, {"total": 3})
    line = headline(view.trace, (predicted, [fill(Estimate, an_estimate(0.12, 0.48))]))
    assert figures_in(line) == [750, 3, 120, 480]


def test_without_a_gpu_the_lines_of_predicted_syncs_are_what_to_do_first():
    site = {"kind": "d2h_copy", "phase": "forward", "label": None, "file": "train.py", "function": "main"}
    sites = [
        {**site, "op": "aten::_local_scalar_dense", "line": 17, "code": "total += loss.item()", "count": 1},
        {**site, "op": "aten::nonzero", "line": 13, "code": "index = mask.nonzero()", "count": 2},
    ]
    prediction = fill(PredictedStep, {"total": 3, "sites": sites})
    words = words_of(without_gpu(), predicted=(prediction, []))
    first = words[words.index("What to do first") : words.index("All findings")]
    assert first.index("train.py:13") < first.index("train.py:17")
    measured = words_of(trace(), predicted=(prediction, []))
    box = measured[measured.index("What to do first") :][:300]
    assert "train.py:13" not in box  # a GPU measured them


def test_the_idle_time_after_syncs_and_what_they_cost_stand_in_one_sentence():
    syncs = {**trace()["syncs"], "blocked_ns": 1_200_000, "ceiling_ns": 1_000_000}
    page = Page(written(trace(syncs=syncs)))
    (key,) = [key for key in page.with_class("key") if key.startswith(part_name("idle_sync"))]
    assert figures_in(key) == [20.0, 5.0]
    sentences = page.section("syncs").with_class("note")
    assert [2, 600, 500, 5.0, 2.0, 20] in map(figures_in, sentences)


def test_a_sentence_in_a_table_is_whole_and_a_long_name_is_not():
    columns = {column.name: column for column in columns_of(QualityCheck)}
    sentence = (
        "1 of 2 steps begin while GPU work of the one before runs: a step is the window over their number, 401 ms"
    )
    row = QualityCheck(check="k" * 200, wrong=1, of=2, warns=False, says=sentence)
    assert cell(row, columns["says"]).text == sentence
    name = str(cell(row, columns["check"]).text)
    assert "…" in name
    assert f'title="{"k" * 200}"' in name


def test_names_of_any_length_leave_a_page_below_400_kb(tmp_path):
    builder = TraceBuilder()
    for step in range(3):
        start = step * 20_000_000
        builder.step(step, start, 19_000_000)
        builder.frame("main.py(1): train", start + 100, 18_900_000)
        for number in range(40):
            at = start + 1_000 + number * 300_000
            name = f"{number:03d}" + "Fn<float, 4>::op(" * 600
            builder.frame(f"{name}.py({number + 1}): f{name}", at, 250_000)
            builder.frame(f"nn.Module: M{name}_0", at + 10, 240_000)
            builder.op(f"aten::{name}", at + 20, 200_000)
            builder.kernel(at + 30, at + 10_000, 100_000, name=f"void k{name}(int)")
            builder.call("cudaStreamSynchronize", at + 150_000, 20_000)
    document, (read,) = summarize([builder.write(tmp_path / "trace.json")])
    excerpt = step_excerpt(read)
    (tmp_path / "step.json.gz").write_bytes(excerpt.data)
    trace_page.write(with_trace_findings(document), tmp_path / "page.html", excerpt=tmp_path / "step.json.gz")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert len(page) < 400_000
    assert 'title="f039Fn' in page  # names are there


@pytest.mark.parametrize(("exposed_ns", "figures"), [(None, [1, 4.0, 3.0]), (2_000_000, [1, 4.0, 3.0, 1.0])])
def test_time_of_communication_that_was_not_measured_is_not_in_the_sentence_on_it(exposed_ns, figures):
    by_name = {"collective": "all_reduce", "group": None, "count": 2, "sum_ns": 6_000_000, "median_ns": 3e6,
               "max_ns": 3_000_000, "exposed_ns": exposed_ns, "bytes": 8192, "hidden_pct": None}  # fmt: skip
    reduced = {"source": "gpu", "count": 2, "bytes": 8192, "measured_ns": 6_000_000, "exposed_ns": exposed_ns}
    raw = trace(collectives={"count": 2, "by_name": [by_name]}, all_reduce={**reduced, "overlap": None})
    sentences = Page(written(raw)).section("collectives").with_class("note")
    assert figures in [figures_in(sentence) for sentence in sentences]


@pytest.mark.parametrize("by", typing.get_args(ExpectedBy))
def test_the_expected_time_of_all_reduces_stands_beside_theirs_with_its_source(by):
    by_name = {"collective": "all_reduce", "group": None, "count": 2, "sum_ns": 6_000_000, "median_ns": 3e6,
               "max_ns": 3_000_000, "exposed_ns": None, "bytes": 8192, "hidden_pct": None}  # fmt: skip
    reduced = {
        "source": "gpu",
        "count": 2,
        "bytes": 8192,
        "measured_ns": 6_000_000,
        "exposed_ns": None,
        "overlap": None,
    }
    raw = trace(
        collectives={"count": 2, "by_name": [by_name]},
        all_reduce={**reduced, "expected_ns": 1_234_000, "expected_by": by},
    )
    assert f"617 µs, {EXPECTED_BY[by]}" in html.unescape(words_of(raw))


def test_names_in_a_list_break_on_a_phone():
    column = next(column for column in columns_of(Sequence) if column.name == "kernels")
    entries = tuple(SequenceEntry(name=f"fused_{number}_of_all_elementwise_kernels", times=1) for number in range(9))
    row = fill(Sequence, {"kind": "op", "name": "aten::mm", "kernels": []})
    text = cell(replace(row, kernels=entries), column).text
    assert text.count("fused_<wbr>") == 8
    assert text.endswith(", …")


def test_the_title_of_several_traces_says_how_many_ranks_there_are_and_in_which_folder():
    def titled(*traces):
        return title_of_several(
            [TraceView("t", fill(TraceSummary, {"rank": rank, "path": path})) for rank, path in traces]
        )

    assert titled((0, "job7/rank0.json"), (1, "job7/rank1.json")) == "2 ranks in job7"
    assert titled((0, "a/x.json"), (0, "b/x.json")) == "2 traces"
    assert titled((None, "job/x.json"), (None, "job/y.json"), (1, "job/z.json")) == "3 traces in job"


def _subclasses(kind: type[Document]) -> Iterator[type[Document]]:
    for further in kind.__subclasses__():
        yield further
        yield from _subclasses(further)


def _kinds_with_places() -> list[type[Document]]:
    described = filter(is_described, {*_subclasses(Document)})
    kinds = [kind for kind in described if any(column.is_place for column in columns_of(kind))]
    return sorted(kinds, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", _kinds_with_places(), ids=lambda kind: kind.__name__)
def test_rows_with_a_place_are_shown_with_it_and_without_it(kind: type[Document]) -> None:
    rows = [fill(kind, {"file": "train.py", "line": 7, "function": "step"})]
    if kind is not LineTime:  # it always has a file
        rows.append(fill(kind, {"file": None}))
    shown = re.findall(r"<tr.*?</tr>", listing(rows, ("file",)).html, re.DOTALL)
    _, known, *unknown = [re.sub(r"<[^>]*>", "", row) for row in shown]
    assert "train.py:7" in known
    assert len(unknown) == len(rows) - 1
    assert not any("train.py" in place for place in unknown)


@pytest.mark.parametrize("of_frames", [False, True])
def test_a_page_has_callbacks_of_labels_and_of_frames(*, of_frames: bool) -> None:
    builder = TraceBuilder()
    training_step(builder)
    builder.label("Logger<b>.on_train_batch_end", 900_000, 50_000)
    if of_frames:
        builder.frame("mine.py(7): on_step_end", 900_000, 50_000)
    page = text_of(page_of(builder))
    assert ("mine.py:7" in page) == of_frames
    assert "Logger&lt;b&gt;.on_train_batch_end" in page
