"""A study's answer comes first: which variant, by how much, what it computes, and how to get it."""

from typing import Any

import pytest

from documents import fill
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER
from steptrace.findings import Finding, find
from steptrace.report.page.findings import recommended
from steptrace.report.study.headline import headline

GPU = {"gpu": "NVIDIA H100", "gpu_count": 1}
STAND_IN = {"gpu": "NVIDIA H100 80GB HBM3 (stand-in)", "gpu_count": 1}


def variant(name: str, ratio: float, verdict: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "status": "ok",
        "baseline": "base",
        "overrides": [f"loss={name}"],
        "step_ms": {"median": 20.0 / ratio, "p95": 21.0, "low": None, "high": None, "runs": 3, "steps": 60},
        "ratio": {"value": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "verdict": verdict},
        "syncs": {"measured_per_step": 1, "predicted_per_step": 1},
        "equivalence": {"status": "same"},
    } | changes


BASE = variant("base", 1.0, "baseline", overrides=["loss=base", "data.form=list", "profile=light"])


def answer(*others: dict[str, Any], gpu: dict[str, Any] = GPU, **changes: Any) -> Finding:
    first = find(study(*others, gpu=gpu, **changes))[0]
    assert first.rule == ANSWER
    return first


def study(*others: dict[str, Any], gpu: dict[str, Any] = GPU, **changes: Any) -> Comparison:
    method = {"confidence": 0.95, "noise_floor": 0.01}
    return fill(Comparison, {"variants": [BASE, *others], "method": method, "environment": gpu, **changes})


def test_the_fastest_variant_that_computes_the_same_is_named_with_its_interval_and_its_change() -> None:
    found = answer(variant("fast", 1.5, "faster"), variant("fastest", 2.0, "faster"))
    assert found.variant == "fastest"
    assert (
        "2.00× faster than `base` (95 % interval 1.90 to 2.10), 10.0 ms less a step; it computes the same"
        in found.claim
    )
    assert found.advice == "Use `fastest`. To get it from `base`: `loss=fastest`, without `data.form=list`."


def test_the_lines_at_which_the_host_no_longer_waits_are_named() -> None:
    sites = [
        {"file": "loss.py", "line": line, "baseline_count_per_step": 1, "variant_count_per_step": left}
        for line, left in ((9, None), (5, 0), (7, 1), (9, None))
    ]
    found = answer(variant("fast", 1.5, "faster", sync_diff={"basis": "predicted", "sites": sites}))
    assert "The host would then no longer wait at `loss.py:5`, `:9`." in found.advice


def test_a_line_is_named_once_and_only_where_none_of_its_syncs_is_left() -> None:
    counts = ((5, 1, 0), (5, 1, 0), (6, 1, 0), (6, 1, 1), (8, 0, 0))
    sites = [
        {"file": "loss.py", "line": line, "baseline_count_per_step": before, "variant_count_per_step": after}
        for line, before, after in counts
    ]
    found = answer(variant("fast", 1.5, "faster", sync_diff={"basis": "measured", "sites": sites}))
    assert found.advice.endswith("The host then no longer waits at `loss.py:5`.")


def test_how_variants_were_measured_is_no_change_to_make() -> None:
    found = answer(variant("fast", 1.5, "faster", overrides=["loss=base", "data.form=list", "profile.active=9"]))
    assert found.advice == "Use `fast`. Nothing in the configuration tells it from `base`."


def test_a_faster_variant_that_computes_something_else_is_not_advised() -> None:
    wrong = variant("wrong", 3.0, "faster", equivalence={"status": "differs"})
    assert answer(wrong, variant("fast", 1.5, "faster")).variant == "fast"
    found = answer(wrong)
    assert found.variant == "base"
    assert "`wrong` would be, but the answer is another" in found.claim
    unknown = variant("unknown", 3.0, "faster", equivalence={"status": "failed"})
    found = answer(unknown, wrong)
    assert found.variant == "base"
    assert "`unknown` would be, but the check of the answer failed" in found.claim


def test_the_headline_is_about_the_variant_that_is_advised() -> None:
    wrong = variant("wrong", 3.0, "faster", equivalence={"status": "differs"})
    both = study(wrong, variant("fast", 1.5, "faster"))
    assert headline(both).startswith("`fast` is 1.50× faster")
    best = both.fastest()
    assert best is not None
    assert best.name == "fast"
    assert headline(study(wrong)).startswith("`wrong` is 3.00× faster than `base` (95 % interval 2.90 to 3.10")
    assert "but its answer differs" in headline(study(wrong))


def test_an_answer_that_was_not_checked_is_said() -> None:
    found = answer(variant("fast", 1.5, "faster", equivalence={"status": "not measured"}))
    assert found.claim.endswith("whether it computes the same was not checked")


def test_where_nothing_is_faster_the_baseline_is_kept_and_what_is_undecided_is_named() -> None:
    slow = variant("slow", 0.5, "slower")
    assert "worth a change" in answer(slow).advice
    found = answer(slow, variant("open", 1.1, "undecided"))
    assert found.variant == "base"
    assert "undecided: `open`" in found.claim
    assert "more runs" in found.advice


