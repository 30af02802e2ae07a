"""Estimates on a study's page: they lead without a GPU, stand beside what was measured with one, and name a winner."""

import dataclasses
import re
from typing import Any

import pytest
from msgspec.structs import replace

from documents import an_estimate, fill
from figures import codes_in, figures_in
from shown import with_plain_spaces
from steptrace.documents.answer import EstimatedAnswer
from steptrace.documents.finding import PREDICTED_SYNCS, Finding
from steptrace.documents.summary import TraceSummary
from steptrace.findings.answer import answer_of
from steptrace.findings.estimated import estimated_answer, estimated_winner, leads
from steptrace.findings.known import known_difference
from steptrace.findings.verdict import verdict_of
from steptrace.report.page.findings import device_of_study
from steptrace.report.page.markup import inline_code
from steptrace.report.study import all_findings, first_screen
from steptrace.words.estimated_answer import estimated_sentence


@pytest.fixture
def estimated(study_builder):
    """Makes a study of two variants with these bands, measured on a GPU of that name or on a CPU."""

    def make(bands: dict[str, tuple[float | None, float | None]], gpu: str | None = None) -> Any:
        study_builder.comparison["baseline"] = "base"
        study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": gpu}
        for name, band in bands.items():
            ratio = {"value": 1.0, "verdict": "baseline" if name == "base" else "same"}
            study_builder.add(name, [30.0, 30.0], ratio=ratio, estimates=[an_estimate(*band)])
        return study_builder.study()

    return make


def test_without_a_gpu_estimates_lead_and_cpu_times_fold(estimated):
    study = estimated({"base": (20, 30), "fast": (5, 9)})
    screen = with_plain_spaces(first_screen(study))
    assert screen.index("Estimated for H100") < screen.index('class="cpu-check"')
    device = device_of_study(study)  # on the index, too
    assert device is not None
    assert device.words in screen
    assert "H100" in device.words
    assert "5.0 to 9.0 ms" in screen
    assert "80 to 100 %" in screen
    assert "1.00 GiB" in screen
    (answer,) = answer_of(study).estimated
    assert (answer.outcome, answer.name, answer.is_alone) == ("fastest", "fast", True)
    assert answer.times_as_fast == pytest.approx((20 / 9, 6))
    assert screen.count('class="on-scale estimated"') == 2


@pytest.mark.parametrize("gpu", [None, "NVIDIA H100 80GB HBM3"])
def test_findings_on_cpu_steps_fold_where_an_estimate_leads(estimated, gpu):
    study = estimated({"base": (20, 30), "fast": (5, 9)}, gpu=gpu)
    rules = {"noise": None, "input_bound": 10**6, PREDICTED_SYNCS: None}
    items = tuple(
        fill(Finding, {"rule": rule, "severity": "warning", "claim": rule, "cost_ns_per_step": cost, "variant": "base"})
        for rule, cost in rules.items()
    )
    page = all_findings(replace(study, findings=items))
    folded = page.find("<summary>2 findings")
    assert (folded == -1) == (gpu is not None)
    assert gpu or page.index("predicted syncs") < folded < page.index("input bound")


@pytest.mark.parametrize(
    ("base", "fast", "winner", "outcome", "to_do", "figures"),
    [
        ((20, 30), (5, 9), "fast", "fastest", "use_estimated", [2.2, 6.0, 5.0, 9.0, 20, 30]),
        ((3, 4), (5, 9), "base", "fastest", "use_estimated", [3.0, 4.0]),
        ((20, 30), (15, 20), None, "cannot_tell", "measure", []),
        ((20, 30), (None, None), None, "some_not_estimated", "measure", []),
    ],
)
def test_without_a_gpu_winner_headline_and_advice_follow_the_estimates_whose_bands_are_apart(
    estimated, base, fast, winner, outcome, to_do, figures
):
    study = estimated({"base": base, "fast": fast})
    best = estimated_winner(study, "H100")
    verdict = verdict_of(study)
    assert (None if best is None else best.name) == winner
    answer = answer_of(study)
    assert [by_gpu.outcome for by_gpu in answer.estimated] == [outcome]
    assert answer.advice.to_do == to_do
    assert figures_in(verdict.sentence)[: len(figures)] == figures
    assert ("50\N{NO-BREAK SPACE}%" in first_screen(study)) == (fast[0] is None)  # the share that is covered
    if winner is not None:
        assert (answer.use, answer.advice.gpus) == (winner, ("H100",))
        assert codes_in(verdict.advice)[0] == winner
        assert codes_in(verdict.advice)[-1].startswith("snakemake ")
    if winner == "fast":
        assert (verdict.use, verdict.tone) == ("fast", "good")
        assert answer.advice.variant is not None
        assert answer.advice.variant.set == ("loss=fast",)
        assert first_screen(study).count(inline_code(verdict.sentence)) == 1


