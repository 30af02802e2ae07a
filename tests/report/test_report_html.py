import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from documents import fill
from figures import figures_in
from report.conftest import BASE, ratio, traced
from shown import Page, with_plain_spaces
from steptrace.documents.equivalence import Equivalence
from steptrace.documents.finding import Finding
from steptrace.findings.removals import removals
from steptrace.format import capitalised
from steptrace.report import study as sections
from steptrace.report.page.markup import breakable, inline_code
from steptrace.report.study import findings, load_study
from steptrace.report.study.step_times import load_steps, steps_in_order
from steptrace.report.study.variants import endings, errors_to_reference
from steptrace.report.study_page import render_study

HOSTILE = r"""<img src=x onerror="alert('a')"> & {{ 7 * 7 }} \1 $x_1$"""


def text_of(fragment: object) -> str:
    whole = re.sub(r'<span class="nowrap">(\w+:\d+)</span>', r"\1", str(fragment).replace("<wbr>", ""))
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", whole))


def row(page: str, variant: str) -> dict[str, str]:
    """The texts of a variant's cells in the table of variants, by their headings."""
    name = f'<span class="variant">{variant}</span>'
    cells = next(part for part in page.split("<tr")[1:] if name in part.replace("<wbr>", "")).split("</tr>")[0]
    by_label = re.findall(r'<td[^>]*data-label="([^"]*)"[^>]*>(.*?)</td>', cells, re.DOTALL)
    heading = re.findall(r"<th[^>]*>(.*?)</th>", cells, re.DOTALL)[0]
    return {label: text_of(cell).strip() for label, cell in [("Variant", heading), *by_label]}


def test_numbers_of_samples_that_differ_are_shown(study_builder):
    study_builder.add("small", [20.0, 20.0], samples_per_step=8)
    study_builder.add("large", [50.0, 50.0], samples_per_step=32)
    table = sections.variants(study_builder.study())
    large = row(table, "large")
    assert (large["Samples"], large["Samples a second"]) == ("32", "641")
    assert [8, 32] in [figures_in(note) for note in Page(table).with_class("note")]
    study_builder.comparison["variants"][1]["samples_per_step"] = 8
    assert "Samples" not in text_of(sections.variants(study_builder.study()))


def test_the_verdict_of_another_batch_is_shown_with_the_ratio_per_sample(study_builder):
    study_builder.add("base", [20.0, 20.0], samples_per_step=8, ratio={"value": 1.0, "verdict": "baseline"})
    per_sample = {"value": 1.6, "low": 1.5, "high": 1.7, "verdict": "faster"}
    whole = {"value": 0.4, "low": 0.38, "high": 0.43, "verdict": None}
    study_builder.add("large", [50.0, 50.0], samples_per_step=32, ratio=whole, ratio_per_sample=per_sample)
    study_builder.comparison["baseline"] = "base"
    for variant in study_builder.comparison["variants"]:
        variant["baseline"] = "base"
    cells = row(sections.variants(study_builder.study()), "large")
    assert (cells["Ratio"], cells["Ratio per sample"], cells["Verdict"]) == ("0.40×", "1.60×", "faster")


def test_means_stand_where_means_are_compared(study_builder):
    times = {"statistic": "mean", "median": 0.9, "mean": 40.0, "low": 39.0, "high": 41.0, "p95": 90.0, "steps": 40}
    variant = study_builder.add("one", [0.9, 0.9], step_ms=times)
    for run in variant["runs"]:
        run["mean_ms"] = 39.5
    path = study_builder.write()
    study = load_study(path)
    cells = row(sections.variants(study), "one")
    assert (cells["Step time"], cells["95 % interval"]) == ("40.0 ms", "39.0 to 41.0 ms")
    of_runs = with_plain_spaces(sections.provenance(study, path))
    assert "<th>Mean</th>" in re.sub(r"<th [^>]*>", "<th>", of_runs)
    assert "39.5 ms" in of_runs
    assert "Median" not in of_runs


def all_parts(path: Path) -> str:
    study = load_study(path)
    of_study = ("first_screen", "variants", "syncs", "method")
    parts = [getattr(sections, name)(study) for name in of_study]
    parts += [sections.subject_section(study, subject.name) for subject in sections.subjects()]
    parts += [sections.step_times(study, path), sections.provenance(study, path), sections.findings(study.findings)]
    # Plain strings, since a Markup escapes the strings that it is added to.
    return "".join(str(part) for part in parts if part is not None)


