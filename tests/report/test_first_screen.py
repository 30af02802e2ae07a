"""The first screen of a study: what came out variant by variant, and what to do first."""

import re
from typing import Any

import pytest

from figures import figures_in
from report.conftest import BASE, ratio, traced
from shown import with_plain_spaces
from steptrace.findings.recommended import recommended
from steptrace.report.charts.scale import Scale
from steptrace.report.page.findings import device_of_study
from steptrace.report.study import findings, first_screen, load_study, step_times, syncs, variants
from steptrace.report.study.first_screen import against_baseline
from steptrace.report.study.variants import MOST_ROWS, care, variants_shown


def a_finding(rule: str, cost: int | None = None) -> dict[str, Any]:
    return {"rule": rule, "severity": "warning", "claim": f"claim of {rule}", "advice": f"advice of {rule}",
            "cost_ns_per_step": cost}  # fmt: skip


def test_the_interval_drawn_excludes_the_baseline_exactly_where_the_ratio_does(study_builder):
    study_builder.comparison["baseline"] = "base"
    study_builder.add("base", [30.0, 60.0], ratio=BASE)
    study_builder.add("fast", [20.0, 40.0], ratio=ratio(1.5, 1.4, 1.6, "faster"))
    study_builder.add("open", [25.0, 50.0], ratio=ratio(1.2, 0.9, 1.6, "undecided"))
    study = study_builder.study()
    medians = {v.name: v.step_ms.median for v in study.variants if v.step_ms is not None}
    base, fast, undecided = study.variants
    assert against_baseline(base, medians) is None
    assert against_baseline(fast, medians) == pytest.approx((medians["base"] / 1.6, medians["base"] / 1.4))
    low, high = against_baseline(undecided, medians) or (0, 0)
    assert low < medians["base"] < high
    screen = first_screen(study)
    assert screen.count('class="interval"') == 2
    assert 'class="on-scale faster"' in screen


def test_warnings_that_nothing_else_says_stand_below_the_table_of_variants(study_builder):
    late: dict[str, Any] = {"code": "runs_missing", "figures": {"measured": 1, "runs": 2}}
    uneven = {"code": "runs_differ", "figures": {"deviation": 0.16}}
    corrected: dict[str, Any] = {"code": "lost_by_correction", "figures": {}}
    for name, iqr, notes in (("even", 0.01, [uneven, late]), ("odd", 0.2, [uneven, late, corrected])):
        study_builder.add(name, [30.0], noise={"iqr_over_median": iqr, "notes": notes})
    shown = care(study_builder.study())
    assert len(shown) == 2  # the correction is on the first screen
    assert ["all variants" in text for text in shown].count(True) == 1
    assert ["`even`" in text for text in shown].count(True) == 1


def timed_steps(screen: str) -> list[str]:
    """What a first screen says of the timed steps of a variant."""
    return re.findall(r"timed steps per variant: ([^<]*)<", screen)


def test_timed_steps_that_do_not_count_are_mentioned(study_builder):
    study_builder.add("base", [30.0, 30.0])
    late = study_builder.add("late", [30.0, 30.0])
    (line,) = timed_steps(first_screen(study_builder.study()))
    assert figures_in(line) == [40]
    late["runs"][1] |= {"warmup_left_out": 2, "steps": 18}
    late["step_ms"]["steps"] = 38
    (line,) = timed_steps(first_screen(study_builder.study()))
    assert figures_in(line) == [38, 40, 2, 80]  # of a variant, and left out of all


def test_what_a_prediction_does_not_cover_is_mentioned_only_where_no_sync_was_measured(study_builder):
    unknown = [{"op": "torch.compile", "reason": "not followed", "file": "t.py", "line": 3}]
    counts = {"measured_per_step": 0, "predicted_per_step": 0}
    for name, changes in (("base", {}), ("measured", {}), ("odd", {"predicted_per_step": 2})):
        study_builder.add(name, [30.0, 30.0], syncs=counts | changes, predicted_unknown=unknown)
    study = study_builder.study()
    pages = [first_screen(study), variants(study), syncs(study)]
    assert "not predicted" not in pages[1]
    assert not any("not covered" in page.lower() for page in pages[:2])
    assert "No sync in a step" in pages[2]
    assert pages[2].count("<summary>") == 2  # one block, of what was predicted and not measured, and the meanings
    assert ">odd<" in pages[2].split("<summary>")[1]
    study_builder.add("unlike", [30.0, 30.0], syncs={"measured_per_step": 0, "predicted_per_step": None})
    assert variants(study_builder.study()).count("not predicted") == 1