def test_with_a_gpu_its_measured_times_lead_and_the_estimate_stands_folded_beside_them(estimated):
    study = estimated({"base": (20, 30), "fast": (5, 9), "none": (None, None)}, gpu="NVIDIA H100 80GB HBM3")
    study = replace(study, variants=tuple(
        replace(v, step_ms=None if v.step_ms is None else replace(v.step_ms, median=30.0)) for v in study.variants
    ))  # fmt: skip
    figures = {
        "gpu_busy_pct": 7.8,
        "trace": fill(TraceSummary, {"launches": {"count": 450}, "quality": {"steps": 3}}),
        "peak_allocated_bytes": 3 * 2**29,
    }
    screen = with_plain_spaces(
        first_screen(replace(study, variants=tuple(replace(v, **figures) for v in study.variants)))
    )
    assert 'class="cpu-check"' not in screen
    assert screen.index("Step time with") < screen.index("runs per variant") < screen.index("Estimate for H100")
    folded = screen[screen.index("Estimate for H100") :]
    assert figures_in(folded.split("</summary>")[0])[-2:] == [1.0, 2.0]  # of two step times one is within its band
    cells = [row.split("</tr>")[0] for row in folded.split('<th scope="row"')[1:]]
    for base_or_fast, ratio in zip(cells, ("1.00× to 1.50×", "3.33× to 6.00×"), strict=False):
        for text in ("30.0 ms", ratio, "80 to 100 %", ">200<", "1.00 GiB"):
            assert text in base_or_fast
        for text in ("7.8 %", "150", "1.50 GiB"):
            assert f"measured: {text}<" in base_or_fast
    assert "×" not in cells[2]
    assert "50 %" in folded  # the share that is covered
    for name in ("NVIDIA L4", "NVIDIA H100 PCIe"):  # which is another card than the H100
        other = first_screen(estimated({"base": (20, 30), "other": (5, 9)}, gpu=name))
        assert "beside what was measured" not in other
        assert other.index("runs per variant") < other.index("Estimated for H100")


def test_of_variants_that_are_all_faster_than_the_baseline_the_simplest_is_named(estimated):
    study = estimated({"base": (490, 1500), "concat": (38, 75), "padding": (35, 67), "slow": (90, 99)})
    (answer,) = answer_of(study).estimated
    assert (answer.name, answer.alike, answer.is_alone) == ("concat", ("padding",), False)
    verdict = verdict_of(study)
    assert figures_in(verdict.sentence) == [6.5, 39, 38, 75, 490, 1.5]
    assert codes_in(verdict.sentence) == ["concat", "base", "padding"]
    assert codes_in(verdict.advice)[:3] == ["concat", "base", "loss=concat"]


@pytest.mark.parametrize(
    ("limits", "limit"),
    [
        (["launches"], "launches"),
        (["memory"], None),
        (["syncs"], None),  # `fast` has as many
        (["launches", "memory"], None),  # two GPUs with different limits
    ],
)
def test_the_limit_of_a_step_is_the_reason_only_where_the_other_variant_has_less_of_it(estimated, limits, limit):
    study = estimated({"base": (490, 1500), "fast": (35, 67)})
    base, fast = study.variants
    of_base = [
        dataclasses.replace(base.estimates[0], gpu=f"GPU{n}", launches=9000, limited_by=item)
        for n, item in enumerate(limits)
    ]
    of_fast = [dataclasses.replace(fast.estimates[0], gpu=item.gpu) for item in of_base]
    pair = (replace(base, estimates=tuple(of_base)), replace(fast, estimates=tuple(of_fast)))
    answer = answer_of(replace(study, variants=pair))
    verdict = verdict_of(replace(study, variants=pair))
    assert answer.reason is not None
    assert answer.reason.limited_by == limit
    assert [(row.what, row.now, row.before) for row in answer.reason.fewer] == [("launches", 200, 9_000)]
    assert (answer.reason.gpu_work_ms, answer.reason.baseline_gpu_work_ms) == ((35, 67), (490, 1500))
    assert figures_in(verdict.reason) == [200, 9_000, 35, 67, 490, 1.5]
    assert verdict.syncs  # the reason names none


