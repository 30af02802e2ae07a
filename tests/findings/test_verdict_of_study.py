"""A study's verdict: which variant, by how much, why, what it computes, and how to get it."""

from collections import Counter
from typing import Any

import pytest

from documents import an_estimate, fill
from figures import codes_in, figures_in
from steptrace import findings
from steptrace.documents.answer import ChangedSettings
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER, PREDICTED_SYNCS, Finding
from steptrace.findings import find
from steptrace.findings.answer import answer_of
from steptrace.findings.recommended import recommended
from steptrace.findings.verdict import verdict_of
from steptrace.findings.why import why
from steptrace.words.estimate import most_waiting_in_words

GPU = {"gpu": "NVIDIA H100", "gpu_count": 1}


def variant(name: str, ratio: float, verdict: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "status": "ok",
        "baseline": "base",
        "overrides": [f"loss={name}"],
        "step_ms": {"statistic": "median", "median": 20.0 / ratio, "runs": 3, "steps": 60},
        "ratio": {"value": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "verdict": verdict},
        "syncs": {"measured_per_step": 1, "predicted_per_step": 1},
        "equivalence": {"status": "same"},
    } | changes


def changed(settings: ChangedSettings | None) -> tuple[list[str], list[str]]:
    """The overrides that an advice sets and removes."""
    assert settings is not None
    return list(settings.set), list(settings.remove)


BASE = variant("base", 1.0, "baseline", overrides=["loss=base", "data.form=list", "profile=light"])


def finds(monkeypatch: pytest.MonkeyPatch, item: dict[str, Any]) -> None:
    """Let every trace have this finding."""
    monkeypatch.setattr(findings, "find_in_trace", lambda _: [fill(Finding, item)])


def study(*others: dict[str, Any], gpu: dict[str, Any] = GPU, **changes: Any) -> Comparison:
    method = {"confidence": 0.95, "noise_floor": 0.01}
    return fill(
        Comparison, {"variants": [BASE, *others], "baseline": "base", "method": method, "environment": gpu, **changes}
    )


@pytest.mark.parametrize("samples", [None, 32])
def test_a_variant_whose_batch_is_not_another_one_is_a_candidate(samples):
    fast = variant("fast", 2.0, "faster", samples_per_step=samples)
    answer = answer_of(study(variants=[BASE | {"samples_per_step": 32}, fast]))
    assert (answer.outcome, answer.use, answer.other_batches) == ("faster", "fast", ())


@pytest.mark.parametrize(("claim", "also"), [("faster", ()), ("undecided", ()), (None, ()), ("faster", ("tuned",))])
def test_a_step_of_other_samples_is_never_named_as_the_faster_one(claim, also):
    """Half the samples in half the time is the same speed."""
    half = variant("half", 2.0, claim, samples_per_step=16)
    more = [variant(name, 1.2, "faster", samples_per_step=32) for name in also]
    comparison = study(variants=[BASE | {"samples_per_step": 32}, half, *more])
    answer = answer_of(comparison)
    assert answer.outcome == ("faster" if also else "other_batches")
    assert (answer.use, [row.name for row in answer.other_batches]) == ("tuned" if also else None, ["half"])
    best = comparison.fastest()
    assert (None if best is None else best.name) == (answer.use if also else None)
    sentence = verdict_of(comparison).sentences[-1]
    assert figures_in(sentence) == [1600, 1600]


def test_where_batches_differ_the_sentence_has_the_ratio_per_sample_and_both_rates():
    per_sample = {"value": 1.6, "low": 1.5, "high": 1.7, "verdict": "faster"}
    double = variant("double", 0.8, None, samples_per_step=64, ratio_per_sample=per_sample)
    comparison = study(variants=[BASE | {"samples_per_step": 32}, double])
    answer = answer_of(comparison)
    assert (answer.outcome, [row.ratio_per_sample for row in answer.other_batches]) == (
        "other_batches",
        [comparison.variants[1].ratio_per_sample],
    )
    assert figures_in(verdict_of(comparison).sentence) == [1.6, 2560, 1600]