def test_every_name_leads_to_its_row_in_the_table_of_all_variants(make_study):
    study = load_study(make_study("gpu"))
    links = re.findall(r'class="variant" href="#([^"]+)"', first_screen(study))
    assert len(links) == len(study.variants)
    assert all(f'id="{link}"' in variants(study) for link in links)


def test_of_many_variants_the_baseline_and_those_that_differ_most_are_shown(study_builder):
    study_builder.comparison["baseline"] = "base"
    study_builder.add("base", [30.0], ratio=BASE)
    for n in range(40):
        study_builder.add(f"same{n}", [30.0], ratio=ratio(1 + n / 1e5, 0.99, 1.01, "same"))
    study_builder.add("slow", [90.0], ratio=ratio(0.33, 0.3, 0.36, "slower"))
    study = load_study(path := study_builder.write())
    names = [variant.name for variant in variants_shown(study)]
    assert len(names) == MOST_ROWS
    assert names[0] == "base"
    assert names[-1] == "slow"
    assert f"{42 - MOST_ROWS} more in the" in first_screen(study)
    charts = step_times(study, path)
    assert f"{42 - MOST_ROWS} more variants not drawn" in charts
    assert ">slow</text>" in charts
    assert ">same0</text>" not in charts


def test_the_first_recommendations_are_of_different_rules_and_lead_to_the_findings(study_builder):
    study_builder.add("boolean_mask", [100.0], ratio=BASE)
    study_builder.comparison["findings"] = [
        a_finding(rule, 9_000_000 - n) | {"claim": f"claim {n}", "advice": f"advice {n}"}
        for n, rule in enumerate(["sync", "sync", "input", "launches", "memory"])
    ]
    study = study_builder.study()
    assert [finding.claim for finding in recommended(study.findings)] == ["claim 0", "claim 2", "claim 3"]
    html = first_screen(study)
    for text in ("advice 2", "Saves at most 9.00 ms per step", 'href="#findings"', "All findings"):
        assert text in html


def test_findings_about_the_method_come_last(study_builder):
    study_builder.add("boolean_mask", [100.0], ratio=BASE)
    study_builder.comparison["findings"] = [a_finding("noise"), a_finding("sync_bound", 5)]
    study = study_builder.study()
    assert "claim of noise" not in first_screen(study)
    page = findings(study.findings)
    assert page.index("laim of sync_bound") < page.index("laim of noise")
    study_builder.comparison["findings"] = [a_finding("noise")]
    assert "laim of noise" in first_screen(study_builder.study())


def test_a_scale_is_logarithmic_where_values_lie_far_apart_and_what_lies_beyond_is_at_its_ends():
    far = Scale.showing([1.0, 100.0])
    near = Scale.showing([10.0, 20.0])
    assert far.log
    assert not near.log
    assert float(far.place(10.0)) == pytest.approx(50)
    assert far.ticks() == [1, 10, 100]
    assert near.place(1e9) == "100"
    assert near.ticks() == [10, 15, 20]


def test_variants_have_anchors_of_their_own_whatever_their_names(study_builder):
    names = ["a b", "a-b", "a/b", "a.b", "ä"]
    for name in names:
        study_builder.add(name, [20.0])
    page = str(variants(study_builder.study()))
    ids = re.findall(r'<tr id="(variant-[^"]+)"', page)
    assert len(set(ids)) == len(names)


def base_and_fast(builder: Any, gpu: str | None = None) -> Any:
    """A study of two variants, on that GPU or none."""
    builder.comparison["baseline"] = "base"
    builder.comparison["environment"] = {**builder.comparison["environment"], "gpu": gpu}
    builder.add("base", [30.0, 31.0], ratio=BASE)
    builder.add("fast", [20.0, 21.0], ratio=ratio(1.5, 1.4, 1.6, "faster"), operators_per_step=123)
    return builder.study()


