"""Estimates on a study's page: they lead without a GPU, stand beside what was measured with one, and name a winner."""

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from documents import an_estimate, fill
from steptrace.documents.finding import PREDICTED_SYNCS, Finding
from steptrace.documents.summary import TraceSummary
from steptrace.findings.estimated import estimated_winner
from steptrace.findings.verdict import verdict_of
from steptrace.report.page.findings import device_of_study
from steptrace.report.study import all_findings, first_screen


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
    screen = first_screen(study)
    assert screen.index("Estimated for H100") < screen.index("CPU check")
    assert "no GPU: estimated for H100" in screen
    assert device_of_study(study).words == "no GPU: estimated for H100"  # on the index, too
    assert "5.0 ms to 9.0 ms" in screen
    assert "80 to 100 %" in screen
    assert "1.00 GiB, fits" in screen
    assert "<code>fast</code> is estimated to be the fastest, 2.2 to 6.0 times as fast as <code>base</code>: " in screen
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
    folded = page.find("CPU check: 2 findings")
    assert (folded == -1) == (gpu is not None)
    assert gpu or page.index("predicted syncs") < folded < page.index("input bound")


FAST = (
    "On H100 `fast` is estimated to be the fastest, 2.2 to 6.0 times as fast as `base`: 5.0 ms to 9.0 ms per step "
    "instead of 20 ms to 30 ms."
)
BASE = "On H100 `base` is estimated to be the fastest: 3.0 ms to 4.0 ms per step."
OPEN = "No fastest variant can be named for H100: `fast` cannot be estimated."


@pytest.mark.parametrize(
    ("base", "fast", "winner", "sentence", "advice"),
    [
        ((20, 30), (5, 9), "fast", FAST, "Use `fast` instead of `base`: set `loss=fast`."),
        ((3, 4), (5, 9), "base", BASE, "Keep `base`."),
        ((20, 30), (15, 20), None, "The estimate for H100 cannot tell which variant is the fastest", ""),
        ((20, 30), (None, None), None, OPEN, ""),
    ],
)
def test_without_a_gpu_winner_headline_and_advice_follow_the_estimates_whose_bands_are_apart(
    estimated, base, fast, winner, sentence, advice
):
    study = estimated({"base": base, "fast": fast})
    best, verdict = estimated_winner(study, "H100"), verdict_of(study)
    assert (None if best is None else best.name) == winner
    assert verdict.sentence.startswith(sentence)
    assert verdict.advice.startswith(advice)
    assert ("Use" in verdict.advice) == (winner == "fast")
    assert ("50 % of the GPU work" in first_screen(study)) == (fast[0] is None)
    if winner == "fast":
        assert (verdict.use, verdict.tone) == ("fast", "good")
        assert "This is estimated for H100; measure on a GPU: `snakemake" in verdict.advice
        assert first_screen(study).count("is estimated to be the fastest") == 1


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
    screen = first_screen(replace(study, variants=tuple(replace(v, **figures) for v in study.variants)))
    assert "CPU check" not in screen
    assert screen.index("Step time with") < screen.index("runs per variant") < screen.index("Estimate for H100")
    folded = screen[screen.index("Estimate for H100") :]
    assert folded.startswith(
        "Estimate for H100 beside what was measured: step times are 1.00 to 6.00 times the estimated ones</summary>"
    )
    cells = [row.split("</tr>")[0] for row in folded.split('<th scope="row"')[1:]]
    for base_or_fast, ratio in zip(cells, ("1.00× to 1.50×", "3.33× to 6.00×"), strict=False):
        for text in ("30.0 ms", ratio, "80 to 100 %", ">200<", "1.00 GiB, fits"):
            assert text in base_or_fast
        for text in ("7.8 %", "150", "1.50 GiB"):
            assert f"measured: {text}<" in base_or_fast
    assert "×" not in cells[2]
    assert "50 % of the GPU work is covered" in folded
    for name in ("NVIDIA L4", "NVIDIA H100 PCIe"):  # which is another card than the H100
        other = first_screen(estimated({"base": (20, 30), "other": (5, 9)}, gpu=name))
        assert "beside what was measured" not in other
        assert other.index("runs per variant") < other.index("Estimated for H100")


