"""A variant beside its step times: figures of traces, syncs, predictions, waits for data, memory and ranks."""

from typing import Any

import pandas as pd
import pytest

from compare.conftest import notes_of
from documents import compare, fill
from figures import figures_in
from steptrace.compare.study import compare as compared
from steptrace.documents.kernels import Precision
from steptrace.documents.prediction import PredictedStep
from steptrace.documents.run import Communication, InputOfRun, RunMemory, Status
from steptrace.documents.steps import STEP_FIGURES
from steptrace.files import write_json
from steptrace.run_folder import write_document, write_rows

MS = 1_000_000


def site(**changes: Any) -> dict[str, Any]:
    fields = {
        "file": "model.py", "line": 2, "function": "loss", "code": "keep = mask.nonzero()",
        "op": "aten::nonzero", "label": "mask", "kind": "d2h_copy", "phase": "loss",
        "count": 4, "blocked_ns": 8 * MS, "exposed_idle_ns": 2 * MS,
    }  # fmt: skip
    return fields | changes


def predicted(count: int) -> dict[str, Any]:
    """The same site as a prediction has it."""
    measured = {name: value for name, value in site(count=count).items() if not name.endswith("_ns")}
    return {**measured, "reason": "nonzero asks for the size of its result"}


def only_variant(folder: Any) -> dict[str, Any]:
    (variant,) = compare(folder.path)["variants"]
    return variant  # type: ignore[no-any-return]


@pytest.fixture
def study(folder: Any) -> Any:
    folder.make_study([{"name": "base"}])
    return folder