def test_a_compiled_variant_has_no_step_time_and_no_winner_over_it(estimated, study_builder):
    estimated({"base": (20, 30), "fast": (5, 9)})
    missing = {"name": "torch.compile", "reason": "", "share_pct": 100, "calls": 1, "file": "t.py", "line": 3}
    compiled = an_estimate(None) | {
        "launches": None, "reason": "compiled at t.py:3", "not_estimated": [missing], "uncompiled_ms": [5, 9],
    }  # fmt: skip
    compiled |= {"syncs": 0}
    unknown = [{"op": "torch.compile", "reason": "not followed", "file": "t.py", "line": 3}]
    study_builder.add("compiled", [30.0, 30.0], estimates=[compiled], predicted_unknown=unknown)
    study = study_builder.study()
    (answer,) = answer_of(study).estimated
    assert (answer.name, answer.is_alone, answer.not_estimated) == ("fast", False, ("compiled",))
    assert figures_in(verdict_of(study).sentence) == [2.2, 6.0, 5.0, 9.0, 20, 30]
    screen = with_plain_spaces(first_screen(study))
    assert screen.count("not estimated") == 1
    assert 'compiled at t.<span class="nowrap">py:3</span>' in screen  # the reason, below
    assert '<td class="num" data-label="Syncs">unknown<' in screen  # its syncs: not 0
    assert "1.00 GiB (without torch.compile)" in screen


def test_with_a_gpu_the_verdict_is_of_what_was_measured(estimated):
    answer = answer_of(estimated({"base": (20, 30), "fast": (5, 9)}, gpu="NVIDIA H100 80GB HBM3"))
    assert (answer.outcome, answer.estimated) == ("no_difference", ())


def test_where_all_estimates_are_alike_the_measured_times_lead(estimated):
    """A study of data loading, which is in no estimate, is answered by the times of the machine."""
    study = estimated({"base": (5.7, 14), "workers": (5.7, 14)})
    screen = first_screen(study)
    assert 'class="cpu-check"' not in screen
    assert estimated_answer(study, "H100").outcome == "all_alike"
    (shown,) = re.findall(r'<p><span class="badge warning">estimated for H100</span>(.*?)</p>', screen)
    assert figures_in(shown) == [5.7, 14, 8, 80, 100, 1.0]
    assert answer_of(study).outcome == "no_difference"


def _paired(saved: tuple[float, float], faster: float, baseline: str = "base") -> dict[str, Any]:
    return {"baseline": baseline, "saved_ms": saved, "times_as_fast": (1.1, 1.2), "faster_pct": faster}


@pytest.mark.parametrize(("times", "is_about"), [((1.001, 1.03), True), ((1.02, 1.2), False)])
def test_a_variant_that_is_barely_faster_is_called_about_as_fast(times, is_about):
    pair = {"name": "fast", "baseline": "base", "step_ms": (36, 96), "baseline_ms": (36, 97), "is_alone": True}
    answer = fill(EstimatedAnswer, {**pair, "gpu": "H100", "outcome": "fastest", "times_as_fast": times})
    assert answer.is_about_as_fast == is_about
    assert (3.0 in figures_in(estimated_sentence(answer))) == is_about  # at most so many percent faster


@pytest.mark.parametrize(("most", "to_do", "tone"), [(1.004, "measure", "neutral"), (1.03, "use_estimated", "good")])
def test_a_difference_below_the_noise_floor_is_no_reason_to_change_a_program(study_builder, most, to_do, tone):
    study_builder.comparison["baseline"] = "base"
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    sure = _paired((0.1, 0.4), 100) | {"times_as_fast": (1.001, most)}
    base = an_estimate(110, 410) | {"behind": _paired((-0.4, -0.1), 0, "fast")}
    study_builder.add("base", [30.0, 30.0], ratio={"value": 1.0, "verdict": "baseline"}, estimates=[base])
    study_builder.add("fast", [30.0, 30.0], estimates=[an_estimate(108, 405) | {"difference": sure}])
    answer = answer_of(study_builder.study())
    assert (answer.estimated[0].name, answer.advice.to_do, answer.tone) == ("fast", to_do, tone)


def test_a_variant_whose_paired_difference_is_sure_wins_although_the_bands_overlap(study_builder):
    study_builder.comparison["baseline"] = "base"
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    base = an_estimate(110, 410) | {"behind": _paired((-7, -1), 0, "fast")}
    fast = an_estimate(108, 405) | {"difference": _paired((1, 7), 100)}
    same = an_estimate(109, 409) | {"difference": _paired((-2, 3), 60), "behind": _paired((-6, 1), 20, "fast")}
    for name, item in (("base", base), ("fast", fast), ("same", same)):
        ratio = {"value": 1.0, "verdict": "baseline" if name == "base" else "same"}
        study_builder.add(name, [30.0, 30.0], ratio=ratio, estimates=[item])
    study = study_builder.study()
    best = estimated_winner(study, "H100")
    assert best is not None
    assert best.name == "fast"
    screen = first_screen(study)
    for words in ("1.0 to 7.0 ms", "60 % of the draws", "1.1 to 1.2 times as fast"):
        assert words in screen