def test_a_baseline_has_no_interval_of_a_ratio_and_none_is_called_not_measured(study_builder):
    page = variants(base_and_fast(study_builder))
    cells = re.findall(r'data-label="95 % interval of the ratio"[^>]*>(.*?)</td>', page)
    assert cells == ["", "1.40 to 1.60"]


@pytest.mark.parametrize(
    ("gpu", "words"),
    [("NVIDIA H100 (stand-in)", "simulated GPU: times mean nothing"), (None, "no GPU: CPU timings"), ("H100", None)],
)
def test_a_badge_beside_the_title_says_whose_times_these_are(study_builder, gpu, words):
    study = base_and_fast(study_builder, gpu)
    (title,) = re.findall(r"<h1>.*?</h1>", str(first_screen(study)), re.DOTALL)
    assert re.findall(r'class="badge [^"]*device">([^<]+)', title) == ([words] if words else [])
    assert (device_of_study(study) is None) == (words is None)


def test_beside_syncs_stand_operators_or_where_a_gpu_ran_how_busy_it_was(study_builder):
    screen = str(first_screen(base_and_fast(study_builder)))
    assert ">Operators per step</th>" in screen
    assert re.findall(r'class="num used"[^>]*>(\d+)<', screen) == ["412", "123"]
    study_builder.add("traced", [20.0], gpu_busy_pct=45.2, nvml_util_pct=99.0)
    study_builder.add("sampled", [20.0], nvml_util_pct=98.0)
    screen = with_plain_spaces(first_screen(study_builder.study()))
    assert ">GPU busy</th>" in screen
    assert re.findall(r'class="num used"[^>]*>([\d.]+ %)', screen) == ["45 %", "98 %"]
    assert screen.count("NVML") == 1


def test_each_run_is_a_dot_on_the_scale_of_the_intervals(study_builder):
    screen = str(first_screen(base_and_fast(study_builder)))
    assert screen.count('class="run"') == 4  # two runs of each


def test_a_profile_far_slower_than_the_step_is_marked(study_builder):
    parts = {"compute": 400.0, "exposed_comm": 0.0, "exposed_memory": 0.0, "idle": 80.0}
    study_builder.add("slow", [20.0], trace=traced(1, parts), profiled_over_unprofiled=24.2)
    study_builder.add("near", [20.0], trace=traced(1, parts), profiled_over_unprofiled=1.4)
    screen = str(first_screen(study_builder.study()))
    assert re.findall(r'class="warn">([^<]+)', screen) == ["profiled: 24 times as long"]


def test_the_page_names_the_commit_of_what_was_measured_and_the_version_of_steptrace(study_builder):
    study = base_and_fast(study_builder)
    screen = str(first_screen(study))
    assert re.findall(r"<span>(measured code at commit \w+|steptrace [\d.]+)", screen) == [
        "steptrace 0.1.0", "measured code at commit 73b4e1e0c4",
    ]  # fmt: skip


def test_variants_that_were_measured_differently_are_named_with_their_steps(study_builder):
    study_builder.add("base", [30.0], overrides=["loss=a", "profile=light", "scale.timed_steps=8"], steps=8)
    study_builder.add("fast", [20.0], overrides=["loss=b"])
    notes = care(study_builder.study())
    assert len(notes) == 1
    assert [part for part in ("`base`", "`profile=light`", "`scale.timed_steps=8`", "8 ") if part not in notes[0]] == []
    assert "fast" not in notes[0]


def test_a_bar_that_is_mostly_the_profiler_s_does_not_shorten_the_others(study_builder):
    for name, compute, slower in (("slow", 480.0, 24.2), ("long", 20.0, 1.1), ("half", 10.0, 1.1)):
        parts = {"compute": compute, "exposed_comm": 0.0, "exposed_memory": 0.0, "idle": 0.0}
        study_builder.add(name, [20.0], trace=traced(1, parts), profiled_over_unprofiled=slower)
    screen = str(first_screen(study_builder.study()))
    assert re.findall(r'<rect x="0%" width="([\d.]+)%"', screen) == ["100", "100", "50"]


