"""Ratios to baselines other than the study's own: made as those are, and only where they mean something."""

from typing import Any

import pytest

from documents import compare


def made(folder: Any, medians: dict[str, list[float]]) -> dict[str, Any]:
    folder.make_study([{"name": name} for name in medians])
    for name, values in medians.items():
        folder.add_runs(name, values)
    return compare(folder.path)


def pairs(comparison: dict[str, Any]) -> dict[tuple[str, str], tuple[float, float | None, float | None, str | None]]:
    keys = ("ratios", "lows", "highs", "verdicts")
    return {
        (found["baseline"], name): tuple(found[key][place] for key in keys)
        for found in comparison["other_baselines"]
        for place, name in enumerate(found["variants"])
    }


def test_against_the_study_s_own_baseline_they_are_its_own_ratios(folder: Any) -> None:
    comparison = made(folder, {"base": [10.0, 10.1, 9.9], "fast": [5.0, 5.05, 4.95], "even": [9.9, 10.0, 10.1]})
    found = pairs(comparison)
    assert len(found) == 6
    for variant in comparison["variants"][1:]:
        own = variant["ratio"]
        value, low, high, verdict = found["base", variant["name"]]
        assert (value, low, high) == pytest.approx((own["value"], own["low"], own["high"]))
        assert verdict == own["verdict"]


def test_the_other_way_round_ratio_and_interval_are_the_inverse(folder: Any) -> None:
    found = pairs(made(folder, {"base": [10.0, 10.1, 9.9], "fast": [5.0, 5.05, 4.95], "slow": [20.0, 20.2, 19.9]}))
    value, low, high, verdict = found["fast", "slow"]
    back = found["slow", "fast"]
    assert (1 / value, 1 / high, 1 / low) == pytest.approx(back[:3])
    assert (verdict, back[3]) == ("slower", "faster")


def test_uneven_steps_have_no_verdict_against_any_baseline(folder: Any) -> None:
    folder.make_study([{"name": name} for name in ("base", "fast", "uneven")])
    folder.add_runs("base", [10.0, 10.1, 9.9])
    folder.add_runs("fast", [5.0, 5.05, 4.95])
    for repeat in range(3):
        folder.add_run("uneven", repeat, [2.0, 4.0] * 10)
    found = pairs(compare(folder.path))
    assert {pair for pair, (*_, verdict) in found.items() if verdict is None} == {
        ("base", "uneven"), ("uneven", "base"), ("fast", "uneven"), ("uneven", "fast"),
    }  # fmt: skip


def test_one_run_has_a_ratio_and_no_interval(folder: Any) -> None:
    found = pairs(made(folder, {"base": [10.0], "fast": [5.0], "slow": [20.0]}))
    assert found["fast", "slow"] == (pytest.approx(0.25), None, None, None)


@pytest.mark.parametrize("count", [2, 25])
def test_two_variants_and_too_many_have_none(folder: Any, count: int) -> None:
    names = ["base", *(f"v{number}" for number in range(1, count))]
    assert made(folder, {key: [10.0] for key in names})["other_baselines"] == []


def test_on_a_simulated_gpu_nothing_has_a_verdict_and_no_answer_is_compared(folder: Any) -> None:
    folder.make_study([{"name": name} for name in ("base", "fast", "slow")])
    for name, values in {"base": [10.0, 10.1, 9.9], "fast": [5.0, 5.05, 4.95], "slow": [20.0, 20.2, 19.9]}.items():
        folder.add_runs(name, values, environment={"gpu": "NVIDIA H100 80GB HBM3 (stand-in)", "gpu_count": 1})
    comparison = compare(folder.path)
    assert [variant["ratio"]["verdict"] for variant in comparison["variants"]] == ["baseline", None, None]
    assert {verdict for *_, verdict in pairs(comparison).values()} == {None}
    assert {variant["equivalence"]["status"] for variant in comparison["variants"]} == {"not comparable"}
    assert "no verdict: the GPU is simulated, and so are its times" in comparison["variants"][1]["noise"]["warnings"]