def test_the_paired_differences_lead_as_ranges_on_one_scale_with_0(study_builder):
    study_builder.comparison["baseline"] = "base"
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    saved = {"fast": (2.0, 10.0), "open": (-2.0, 3.0), "slow": (-5.0, -1.0)}
    study_builder.add("base", [30.0, 30.0], ratio={"value": 1.0, "verdict": "baseline"}, estimates=[an_estimate(9, 20)])
    for name, (low, high) in saved.items():
        pair = _paired((low, high), 60)
        study_builder.add(name, [30.0, 30.0], estimates=[an_estimate(8 + low, 19 - high) | {"difference": pair}])
    screen = with_plain_spaces(first_screen(study_builder.study()))
    drawn = re.findall(r'class="on-scale difference (\w+)".*?class="interval" x1="([\d.]+)%" x2="([\d.]+)%"', screen)
    (zero,) = set(re.findall(r'class="on-scale difference .*?class="baseline" x1="([\d.]+)%"', screen))
    assert [look for look, *_ in drawn] == ["told", "open", "told"]
    sides = [(float(left) > float(zero), float(right) > float(zero)) for _, left, right in drawn]
    assert sides == [(True, True), (False, True), (False, False)]
    cells = re.findall(r'<td class="time" data-label="">(.*?)</td>', screen)
    assert cells[0] == "baseline"
    assert ["10 ms" in cells[1], "told" in cells[2], "costs" in cells[3]] == [True, True, True]


def test_where_estimates_decide_nothing_the_page_says_first_what_is_known(study_builder):
    """Syncs, launches and memory are exact where step times are a band."""
    study_builder.comparison["baseline"] = "base"
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    for name, syncs, launches, memory in (("base", 6, 200, 2**31), ("less", 2, 150, 2**30), ("least", 0, 199, 2**31)):
        estimate = an_estimate(20 + syncs, 30) | {"launches": launches, "peak_memory_bytes": memory}
        study_builder.add(name, [30.0, 30.0], syncs={"predicted_per_step": syncs}, estimates=[estimate])
    verdict = verdict_of(study_builder.study())
    assert verdict.use == "least"  # the fewest syncs
    known, undecided = verdict.sentence.split(". ", 1)
    assert "`least`" in known
    assert re.findall(r"\d+", known) == ["0", "6"]  # its launches and memory are the same
    assert answer_of(study_builder.study()).estimated[0].outcome == "cannot_tell"
    assert "H100" in undecided


def test_equal_bands_with_a_difference_by_the_same_draws_are_not_alike(study_builder):
    """Else a study whose variants differ by a few percent would be answered by the times of a CPU."""
    study_builder.comparison["baseline"] = "base"
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    pairs = {"base": {}, "fast": {"difference": _paired((0.2, 1.0), 100)}}
    for name, more in pairs.items():
        study_builder.add(name, [30.0], estimates=[an_estimate(110, 410) | more])
    assert leads(study_builder.study())
    study_builder.comparison["variants"][1]["estimates"][0]["difference"] = _paired((0.0, 0.0), 0)
    assert not leads(study_builder.study())


def test_what_is_known_is_of_a_variant_that_can_be_used(study_builder):
    study_builder.comparison["baseline"] = "base"
    study_builder.add("base", [30.0], syncs={"predicted_per_step": 6}, estimates=[an_estimate(20, 30)])
    wrong = {"status": "differs", "max_rel_err": 1.0}
    study_builder.add(
        "wrong", [30.0], syncs={"predicted_per_step": 0}, estimates=[an_estimate(21, 30)], equivalence=wrong
    )
    assert known_difference(study_builder.study()) is None


def test_work_by_class_and_throughput_stand_folded_under_the_estimate(study_builder):
    work = {
        "kind": "product", "format": "16", "flop": 2e12, "bytes": 3e9, "launches": 12, "share_pct": 80, "tested": True,
    }  # fmt: skip
    more = {"work": [work], "samples_per_s": [1000, 1500], "mfu_pct": [30, 41], "tested_pct": 80}
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    study_builder.add("base", [30.0, 30.0], estimates=[an_estimate(20, 30) | more])
    folded = with_plain_spaces(first_screen(study_builder.study())).partition("GPU work by class")[2]
    for words in ("1,000 to 1,500", "30 to 41 %", "product, 16 bit", "2.00 T", "2.79 GiB", "80 %"):
        assert words in folded
