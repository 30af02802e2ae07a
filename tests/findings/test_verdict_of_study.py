"""A study's verdict: which variant, by how much, why, what it computes, and how to get it."""

from typing import Any

import pytest

from documents import an_estimate, fill
from steptrace import findings
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER, PREDICTED_SYNCS, Finding
from steptrace.findings import find
from steptrace.findings.verdict import verdict_of
from steptrace.findings.why import why
from steptrace.report.page.findings import recommended

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


BASE = variant("base", 1.0, "baseline", overrides=["loss=base", "data.form=list", "profile=light"])


def finds(monkeypatch: pytest.MonkeyPatch, item: dict[str, Any]) -> None:
    """Let every trace have this finding."""
    monkeypatch.setattr(findings, "find_in_trace", lambda _: [fill(Finding, item)])


def study(*others: dict[str, Any], gpu: dict[str, Any] = GPU, **changes: Any) -> Comparison:
    method = {"confidence": 0.95, "noise_floor": 0.01}
    return fill(
        Comparison, {"variants": [BASE, *others], "baseline": "base", "method": method, "environment": gpu, **changes}
    )


@pytest.mark.parametrize(
    ("own", "words"), [(1, "20.0 ms of 1 sample instead of 32"), (None, "20.0 ms"), (32, "20.0 ms")]
)
def test_numbers_of_samples_are_named_where_both_are_known_and_differ(own, words):
    fast = variant("fast", 2.0, "faster", samples_per_step=own)
    verdict = verdict_of(study(variants=[BASE | {"samples_per_step": 32}, fast]))
    assert verdict.sentence.endswith(f"per step instead of {words}.")


def test_the_fastest_variant_is_named_with_its_interval_and_its_change():
    verdict = verdict_of(study(variant("fast", 1.5, "faster"), variant("fastest", 2.0, "faster")))
    assert verdict.use == "fastest"
    assert verdict.sentence == (
        "`fastest` is 2.00× faster than `base` (95 % interval 1.90 to 2.10): 10.0 ms per step instead of 20.0 ms. "
        "`fast` (1.50×) is faster, too."
    )
    assert verdict.advice == "Use `fastest` instead of `base`: set `loss=fastest` and remove `data.form=list`."
    assert verdict.tone == "good"


def test_of_variants_that_are_alike_the_simplest_is_named_first():
    many, few = variant("many", 1.6, "faster", overrides=["loss=a", "data=b"]), variant("few", 1.5, "faster")
    verdict = verdict_of(study(many, few, alike=["few", "many"]))
    assert verdict.use == "few"
    assert verdict.sentence.endswith("`many` is about equally fast.")


def test_the_lines_without_a_sync_are_named_once_and_only_where_none_is_left():
    counts = ((5, 1, 0), (5, 1, 0), (6, 1, 0), (6, 1, 1), (8, 0, 0), (9, 2, None))
    sites = [
        {"file": "loss.py", "line": line, "baseline_count_per_step": before, "variant_count_per_step": after}
        for line, before, after in counts
    ]
    verdict = verdict_of(study(variant("fast", 1.5, "faster", sync_diff={"basis": "measured", "sites": sites})))
    assert verdict.advice.endswith("No sync is left at `loss.py:5`, `:9`.")


def test_how_variants_were_measured_is_no_change_to_make():
    verdict = verdict_of(study(variant("fast", 1.5, "faster", overrides=["loss=base", "data.form=list", "profile=x"])))
    assert verdict.advice == "Use `fast`."


@pytest.mark.parametrize("status", ["differs", "failed"])
def test_a_faster_variant_that_computes_something_else_is_not_advised(status):
    wrong = variant("wrong", 3.0, "faster", equivalence={"status": status})
    assert verdict_of(study(wrong, variant("fast", 1.5, "faster"))).use == "fast"
    verdict = verdict_of(study(wrong))
    assert verdict.use != "wrong"
    assert ", but " in verdict.sentence
    assert verdict.tone == "care"


