"""A study's folder becomes a comparison, whatever of it is there."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compare.conftest import notes_of
from documents import compare, fill
from steptrace.compare.study import basis_of, sync_diff
from steptrace.documents.sync_counts import SyncCounts, SyncDiff
from steptrace.documents.syncs import PredictedSite
from steptrace.errors import RecordError
from steptrace.files import read_json, write_json
from steptrace.run_folder import write_document


def by_name(comparison: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {variant["name"]: variant for variant in comparison["variants"]}


def test_a_whole_study(folder: Any) -> None:
    folder.make_study(
        [{"name": "base"}, {"name": "fast", "hypothesis": "h", "overrides": ["loss=x"]}, {"name": "even"}]
    )
    folder.add_runs("base", [10.0, 10.1, 9.9], profiled_ms=[12.0, 12.1, 12.3])
    folder.add_runs("fast", [5.0, 5.05, 4.95])
    folder.add_runs("even", [9.9, 10.0, 10.1])
    comparison = compare(folder.path)
    variants = by_name(comparison)
    assert [comparison[key] for key in ("study", "title", "baseline", "scale")] == ["s", "S", "base", "cpu"]
    assert comparison["environment"]["torch"] == "2.13.0"
    assert comparison["environments_differ"] == {}
    assert comparison["method"]["correction"] == "Holm over 2 candidates"
    assert (comparison["method"]["noise_floor"], comparison["method"]["noise_floor_source"]) == (0.01, "default")
    assert variants["base"]["ratio"] == {"value": 1.0, "low": None, "high": None, "verdict": "baseline"}
    assert variants["base"]["profiled_over_unprofiled"] == pytest.approx(1.21, rel=0.02)
    fast = variants["fast"]
    assert fast["status"] == "ok"
    assert fast["hypothesis"] == "h"
    assert fast["overrides"] == ["loss=x"]
    assert fast["step_ms"]["median"] == pytest.approx(5.0, rel=1e-3)
    assert fast["step_ms"]["low"] < 5.0 < fast["step_ms"]["high"]
    assert (fast["step_ms"]["runs"], fast["step_ms"]["steps"]) == (3, 60)
    assert fast["ratio"]["value"] == pytest.approx(variants["base"]["step_ms"]["median"] / fast["step_ms"]["median"])
    assert fast["ratio"]["low"] < 2.0 < fast["ratio"]["high"]
    assert fast["ratio"]["verdict"] == "faster"
    assert variants["even"]["ratio"]["verdict"] == "undecided"
    assert [run["median_ms"] for run in fast["runs"]] == pytest.approx([5.0, 5.05, 4.95])
    assert fast["runs"][1]["path"].endswith("results/s/fast/run1")


def test_what_was_not_measured_is_null(folder: Any) -> None:
    folder.make_study([{"name": "base"}])
    folder.add_runs("base", [10.0, 10.1, 9.9])
    base = by_name(compare(folder.path))["base"]
    figures = ("gpu_busy_pct", "nvml_util_pct", "sm_weighted_pct", "operators_per_step", "kernels_per_step")
    nothing = (*figures, "profiled_over_unprofiled", "peak_allocated_bytes", "trace", "ranks", "memory")
    assert {key: base[key] for key in nothing} == dict.fromkeys(nothing)
    assert set(base["syncs"].values()) == {None}
    assert base["predicted_sites"] == []
    assert base["equivalence"]["status"] == "not measured"
    assert base["input"]["wait_ms"] == 0


def test_a_step_s_samples_are_those_of_all_its_batches_and_ranks(folder: Any) -> None:
    folder.make_study([{"name": "base"}, {"name": "ranks"}, {"name": "failed"}])
    folder.add_runs("base", [10.0], config={"data": {"batch_size": 4}})
    folder.add_runs("ranks", [10.0], config={"data": {"batch_size": 4}, "step": {"accumulate": 3}}, world_size=2)
    variants = by_name(compare(folder.path))
    assert [variants[name]["samples_per_step"] for name in ("base", "ranks", "failed")] == [4, 24, None]


def test_where_batches_differ_the_verdict_is_on_the_time_per_sample(folder: Any) -> None:
    """Four times the samples in twice the time: a longer step, and twice as fast."""
    folder.make_study([{"name": "base"}, {"name": "large"}, {"name": "alike"}])
    times = [10.0, 10.1, 9.9]
    folder.add_runs("base", times, config={"data": {"batch_size": 4}})
    folder.add_runs("large", [2 * ms for ms in times], config={"data": {"batch_size": 16}})
    folder.add_runs("alike", times, config={"data": {"batch_size": 4}})
    comparison = compare(folder.path)
    variants = by_name(comparison)
    large = variants["large"]
    assert (large["ratio"]["verdict"], large["ratio_per_sample"]["verdict"]) == (None, "faster")
    assert large["ratio"]["value"] == pytest.approx(0.5, rel=1e-3)
    assert large["ratio_per_sample"]["value"] == pytest.approx(2.0, rel=1e-3)
    for end in ("low", "high"):
        assert large["ratio_per_sample"][end] == pytest.approx(4 * large["ratio"][end])
    assert variants["alike"]["ratio_per_sample"] is None
    assert comparison["method"]["candidates"] == 2


def test_runs_that_failed_or_are_missing_are_listed(folder: Any, status_of: Callable[..., Any]) -> None:
    folder.make_study([{"name": "base"}, {"name": "partial"}, {"name": "broken"}, {"name": "absent"}])
    folder.add_runs("base", [10.0, 10.1, 9.9])
    folder.add_runs("partial", [5.0, 5.05])
    killed = status_of("killed", exit_code=None, signal=9, error="killed", log_tail=("step 7",))
    write_document(folder.path / "partial" / "run2", killed)
    for repeat in range(3):
        write_document(folder.path / "broken" / f"run{repeat}", status_of("out of memory", error="out of memory"))
    variants = by_name(compare(folder.path))
    partial = variants["partial"]
    assert partial["status"] == "killed"
    assert (partial["step_ms"]["runs"], partial["ratio"]["value"]) == (2, pytest.approx(2.0, rel=0.02))
    error = {"status": "killed", "exit_code": None, "signal": 9, "error": "killed", "log_tail": ["step 7"]}
    assert partial["runs"][2]["error"] == error
    assert notes_of(partial)["runs_missing"] == {"measured": 2, "runs": 3}
    assert variants["broken"]["status"] == "out of memory"
    assert (variants["broken"]["step_ms"], variants["broken"]["ratio"]) == (None, None)
    assert variants["absent"]["status"] == "not run"
    assert [run["status"] for run in variants["absent"]["runs"]] == ["not run"] * 3


def test_without_a_baseline_there_is_no_ratio_and_it_says_why(folder: Any, status_of: Callable[..., Any]) -> None:
    folder.make_study([{"name": "base"}, {"name": "a"}], repeats=1)
    write_document(folder.path / "base" / "run0", status_of("failed"))
    folder.add_runs("a", [5.0])
    variants = by_name(compare(folder.path))
    assert variants["base"]["ratio"] is None
    assert variants["a"]["ratio"] is None
    assert variants["a"]["step_ms"]["median"] == pytest.approx(5.0)
    assert notes_of(variants["a"])["no_baseline"] == {"baseline": "base"}


def test_a_study_without_finished_runs_has_no_environment_and_variants_not_run(folder: Any) -> None:
    folder.make_study([{"name": "base"}, {"name": "a"}])
    comparison = compare(folder.path)
    assert comparison["environment"] is None
    assert {variant["status"] for variant in comparison["variants"]} == {"not run"}


def test_one_run_gives_no_interval_and_no_verdict(folder: Any) -> None:
    folder.make_study([{"name": "base"}, {"name": "a"}], repeats=1)
    folder.add_runs("base", [10.0])
    folder.add_runs("a", [5.0])
    comparison = compare(folder.path)
    assert comparison["method"]["candidates"] == 0
    a = by_name(comparison)["a"]
    assert a["ratio"] == {"value": pytest.approx(2.0), "low": None, "high": None, "verdict": None}
    assert (a["step_ms"]["low"], a["step_ms"]["high"]) == (None, None)
    assert "too_few_runs" in notes_of(a)


@pytest.mark.parametrize("noisy", ["base", "a"])
def test_uneven_steps_warn_and_then_refuse_a_verdict(folder: Any, noisy: str) -> None:
    folder.make_study([{"name": "base"}, {"name": "a"}])
    for name, median in (("base", 10.0), ("a", 5.0)):
        for repeat in range(3):
            spread = np.linspace(0.7, 1.3, 20) if name == noisy else np.linspace(0.85, 1.15, 20)
            folder.add_run(name, repeat, median * np.random.default_rng(repeat).permutation(spread))
    variants = by_name(compare(folder.path))
    assert variants["a"]["ratio"]["verdict"] is None
    assert notes_of(variants["a"])["too_uneven"]["is_baseline"] == (noisy == "base")
    even = variants["a" if noisy == "base" else "base"]["noise"]
    assert 0.10 < even["iqr_over_median"] < 0.25
    assert "uneven_steps" in notes_of(variants["a" if noisy == "base" else "base"])


def test_the_mean_is_the_step_time_where_long_steps_come_back(folder: Any) -> None:
    """A loader of eight workers that falls behind: seven batches are there, the eighth comes late."""
    folder.make_study([{"name": "base"}, {"name": "workers"}])
    folder.add_runs("base", [100.0, 101.0, 99.0])
    for repeat in range(3):
        folder.add_run("workers", repeat, np.tile([225.0 + repeat, *[25.0] * 7], 6))
    comparison = compare(folder.path)
    base, workers = by_name(comparison).values()
    assert workers["step_ms"]["statistic"] == "mean"
    assert workers["step_ms"]["median"] == pytest.approx(25.0)
    assert workers["step_ms"]["mean"] == pytest.approx(50.0, rel=0.01)
    assert workers["step_ms"]["low"] < 50.1 < workers["step_ms"]["high"]
    assert base["step_ms"]["statistic"] == "mean"  # one figure for all
    assert workers["ratio"]["value"] == pytest.approx(2.0, rel=0.01)
    assert workers["ratio"]["verdict"] == "faster"
    assert [run["mean_ms"] for run in workers["runs"]] == pytest.approx([50.0, 50.125, 50.25])
    assert [run["warmup_left_out"] for run in workers["runs"]] == [0, 0, 0]


def test_long_steps_that_one_run_has_not_leave_the_median(folder: Any) -> None:
    """They are another program's doing."""
    folder.make_study([{"name": "base"}])
    folder.add_runs("base", [10.0])
    for repeat in (1, 2):
        folder.add_run("base", repeat, [10.0] * 10 + [100.0] + [10.0] * 9)
    assert by_name(compare(folder.path))["base"]["step_ms"]["statistic"] == "median"