def test_the_fastest_variant_is_named_with_its_interval_and_its_change():
    comparison = study(variant("fast", 1.5, "faster"), variant("fastest", 2.0, "faster"))
    verdict = verdict_of(comparison)
    answer = answer_of(comparison)
    assert (answer.outcome, answer.use, verdict.use, verdict.tone) == ("faster", "fastest", "fastest", "good")
    assert answer.chosen is not None
    assert (answer.chosen.name, [row.name for row in answer.faster]) == ("fastest", ["fast"])
    assert figures_in(verdict.sentence) == [2.0, 95, 1.9, 2.1, 10.0, 20.0, 1.5]
    assert answer.advice.to_do == "use"
    assert changed(answer.advice.variant) == (["loss=fastest"], ["data.form=list"])
    assert codes_in(verdict.advice) == ["fastest", "base", "loss=fastest", "data.form=list"]


def test_of_variants_that_are_alike_the_simplest_is_named_first():
    many = variant("many", 1.6, "faster", overrides=["loss=a", "data=b"])
    few = variant("few", 1.5, "faster")
    answer = answer_of(study(many, few, alike=["few", "many"]))
    assert (answer.use, [row.name for row in answer.alike]) == ("few", ["many"])


def test_the_lines_without_a_sync_are_named_once_and_only_where_none_is_left():
    counts = ((5, 1, 0), (5, 1, 0), (6, 1, 0), (6, 1, 1), (8, 0, 0), (9, 2, None))
    sites = [
        {"file": "loss.py", "line": line, "baseline_count_per_step": before, "variant_count_per_step": after}
        for line, before, after in counts
    ]
    comparison = study(variant("fast", 1.5, "faster", sync_diff={"basis": "measured", "sites": sites}))
    assert [row.line for row in answer_of(comparison).advice.lines_without_sync] == [5, 9]
    assert codes_in(verdict_of(comparison).advice)[-2:] == ["loss.py:5", ":9"]


def test_how_variants_were_measured_is_no_change_to_make():
    comparison = study(variant("fast", 1.5, "faster", overrides=["loss=base", "data.form=list", "profile=x"]))
    assert changed(answer_of(comparison).advice.variant) == ([], [])
    assert codes_in(verdict_of(comparison).advice) == ["fast"]


@pytest.mark.parametrize("status", ["differs", "failed"])
def test_a_faster_variant_that_computes_something_else_is_not_advised(status):
    wrong = variant("wrong", 3.0, "faster", equivalence={"status": status})
    assert verdict_of(study(wrong, variant("fast", 1.5, "faster"))).use == "fast"
    answer = answer_of(study(wrong))
    assert answer.use != "wrong"
    assert answer.chosen is not None
    assert (answer.chosen.name, answer.chosen.equivalence) == ("wrong", status)
    assert answer.tone == "care"


def test_undecided_on_a_cpu_is_no_advice_to_keep_what_syncs():
    base = BASE | {"syncs": {"predicted_per_step": 6}}
    without = variant("ignore", 1.1, "undecided", syncs={"predicted_per_step": 0})
    comparison = study(variants=[base, without], gpu={"gpu": None})
    answer = answer_of(comparison)
    assert (answer.outcome, answer.use, answer.advice.to_do) == ("no_difference", "ignore", "try_on_gpu")
    assert (answer.advice.syncs_now, answer.advice.syncs_before) == (0, 6)
    assert figures_in(verdict_of(comparison).advice)[:2] == [0, 6]


def test_where_nothing_is_faster_the_baseline_is_kept_or_more_runs_are_taken():
    slow = variant("slow", 0.5, "slower")
    answer = answer_of(study(slow))
    assert (answer.outcome, answer.advice.to_do, answer.use) == ("none_faster", "keep", "base")
    assert [row.name for row in answer.slower] == ["slow"]
    two = {"runs": [{"status": "ok"}] * 2}
    answer = answer_of(study(variants=[BASE | two, slow | two, variant("open", 1.1, "undecided", **two)]))
    assert ([row.name for row in answer.undecided], answer.advice.to_do) == (["open"], "take_more_runs")


