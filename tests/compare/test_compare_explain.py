"""Trace figures, syncs and predictions in a comparison."""

from collections.abc import Callable
from typing import Any

import pytest

from documents import compare, fill
from steptrace.compare.explain import estimates
from steptrace.documents.run import Status
from steptrace.documents.steps import STEP_FIGURES
from steptrace.estimate.gpus import gpu_named
from steptrace.files import write_json
from steptrace.record import write_prediction, write_status

MS = 1_000_000


def site(**changes: Any) -> dict[str, Any]:
    fields = {
        "file": "model.py",
        "line": 2,
        "function": "loss",
        "op": "aten::nonzero",
        "label": "mask",
        "kind": "d2h_copy",
        "phase": "loss",
        "code": "keep = mask.nonzero()",
        "count": 4,
        "blocked_ns": 8 * MS,
        "exposed_idle_ns": 2 * MS,
    }
    return fields | changes


def only_variant(folder: Any) -> dict[str, Any]:
    (variant,) = compare(folder.path)["variants"]
    return variant  # type: ignore[no-any-return]


@pytest.fixture
def study(folder: Any) -> Any:
    folder.make_study([{"name": "base"}])
    return folder


def test_figures_of_the_gpu_are_taken_from_traces_and_nvml(study: Any, trace_of: Callable[..., dict[str, Any]]) -> None:
    study.add_runs(
        "base",
        [20.0, 20.0, 20.0],
        summary=trace_of(),
        nvml={"utilisation_pct": 90.0},
        peak_allocated_bytes=1000,
    )
    base = only_variant(study)
    assert base["gpu_busy_pct"] == 70
    assert (base["nvml_util_pct"], base["sm_weighted_pct"]) == (90, 40.5)
    assert (base["operators_per_step"], base["kernels_per_step"]) == (100, 50)
    (label,) = base["trace"]["labels"]
    assert (label["label"], label["host_ns"], label["device_ns"]) == ("loss", 6 * MS, 2 * MS)
    assert base["syncs"]["measured_per_step"] == 6
    assert base["peak_allocated_bytes"] == 1000
    assert base["noise"]["warnings"] == []


@pytest.mark.parametrize("key", [figure.name for figure in STEP_FIGURES])
def test_each_figure_of_a_step_is_the_median_of_the_runs(study: Any, trace_of: Callable[..., Any], key: str) -> None:
    for repeat, value in enumerate((1.0, 4.0, 9.0)):
        study.add_run("base", repeat, [20.0] * 20, summary=trace_of(**{key: value}))
    assert only_variant(study)[key] == 4


@pytest.mark.parametrize(("activities", "warned"), [(1, True), (0, False)])
def test_what_is_wrong_with_a_trace_of_a_gpu_stands_among_a_variant_s_warnings(
    study: Any,
    trace_of: Callable[..., dict[str, Any]],
    activities: int,
    warned: bool,  # noqa: FBT001
) -> None:
    quality = {"steps": 3, "warnings": ["work is missing"], "checks": []}
    study.add_runs("base", [20.0] * 3, summary=trace_of(gpu={"activities": activities}, quality=quality))
    assert ("work is missing" in only_variant(study)["noise"]["warnings"]) == warned


def test_a_trace_without_gpu_work_measures_no_syncs(study: Any, trace_of: Callable[..., dict[str, Any]]) -> None:
    study.add_runs("base", [20.0] * 3, summary=trace_of(gpu={"activities": 0}, steps=[]))
    base = only_variant(study)
    assert base["syncs"]["measured_per_step"] is None
    assert base["operators_per_step"] == 100


def test_figures_are_medians_over_the_runs_that_have_them(study: Any, trace_of: Callable[..., dict[str, Any]]) -> None:
    study.add_run("base", 0, [20.0] * 20, summary=trace_of(operators_per_step=100))
    study.add_run("base", 1, [20.0] * 20, summary=trace_of(operators_per_step=104))
    study.add_run("base", 2, [20.0] * 20)
    base = only_variant(study)
    assert base["operators_per_step"] == 102
    assert base["noise"]["warnings"] == ["the trace of run 2 was not analysed: file is missing"]


@pytest.mark.parametrize("content", ["{", "[]", '{"traces": []}', '{"error": "truncated"}'])
def test_a_summary_that_cannot_be_used_is_a_warning(study: Any, content: str) -> None:
    study.add_runs("base", [20.0] * 3)
    for repeat in range(3):
        (study.path / "base" / f"run{repeat}" / "summary.json").write_text(content)
    base = only_variant(study)
    assert base["status"] == "ok"
    assert base["noise"]["warnings"]


def test_sync_counts_that_differ_between_runs_are_a_warning(
    study: Any, trace_of: Callable[..., dict[str, Any]]
) -> None:
    for repeat, count in enumerate((6, 6, 7)):
        study.add_run("base", repeat, [20.0] * 20, summary=trace_of(syncs={"per_step": count, "sites": []}))
    base = only_variant(study)
    assert base["syncs"]["measured_per_step"] == 6
    assert base["noise"]["warnings"] == ["syncs per step differ between runs: 6, 6, 7"]


def test_syncs_that_differ_between_steps_are_a_warning(study: Any, trace_of: Callable[..., dict[str, Any]]) -> None:
    syncs = {"per_step": 6.5, "by_step": [6, 7], "sites": []}
    study.add_runs("base", [20.0] * 3, summary=trace_of(syncs=syncs))
    assert only_variant(study)["noise"]["warnings"] == ["syncs differ between steps: 6 to 7"]