def test_a_cpu_study_says_what_it_did_not_measure(make_study):
    study = load_study(make_study("cpu"))
    table = sections.variants(study)
    cells = row(table, "boolean_mask")
    assert cells["Syncs per step, predicted"] == "6"
    assert "Syncs per step" not in cells
    assert cells["Step time"] == "12.4 ms"
    assert (cells["Ratio"], cells["Verdict"]) == ("1.00×", "baseline")
    shown = text_of(table)
    for absent in ("Multiprocessors", "Host blocked", "Gates"):
        assert absent not in shown + text_of(sections.syncs(study))


def test_a_gpu_study_shows_measured_beside_predicted(make_study):
    cells = row(sections.variants(load_study(make_study("gpu"))), "boolean_mask")
    assert (cells["Syncs per step"], cells["Syncs per step, predicted"]) == ("6", "6")
    assert (cells["GPU busy"], cells["Multiprocessors in use"], cells["NVML utilisation"]) == ("89 %", "71 %", "99 %")


def errors_in(cells):
    """The errors and tolerances in the cell on a variant's answer."""
    return re.findall(r"[\d.]+e-\d+|not finite", cells["Equivalence"])


def test_a_variant_that_differs_is_never_called_faster_without_that_mark(make_study):
    study = load_study(make_study("gpu"))
    cells = row(sections.variants(study), "ignore_index")
    assert cells["Verdict"] == "faster differs"
    assert cells["Equivalence"].startswith("differs ")
    assert errors_in(cells) == ["3.1e-02", "1.0e-05", "8.0e-03", "1.0e-04"]
    assert "faster, but differs" in sections.first_screen(study)


def test_a_variant_whose_network_differs_says_so():
    errors = {"loss_rel_err": 1e-9, "gradient_rel_err": 1e-9, "predictions_rel_err": 0.5, "parameters_rel_err": 0.01}
    tolerance = {"loss": 1e-5, "gradient": 1e-4, "predictions": 0.1, "parameters": 0.1}
    equivalence = fill(Equivalence, {"status": "differs", "tolerance": tolerance, **errors})
    assert [name for name, *_, out in errors_to_reference(equivalence) if out] == ["predictions"]


def test_an_error_that_is_not_finite_was_measured(make_study):
    study = load_study(make_study("gpu"))
    variants = tuple(
        replace(variant, equivalence=replace(variant.equivalence, status="differs", gradient_rel_err=None))
        for variant in study.variants
    )
    cells = row(sections.variants(replace(study, variants=variants)), "ignore_index")
    assert errors_in(cells) == ["3.1e-02", "1.0e-05", "not finite", "1.0e-04"]


def test_failed_variants_are_marked_with_their_last_log_lines(make_study):
    page = sections.variants(load_study(make_study("broken")))
    failed = row(page, "where")
    oom = row(page, "sort")
    assert failed["Variant"].startswith("where failed")
    assert {failed[name] for name in ("Step time", "p95", "Ratio", "Verdict")} == {"not measured"}
    assert failed["Runs"] == "0 of 3"
    assert oom["Variant"].startswith("sort out of memory")
    assert row(page, "ignore_index")["Runs"] == "2 of 3"
    assert "Runs 0, 1 and 2: failed, exit code 1" in text_of(page)
    assert "Run 2: killed, signal 9" in text_of(page)
    assert page.count("no-log") == 1
    assert "step 3\nstep 4</pre>" in page


def test_a_run_that_never_started_is_not_shown_as_an_error(make_study):
    study = load_study(make_study("broken"))
    never = next(variant for variant in study.variants if variant.name == "never")
    assert endings(never) == []
    assert row(sections.variants(study), "never")["Runs"] == "not run"


def test_a_failed_equivalence_check_is_shown(study_builder):
    failure = {"status": "failed", "error": "RuntimeError: shapes differ", "exit_code": 1, "log_tail": ["last words"]}
    study_builder.add("boolean_mask", [1.0, 1.1], equivalence={"status": "failed", "failure": failure})
    page = sections.variants(study_builder.study())
    assert "check failed" in page
    assert "Equivalence check: failed, exit code 1" in text_of(page)
    assert "last words" in page