def test_figures_of_the_gpu_are_taken_from_traces_and_nvml(study: Any, trace_of: Any) -> None:
    study.add_runs(
        "base",
        [20.0, 20.0, 20.0],
        summary=trace_of(),
        nvml={"utilisation_pct": 90.0, "power_w": 400.0},
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
    assert base["joules_per_step"] == pytest.approx(400 * 0.020, rel=0.05)
    assert base["noise"]["warnings"] == []


def test_energy_is_not_measured_where_nvml_says_no_power(study: Any, trace_of: Any) -> None:
    study.add_runs("base", [20.0, 20.0], summary=trace_of(), nvml={"utilisation_pct": 90.0})
    assert only_variant(study)["joules_per_step"] is None


@pytest.mark.parametrize("key", [figure.name for figure in STEP_FIGURES])
def test_each_figure_of_a_step_is_the_median_of_the_runs(study: Any, trace_of: Any, key: str) -> None:
    for repeat, value in enumerate((1.0, 4.0, 9.0)):
        study.add_run("base", repeat, [20.0] * 20, summary=trace_of(**{key: value}))
    assert only_variant(study)[key] == 4


@pytest.mark.parametrize(("activities", "warned"), [(1, True), (0, False)])
def test_what_is_wrong_with_a_trace_of_a_gpu_stands_among_a_variant_s_warnings(
    study: Any,
    trace_of: Any,
    activities: int,
    warned: bool,  # noqa: FBT001
) -> None:
    overlaps = {"check": "one_at_a_time", "wrong": 2, "of": 9, "warns": True, "says": "", "figures": {}}
    quality = {"steps": 3, "warnings": [], "checks": [overlaps]}
    study.add_runs("base", [20.0] * 3, summary=trace_of(gpu={"activities": activities}, quality=quality))
    noted = [item["figures"].get("check") for item in only_variant(study)["noise"]["notes"]]
    assert noted == ["one_at_a_time"] * warned


def test_a_trace_without_gpu_work_measures_no_syncs(study: Any, trace_of: Any) -> None:
    study.add_runs("base", [20.0] * 3, summary=trace_of(gpu={"activities": 0}, steps=[]))
    base = only_variant(study)
    assert base["syncs"]["measured_per_step"] is None
    assert base["operators_per_step"] == 100


def test_figures_are_medians_over_the_runs_that_have_them(study: Any, trace_of: Any) -> None:
    study.add_run("base", 0, [20.0] * 20, summary=trace_of(operators_per_step=100))
    study.add_run("base", 1, [20.0] * 20, summary=trace_of(operators_per_step=104))
    study.add_run("base", 2, [20.0] * 20)
    base = only_variant(study)
    assert base["operators_per_step"] == 102
    assert notes_of(base) == {"trace_not_analysed": {"run": 2, "reason": "file is missing"}}


@pytest.mark.parametrize("content", ["{", "[]", '{"traces": []}', '{"error": "truncated"}'])
def test_a_summary_that_cannot_be_used_is_a_warning(study: Any, content: str) -> None:
    study.add_runs("base", [20.0] * 3)
    for repeat in range(3):
        (study.path / "base" / f"run{repeat}" / "summary.json").write_text(content)
    base = only_variant(study)
    assert base["status"] == "ok"
    assert base["noise"]["warnings"]


@pytest.mark.parametrize(
    ("of_runs", "measured", "notes"),
    [
        ([{"per_step": count} for count in (6, 6, 7)], 6, {"syncs_differ_between_runs": {"per_step": [6, 6, 7]}}),
        ([{"per_step": 6.5, "by_step": [6, 7]}] * 3, 6.5, {"syncs_differ_between_steps": {"least": 6, "most": 7}}),
    ],
)
def test_sync_counts_that_differ_are_a_warning(
    study: Any, trace_of: Any, of_runs: list[dict[str, Any]], measured: float, notes: dict[str, Any]
) -> None:
    for repeat, syncs in enumerate(of_runs):
        study.add_run("base", repeat, [20.0] * 20, summary=trace_of(syncs={"sites": [], **syncs}))
    base = only_variant(study)
    assert base["syncs"]["measured_per_step"] == measured
    assert notes_of(base) == notes


def test_predicted_syncs_that_differ_between_steps_are_a_mean_and_a_warning(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    early = [{"file": "train.py", "line": 31, "count": 1}]
    prediction = {"total": 0.5, "sites": [], "unknown": [], "by_step": [0, 1, 0, 1], "early_reads": early}
    write_document(study.path / "base", fill(PredictedStep, prediction))
    base = only_variant(study)
    assert base["syncs"]["predicted_per_step"] == 0.5
    notes = notes_of(base)
    groups = notes["predicted_syncs_differ"]["groups"]
    assert [(group["steps"], group["of"], group["every"], group["least"]) for group in groups] == [
        (2, 4, 2, 0),
        (2, 4, 2, 1),
    ]
    assert notes["early_read"] == {"file": "train.py", "line": 31}


def test_sync_sites_are_medians_of_the_runs_and_a_site_of_one_run_alone_says_so(study: Any, trace_of: Any) -> None:
    for repeat, blocked in enumerate((8, 2, 6)):
        sites = [site(blocked_ns=blocked, ceiling_ns=1), *([site(line=9)] if repeat == 0 else [])]
        study.add_run("base", repeat, [20.0] * 20, summary=trace_of(syncs={"per_step": 6, "sites": sites}))
    trace = only_variant(study)["trace"]
    common, rare = trace["syncs"]["sites"]
    assert (common["line"], common["count"], common["blocked_ns"], common["ceiling_ns"]) == (2, 4, 6, 1)
    assert common["code"] == "keep = mask.nonzero()"
    assert (rare["line"], rare["count"], rare["runs"], common["runs"], trace["runs"]) == (9, 0, 1, 3, 3)


def test_a_prediction_stands_beside_the_measurement(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    program = {"program_file": "train.py", "program_line": 31}
    sync = predicted(6) | program
    unknown = {"op": "x", "reason": "a custom operator", "count": 1}
    prediction = {
        "total": 6,
        "sites": [sync],
        "unknown": [unknown],
        "batch_size": 2,
        "operators": 1,
        "followed": {"steps": 1},
    }
    write_document(study.path / "base", fill(PredictedStep, prediction))
    base = only_variant(study)
    assert base["syncs"] == {
        "measured_per_step": None,
        "predicted_per_step": 6,
        "predicted_not_judged": 1,
        "predicted_batch_size": 2,
        "warned_per_step": None,
        "predicted_steps": 1,
    }
    (not_judged,) = base["predicted_unknown"]
    assert (not_judged["op"], not_judged["reason"], not_judged["count_per_step"]) == ("x", "a custom operator", 1)
    (shown,) = base["predicted_sites"]
    assert (shown["program_file"], shown["program_line"]) == ("train.py", 31)
    assert (shown["line"], shown["code"], shown["count_per_step"]) == (2, "keep = mask.nonzero()", 6)


def compiled(compile_ms: int, breaks: int, recompilations: int) -> dict[str, Any]:
    """What torch.compile did in a run, as its record has it."""
    place = {"file": "train.py", "function": "f", "code": None}
    return {
        "graphs": 1,
        "compile_ns": compile_ms * MS,
        "functions": [],
        "breaks": [{**place, "line": k, "kind": "reason", "hints": [], "compilations": 1} for k in range(breaks)],
        "recompilations": [
            {**place, "line": 1, "compiled_file": "train.py", "compiled_line": 1, "kind": "size", "value": "x",
             "dimension": 0, "guard": "size", "recompilations": recompilations}
        ],
    }  # fmt: skip


def test_compile_time_is_a_median_and_breaks_are_the_most_of_all_runs(study: Any) -> None:
    for number, record in enumerate([compiled(100, 1, 2), compiled(300, 2, 1), compiled(200, 0, 0)]):
        study.add_run("base", number, [20.0] * 20, compiled=record)
    figures = {
        "graph_breaks": 2,
        "recompilations": 2,
        "compile_ms": 200,
        "predicted_breaks": [],
        "predicted_recompilations": [],
        "predicted_limit_reached": False,
    }
    assert only_variant(study)["compiled"] == figures


def test_graph_breaks_are_predicted_where_nothing_was_compiled(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    broken = {"kind": "reason", "file": "train.py", "line": 3, "code": None}
    code = {"graphs": 2, "kernels": None, "breaks": [broken], "reason": None, "seconds": 1.0}
    for unlowered, breaks in (("not_lowered", 1), ("not_followed", None)):
        codes = [{**code, "unlowered": unlowered}]
        call = {"name": "aten.mm.default", "inputs": [], "outputs": [], "is_view": False, "flop": 0, "calls": 1,
                "phase": "forward", "file": None, "line": None, "arguments": {}}  # fmt: skip
        followed = {"steps": 1, "operator_calls": [call], "compiled": {"codes": codes, "queue": []}}
        prediction = {"total": 0, "sites": [], "unknown": [], "operators": 1, "followed": followed}
        write_document(study.path / "base", fill(PredictedStep, prediction))
        assert only_variant(study)["compiled"] == {
            "graph_breaks": breaks,
            "recompilations": None if breaks is None else 0,
            "compile_ms": None,
            "predicted_breaks": [broken],
            "predicted_recompilations": [],
            "predicted_limit_reached": False,
        }


def test_a_variant_that_compiles_nothing_has_no_such_figures(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    assert only_variant(study)["compiled"] is None


def test_what_pytorch_warned_of_is_counted(study: Any, trace_of: Any) -> None:
    for repeat in range(3):
        study.add_run("base", repeat, [20.0] * 20, summary=trace_of(syncs={"per_step": 1, "sites": [site(count=2)]}))
        record = {"per_step": 2, "by_step": [2, 2]}
        write_json(study.path / "base" / f"run{repeat}" / "warned_syncs.json", record)
    write_document(study.path / "base", fill(PredictedStep, {"total": 1, "sites": [predicted(1)]}))
    base = only_variant(study)
    assert base["syncs"]["warned_per_step"] == 2


def test_a_failed_prediction_is_a_warning_and_an_older_one_is_not_used(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    write_document(study.path / "base", fill(PredictedStep, {"total": 6}))
    failed = fill(Status, {"status": "failed", "exit_code": 2, "error": "no such operator"})
    write_document(study.path / "base" / "prediction", failed)
    base = only_variant(study)
    assert base["status"] == "ok"
    assert base["syncs"]["predicted_per_step"] is None
    assert notes_of(base)["not_predicted"] == {"error": "no such operator"}


def test_a_program_that_ignores_the_gpu_has_no_predicted_count(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    nothing = {"total": 0, "sites": [], "unknown": [], "operators": 0}
    write_document(study.path / "base", fill(PredictedStep, nothing))
    base = only_variant(study)
    assert base["syncs"]["predicted_per_step"] is None
    assert "nothing_predicted" in notes_of(base)
    write_document(study.path / "base", fill(PredictedStep, nothing | {"operators": 7}))
    assert only_variant(study)["syncs"]["predicted_per_step"] == 0


@pytest.mark.parametrize(
    ("file", "content", "keys"),
    [
        ("run0/warned_syncs.json", '{"steps": 1}', ["syncs", "warned_per_step"]),
        ("run0/communication.json", "{}", ["communication"]),
        ("run0/input.parquet", "no table", ["input", "breakdown_ms"]),
        ("prediction.json", "{", ["syncs", "predicted_per_step"]),
    ],
)
def test_a_damaged_record_is_as_if_it_had_not_been_made(study: Any, file: str, content: str, keys: list[str]) -> None:
    study.add_runs("base", [20.0] * 3)
    (study.path / "base" / file).write_text(content)
    base = only_variant(study)
    assert base["status"] == "ok"
    assert ("prediction_not_used" in notes_of(base)) == (file == "prediction.json")
    figure: Any = base
    for key in keys:
        figure = figure[key]
    assert figure is None


def test_a_prediction_of_an_earlier_version_is_refused_with_what_to_do(study: Any) -> None:
    study.add_runs("base", [20.0] * 3)
    call = {"name": "aten.relu.default", "inputs": [], "outputs": []}
    earlier = {"schema_version": 1, "total": 6, "sites": [], "unknown": [], "operator_calls": [call]}
    write_json(study.path / "base" / "prediction.json", earlier)
    base = only_variant(study)
    assert base["syncs"]["predicted_per_step"] is None
    (variant,) = compared(study.path, estimate_gpus=["H100"]).variants
    assert variant.estimates == ()
    reason = notes_of(base)["prediction_not_used"]["reason"]
    assert "base/prediction.json: " in reason
    assert figures_in(reason)[-2:] == [1, 3]  # the file's version, and the one that is read
    assert "next: " in reason


def inputs(folder: Any) -> dict[str, Any]:
    return {variant["name"]: variant["input"] for variant in compare(folder.path)["variants"]}


def test_without_a_gpu_all_of_the_unprofiled_wait_counts(folder, trace_of) -> None:
    folder.make_study([{"name": "base"}, {"name": "missing"}])
    summary = trace_of(gpu={"activities": 0}, input={"wait_ns": 9 * MS, "gpu_idle_wait_ns": None, "share": 0.9})
    folder.add_runs("base", [20, 20, 20], wait_ms=5.0, summary=summary)
    inputs_of = inputs(folder)
    figures = inputs_of["base"]
    assert (figures["wait_ms"], figures["counted_ms"], figures["idle_part"]) == (5, 5, None)
    assert figures["share"] == pytest.approx(figures["counted_ms"] / figures["step_ms"], rel=0.01)
    assert figures["share"] == pytest.approx(0.25, rel=0.01)  # not the profiled step's, which a profiler slowed
    assert (figures["verdict"], figures["breakdown_ms"]) == ("high", None)
    assert inputs_of["missing"] is None


def test_with_a_gpu_the_part_with_it_idle_counts(folder, trace_of) -> None:
    folder.make_study([{"name": "base"}, {"name": "without_input"}])
    summary = trace_of(input={"wait_ns": 8 * MS, "gpu_idle_wait_ns": 2 * MS, "share": 0.1})
    folder.add_runs("base", [20, 20, 20], wait_ms=5.0, device="cuda", summary=summary)
    folder.add_runs("without_input", [20, 20, 20], wait_ms=5.0, device="cuda", summary=trace_of())
    inputs_of = inputs(folder)
    figures = inputs_of["base"]
    assert (figures["wait_ms"], figures["counted_ms"], figures["idle_part"]) == (5, 1.25, 0.25)
    assert figures["share"] == pytest.approx(0.0625, rel=0.01)
    assert figures["verdict"] == "moderate"
    figures = inputs_of["without_input"]  # a trace that does not say
    assert (figures["wait_ms"], figures["counted_ms"], figures["share"], figures["verdict"]) == (5, None, None, None)


def test_the_parts_of_loading_are_medians_and_do_not_overlap(study: Any) -> None:
    for repeat in range(3):
        ns = {"wait_ns": 1, "fetch_ns": (8 + repeat) * MS, "collate_ns": MS, "pin_ns": 3 * MS if repeat else None}
        batches = pd.DataFrame([{"batch": batch, "worker": None, "copy_ns": None, **ns} for batch in range(3)])
        run_dir = study.add_run("base", repeat, [20] * 20)
        write_rows(run_dir, InputOfRun, batches.astype(dict.fromkeys(("worker", "pin_ns", "copy_ns"), "Int64")))
    assert only_variant(study)["input"]["breakdown_ms"] == {"fetch": 9, "collate": 1, "pin": 3, "copy": None}


MIB = 2**20


def entry(peak: int, **changes: Any) -> dict[str, Any]:
    """One of a trace's `memory`."""
    figures = {"peak_allocated_bytes": peak, "headroom_bytes": 1000 * MIB - peak}
    by_category = {"parameters": 10 * MIB, "activations": peak - 10 * MIB}
    return {"device_type": "cpu", **figures, "by_category": by_category, **changes}


def test_memory_is_that_of_the_device_that_trained_in_the_run_with_the_highest_peak(folder, trace_of):
    folder.make_study([{"name": "base"}])
    record = {"device": "cpu", "batch_size": 8, "capacity_bytes": 1000 * MIB, "capacity_source": "limit"}
    for repeat, peak in enumerate((100, 120, 110)):
        summary = trace_of(memory=[entry(peak * MIB), entry(16, device_type="cuda", device=0)])
        run_dir = folder.add_run("base", repeat, [10.0] * 20, summary=summary)
        write_document(run_dir, fill(RunMemory, {**record, "held": {"parameters": 10}, "gradient_bytes": 7}))
    (variant,) = compared(folder.path).variants
    traced = variant.device_memory
    memory = variant.memory
    assert traced.peak_allocated_bytes == 120 * MIB
    assert traced.by_category == {"parameters": 10 * MIB, "activations": 110 * MIB}
    assert (traced.device_type, memory.batch_size, memory.gradient_bytes) == ("cpu", 8, 7)
    assert (memory.capacity_bytes, traced.headroom_bytes) == (1000 * MIB, 880 * MIB)


def test_without_allocations_there_is_no_memory(study, trace_of):
    study.add_run("base", 0, [10.0] * 20, summary=trace_of(memory=None))
    assert only_variant(study)["memory"] is None


RECORD = fill(Communication, {"world_size": 4, "backend": "gloo", "parameters": 1_000, "expected_ns": 6_000_000})


def ranks(*, measured_ms=9, straggler=1):
    figures = {"count_per_step": 8, "bytes_per_step": 16_000, "exposed_ns_per_step": 3e6, "overlap": 2 / 3}
    return {
        "count": 4,
        "straggler": None if straggler is None else {"rank": straggler, "share": 0.75},
        "all_reduce": {**figures, "measured_ns_per_step": measured_ms * 1e6, "wait_ns_per_step": 1e6},
    }


@pytest.fixture
def of_ranks(folder, trace_of):
    """Compare a study of one variant with these entries of `ranks`, a run each."""

    def make(*entries, record=RECORD):
        folder.make_study([{"name": "ddp", "baseline": "ddp"}], repeats=len(entries))
        for repeat, entry in enumerate(entries):
            run = folder.add_run("ddp", repeat, [10.0] * 5, world_size=4)
            folder.add_summary(run, trace_of() | {"ranks": entry})
            if record:
                write_document(run, record)
        return compare(folder.path)["variants"][0]

    return make


def test_one_process_has_no_communication(of_ranks):
    variant = of_ranks(None, record=None)
    assert (variant["communication"], variant["ranks"]) == (None, None)


def test_what_ranks_tell_each_other_stands_beside_what_was_measured(of_ranks):
    variant = of_ranks(ranks(measured_ms=8), ranks(measured_ms=9), ranks(measured_ms=30))
    assert variant["communication"]["expected_ns"] == 6_000_000
    traced = variant["ranks"]["all_reduce"]
    assert (traced["measured_ns_per_step"], traced["exposed_ns_per_step"]) == (9e6, 3e6)
    assert (traced["count_per_step"], traced["bytes_per_step"]) == (8, 16_000)
    assert variant["ranks"]["straggler"]["rank"] == 1


def test_a_straggler_is_the_same_rank_in_every_run(of_ranks):
    assert of_ranks(ranks(), ranks(straggler=2))["ranks"]["straggler"]["rank"] is None
    assert of_ranks(ranks(), ranks(straggler=None))["ranks"]["straggler"] is None


PRECISION = {
    "kernel_ns": {"bits8": 0, "bits16": 60, "bits32": 30, "bits64": 0, "integer": 0, "unknown": 10},
    "tf32_ns": 5, "tensor_core_ns": 40, "tensor_core_eligible_ns": 80, "tensor_core_unknown_ns": 10,
}  # fmt: skip


def _overview(idle_ms: int) -> dict[str, Any]:
    """Of two steps that compute for 30 ms and idle so long."""
    figures = {"kind": "gpu", "steps": 2, "step_ns": 20.0 * MS, "operators": []}
    return figures | {"window_ns": (30 + idle_ms) * MS, "parts_ns": {"compute": 30 * MS, "idle_sync": idle_ms * MS}}


def test_parts_are_means_that_add_up(study: Any, trace_of: Any) -> None:
    for repeat, idle_ms in enumerate((10, 10, 70)):
        study.add_run("base", repeat, [20.0] * 10, summary=trace_of(overview=_overview(idle_ms)))
    overview = only_variant(study)["trace"]["overview"]
    assert overview["window_ns"] == 60 * MS
    assert overview["parts_ns"] == {"compute": 30 * MS, "idle_sync": 30 * MS}


def test_what_one_run_did_not_measure_is_null(study: Any, trace_of: Any) -> None:
    study.add_run("base", 0, [20.0] * 10, summary=trace_of(overview=_overview(10), precision=PRECISION))
    study.add_run("base", 1, [20.0] * 10, summary=trace_of(overview=None, precision=None))
    trace = only_variant(study)["trace"]
    assert (trace["overview"], trace["precision"]) == (None, None)


def test_shares_of_precision() -> None:
    of = fill(Precision, PRECISION)
    assert (of.shares["bits16"], of.tf32_share) == (0.6, 0.05)
    assert (of.tensor_core_share, of.tensor_core_unknown_share) == (0.5, 0.125)
    assert fill(Precision, {**PRECISION, "tensor_core_eligible_ns": 0}).tensor_core_share is None
    assert fill(Precision, {"kernel_ns": {}}).shares == {}