def test_undecided_on_a_cpu_is_no_advice_to_keep_what_syncs():
    base = BASE | {"syncs": {"predicted_per_step": 6}}
    without = variant("ignore", 1.1, "undecided", syncs={"predicted_per_step": 0})
    verdict = verdict_of(study(variants=[base, without], gpu={"gpu": None}))
    assert verdict.sentence == "No measurable difference."
    assert "Keep" not in verdict.advice
    assert "On a GPU try `ignore`: 0 syncs per step instead of 6." in verdict.advice
    assert verdict.use == "ignore"


def test_where_nothing_is_faster_the_baseline_is_kept_or_more_runs_are_taken():
    slow = variant("slow", 0.5, "slower")
    assert verdict_of(study(slow)).advice.startswith("Keep `base`")
    assert verdict_of(study(slow)).sentence == "No variant is faster. `slow` (0.50×) is slower."
    verdict = verdict_of(study(slow, variant("open", 1.1, "undecided")))
    assert "No measurable difference: `open`." in verdict.sentence
    assert "4x the runs halves the interval" in verdict.advice


def test_medians_that_differ_without_a_verdict_are_reported_with_the_runs_that_decide():
    """An interval that excludes 1 is no "no measurable difference", though the correction leaves it open."""
    two = {"runs": [{"status": "ok"}] * 2}
    apart = [variant("wide", 4.0, "undecided", overrides=["loss=a", "data=b"], **two)]
    apart += [variant(name, 3.98, "undecided", **two) for name in ("near", "next")]
    near = variant("even", 1.05, "undecided", **two)
    method = {"confidence": 0.95, "noise_floor": 0.01, "correction": "Holm over 4 candidates"}
    verdict = verdict_of(study(variants=[BASE | two, *apart, near], method=method, scale="gpu", study="loss"))
    assert verdict.sentence == (
        "`wide` (4.00×), `near` (3.98×) and `next` (3.98×) measured faster than `base`: 5.00 ms to 5.03 ms per step "
        "instead of 20.0 ms. Not certain yet: their 95 % intervals exclude 1, but 2 runs per variant are too few for "
        "a verdict (correction: Holm over 4 candidates). No measurable difference: `even`."
    )
    assert verdict.advice == (
        "Take 3 runs of each variant: `snakemake --cores all --config 'studies=[loss]' scale=gpu repeats=3` adds those "
        "that are missing. If they confirm it, use `near` instead of `base`: set `loss=near` and remove "
        "`data.form=list`."
    )
    assert (verdict.use, verdict.tone) == (None, "neutral")
    many = [variant(f"v{number}", 0.5 + number / 100, "undecided", **two) for number in range(5)]
    open_ones = verdict_of(study(variants=[BASE | two, *many]))
    assert open_ones.sentence.startswith("5 variants (0.50× to 0.54×) measured slower than `base`: 37.0 ms to 40.0 ms ")
    assert "If they confirm it" not in open_ones.advice


def test_within_the_noise_floor_nothing_measured_apart():
    ratio = {"value": 1.006, "low": 1.004, "high": 1.008, "verdict": "undecided"}
    verdict = verdict_of(study(variant("tiny", 1.006, "undecided") | {"ratio": ratio}))
    assert verdict.sentence == "No measurable difference."


def test_the_runs_to_take_are_four_times_those_that_were_taken():
    runs = {"runs": [{"status": "ok"}] * 2}
    verdict = verdict_of(study(variants=[BASE | runs, variant("even", 1.05, "undecided", **runs)]))
    assert "`--config repeats=8`" in verdict.advice


def test_cpu_timings_are_called_so():
    assert "CPU timings" in verdict_of(study(variant("fast", 1.5, "faster"), gpu={"gpu": None})).advice


def test_without_a_verdict_the_step_times_stand_alone():
    unjudged = variant("open", 1.5, "faster") | {"ratio": {"value": 1.5, "verdict": None}}
    verdict = verdict_of(study(unjudged))
    assert verdict.sentence.startswith("One run each, so no verdict: `open` 13.3 ms")
    noisy = [v | {"noise": {"iqr_over_median": 0.3}, "runs": [{"status": "ok"}] * 3} for v in (BASE, unjudged)]
    assert verdict_of(study(variants=noisy)).sentence.startswith("Too noisy to compare")
    assert ANSWER not in {item.rule for item in find(study())}  # one variant asks nothing