def test_steps_that_waits_for_data_make_uneven_are_judged(folder: Any) -> None:
    folder.make_study([{"name": "base"}, {"name": "workers"}])
    for repeat in range(3):
        folder.add_run("base", repeat, [200.0] * 20, wait_ms=160.0)
        wait_ms = np.tile([100.0, 0.0], 10)
        hidden_ms = np.tile([25.0, 0.0], 10)  # by what the GPU still had to do
        folder.add_run("workers", repeat, wait_ms - hidden_ms + 40.0, wait_ms=wait_ms)
    workers = by_name(compare(folder.path))["workers"]
    assert workers["noise"]["iqr_over_median"] == 0
    assert workers["ratio"]["value"] == pytest.approx(200 / 77.5)
    assert workers["ratio"]["verdict"] == "faster"


def test_runs_that_differ_warn_but_may_be_judged(folder: Any) -> None:
    folder.make_study([{"name": "base"}, {"name": "a"}])
    folder.add_runs("base", [10.0, 15.0, 20.0])
    folder.add_runs("a", [5.01, 7.5, 10.0])  # the machine got slower, for both alike
    a = by_name(compare(folder.path))["a"]
    assert a["noise"]["iqr_over_median"] < 0.05
    assert notes_of(a)["runs_differ"]["deviation"] == pytest.approx(0.35, abs=0.005)
    assert a["noise"]["uneven"]
    assert a["ratio"]["verdict"] == "faster"