def test_medians_that_differ_without_a_verdict_are_reported_with_the_runs_that_decide():
    """An interval that excludes 1 is no "no measurable difference", though the correction leaves it open."""
    two = {"runs": [{"status": "ok"}] * 2}
    apart = [variant("wide", 4.0, "undecided", overrides=["loss=a", "data=b"], **two)]
    apart += [variant(name, 3.98, "undecided", **two) for name in ("near", "next")]
    near = variant("even", 1.05, "undecided", **two)
    method = {"confidence": 0.95, "noise_floor": 0.01, "candidates": 4}
    comparison = study(variants=[BASE | two, *apart, near], method=method, scale="gpu", study="loss")
    answer = answer_of(comparison)
    verdict = verdict_of(comparison)
    assert (answer.outcome, answer.use, answer.tone) == ("unconfirmed", None, "neutral")
    assert [row.name for row in answer.unconfirmed] == ["wide", "near", "next"]
    assert [row.name for row in answer.undecided] == ["even"]
    assert (answer.unconfirmed_runs, answer.candidates, answer.advice.runs) == (2, 4, 3)
    assert answer.advice.to_do == "confirm"
    assert changed(answer.advice.if_confirmed) == (["loss=near"], ["data.form=list"])
    assert figures_in(verdict.sentence) == [4.0, 3.98, 3.98, 5.0, 5.03, 20.0, 95, 1, 2, 4]
    command, *then = codes_in(verdict.advice)
    assert command == "snakemake --cores all --config 'studies=[loss]' scale=gpu repeats=3"
    assert then == ["near", "base", "loss=near", "data.form=list"]
    many = [variant(f"v{number}", 0.5 + number / 100, "undecided", **two) for number in range(5)]
    open_ones = study(variants=[BASE | two, *many])
    assert figures_in(verdict_of(open_ones).sentence)[:5] == [5, 0.5, 0.54, 37.0, 40.0]
    assert answer_of(open_ones).advice.if_confirmed is None


def test_within_the_noise_floor_nothing_measured_apart():
    ratio = {"value": 1.006, "low": 1.004, "high": 1.008, "verdict": "undecided"}
    assert answer_of(study(variant("tiny", 1.006, "undecided") | {"ratio": ratio})).outcome == "no_difference"


def test_the_runs_to_take_are_four_times_those_that_were_taken():
    runs = {"runs": [{"status": "ok"}] * 2}
    comparison = study(variants=[BASE | runs, variant("even", 1.05, "undecided", **runs)])
    assert answer_of(comparison).advice.runs == 8
    assert codes_in(verdict_of(comparison).advice) == ["--config repeats=8"]


def test_after_one_run_each_the_runs_that_a_comparison_takes_are_advised():
    comparison = study(variant("open", 1.5, "faster") | {"ratio": {"value": 1.5, "verdict": None}})
    advice = answer_of(comparison).advice
    assert (advice.to_do, advice.runs, advice.if_confirmed) == ("confirm", 3, None)
    assert codes_in(verdict_of(comparison).advice)[0].endswith("repeats=3")


def test_the_answer_comes_before_what_else_is_known_of_the_variants():
    fast, slow = variant("fast", 2.0, "faster"), variant("slow", 0.5, "slower")
    first, *others = verdict_of(study(fast, slow)).sentences
    assert codes_in(first) == ["fast", "base"]
    assert codes_in(" ".join(others)) == ["slow"]


def test_cpu_timings_are_called_so():
    assert answer_of(study(variant("fast", 1.5, "faster"), gpu={"gpu": None})).advice.cpu_timings


def test_without_a_verdict_the_step_times_stand_alone():
    unjudged = variant("open", 1.5, "faster") | {"ratio": {"value": 1.5, "verdict": None}}
    assert answer_of(study(unjudged)).no_verdict == "one_run_each"
    assert "`open` 13.3 ms" in verdict_of(study(unjudged)).sentence
    noisy = [v | {"noise": {"iqr_over_median": 0.3}, "runs": [{"status": "ok"}] * 3} for v in (BASE, unjudged)]
    assert answer_of(study(variants=noisy)).no_verdict == "too_noisy"
    assert ANSWER not in {item.rule for item in find(study())}  # one variant asks nothing