def test_a_broken_gate_is_named(study_builder):
    study_builder.add("boolean_mask", [1.0])
    gate = {"study": "s", "variant": "boolean_mask", "key": "syncs.per_step", "value": 1}
    words = "s/boolean_mask syncs.per_step (predicted) is 1, expected at most 0: own.py:3"
    study_builder.comparison["gates"] = [
        {**gate, "outcome": "held", "limits": {"at_most": 1}},
        {**gate, "outcome": "broken", "text": words, "limits": {"at_most": 0, "allow": ["a.py:1", "b.py"]}},
    ]
    page = text_of(sections.variants(study_builder.study()))
    assert "Gates 1 of 2 broken" in page
    first, second = page.index("broken boolean_mask syncs.per_step : at most 0, allow a.py:1 b.py"), page.index("held")
    assert first < second
    assert "expected at most 0: own.py:3" in page


def test_each_cell_of_a_matrix_names_its_baseline(make_study):
    page = sections.variants(load_study(make_study("matrix")))
    for batch in (4, 8, 16):
        settings = f"-data.batch_size={batch}-precision=bf16"
        assert row(page, f"ignore_index{settings}")["Baseline"] == f"boolean_mask{settings}"


def test_one_run_has_no_verdict_and_no_interval(make_study):
    cells = row(sections.variants(load_study(make_study("single"))), "ignore_index")
    assert cells["Verdict"] == "no verdict"
    assert "95 % interval" not in cells


def test_a_study_where_everything_failed_still_has_every_section(make_study):
    html = all_parts(make_study("all_failed"))
    assert 'data-known="unknown"' in html
    assert 'class="empty"' in html
    assert "No module named" in text_of(html)


def test_predicted_sites_are_called_predicted(make_study):
    html = sections.syncs(load_study(make_study("cpu")))
    assert 'data-known="predicted"' in html
    first = Page(html).rows()[0]
    named = ("workloads/masked_losses.py:52", "BooleanMaskLoss.__call__", "labels = torch.unique(target)")
    assert [name for name in named if name not in first["Line"]] == []
    assert not any(heading.startswith("Host blocked") for heading in first)


def test_a_predicted_sync_in_a_library_names_the_program_s_line(study_builder):
    syncs = {"predicted_per_step": 1}
    site = {"file": "accelerate/utils/operations.py", "line": 160, "op": "aten::_to_copy", "label": "data"}
    outer = {"program_file": "train.py", "program_line": 31}
    sites = [{**site, **outer, "kind": "h2d_copy", "phase": "data", "count_per_step": 1}]
    study_builder.add("boolean_mask", [1.0], syncs=syncs, predicted_sites=sites)
    (shown,) = Page(sections.syncs(study_builder.study())).rows()
    assert re.findall(r"[\w/]+\.py:\d+", shown["Line"]) == ["train.py:31", "accelerate/utils/operations.py:160"]


def without_syncs(page):
    """The sentence on the variants without syncs."""
    return text_of(re.search(r'<p class="without">(.*?)</p>', page, re.DOTALL).group(1))


@pytest.mark.parametrize(("batch", "named"), [(64, ("second", "64")), (None, ("24",))])
def test_a_prediction_names_the_steps_that_were_followed(study_builder, batch, named):
    """A program may make a sync every 50 steps: a reader of its zero has to know that few were followed."""
    syncs = {"predicted_per_step": 0, "predicted_batch_size": batch, "predicted_steps": 1 if batch else 24}
    study_builder.add("boolean_mask", [1.0], syncs=syncs, predicted_sites=[])
    page = sections.syncs(study_builder.study())
    lead = text_of(re.search(r'<p class="lead".*?</p>', page, re.DOTALL).group(0))
    assert [word for word in named if word not in lead] == []
    assert "predicted: all" in without_syncs(page)


def test_a_variant_whose_rare_steps_were_not_followed_is_not_without_syncs(study_builder):
    for name, every in (("often", 10), ("rarely", 500)):
        syncs = {"predicted_per_step": 0, "predicted_steps": 30}
        branches = [{"file": "train.py", "line": 31, "every": every}]
        study_builder.add(name, [1.0], syncs=syncs, predicted_sites=[], predicted_branches=branches)
    page = sections.syncs(study_builder.study())
    assert "often" in without_syncs(page)
    assert "rarely" not in without_syncs(page)
    summary = text_of(re.search(r"<summary>(.*?)</summary>", page, re.DOTALL).group(1))
    assert [word for word in ("rarely", "train.py:31", "500", "30") if word not in summary] == []