def test_a_claim_that_does_not_survive_the_correction_is_undecided(folder: Any) -> None:
    names = [f"v{index}" for index in range(6)]
    folder.make_study([{"name": "base"}, *({"name": name} for name in names)])
    rng = np.random.default_rng(0)
    folder.add_runs("base", [10.0, 10.1, 9.9])
    for name in names[1:]:
        folder.add_runs(name, list(10 * np.exp(0.05 * rng.standard_normal(3))))
    folder.add_runs("v0", [9.55, 9.45, 9.5])
    v0 = by_name(compare(folder.path))["v0"]
    assert v0["ratio"]["low"] > 1
    assert v0["ratio"]["verdict"] == "undecided"
    assert "lost_by_correction" in notes_of(v0)


def test_an_identical_variant_sets_the_noise_floor_and_is_no_candidate(folder: Any) -> None:
    folder.make_study([{"name": "base", "digest": "d"}, {"name": "again", "digest": "d"}, {"name": "a"}])
    folder.add_runs("base", [10.0, 10.2, 9.8], digest="d")
    folder.add_runs("again", [10.1, 9.9, 10.2], digest="d")
    folder.add_runs("a", [9.7, 9.6, 9.8])
    comparison = compare(folder.path)
    variants = by_name(comparison)
    method = comparison["method"]
    again = variants["again"]["ratio"]
    assert method["noise_floor_source"] == "A/A pair"
    assert method["noise_floor"] == pytest.approx(max(again["high"], 1 / again["low"]) - 1)
    assert method["noise_floor"] > 0.01
    assert method["correction"] == "Holm over 1 candidate"
    assert again["verdict"] == "same"
    assert variants["a"]["ratio"]["verdict"] == "undecided"