def test_advice_begins_with_what_to_do_and_where_and_the_rest_is_folded(study_builder):
    source = {"file": "lab/losses.py", "line": 57}
    parts = ("Keep `x` on the device.", "It is read later.")
    at_source = {"claim": "it waits at lab/losses.py:57", "advice": " ".join(parts), "advice_parts": parts}
    elsewhere = {"claim": "two places wait", "advice": "Replace both."}
    study_builder.add("boolean_mask", [100.0], ratio=BASE, samples_per_step=32)
    study_builder.comparison["findings"] = [
        a_finding("sync", 5) | at_source | {"source": source},
        a_finding("syncs_together", 4) | elsewhere | {"source": source},
    ]
    screen = str(first_screen(study_builder.study()))
    first, second = re.findall(r"<details>\s*<summary>(.*?)</summary>", screen)[:2]
    gain = ' <b class="nowrap">Saves at most {}.00 ns per step</b>'
    assert first == f'<span class="place">losses.py:57</span>: Keep <code>x</code> on the device.{gain.format(5)}'
    assert second == f"Replace both.{gain.format(4)}"
    assert "<p>It is read later.</p>" in screen
    assert "samples per step: 32" in screen


def test_a_verdict_that_is_missing_is_explained_below_the_table(make_study, study_builder):
    screen = first_screen(load_study(make_study("single")))
    assert ">no verdict<" in screen
    assert "two runs" in screen[screen.index("</table>") :]
    figures = {"is_baseline": False, "iqr_over_median": 0.4, "most": 0.25}
    noise = {"iqr_over_median": 0.4, "notes": [{"code": "too_uneven", "figures": figures}]}
    study_builder.comparison["baseline"] = "base"
    study_builder.add("base", [30.0, 30.0], ratio=BASE)
    study_builder.add("odd", [20.0, 20.0], ratio=ratio(1.5, 1.2, 1.8, None), noise=noise)
    screen = first_screen(study_builder.study())
    assert "<code>odd</code>: " in screen
    assert "40\N{NO-BREAK SPACE}%" in screen


def test_where_nothing_was_measured_there_is_no_column_of_intervals(study_builder):
    study_builder.fail("base", "failed", {"error": "no such file", "log_tail": []})
    assert "Step time with" not in str(first_screen(study_builder.study()))


def test_a_variant_that_failed_is_the_last_row_and_says_why(study_builder):
    study_builder.comparison["baseline"] = "base"
    study_builder.fail("broken", "failed", {"error": "ValueError: not a number", "log_tail": []})
    study_builder.add("base", [30.0, 30.0], ratio=BASE)
    screen = str(first_screen(study_builder.study()))
    row = screen[screen.index('class="ended-badly"') :]
    assert "broken" in row
    assert "ValueError: not a number" in row[: row.index("</tr>")]
    assert screen.index('class="ended-badly"') > screen.index("base")


def test_the_section_that_tells_variants_apart_has_a_column_first_where_the_step_hides_it(study_builder):
    study_builder.comparison["baseline"] = "base"
    for name, sections in (("base", {"calc loss": 3.0, "forward": 8.0}), ("fused", {"calc loss": 0.5, "forward": 8.0})):
        study_builder.add(name, [30.0, 30.1], ratio=BASE if name == "base" else None, synced_sections_ms=sections)
    screen = with_plain_spaces(first_screen(study_builder.study()))
    heads = re.findall(r"<th[^>]*>(.*?)</th>", screen, re.DOTALL)
    positions = [index for index, head in enumerate(heads) if "calc loss" in head]
    assert positions == [1]
    assert "500 µs" in screen
    assert "3.00 ms" in screen


def test_variants_that_do_not_run_here_are_named_with_their_reason(study_builder):
    study_builder.add("base", [30.0, 30.1], ratio=BASE)
    study_builder.comparison["skipped"] = [
        {"name": "triton", "reason": "package_missing", "packages": ["triton"]},
        {"name": "pinned", "reason": "other_scale", "scales": ["gpu"]},
    ]
    notes = [
        text for text in re.findall(r"<p[^>]*>(.*?)</p>", first_screen(study_builder.study())) if "skipped" in text
    ]
    assert len(notes) == 2
    assert "<code>triton</code>" in notes[0]
    assert "<code>pinned</code>" in notes[1]
    assert "gpu" in notes[1]