def test_a_variant_that_waits_for_a_later_step_is_not_without_syncs(study_builder):
    awaited = [{"file": "train.py", "line": 31, "awaits": "number", "in_steps": 970}]
    syncs = {"predicted_per_step": 0, "predicted_steps": 30}
    for name, branches in (("often", []), ("waits", awaited)):
        study_builder.add(name, [1.0], syncs=syncs, predicted_sites=[], predicted_awaited=branches)
    page = sections.syncs(study_builder.study())
    assert "waits" not in without_syncs(page)
    summary = text_of(re.search(r"<summary>(.*?)</summary>", page, re.DOTALL).group(1))
    assert [word for word in ("train.py:31", "970", "30") if word not in summary] == []


def test_the_copy_of_the_batch_is_called_so(study_builder):
    syncs = {"predicted_per_step": 2}
    copy = {"file": None, "line": None, "op": "aten::_to_copy", "label": "data", "kind": "h2d_copy", "phase": "forward"}
    sites = [{**copy, "count_per_step": 2}, {**copy, "label": "optimizer", "count_per_step": 1}]
    study_builder.add("boolean_mask", [1.0], syncs=syncs, predicted_sites=sites)
    of_data, of_optimizer = Page(sections.syncs(study_builder.study())).rows()
    assert "batch" in of_data["Line"]
    assert "batch" not in of_optimizer["Line"]
    assert [(row["Label"], row["Per step"]) for row in (of_data, of_optimizer)] == [("data", "2"), ("optimizer", "1")]


def test_what_the_prediction_does_not_cover_is_listed(study_builder):
    unknown = {"op": "torch.compile", "file": "own.py", "line": 3, "reason": "runs uncompiled here"}
    syncs = {"predicted_per_step": 0, "predicted_batch_size": 16}
    study_builder.add("boolean_mask", [1.0], syncs=syncs, predicted_unknown=[unknown])
    study = study_builder.study()
    cells = row(sections.variants(study), "boolean_mask")
    assert (cells["Syncs per step, predicted"], cells["Not covered"]) == ("0", "1")
    page = text_of(sections.syncs(study))
    assert [named for named in ("16", "torch.compile", "own.py:3", unknown["reason"]) if named not in page] == []


def test_measured_sites_carry_their_cost(make_study):
    html = sections.syncs(load_study(make_study("gpu")))
    first = Page(html).rows()[0]
    assert "background = torch.nonzero" in first["Line"]
    assert [first[name] for name in ("Operator", "Kind", "Label", "Phase", "Syncs per step")] == [
        "aten::nonzero", "d2h_copy", "non_zero", "loss", "1",
    ]  # fmt: skip
    assert [first[name] for name in first if name.startswith(("Host", "GPU"))] == ["91.4 ms", "310 µs"]
    assert "ignore_index" in without_syncs(html)


def test_findings_carry_evidence_advice_and_counter_check(make_study):
    findings = load_study(make_study("gpu")).findings
    page = Page(sections.findings(findings))
    first, second = page.with_class("finding")
    assert findings[0].counter_check in first
    assert [named for named in ("310 µs", "masked_losses.py:48", "91.4 ms") if named not in first] == []
    assert figures_in(findings[1].claim)[0] in figures_in(second)


@pytest.mark.parametrize(
    ("study", "words"),
    [
        ("single", ["snakemake --cores all --config 'studies=[single]' scale=cpu repeats=1"]),
        ("gpu", ["Driver differs between runs 570.86.15 or 565.57.01"]),
        (
            "cpu",
            [
                "python -m steptrace.jobs.supervise --out out/VARIANT",
                "--variant results/masked_loss/VARIANT/config.yaml --repeat 0",
                "73b4e1e0c4a5d0cf7d0b4b64b1d1b7a3b0c9f00d",
                "uncommitted changes",
            ],
        ),
    ],
)
def test_provenance_gives_commands_commit_and_what_differs_between_runs(make_study, study, words):
    path = make_study(study)
    page = text_of(sections.provenance(load_study(path), path)).replace("&#39;", "'")
    for text in words:
        assert text in page
    assert str(path.parents[2]) not in page