def test_nothing_is_called_the_same_on_a_machine_that_tells_nothing_apart(folder: Any) -> None:
    folder.make_study([{"name": "base", "digest": "d"}, {"name": "again", "digest": "d"}])
    folder.add_runs("base", [10.0, 13.0, 9.0], digest="d")
    folder.add_runs("again", [12.0, 9.5, 11.0], digest="d")
    comparison = compare(folder.path)
    assert comparison["method"]["noise_floor"] > 0.1
    again = by_name(comparison)["again"]
    assert again["ratio"]["verdict"] == "undecided"
    assert "noise_floor_too_high" in notes_of(again)


def test_identical_variants_that_differ_are_a_warning(folder: Any) -> None:
    folder.make_study([{"name": "base", "digest": "d"}, {"name": "again", "digest": "d"}])
    folder.add_runs("base", [10.0, 10.01, 9.99], digest="d")
    folder.add_runs("again", [10.51, 10.49, 10.5], digest="d")
    again = by_name(compare(folder.path))["again"]
    assert "twin_differs" in notes_of(again)


def test_each_cell_of_a_matrix_has_its_own_baseline(folder: Any) -> None:
    folder.make_study(
        [{"name": f"{name}__{cell}", "baseline": f"base__{cell}"} for cell in (8, 16) for name in ("base", "a")]
    )
    for name, median in (("base__8", 10.0), ("a__8", 5.0), ("base__16", 40.0), ("a__16", 10.0)):
        folder.add_runs(name, [median, 1.01 * median, 0.99 * median])
    comparison = compare(folder.path)
    variants = by_name(comparison)
    assert comparison["method"]["correction"] == "Holm over 2 candidates"
    assert variants["a__8"]["ratio"]["value"] == pytest.approx(2.0)
    assert variants["a__16"]["ratio"]["value"] == pytest.approx(4.0)
    assert variants["base__16"]["ratio"]["verdict"] == "baseline"