def test_of_variants_that_are_all_faster_than_the_baseline_the_simplest_is_named(estimated):
    study = estimated({"base": (490, 1500), "concat": (38, 75), "padding": (35, 67), "slow": (90, 99)})
    verdict = verdict_of(study)
    assert verdict.sentence == (
        "On H100 `concat` is estimated to be 6.5 to 39 times as fast as `base`: 38 ms to 75 ms per step instead of "
        "490 ms to 1.5 s. `padding` cannot be told from it."
    )
    assert verdict.advice.startswith("Use `concat` instead of `base`: set `loss=concat`.")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (["launches"], "A step of `base` is limited by the host's launches of kernels: "),
        (["memory"], ""),
        (["syncs"], ""),  # of which `fast` has as many
        (["launches", "memory"], ""),  # of two GPUs
    ],
)
def test_the_limit_of_a_step_is_the_reason_only_where_the_other_variant_has_less_of_it(estimated, limits, reason):
    study = estimated({"base": (490, 1500), "fast": (35, 67)})
    base, fast = study.variants
    of_base = [
        dataclasses.replace(base.estimates[0], gpu=f"GPU{n}", launches=9000, limited_by=one)
        for n, one in enumerate(limits)
    ]
    of_fast = [dataclasses.replace(fast.estimates[0], gpu=one.gpu) for one in of_base]
    pair = (replace(base, estimates=tuple(of_base)), replace(fast, estimates=tuple(of_fast)))
    details = verdict_of(replace(study, variants=pair)).details
    gpu_work = "35 ms to 67 ms of GPU work instead of 490 ms to 1.5 s"
    assert details[0] == f"{reason}`fast` has 200 launches per step instead of 9,000 and {gpu_work}."
    assert details[1].startswith("Syncs ")  # said, as the reason names none


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
    assert verdict_of(study).sentence == (
        "On H100 `fast` is estimated to be 2.2 to 6.0 times as fast as `base`: 5.0 ms to 9.0 ms per step instead of "
        "20 ms to 30 ms. `compiled` cannot be estimated and may be faster."
    )
    screen = first_screen(study)
    assert screen.count("not estimated") == 1
    assert 'compiled at t.<span class="nowrap">py:3</span>' in screen  # the reason, below
    assert '<td class="num" data-label="Syncs">unknown<' in screen  # its syncs: not 0
    assert "1.00 GiB, fits (without torch.compile)" in screen


def test_with_a_gpu_the_verdict_is_of_what_was_measured(estimated):
    verdict = verdict_of(estimated({"base": (20, 30), "fast": (5, 9)}, gpu="NVIDIA H100 80GB HBM3"))
    assert "estimated" not in verdict.sentence + verdict.advice


def test_where_all_estimates_are_alike_the_measured_times_lead(estimated):
    """A study of data loading, which is in no estimate, is answered by the times of the machine."""
    study = estimated({"base": (5.7, 14), "workers": (5.7, 14)})
    screen = first_screen(study)
    assert "CPU check" not in screen
    assert (
        "All variants have the same estimate for H100. "
        "Data loading, waiting for slower ranks and workspaces "
        "of libraries are not included. "
        "A step takes 5.7 ms to 14 ms at batch 8, GPU busy 80 to 100 %, limited by memory bandwidth; "
        "peak memory 1.00 GiB, fits."
    ) in screen
    assert verdict_of(study).sentence == "No measurable difference."


def _paired(saved: tuple[float, float], faster: float, baseline: str = "base") -> dict[str, Any]:
    return {"baseline": baseline, "saved_ms": saved, "times_as_fast": (1.1, 1.2), "faster_pct": faster}


def test_a_variant_whose_paired_difference_is_sure_wins_although_the_bands_overlap(study_builder):
    study_builder.comparison["baseline"] = "base"
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    base = an_estimate(110, 410) | {"behind": _paired((-7, -1), 0, "fast")}
    fast = an_estimate(108, 405) | {"difference": _paired((1, 7), 100)}
    same = an_estimate(109, 409) | {"difference": _paired((-2, 3), 60), "behind": _paired((-6, 1), 20, "fast")}
    for name, one in (("base", base), ("fast", fast), ("same", same)):
        ratio = {"value": 1.0, "verdict": "baseline" if name == "base" else "same"}
        study_builder.add(name, [30.0, 30.0], ratio=ratio, estimates=[one])
    study = study_builder.study()
    best = estimated_winner(study, "H100")
    assert best is not None
    assert best.name == "fast"
    screen = first_screen(study)
    for words in ("1.0 ms to 7.0 ms", "60 % of the draws", "1.1 to 1.2 times as fast"):
        assert words in screen


def test_work_by_class_and_throughput_stand_folded_under_the_estimate(study_builder):
    work = {
        "kind": "product", "format": "16", "flop": 2e12, "bytes": 3e9, "launches": 12, "share_pct": 80, "tested": True,
    }  # fmt: skip
    more = {"work": [work], "samples_per_s": [1000, 1500], "mfu_pct": [30, 41], "tested_pct": 80}
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    study_builder.add("base", [30.0, 30.0], estimates=[an_estimate(20, 30) | more])
    folded = first_screen(study_builder.study()).partition("GPU work by class")[2]
    for words in ("1,000 to 1,500", "30 to 41 %", "product, 16 bit", "2.00 T", "2.79 GiB", "80 %"):
        assert words in folded