def test_whatever_comes_from_data_is_escaped(study_builder):
    name = HOSTILE
    site = {"file": HOSTILE, "line": 1, "function": HOSTILE, "op": HOSTILE, "label": HOSTILE, "code": HOSTILE}
    for key in ("title", "question", "text"):
        study_builder.comparison[key] = HOSTILE
    study_builder.comparison["environment"] = {"host": HOSTILE, "cpu": HOSTILE}
    study_builder.comparison["method"] = {"interval": HOSTILE, "correction": HOSTILE, "noise_floor_source": HOSTILE}
    study_builder.comparison["findings"] = [
        {"rule": HOSTILE, "claim": HOSTILE, "evidence": [HOSTILE], "advice": HOSTILE,
         "counter_check": HOSTILE, "variant": name}
    ]  # fmt: skip
    variant = study_builder.add("placeholder", [1.0, 1.1], trace=traced(1, None, [site], **{HOSTILE: 1.0, "loss": 2.0}))
    variant.update(name=name, hypothesis=HOSTILE, overrides=[HOSTILE], digest=HOSTILE, syncs={"measured_per_step": 1})
    variant["ratio"] = {"value": 1.1, "low": 1.0, "high": 1.2, "verdict": "faster"}
    variant["noise"]["notes"] = [{"code": "trace_fault", "figures": {"message": HOSTILE}}]
    failed = study_builder.fail("other", "failed", {"error": HOSTILE, "log_tail": [HOSTILE]})
    failed["runs"][0]["path"] = HOSTILE
    page = all_parts(study_builder.write())
    assert "<img" not in page
    assert "{{ 7 * 7 }}" in page  # neither does a template engine see it twice


def chart_of(path: Path) -> str:
    study = load_study(path)
    return steps_in_order(study, load_steps(study, path))


def test_charts_keep_their_text_and_say_what_they_show(make_study):
    chart = chart_of(make_study("cpu"))
    assert chart.startswith("<svg class=")
    assert 'aria-label="' in chart
    assert ">ignore_index</text>" in chart
    assert "http" not in chart
    assert "#0072b2" not in chart  # colours are the page's, so that they follow its theme
    ids = re.findall(r'\bid="([^"]+)"', chart)
    assert len(ids) == len(set(ids))


def test_the_scale_of_steps_is_that_of_timed_ones_and_longer_ones_are_cut_off(study_builder):
    """A first step of six times as long would flatten all that the comparison rests on."""
    study_builder.add("base", [10.0])
    chart = chart_of(study_builder.write())
    (points,) = re.findall(r'<polyline points="([^"]+)"', chart)
    heights = [float(point.split(",")[1]) for point in points.split()]
    top, height = map(float, re.findall(r'<rect x="[\d.]+" y="([\d.]+)" width="[\d.]+" height="([\d.]+)"', chart)[0])
    assert heights[0] == min(heights) == top
    timed = heights[5:25]
    assert max(timed) - min(timed) > height / 2  # their differences take more than half of the scale