def test_warm_up_steps_are_left_out_and_shown(folder: Any) -> None:
    folder.make_study([{"name": "base"}], repeats=1)
    steps = np.concatenate([[30.0, 25.0], np.tile([9.9, 10.0, 10.1], 6)])
    folder.add_run("base", 0, steps, wait_ms=1.0)
    base = by_name(compare(folder.path))["base"]
    assert (base["runs"][0]["warmup_left_out"], base["runs"][0]["steps"]) == (2, 18)
    assert base["step_ms"]["median"] == pytest.approx(10.0)
    assert base["step_ms"]["p95"] < 10.2
    assert base["input"]["share"] == pytest.approx(0.1)


def test_drift_and_outliers_are_flagged(folder: Any) -> None:
    folder.make_study([{"name": "base"}], repeats=1)
    steps = np.linspace(10.0, 11.0, 40)
    steps[[10, 20, 30]] = 30.0
    folder.add_run("base", 0, steps)
    base = by_name(compare(folder.path))["base"]
    assert base["noise"]["drift"] == pytest.approx(0.095, abs=0.01)
    assert notes_of(base)["drift"]["drift"] == pytest.approx(0.095, abs=0.01)
    assert notes_of(base)["outliers"] == {"outliers": 3, "steps": 40}


def test_environments_that_differ_are_named(folder: Any) -> None:
    folder.make_study([{"name": "base"}, {"name": "a"}], repeats=1)
    folder.add_runs("base", [10.0])
    folder.add_runs("a", [10.0], environment={"torch": "2.12.0", "host": "other"})
    compared = compare(folder.path)
    assert [*compared["environments_differ"]] == ["host", "torch"]
    assert compared["environments_differ"]["torch"] == ["2.13.0", "2.12.0"]


@pytest.mark.parametrize("name", ["status.json", "run.json", "steps.parquet"])
def test_a_damaged_run_is_a_failed_run(folder: Any, name: str) -> None:
    folder.make_study([{"name": "base"}], repeats=2)
    folder.add_runs("base", [10.0, 10.0])
    (folder.path / "base" / "run1" / name).write_text("{")
    base = by_name(compare(folder.path))["base"]
    assert base["status"] == "failed"
    assert name in base["runs"][1]["error"]["error"]
    assert base["step_ms"]["runs"] == 1


@pytest.mark.parametrize(
    ("steps", "changes", "status", "error"),
    [(20, {"digest": "an older one"}, "not run", "another configuration"), (0, {}, "failed", "no timed step")],
)
def test_a_run_of_another_configuration_or_without_timed_steps_does_not_count(
    folder: Any, steps: int, changes: dict[str, Any], status: str, error: str
) -> None:
    folder.make_study([{"name": "base"}], repeats=1)
    folder.add_run("base", 0, [10.0] * steps, **changes)
    base = by_name(compare(folder.path))["base"]
    assert (base["status"], base["step_ms"]) == (status, None)
    assert error in base["runs"][0]["error"]["error"]


def test_runs_beyond_the_repeats_are_not_read(folder: Any) -> None:
    folder.make_study([{"name": "base"}], repeats=1)
    folder.add_runs("base", [10.0, 99.0])
    assert by_name(compare(folder.path))["base"]["step_ms"]["median"] == pytest.approx(10.0)


@pytest.mark.parametrize("content", [None, "[]", '{"name": "s"}', '{"variants": 1', "nonsense"])
def test_a_study_that_cannot_be_read_is_an_error(folder: Any, content: str | None) -> None:
    folder.make_study([{"name": "base"}])
    path: Path = folder.path / "study.json"
    if content is None:
        shutil.rmtree(folder.path)
    else:
        path.write_text(content)
    with pytest.raises(RecordError) as caught:
        compare(folder.path)
    assert caught.value.where == str(path)