def test_predicted_syncs_that_differ_between_steps_are_a_mean_and_a_warning(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    prediction = {"total": 0.5, "sites": [], "unknown": [], "by_step": [0, 1, 0, 1]}
    write_prediction(study.path / "base", prediction)
    base = only_variant(study)
    assert base["syncs"]["predicted_per_step"] == 0.5
    words = "2 of 4 steps (one every 2): 0 syncs; 2 of 4 steps (one every 2): 1 sync"
    assert f"predicted syncs differ between steps: {words}" in base["noise"]["warnings"]


def test_sync_sites_are_medians_of_the_runs_and_a_site_of_one_run_alone_is_left_out(
    study: Any, trace_of: Callable[..., dict[str, Any]]
) -> None:
    for repeat, blocked in enumerate((8, 2, 6)):
        sites = [site(blocked_ns=blocked, ceiling_ns=1), *([site(line=9)] if repeat == 0 else [])]
        study.add_run("base", repeat, [20.0] * 20, summary=trace_of(syncs={"per_step": 6, "sites": sites}))
    (only,) = only_variant(study)["trace"]["syncs"]["sites"]
    assert (only["line"], only["count"], only["blocked_ns"], only["ceiling_ns"]) == (2, 4, 6, 1)
    assert only["code"] == "keep = mask.nonzero()"


def test_a_prediction_stands_beside_the_measurement(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    program = {"program_file": "train.py", "program_line": 31}
    predicted = site(count=6, reason="nonzero asks for the size of its result") | program
    unknown = {"op": "x", "reason": "a custom operator", "count": 1}
    prediction = {"total": 6, "sites": [predicted], "unknown": [unknown], "batch_size": 2}
    write_prediction(study.path / "base", prediction)
    base = only_variant(study)
    assert base["syncs"] == {
        "measured_per_step": None,
        "predicted_per_step": 6,
        "predicted_not_judged": 1,
        "predicted_batch_size": 2,
        "warned_per_step": None,
    }
    (not_judged,) = base["predicted_unknown"]
    assert (not_judged["op"], not_judged["reason"], not_judged["count_per_step"]) == ("x", "a custom operator", 1)
    (shown,) = base["predicted_sites"]
    assert (shown["program_file"], shown["program_line"]) == ("train.py", 31)
    assert (shown["line"], shown["code"], shown["count_per_step"]) == (2, "keep = mask.nonzero()", 6)


def test_what_pytorch_warned_of_is_counted(study: Any, trace_of: Callable[..., dict[str, Any]]) -> None:
    for repeat in range(3):
        study.add_run("base", repeat, [20.0] * 20, summary=trace_of(syncs={"per_step": 1, "sites": [site(count=2)]}))
        warned = site(count=2) | {"kind": None, "op": "aten::nonzero"}
        record = {"steps": 2, "count": 4, "per_step": 2, "by_step": [2, 2], "sites": [warned, {**warned, "file": None}]}
        write_json(study.path / "base" / f"run{repeat}" / "warned_syncs.json", record)
    write_prediction(study.path / "base", {"total": 1, "sites": [site(count=1)], "unknown": []})
    base = only_variant(study)
    assert base["syncs"]["warned_per_step"] == 2


def test_a_damaged_record_of_warnings_is_left_out(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    (study.path / "base" / "run0" / "warned_syncs.json").write_text('{"steps": 1}')
    assert only_variant(study)["syncs"]["warned_per_step"] is None


def test_a_failed_prediction_is_a_warning_and_an_older_one_is_not_used(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    write_prediction(study.path / "base", {"total": 6, "sites": [], "unknown": []})
    failed = fill(Status, {"status": "failed", "exit_code": 2, "error": "no such operator"})
    write_status(study.path / "base" / "prediction", failed)
    base = only_variant(study)
    assert base["status"] == "ok"
    assert base["syncs"]["predicted_per_step"] is None
    assert "syncs could not be predicted: no such operator" in base["noise"]["warnings"]


def test_a_program_that_ignores_the_gpu_has_no_predicted_count(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    nothing = {"total": 0, "sites": [], "unknown": [], "operators": 0}
    write_prediction(study.path / "base", nothing)
    base = only_variant(study)
    assert base["syncs"]["predicted_per_step"] is None
    assert any("ran nothing on the virtual CUDA device" in warning for warning in base["noise"]["warnings"])
    write_prediction(study.path / "base", nothing | {"operators": 7})
    assert only_variant(study)["syncs"]["predicted_per_step"] == 0


def test_a_damaged_prediction_is_a_warning(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    (study.path / "base" / "prediction.json").write_text("{")
    base = only_variant(study)
    assert base["syncs"]["predicted_per_step"] is None
    assert any("prediction not used" in warning for warning in base["noise"]["warnings"])


def test_a_prediction_of_an_earlier_version_is_refused_with_what_to_do(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    call = {"name": "aten.relu.default", "inputs": [], "outputs": []}
    earlier = {"schema_version": 1, "total": 6, "sites": [], "unknown": [], "operator_calls": [call]}
    write_json(study.path / "base" / "prediction.json", earlier)
    base = only_variant(study)
    assert base["syncs"]["predicted_per_step"] is None
    assert estimates(study.path / "base", [gpu_named("H100")]) == ()
    (warning,) = [text for text in base["noise"]["warnings"] if text.startswith("prediction not used: ")]
    assert "base/prediction.json: file has version 1, but this steptrace reads version 2; next: make " in warning