def test_failed_variants_are_named_and_without_a_baseline_nothing_is_compared():
    gone = variant("gone", 1.0, "same") | {"step_ms": None, "ratio": None, "status": "out of memory"}
    assert verdict_of(study(variant("fast", 1.5, "faster"), gone)).sentence.endswith("`gone` ran out of memory.")
    lost = BASE | {"step_ms": None, "ratio": None, "status": "failed"}
    verdict = verdict_of(study(variants=[lost, variant("a", 1.0, "same") | {"ratio": None}]))
    assert verdict.sentence.startswith("The baseline `base` has no step time")
    nothing = verdict_of(study(variants=[lost]))
    assert (nothing.sentence, nothing.tone) == ("No step time was measured. `base` failed.", "bad")


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"loss": -3.0, "forward": -0.9}, "loss 3.00 ms, forward 900 µs."),  # no word of what they leave over
        ({"loss": -4.0, "backward": 0.5}, "loss 4.00 ms. It takes longer for: backward 500 µs."),
        ({"idle_sync": -4.0, "compute": 0.2}, "idle after a sync 4.00 ms."),
        ({"loss": -8.5}, None),  # the profiler changed the step by more than the variant
        ({"loss": 1.0}, None),
    ],
)
def test_the_parts_by_which_a_variant_is_faster_are_named(parts, words):
    def profiled(changes: dict[str, float]) -> dict[str, Any]:
        parts_ns = {name: round((10 + change) * 2e6) for name, change in changes.items()}
        return {"trace": {"overview": {"kind": "gpu", "steps": 2, "parts_ns": parts_ns}}}

    base, fast = BASE | profiled(dict.fromkeys(parts, 0)), variant("fast", 1.25, "faster", **profiled(parts))
    verdict = verdict_of(study(variants=[base, fast]))  # 20 ms and 16 ms
    assert (f"Where a step is shorter: {words}" in verdict.details) == (words is not None)
    assert any("Where a step is shorter" in text for text in verdict.details) == (words is not None)


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
    made = study(variants=[base, fast])
    reasons = why(*made.variants)
    assert [(one.part, round(one.ns)) for one in reasons.shorter] == [("compute", 9_700_000)]
    assert [(one.name, one.ns) for one in reasons.shorter[0].kernels] == [("nll_1d", 6e6), ("index", 4e6)]
    assert (reasons.saved_ns, reasons.syncs_ns, reasons.by_syncs) == (1e7, 4e5, False)
    assert "loss.py" not in verdict_of(made).advice
    # Where the syncs may be the reason, their lines are named; so they are where nobody knows what they cost.
    for ceiling in (6.0, None):
        slow = BASE | traced({"compute": 9.0, "idle_sync": 11.0}, {"conv": 9.0}, ceiling, 6)
        quick = variant(
            "fast", 2.0, "faster", **diff, **traced({"compute": 9.0, "idle_sync": 1.0}, {"conv": 9.0}, 0, 0)
        )
        other = study(variants=[slow, quick])
        assert [one.part for one in why(*other.variants).shorter] == ["idle_sync"]
        assert "`loss.py:5`" in verdict_of(other).advice


def test_the_host_time_that_the_profiler_adds_is_no_reason():
    """The profiled baseline takes 50 ms instead of 20, all of it the host's: of the 48 ms without a launch 18 count."""
    base = BASE | traced({"compute": 2.0, "idle_host": 48.0}, {}, None, 0)
    fast = variant("fast", 2.0, "faster", **traced({"compute": 2.0, "idle_host": 8.0}, {}, None, 0))
    reasons = why(*study(variants=[base, fast]).variants)
    assert [(one.part, one.ns) for one in reasons.shorter] == [("idle_host", 1e7)]
    assert why(*study(variants=[base, base | {"name": "same"}]).variants) is None