def test_failed_variants_are_named_and_without_a_baseline_nothing_is_compared():
    gone = variant("gone", 1.0, "same") | {"step_ms": None, "ratio": None, "status": "out of memory"}
    with_one_gone = study(variant("fast", 1.5, "faster"), gone)
    assert [(row.status, row.names) for row in answer_of(with_one_gone).ended] == [("out of memory", ("gone",))]
    assert codes_in(verdict_of(with_one_gone).sentence)[-1] == "gone"
    lost = BASE | {"step_ms": None, "ratio": None, "status": "failed"}
    answer = answer_of(study(variants=[lost, variant("a", 1.0, "same") | {"ratio": None}]))
    assert (answer.outcome, answer.no_verdict) == ("no_verdict", "baseline_not_measured")
    nothing = answer_of(study(variants=[lost]))
    assert (nothing.outcome, nothing.tone) == ("nothing_measured", "bad")
    assert [row.names for row in nothing.ended] == [("base",)]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"loss": -3.0, "forward": -0.9}, "3.00 ms"),
        ({"loss": -4.0, "backward": 0.5}, "4.00 ms"),
        ({"idle_sync": -4.0, "compute": 0.2}, "4.00 ms"),
        ({"loss": -8.5}, None),  # the profiler changed the step by more than the variant
        ({"loss": 1.0}, None),
    ],
)
def test_the_part_by_which_a_variant_is_faster_most_is_the_reason(parts, words):
    def profiled(changes: dict[str, float]) -> dict[str, Any]:
        parts_ns = {name: round((10 + change) * 2e6) for name, change in changes.items()}
        return {"trace": {"overview": {"kind": "gpu", "steps": 2, "parts_ns": parts_ns}}}

    base = BASE | profiled(dict.fromkeys(parts, 0))
    fast = variant("fast", 1.25, "faster", **profiled(parts))
    verdict = verdict_of(study(variants=[base, fast]))  # 20 ms and 16 ms
    assert (verdict.reason == "") == (words is None)
    assert (words or "") in verdict.reason


def traced(
    parts_ms: dict[str, float], kernels_ms: dict[str, float], ceiling_ms: float | None, syncs: float
) -> dict[str, Any]:
    """A trace of two steps with these parts and kernels, and what all syncs of a step cost at most."""
    parts = {name: round(2e6 * ms) for name, ms in parts_ms.items()}
    length = sum(parts_ms.values())
    kernels = [
        {"name": f"at::{name}<1>", "short_name": name, "class": "compute", "sum_ns": round(2e6 * ms)}
        for name, ms in kernels_ms.items()
    ]
    overview = {"kind": "gpu", "steps": 2, "step_ns": 1e6 * length, "parts_ns": parts}
    ceiling = {"ceiling_ns": None if ceiling_ms is None else round(2e6 * ceiling_ms)}
    trace = {"overview": overview, "kernels": kernels, "quality": {"steps": 2}, "syncs": ceiling}
    return {"trace": trace, "syncs": {"measured_per_step": syncs}}


def test_the_reason_is_what_the_difference_is_made_of_and_cheap_syncs_are_none():
    """Masks flatten the loss to a kernel of one block: its time is saved, not that of the syncs that go with it."""
    kernels = {"conv": 5.0, "nll_1d": 6.0, "index": 4.0, "tiny": 0.2}
    base = BASE | traced({"compute": 15.2, "idle_sync": 4.8}, kernels, 0.4, 6)
    sites = [{"file": "loss.py", "line": 5, "baseline_count_per_step": 6, "variant_count_per_step": 0}]
    diff = {"sync_diff": {"basis": "measured", "sites": sites}}
    after = traced({"compute": 5.5, "idle_sync": 4.5}, {"conv": 5.0, "nll_2d": 0.5}, 0.0, 0)
    fast = variant("fast", 2.0, "faster", **diff, **after)
    comparison = study(variants=[base, fast])
    reasons = why(*comparison.variants)
    assert [(item.part, round(item.ns)) for item in reasons.shorter] == [("compute", 9_700_000)]
    assert [(kernel.name, kernel.ns) for kernel in reasons.shorter[0].kernels] == [("nll_1d", 6e6), ("index", 4e6)]
    assert (reasons.saved_ns, reasons.syncs_ns, reasons.by_syncs) == (1e7, 4e5, False)
    assert "loss.py" not in verdict_of(comparison).advice
    # Where the syncs may be the reason, their lines are named; so they are where nobody knows what they cost.
    for ceiling in (6.0, None):
        slow = BASE | traced({"compute": 9.0, "idle_sync": 11.0}, {"conv": 9.0}, ceiling, 6)
        quick = variant(
            "fast", 2.0, "faster", **diff, **traced({"compute": 9.0, "idle_sync": 1.0}, {"conv": 9.0}, 0, 0)
        )
        other = study(variants=[slow, quick])
        assert [item.part for item in why(*other.variants).shorter] == ["idle_sync"]
        assert "`loss.py:5`" in verdict_of(other).advice


def test_the_host_time_that_the_profiler_adds_is_no_reason():
    """The profiled baseline takes 50 ms instead of 20, all of it the host's: of the 48 ms without a launch 18 count."""
    base = BASE | traced({"compute": 2.0, "idle_host": 48.0}, {}, None, 0)
    fast = variant("fast", 2.0, "faster", **traced({"compute": 2.0, "idle_host": 8.0}, {}, None, 0))
    reasons = why(*study(variants=[base, fast]).variants)
    assert [(item.part, item.ns) for item in reasons.shorter] == [("idle_host", 1e7)]
    assert why(*study(variants=[base, base | {"name": "same"}]).variants) is None