def test_the_steps_of_all_variants_are_drawn_on_one_scale_and_runs_have_a_key(study_builder):
    study_builder.add("slow", [10.0, 10.1])
    study_builder.add("fast", [9.0, 9.1])
    chart = chart_of(study_builder.write())
    ticks = re.findall(r'y="([\d.]+)" text-anchor="end">([^<]+)<', chart)
    slow, fast = ticks[: len(ticks) // 2], ticks[len(ticks) // 2 :]
    assert [words for _, words in slow] == [words for _, words in fast]
    assert re.findall(r">(run \d)<", chart) == ["run 0", "run 1"]
    strokes = re.findall(r'<polyline [^>]*stroke="([^"]+)"', chart)
    assert strokes[:2] == strokes[2:]
    assert strokes[0] != strokes[1]


def test_long_names_are_shortened_in_charts_only(study_builder):
    name = "a" * 40 + "b" * 40
    study_builder.add(name, [1.0, 1.1])
    path = study_builder.write()
    assert re.search(r">a+…b+</text>", chart_of(path))
    assert name in sections.variants(load_study(path))


def test_inline_code_and_breaks_escape_first():
    assert inline_code("`a<b` & c") == "<code>a&lt;b</code> &amp; c"
    assert breakable("a_b=<x>") == "a_<wbr>b=<wbr>&lt;x&gt;"


@pytest.mark.parametrize("study", ["cpu", "gpu", "broken", "matrix", "single", "all_failed"])
def test_no_number_of_a_page_is_null_or_nan_and_sentences_are_parted_by_spaces(make_study, study):
    parts = all_parts(make_study(study))
    assert not re.search(r"\b(None|nan|NaN|null)\b", text_of(parts))
    page = re.sub(r"<title>.*?</title>|</?(?:span|b|code|a|wbr)\b[^>]*>", "", parts)
    assert re.findall(r"[a-z)%][.;:][A-Z][a-z]+", re.sub(r"<[^>]+>", "\n", page)) == []


def test_findings_of_one_rule_share_its_advice_and_the_worst_severity():
    noise = {"rule": "noise", "advice": "Free the machine.", "counter_check": "Look at the plot.", "claim": "uneven"}
    items = [{**noise, "variant": "a", "severity": "warning"}, {**noise, "variant": "b", "severity": "high"}]
    page = sections.findings([fill(Finding, item) for item in items])
    assert page.count("Free the machine.") == 1
    assert 'class="finding high"' in page
    assert "a , b : uneven" in text_of(page)  # the same of both, said once


@pytest.mark.parametrize(
    ("claim", "shown"),
    [
        ("the GPU waits for launches", "The GPU waits for launches"),
        ("all-reduces are small: 8 a step", "All-reduces are small: 8 a step"),
        ("`aten::mul_` is called 9 times", "`aten::mul_` is called 9 times"),
        ("12 % of the step", "12 % of the step"),
    ],
)
def test_a_claim_starts_as_a_sentence_does_but_names_stay(claim, shown):
    assert capitalised(claim) == shown


def test_a_page_of_200_variants_stays_small(study_builder, tmp_path):
    """Without trace views, which are 24 at most; what most variants share is said once, and the rest is left out."""
    labels = ("forward", "backward", "mask", "calc loss", "non_zero", "unique", "numel", "optimizer")
    site = {"file": "own.py", "function": "loss", "code": "x.nonzero()", "op": "aten::nonzero", "kind": "d2h_copy"}
    sites = [{**site, "line": line, "count_per_step": 1} for line in range(6)]
    study_builder.comparison["baseline"] = "variant_000"
    for number in range(200):
        study_builder.add(
            f"variant_{number:03}",
            [12.4, 12.6, 12.3],
            ratio={"value": 1.01, "low": 0.98, "high": 1.03, "verdict": "undecided" if number else "baseline"},
            trace=traced(1, **dict.fromkeys(labels, 0.4)),
            syncs={"predicted_per_step": 6},
            predicted_sites=sites[:5] if number == 7 else sites,
        )
    page = tmp_path / "many.html"
    render_study(study_builder.write(), page)
    assert page.stat().st_size < 1_000_000
    words = text_of(page.read_text())
    assert "185 more variants" in words
    assert "480 more runs ended well" in words


def sync_change(line: int, before: float, after: float, op: str = "aten::_unique2") -> dict[str, Any]:
    counts = {"baseline_count_per_step": before, "variant_count_per_step": after}
    return {"file": "masked_losses.py", "line": line, "op": op, "label": "unique", "phase": "loss", **counts}


def syncs_against_baseline(builder: Any, base: dict[str, Any] | None = None, **fields: Any) -> str:
    builder.add("boolean_mask", [22.0] * 3, ratio=BASE, **(base or {}))
    builder.add("where", [14.0] * 3, ratio=ratio(1.57, None, None, "faster"), **fields)
    return text_of(sections.syncs(builder.study()))


def test_the_places_that_sync_less_or_more_often_are_named(study_builder):
    sites = [
        sync_change(38, 1, 0),
        sync_change(40, 2, 2),
        sync_change(51, 0, 1),
        sync_change(38, 1, 0, op="aten::index"),
        sync_change(60, 3, 1),
        sync_change(70, 1, 0.25) | {"variant_steps": {"in_steps": 2, "of_steps": 8, "every": 4}},
        sync_change(71, 1, 0.125) | {"variant_steps": {"in_steps": 1, "of_steps": 8, "every": None}},
    ]
    diff = {"basis": "measured", "sites": sites}
    page = syncs_against_baseline(study_builder, syncs={"measured_per_step": 3}, sync_diff=diff)
    assert (
        "where against boolean_mask (measured): removes masked_losses.py:38 ; adds masked_losses.py:51 ; "
        "masked_losses.py:60 3 → 1; masked_losses.py:70 1 → 1 every 4 steps; masked_losses.py:71 1 → once in 8 steps"
    ) in page


def test_a_variant_that_syncs_as_its_baseline_does_is_not_compared(study_builder):
    diff = {"basis": "predicted", "sites": [sync_change(38, 1, 1)]}
    page = syncs_against_baseline(study_builder, syncs={"predicted_per_step": 1}, sync_diff=diff)
    assert "Against the baseline" not in page


def test_what_each_site_costs_at_most_stands_on_the_page(study_builder):
    costs = {"blocked_ns": 9_000_000, "exposed_idle_ns": 8_000_000, "ceiling_ns": 8_500_000}
    priced = {"file": "masked_losses.py", "line": 38, "op": "aten::nonzero", "count": 1, **costs}
    base = {"trace": traced(1, None, [priced]), "syncs": {"measured_per_step": 1}}
    diff = {"basis": "measured", "sites": [sync_change(38, 1, 0)]}
    page = syncs_against_baseline(study_builder, base, sync_diff=diff)
    assert re.search(r"masked_losses.py:38 .*9\.00 ms 8\.00 ms 8\.50 ms", page)
    assert page.count("9.00 ms") == 2  # in the table, and what the step saves without its syncs


def a_shared_finding(severity: str, n: int, line: int = 7) -> dict[str, Any]:
    return {
        "rule": "slow_kernels", "severity": severity, "claim": f"slow {n}", "advice": "Look.", "variant": f"v{n}",
        "cost_ns_per_step": 1_000_000 * (n + 1), "source": {"file": "a.py", "line": line},
    }  # fmt: skip


def test_what_variants_share_is_told_once_of_the_costliest_and_severe_findings_of_each():
    page = text_of(findings([fill(Finding, a_shared_finding("warning", n)) for n in range(3)]))
    assert [f": slow {n} " in page for n in range(3)] == [False, False, True]
    _, shared = page.split("Also")
    assert (re.findall(r"v\d", shared), re.findall(r"[\d.]+ ms", shared)) == (["v1", "v0"], ["1.00 ms", "2.00 ms"])
    apart = text_of(findings([fill(Finding, a_shared_finding("warning", n, line=n)) for n in range(3)]))
    severe = text_of(findings([fill(Finding, a_shared_finding("high", n)) for n in range(3)]))
    for each in (apart, severe):
        assert [f": slow {n} " in each for n in range(3)] == [True, True, True]


def test_of_many_severe_findings_the_first_are_shown_and_the_other_variants_named():
    page = text_of(findings([fill(Finding, a_shared_finding("high", n)) for n in range(9)]))
    assert page.count(": slow ") == 6
    assert re.findall(r"v\d", page.split("Also")[-1]) == ["v6", "v7", "v8"]


def test_a_line_s_number_stays_with_its_file():
    """A narrow screen breaks a path at a slash or an underscore, and never within `losses.py:57`'s number."""
    assert breakable("a/my_loss.py:57") == 'a/<wbr>my_<wbr>loss.<wbr><span class="nowrap">py:57</span>'
    assert inline_code("see a/loss.py:57 and 3:4") == 'see a/loss.<span class="nowrap">py:57</span> and 3:4'
    assert "nowrap" not in breakable("aten::add") + inline_code("at::native::f")


@pytest.mark.parametrize("name", ["study", "gpu", "cpu", "trace", "results", "diff"])
def test_every_table_is_the_one_component(pages, name):
    tables = re.findall(r"<table[^>]*>", pages[name].read_text(encoding="utf-8"))
    assert tables
    assert all('class="compact sortable' in table for table in tables)


def test_blocked_time_stands_beside_what_a_step_gains(make_study):
    study = load_study(make_study("gpu"))
    (row, *_) = [row for row in removals(study) if row.name == "ignore_index"]
    baseline, variant = (next(v for v in study.variants if v.name == name) for name in (row.baseline, row.name))
    steps = baseline.trace.quality.steps
    assert row.baseline_blocked_ms[0] == pytest.approx(baseline.trace.syncs.blocked_ns / steps / 1e6)
    assert row.blocked_ms[0] == pytest.approx(variant.trace.syncs.blocked_ns / variant.trace.quality.steps / 1e6)
    ends = [baseline.step_time_ms * (1 - 1 / end) for end in (variant.ratio.low, variant.ratio.high)]
    assert row.saved_ms == pytest.approx(ends)
    assert "ignore_index against boolean_mask : host blocked" in text_of(sections.syncs(study))


def test_without_a_gpu_no_blocked_time_stands_beside_a_gain(make_study):
    assert removals(load_study(make_study("cpu"))) == []