def test_where_the_profile_names_no_part_fewer_launches_and_syncs_are_the_reason():
    base = BASE | {"kernels_per_step": 400, "syncs": {"measured_per_step": 3}}
    fast = variant("fast", 1.5, "faster", kernels_per_step=40, syncs={"measured_per_step": 0})
    words = "`fast` has 40 kernels per step instead of 400 and 0 measured syncs per step instead of 3."
    details = verdict_of(study(variants=[base, fast])).details
    assert words in details
    assert not any(text.startswith("Syncs per step") for text in details)  # the table below has those of all
    alike = variant("alike", 1.5, "faster", kernels_per_step=399, syncs={"measured_per_step": 3})
    assert not any("instead of" in text for text in verdict_of(study(variants=[base, alike])).details)


def estimated(name: str, step_ms: list[float], limited_by: str, launches: dict[int, float]) -> dict[str, Any]:
    """What estimates of a variant add to it: launches by line of loss.py, at some us each."""
    lines = [
        {"file": "loss.py", "line": line, "launches": count, "host_ms": [0.005 * count, 0.015 * count]}
        for line, count in launches.items()
    ]
    return variant(name, 1.0, "same", estimates=[an_estimate(*step_ms) | {"limited_by": limited_by, "lines": lines}])


@pytest.mark.parametrize(("limit", "gpu_ms"), [("launches", [180, 480]), ("undecided", [180, 495])])
def test_where_launches_may_limit_the_baseline_the_line_that_launches_is_named_with_what_the_variant_saves(
    limit, gpu_ms
):
    slow = estimated("base", [490, 1500], limit, {5: 24_000, 9: 60, 7: 40})
    slow["estimates"][0] |= {"gpu_ms": gpu_ms, "host_ms": [490, 1500]}
    fast = estimated("fast", [38, 75], "arithmetic", {5: 24, 9: 60})
    advice = verdict_of(study(variants=[slow, fast], gpu={"gpu": None})).advice
    words = "`loss.py:5` (24 launches per step instead of 24,000, 120 ms to 360 ms less for the host)"
    assert f"The 2 lines that save most launches are {words} and " in advice
    assert "`loss.py:7`" in advice  # the second of two
    assert "`loss.py:9`" not in advice  # as many as before


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
    cost = "at most 3.0 ms per step on H100, data loading aside"
    assert f"No sync is left at `loss.py:5`. All syncs of `base` together cost {cost}." in advice
    site = {"file": "loss.py", "line": 5, "count_per_step": 2, "kind": "d2h_copy"}
    items = find(study(variants=[base | {"predicted_sites": [site]}]))
    (finding,) = (item for item in items if item.rule == PREDICTED_SYNCS)
    assert finding.evidence[0] == f"all syncs of a step together cost {cost}"
    assert "The estimates do not decide" in advice


def test_the_simplest_variant_is_the_one_that_changes_least():
    """Not the one with the shortest list: what stands in the baseline's list too is no change."""
    fewest = variant("a", 1.0, "same", overrides=["loss=base", "data.form=list", "profile=light", "loss=a"])
    other = variant("b", 1.0, "same", overrides=["model=b", "loss=b"])
    both = study(fewest, other)
    assert [both.changed(entry) for entry in both.variants] == [0, 1, 2]


def test_syncs_are_called_measured_or_predicted():
    few = variant("few", 1.0, "same", syncs={"measured_per_step": 0, "predicted_per_step": 0})
    assert "Syncs per step, measured: `base` 1, `few` 0." in verdict_of(study(few)).details
    assert "Syncs per step, measured: 1 in every variant." in verdict_of(study()).details
    base = BASE | {"syncs": {"predicted_per_step": 6}}
    assert "Syncs per step, predicted: 6 in every variant." in verdict_of(study(variants=[base])).details


@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        (("same", "same"), "All variants compute the same."),
        (("same", "differs"), "`v1`: a different result."),
        (("differs", "not measured"), "`v0`: a different result. `v1`: answer not checked."),
        (("same", "same", "failed"), "`v2`: check of the answer failed."),
    ],
)
def test_the_verdict_says_whether_the_answer_is_the_same(statuses, words):
    variants = [variant(f"v{k}", 1.0, "same", equivalence={"status": status}) for k, status in enumerate(statuses)]
    assert words in verdict_of(study(variants=variants)).details


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