def test_where_the_profile_names_no_part_fewer_launches_and_syncs_are_the_reason():
    base = BASE | {"kernels_per_step": 400, "syncs": {"measured_per_step": 3}}
    fast = variant("fast", 1.5, "faster", kernels_per_step=40, syncs={"measured_per_step": 0})
    answer = answer_of(study(variants=[base, fast]))
    assert answer.reason is not None
    fewer = [(row.what, row.now, row.before) for row in answer.reason.fewer]
    assert fewer == [("kernels", 40, 400), ("syncs", 0, 3)]
    assert figures_in(verdict_of(study(variants=[base, fast])).reason) == [40, 400, 0, 3]
    assert answer.syncs is None  # the reason names them
    alike = variant("alike", 1.5, "faster", kernels_per_step=399, syncs={"measured_per_step": 3})
    reason = answer_of(study(variants=[base, alike])).reason
    assert reason is None or reason.fewer == ()


def estimated(name: str, step_ms: list[float], limited_by: str, launches: dict[int, float]) -> dict[str, Any]:
    """What estimates of a variant add to it: launches by line of loss.py, at some us each."""
    lines = [
        {"file": "loss.py", "line": line, "launches": count, "host_ms": [0.005 * count, 0.015 * count]}
        for line, count in launches.items()
    ]
    return variant(name, 1.0, "same", estimates=[an_estimate(*step_ms) | {"limited_by": limited_by, "lines": lines}])


@pytest.mark.parametrize(
    ("limit", "gpu_saved_ms", "is_reason"),
    [
        ("arithmetic", [9, 38], True),
        ("syncs", [9, 38], False),
        ("arithmetic", [1, 4], False),
        ("memory", [-2, 9], False),
    ],
)
def test_gpu_work_is_the_reason_where_it_makes_the_larger_part_of_what_is_saved(limit, gpu_saved_ms, is_reason):
    base = estimated("base", [160, 410], limit, {}) | {"syncs": {"predicted_per_step": 6}}
    fast = estimated("fast", [138, 386], "arithmetic", {}) | {"syncs": {"predicted_per_step": 0}}
    classes = [{"kind": "cross-entropy of rows", "saved_ms": [8, 30]}]
    pair = {"baseline": "base", "saved_ms": [11, 44], "times_as_fast": [1.05, 1.22], "faster_pct": 100}
    fast["estimates"][0] |= {"difference": pair | {"gpu_saved_ms": gpu_saved_ms, "gpu_classes": classes}}
    reason = answer_of(study(variants=[base, fast], gpu={"gpu": None})).reason
    assert reason.name == "fast"
    assert (reason.gpu_saved_ms is not None) == is_reason
    assert [gpu_class.kind for gpu_class in reason.gpu_classes] == (["cross-entropy of rows"] if is_reason else [])
    assert reason.shows_counts != is_reason


@pytest.mark.parametrize(("limit", "gpu_ms"), [("launches", [180, 480]), ("undecided", [180, 495])])
def test_where_launches_may_limit_the_baseline_the_line_that_launches_is_named_with_what_the_variant_saves(
    limit, gpu_ms
):
    slow = estimated("base", [490, 1500], limit, {5: 24_000, 9: 60, 7: 40})
    slow["estimates"][0] |= {"gpu_ms": gpu_ms, "host_ms": [490, 1500]}
    fast = estimated("fast", [38, 75], "arithmetic", {5: 24, 9: 60})
    comparison = study(variants=[slow, fast], gpu={"gpu": None})
    first, second = answer_of(comparison).advice.lines_of_launches  # not line 9, which launches as many as before
    assert (first.line, first.before, first.now) == (5, 24_000, 24)
    assert first.saved_ms == pytest.approx((119.88, 359.64))
    assert second.line == 7
    advice = verdict_of(comparison).advice
    assert "loss.py:5" in codes_in(advice)
    assert {24, 24_000} <= set(figures_in(advice))


def test_no_launches_are_named_where_the_gpu_surely_takes_longer():
    slow = estimated("base", [490, 1500], "undecided", {5: 24_000})
    slow["estimates"][0] |= {"gpu_ms": [490, 1500], "host_ms": [100, 600]}
    fast = estimated("fast", [38, 75], "arithmetic", {5: 24})
    assert "launches" not in verdict_of(study(variants=[slow, fast], gpu={"gpu": None})).advice