def test_equivalence_in_all_its_outcomes(folder: Any, status_of: Callable[..., Any]) -> None:
    folder.make_study([{"name": name} for name in ("base", "other", "broken", "lost", "odd", "unlike")])
    result = {"status": "same", "max_rel_err": 1e-7, "loss_rel_err": 1e-8, "gradient_rel_err": 1e-7}
    result["tolerance"] = {"loss": 1e-5, "gradient": 1e-4}
    for name, status, content in (
        ("base", "ok", result | {"cases": []}),
        ("other", "ok", result | {"status": "differs", "max_rel_err": 0.3, "cases": []}),
        ("broken", "failed", None),
        ("odd", "ok", {"status": "perhaps"}),
        ("unlike", "ok", {"status": "not comparable", "not_comparable": {"code": "no_steps"}}),
    ):
        write_document(folder.path / name / "equivalence", status_of(status, error=None if status == "ok" else "boom"))
        if content is not None:
            write_json(folder.path / name / "equivalence" / "equivalence.json", content)
    equivalences = {name: variant["equivalence"] for name, variant in by_name(compare(folder.path)).items()}
    nothing = {
        "predictions_rel_err": None,
        "parameters_rel_err": None,
        "failure": None,
        "reason": None,
        "not_comparable": None,
    }
    tolerance = result["tolerance"] | {"predictions": None, "parameters": None}
    assert equivalences["base"] == result | nothing | {"tolerance": tolerance}
    assert (equivalences["other"]["status"], equivalences["other"]["max_rel_err"]) == ("differs", 0.3)
    assert (equivalences["broken"]["status"], equivalences["broken"]["failure"]["error"]) == ("failed", "boom")
    assert equivalences["odd"]["status"] == "failed"
    assert equivalences["unlike"]["status"] == "not comparable"
    assert equivalences["unlike"]["not_comparable"]["code"] == "no_steps"
    assert equivalences["lost"]["status"] == "not measured"


def test_a_repeat_that_was_asked_for_step_times_alone_lacks_no_trace(folder: Any, trace_of: Callable[..., Any]) -> None:
    folder.make_study([{"name": "base"}], repeats=2)
    folder.add_run("base", 0, [10.0] * 20, summary=trace_of(), config={"profile": {"repeats": 1}})
    folder.add_run("base", 1, [10.0] * 20, config={"profile": {"repeats": 1}})
    (base,) = compare(folder.path)["variants"]
    assert "trace_not_analysed" not in notes_of(base)
    assert base["operators_per_step"] == 100


#: When the runs of the baseline and of a variant began, how many minutes each took, and the seconds that lie between.
CASES = [
    (("10:00", "10:10", "10:20"), ("10:05", "10:15", "10:25"), 4, None),
    (("10:00", "10:10", "10:20"), ("10:05", "10:15", "18:00"), 4, None),  # one run that failed and was repeated
    (("10:00", "10:00", "10:01"), ("10:02", "10:02", "10:03"), 4, None),  # jobs of a cluster, side by side
    (("10:00", "10:01", "10:02"), ("10:04", "10:05", "10:06"), 0.1, (114.0, "after")),  # added soon after
    (("10:00", "10:10", "10:20"), ("10:54", "11:04", "11:14"), 4, (1800.0, "after")),
    (("18:00", "18:10", "18:20"), ("10:00", "10:10", "10:20"), 4, (27_360.0, "before")),
    (("10:00",), ("18:00",), 4, None),  # no verdict in any case
]


@pytest.mark.parametrize(("base", "other", "minutes", "expected"), CASES)
def test_runs_that_were_not_interleaved_need_a_large_effect(
    folder: Any, base: tuple[str, ...], other: tuple[str, ...], minutes: float, expected: tuple[float, str] | None
) -> None:
    folder.make_study([{"name": "base"}, {"name": "a"}], repeats=len(base))
    for name, times in (("base", base), ("a", other)):
        for repeat, time in enumerate(times):
            began = {"started_at": f"2026-01-01T{time}:00+00:00", "wall_s": 60 * minutes}
            folder.add_run(name, repeat, [10.0, 10.1, 9.9, 10.0], **began)
    first, second = compare(folder.path)["variants"]
    apart = notes_of(second).get("taken_apart")
    assert (None if apart is None else (apart["apart_s"], apart["order"])) == expected
    verdict = "same" if expected is None else "undecided"
    assert second["ratio"]["verdict"] == (verdict if len(base) > 1 else None)
    assert "taken_apart" not in notes_of(first)