def test_variants_not_told_apart_from_the_best_are_named() -> None:
    against = {"baseline": "fast", "variants": ["base", "alike", "slow"], "ratios": [0.6, 1.0, 0.5],
               "lows": [0.5, 0.9, 0.4], "highs": [0.7, 1.1, 0.6], "verdicts": ["slower", "same", "slower"]}  # fmt: skip
    found = answer(
        variant("fast", 1.5, "faster"), variant("alike", 1.5, "faster"), variant("slow", 0.9, "slower"),
        other_baselines=[against],
    )  # fmt: skip
    assert found.claim.startswith("1.50× faster")
    assert found.advice.startswith("Use `fast`, or the simplest of `alike`, which these runs cannot tell from it.")


def test_times_of_a_cpu_are_said_to_be_that() -> None:
    assert "times of a CPU" in answer(variant("fast", 1.5, "faster"), gpu={"gpu": None}).advice


def test_in_a_matrix_every_cell_has_an_answer_and_the_largest_gain_leads() -> None:
    cell = {"baseline": "other"}
    other = variant("other", 1.0, "baseline", **cell)
    found = find(study(variant("fast", 1.5, "faster"), other, variant("most", 2.0, "faster", **cell)))
    assert [item.variant for item in found if item.rule == ANSWER] == ["most", "fast"]


def test_without_a_verdict_none_can_be_chosen() -> None:
    unjudged = variant("open", 1.5, "faster") | {"ratio": {"value": 1.5, "verdict": None}}
    found = answer(unjudged)
    assert found.variant is None
    assert "no variant can be chosen yet" in found.claim
    assert ANSWER not in {item.rule for item in find(study())}  # one variant asks nothing


def test_on_a_simulated_gpu_syncs_are_all_there_is_to_choose_by() -> None:
    found = answer(
        variant("fast", 9.0, "faster", syncs={"measured_per_step": 9, "predicted_per_step": 0}), gpu=STAND_IN
    )
    assert found.variant is None
    assert "by predicted syncs `fast` is expected to gain (0 a step, `base` has 1)" in found.claim
    assert "scale=gpu" in found.advice
    few, many = variant("few", 9.0, "faster", kernels_per_step=8), variant("many", 1.0, "same", kernels_per_step=95)
    found = answer(few, many, variant("less", 1.0, "same", kernels_per_step=8), gpu=STAND_IN)
    assert "a step, `few` and `less` are expected to gain (8 kernels a step, `many` has 95)" in found.claim


def test_on_a_simulated_gpu_what_rests_on_times_is_not_said() -> None:
    idle = {"gpu_busy_pct": 10.0, "breakdown_ms": {"compute": 2, "exposed_comm": 0, "exposed_memory": 0, "idle": 18}}
    waits = {"file": "loss.py", "line": 3, "exposed_idle_ns_per_step": 9_000_000, "blocked_ns_per_step": 9_000_000}
    sites = {"sync_sites": [waits], "predicted_sites": [{"file": "loss.py", "line": 3, "count_per_step": 1}]}
    for gpu, rules in ((GPU, {ANSWER, "sync_bound", "gpu_idle"}), (STAND_IN, {ANSWER, "predicted_syncs"})):
        slow, waiting = variant("a", 1.0, "same", **idle), variant("b", 1.0, "same", **sites)
        found = find(study(slow, waiting, gpu=gpu))
        assert {item.rule for item in found} == rules
        assert all(item.cost_ns_per_step is None for item in found) == (gpu is STAND_IN)


def test_behind_the_answer_stands_what_remains_in_that_variant() -> None:
    idle = {"gpu_busy_pct": 10.0, "breakdown_ms": {"compute": 2, "exposed_comm": 0, "exposed_memory": 0, "idle": 8}}
    differs = {"equivalence": {"status": "differs"}}
    found = find(study(variant("fast", 2.0, "faster", **idle), variant("slow", 0.5, "slower", **idle, **differs)))
    assert {item.variant for item in found} == {"fast", "slow"}
    assert [(item.rule, item.variant) for item in recommended(found)] == [(ANSWER, "fast"), ("gpu_idle", "fast")]


@pytest.mark.parametrize(("slower", "priced"), [(1.9, True), (24.2, False)])
def test_a_profile_far_slower_than_the_step_prices_nothing(slower: float, *, priced: bool) -> None:
    idle = {"gpu_busy_pct": 10.0, "breakdown_ms": {"compute": 2, "exposed_comm": 0, "exposed_memory": 0, "idle": 8}}
    found = find(study(variant("fast", 2.0, "faster", profiled_over_unprofiled=slower, **idle)))
    (item,) = [item for item in found if item.rule == "gpu_idle"]
    assert (item.cost_ns_per_step is not None) == (item.cost_share is not None) == priced
    assert ("in a profile that takes 24.2 times as long as the step itself" in item.claim) != priced
    assert item.severity == ("warning" if priced else "info")