def test_lines_that_no_longer_sync_are_named_with_the_most_that_they_can_save():
    site = {"file": "loss.py", "line": 5, "baseline_count_per_step": 2, "variant_count_per_step": 0}
    base = estimated("base", [10, 18], "syncs", {5: 9}) | {"syncs": {"predicted_per_step": 2}}
    none = {"syncs": {"predicted_per_step": 0}, "sync_diff": {"sites": [site]}}
    few = estimated("few", [9, 15], "memory", {5: 9}) | none
    advice = verdict_of(study(variants=[base, few], gpu={"gpu": None})).advice
    cost = most_waiting_in_words(3.0, "H100")
    assert "loss.py:5" in codes_in(advice)
    assert cost in advice
    site = {"file": "loss.py", "line": 5, "count_per_step": 2, "kind": "d2h_copy"}
    items = find(study(variants=[base | {"predicted_sites": [site]}]))
    (finding,) = (item for item in items if item.rule == PREDICTED_SYNCS)
    assert cost in finding.evidence[0]
    assert answer_of(study(variants=[base, few], gpu={"gpu": None})).advice.to_do == "try_estimated"


def test_the_simplest_variant_is_the_one_that_changes_least():
    """Not the one with the shortest list: what stands in the baseline's list too is no change."""
    fewest = variant("a", 1.0, "same", overrides=["loss=base", "data.form=list", "profile=light", "loss=a"])
    other = variant("b", 1.0, "same", overrides=["model=b", "loss=b"])
    both = study(fewest, other)
    assert [both.changed(entry) for entry in both.variants] == [0, 1, 2]


def test_syncs_are_called_measured_or_predicted():
    few = variant("few", 1.0, "same", syncs={"measured_per_step": 0, "predicted_per_step": 0})
    base = BASE | {"syncs": {"predicted_per_step": 6}}
    studies = study(few), study(), study(variants=[base])
    syncs = [answer_of(made_study).syncs for made_study in studies]
    assert [None if sync is None else (sync.source, sync.per_step) for sync in syncs] == [
        ("measured", {"base": 1, "few": 0}),
        ("measured", {"base": 1}),
        ("predicted", {"base": 6}),
    ]
    assert [figures_in(verdict_of(made_study).syncs) for made_study in studies] == [[1, 0], [1], [6]]


@pytest.mark.parametrize(
    ("statuses", "named"),
    [
        (("same", "same"), []),
        (("same", "differs"), ["v1"]),
        (("differs", "not measured"), ["v0", "v1"]),
        (("same", "same", "failed"), ["v2"]),
    ],
)
def test_the_verdict_names_the_variants_whose_answer_is_not_known_to_be_the_same(statuses, named):
    variants = [variant(f"v{k}", 1.0, "same", equivalence={"status": status}) for k, status in enumerate(statuses)]
    comparison = study(variants=variants)
    by_status = answer_of(comparison).same.by_status
    assert {status: len(names) for status, names in by_status.items()} == Counter(statuses)
    assert codes_in(" ".join(verdict_of(comparison).checks)) == named


def test_behind_the_answer_stands_what_remains_in_that_variant(monkeypatch):
    unused = {"rule": "unused_memory", "severity": "warning", "claim": "c", "cost_ns_per_step": 9, "advice": "a"}
    finds(monkeypatch, unused)
    listed = find(study(variant("fast", 2.0, "faster", trace={}), variant("slow", 0.5, "slower", trace={})))
    assert [(item.rule, item.variant) for item in recommended(listed)] == [(ANSWER, "fast"), ("unused_memory", "fast")]


@pytest.mark.parametrize(("slower", "priced"), [(1.9, True), (24.2, False)])
def test_a_profile_far_slower_than_the_step_prices_nothing(slower, monkeypatch, *, priced):
    unused = {"rule": "unused_memory", "severity": "warning", "claim": "c", "cost_ns_per_step": 9, "cost_share": 0.1}
    finds(monkeypatch, unused)
    listed = find(study(variant("fast", 2.0, "faster", profiled_over_unprofiled=slower, trace={})))
    (item,) = [item for item in listed if item.rule == "unused_memory"]
    assert (item.cost_ns_per_step is not None) == (item.cost_share is not None) == priced
    assert item.severity == ("warning" if priced else "info")