def test_a_run_repeated_after_a_failure_is_not_compared_within_its_round(folder: Any) -> None:
    """The machine got slower for all; `a` is as fast as its baseline, and its first run was made again at the end."""
    folder.make_study([{"name": "base"}, {"name": "a"}], repeats=4)
    slower = [10.0, 13.0, 16.0, 19.0]
    for repeat, ms in enumerate(slower):
        minute = 2 * repeat
        folder.add_run("base", repeat, [ms] * 4, started_at=f"2026-01-01T10:{minute:02}:00+00:00", wall_s=50)
        minute = minute + 1 if repeat else 20
        ms_of_a = ms if repeat else 22.0
        folder.add_run("a", repeat, [ms_of_a] * 4, started_at=f"2026-01-01T10:{minute:02}:00+00:00", wall_s=50)
    variant = compare(folder.path)["variants"][1]
    assert variant["ratio"]["low"] < 1 < variant["ratio"]["high"]
    assert variant["ratio"]["verdict"] == "undecided"
    started = [run["started_at"] for run in variant["runs"]]
    assert started[0] > max(started[1:])


def site(line: int, label: str, count: float = 1) -> PredictedSite:
    place = {"file": "losses.py", "line": line, "function": "forward", "label": label, "phase": "loss"}
    sync = {"op": f"aten::{label}", "kind": "d2h_copy", "count_per_step": count}
    return fill(PredictedSite, place | sync)


def rows(diff: SyncDiff) -> list[tuple[Any, ...]]:
    return [(row.label, row.line, row.baseline_count_per_step, row.variant_count_per_step) for row in diff.sites]


def test_sync_sites_disappear_stay_move_or_appear() -> None:
    before = [site(38, "unique"), site(40, "mask", 2), site(50, "copy")]
    after = [site(71, "mask", 2), site(50, "copy", 3), site(90, "sort")]
    diff = sync_diff("predicted", before, after)
    assert diff.basis == "predicted"
    assert rows(diff) == [("copy", 50, 1, 3), ("unique", 38, 1, 0), ("sort", 90, 0, 1), ("mask", 40, 2, 2)]


def test_what_was_measured_is_never_compared_with_a_prediction() -> None:
    measured = fill(SyncCounts, {"measured_per_step": 1})
    predicted = fill(SyncCounts, {"predicted_per_step": 1})
    assert basis_of(measured, predicted) is None
    assert basis_of(measured, measured) == "measured"
    assert basis_of(predicted, fill(SyncCounts, {"measured_per_step": 1, "predicted_per_step": 1})) == "predicted"


SCRIPT = Path(__file__).parents[2] / "workflow" / "scripts" / "compare.py"


def call(folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(folder), "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1500)


def test_job_writes_the_comparison_with_its_findings(folder: Any, tmp_path: Path) -> None:
    folder.make_study([{"name": "base"}, {"name": "absent"}])
    folder.add_runs("base", [10.0, 10.1, 9.9], profiled_ms=[13.0])
    done = call(folder.path, tmp_path / "comparison.json")
    assert (done.returncode, done.stderr) == (0, "")
    comparison = read_json(tmp_path / "comparison.json")
    rules = {finding["rule"] for finding in comparison["findings"]}
    assert rules == {"which_variant", "profiler_overhead", "failed_run"}
    first = (tmp_path / "comparison.json").read_bytes()
    call(folder.path, tmp_path / "comparison.json")
    assert (tmp_path / "comparison.json").read_bytes() == first


def test_job_says_what_is_missing(tmp_path: Path) -> None:
    done = call(tmp_path / "nowhere", tmp_path / "comparison.json")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "study.json" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "comparison.json").exists()
