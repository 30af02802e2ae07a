"""steptrace in Python: what a notebook loads is what the commands write."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib import pyplot
from msgspec import structs

import steptrace
import steptrace.library
from builders import TraceBuilder, training_step
from pages import ROOT
from recorded import recorded
from steptrace import cli, python_reference
from steptrace import format as fmt
from steptrace.analysis.common.registry import ROW_TYPES
from steptrace.commands.prediction_text import text_of
from steptrace.documents import probe
from steptrace.documents.base import columns_of, convert
from steptrace.documents.prediction import predicted_step
from steptrace.documents.table import read_table, records
from steptrace.errors import RecordError, TraceError
from steptrace.library.plots import draw_syncs

REFERENCE = ROOT / "reports" / "reference" / "h100" / "masked_loss"
#: Property -> the table of `steptrace analyze` that it is.
TABLES = {
    "steps": "step_times",
    "syncs": "sync_costs",
    "sync_sites": "sync_sites",
    "kernels": "kernel_names",
    "idle": "idle_gaps",
    "operators": "top_operators",
    "launches": "launch_times",
    "copies": "copies",
    "collectives": "collective_times",
    "labels": "label_times",
}


@pytest.fixture(scope="module", autouse=True)
def _no_screen() -> None:
    mpl.use("agg")


@pytest.fixture
def make_study_steps(monkeypatch: pytest.MonkeyPatch) -> steptrace.LoadedStudy:
    """A study with the steps of one run, which the reference does not hold."""
    row = {"phase": "timed", "step": 0, "step_ns": 2_000_000, "loader_wait_ns": None, "loss": 0.5}
    monkeypatch.setattr("steptrace.run_folder.read_steps", lambda _: pd.DataFrame([row]))
    return steptrace.load_study(REFERENCE)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    builder = TraceBuilder()
    training_step(builder)
    return builder.write(tmp_path / "trace.json")


def test_frames_are_the_tables_that_analyze_writes(trace: Path, tmp_path: Path) -> None:
    assert cli.main(["analyze", str(trace), "--out", str(tmp_path / "out"), "--no-report"]) == 0
    loaded = steptrace.load_trace(trace)
    for name, table in TABLES.items():
        written = read_table(tmp_path / "out" / "tables" / "trace0" / f"{table}.parquet")
        assert records(getattr(loaded, name)) == records(written)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert loaded.summary.sha256 == summary["traces"][0]["sha256"]
    assert [finding.rule for finding in loaded.findings] == [f["rule"] for f in summary["traces"][0]["findings"]]
    assert loaded.summary.findings == loaded.findings


def test_a_frame_is_the_callers_own(trace: Path) -> None:
    loaded = steptrace.load_trace(str(trace))
    before = loaded.kernels["count"].tolist()
    frame = loaded.kernels
    frame["mine"] = 1
    frame.loc[:, "count"] = 0
    assert loaded.kernels["count"].tolist() == before
    assert "mine" not in loaded.kernels


def test_rows_of_several_ranks_say_their_rank() -> None:
    paths = [recorded("two_ranks_0"), recorded("two_ranks_1")]
    loaded = steptrace.load_trace(paths)
    assert set(loaded.kernels["rank"]) == {0, 1}
    assert next(iter(loaded.kernels)) == "rank"
    alone = steptrace.load_trace(paths[1])
    own = loaded.kernels[loaded.kernels["rank"] == 1].drop(columns="rank").reset_index(drop=True)
    pd.testing.assert_frame_equal(own, alone.kernels)
    assert loaded.document.ranks is not None


def test_an_operator_s_kernels_come_with_those_within_it_and_each_with_its_delay(tmp_path: Path) -> None:
    builder = TraceBuilder()
    builder.op("aten::linear", 0, 100_000)
    builder.op("aten::addmm", 10_000, 50_000)
    builder.kernel(20_000, 40_000, 7_000, "gemm")
    builder.kernel(70_000, 70_500, 2_000, "bias")
    builder.op("aten::relu", 200_000, 50_000)
    builder.kernel(210_000, 230_000, 1_000, "clamp")
    loaded = steptrace.load_trace(builder.write(tmp_path / "trace.json"))
    rows = loaded.kernels_of("aten::linear")
    assert rows[["name", "op", "dur_ns", "delay_ns"]].values.tolist() == [
        ["gemm", "aten::addmm", 7_000, 19_000],
        ["bias", "aten::linear", 2_000, 0],  # it began before its launch ended
    ]
    assert loaded.kernels_of("aten::addmm")["name"].tolist() == ["gemm"]
    with pytest.raises(KeyError, match="aten::linear"):
        loaded.kernels_of("aten::lineer")


def test_an_operator_s_kernels_of_a_real_trace_are_those_that_its_name_has_in_the_tables() -> None:
    loaded = steptrace.load_trace(recorded("nccl"))
    innermost = loaded.table("kernel_origins")
    rows = loaded.kernels_of("aten::addmm")
    assert len(rows) > 0
    assert set(rows["kernel"]) == set(innermost["kernel"][innermost["op"] == "aten::addmm"])
    first = loaded.launches[loaded.launches["op"] == "aten::addmm"]
    assert sorted(rows["delay_ns"]) == sorted(first["delay_ns"])


def test_what_cannot_be_loaded_is_an_error(tmp_path: Path, trace: Path) -> None:
    with pytest.raises(TraceError):
        steptrace.load_trace(tmp_path / "none.json")
    with pytest.raises(RecordError):
        steptrace.load_study(tmp_path)
    with pytest.raises(KeyError, match="kernel_names"):
        steptrace.load_trace(trace).table("kernel")


def test_a_damaged_trace_of_a_folder_is_warned_of(trace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    shutil.copy(trace, folder / "rank0.json")
    (folder / "rank1.json").touch()
    with pytest.warns(UserWarning, match="rank1"):
        assert len(steptrace.load_trace(folder).document.traces) == 1


def test_a_trace_prints_as_the_command_does(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["analyze", str(trace), "--out", str(tmp_path / "out")])
    assert str(steptrace.load_trace(trace)) in capsys.readouterr().out


def test_a_study_s_frames_hold_its_figures() -> None:
    study = steptrace.load_study(REFERENCE)
    for variant in study.document.variants:
        times = study.step_times.loc[variant.name]
        assert variant.step_ms is not None
        assert times["step_ms"] == variant.step_ms.value
        assert times["verdict"] == (variant.verdict or None)
        assert study.syncs.loc[variant.name, "measured_per_step"] == variant.syncs.measured_per_step
        assert study.gpu_use.loc[variant.name, "busy_pct"] == variant.gpu_busy_pct
        assert study.gpu_use.loc[variant.name, "nvml_pct"] == variant.nvml_util_pct
    assert set(study.estimates["gpu"]) == {e.gpu for v in study.document.variants for e in v.estimates}
    saved = [e.difference and e.difference.saved_ms[0] for v in study.document.variants for e in v.estimates]
    assert [None if math.isnan(low) else low for low in study.estimates["saved_low_ms"]] == saved
    measured = study.sync_sites[study.sync_sites["basis"] == "measured"]
    per_step = measured.groupby("variant")["count_per_step"].sum()
    assert per_step["boolean_mask"] == study.syncs.loc["boolean_mask", "measured_per_step"]


def test_a_variant_in_whose_trace_nothing_syncs_has_no_predicted_sites() -> None:
    document = steptrace.load_study(REFERENCE).document
    variant = document.variant("boolean_mask")
    assert variant is not None
    assert variant.trace is not None
    assert variant.predicted_sites
    without = structs.replace(
        variant,
        syncs=structs.replace(variant.syncs, measured_per_step=0.0),
        trace=structs.replace(variant.trace, syncs=structs.replace(variant.trace.syncs, sites=())),
    )
    study = steptrace.LoadedStudy(structs.replace(document, variants=(without,)), REFERENCE)
    assert study.sync_sites.empty


@pytest.mark.parametrize("plot", ["plot_step_times", "plot_syncs", "plot_gpu_use"])
def test_a_plot_has_a_row_for_each_variant(plot: str) -> None:
    study = steptrace.load_study(REFERENCE / "comparison.json")
    axes = getattr(study, plot)()
    names = [variant.name for variant in study.document.variants]
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first one at the top
    _, own = pyplot.subplots()
    assert getattr(study, plot)(own) is own
    pyplot.close("all")


def test_a_prediction_prints_and_is_a_frame() -> None:
    import torch

    with steptrace.predict_syncs() as syncs:
        loss = torch.ones(3, device="cuda").sum()
        for _ in range(2):
            loss.item()
    frame = syncs.to_frame()
    assert frame["count"].sum() == syncs.total == 2
    assert set(frame["file"]) == {site.file for site in syncs.sites}
    assert "loss.item()" in str(syncs)
    assert f"test_library.py:{syncs.sites[0].line}" in str(syncs)
    estimate = syncs.estimate("H100")
    assert estimate.gpu == "H100"
    assert fmt.band_ms(*estimate.step_ms) in str(estimate)


def test_a_prediction_prints_the_table_of_the_command() -> None:
    import torch

    with steptrace.predict_syncs() as syncs:
        value = torch.ones(3, device="cuda").sum()
        syncs.reset()
        for _ in range(2):
            value.item()
            syncs.step_ends()
    followed = replace(steptrace.predict.Prediction.so_far(syncs), by_step=(1, 1))
    prediction = predicted_step([convert(followed.to_json(), probe.Prediction)])
    printed = str(syncs).splitlines()
    assert printed[0] == "1 sync per step predicted"
    assert printed[1:] == [line for line in text_of("name", prediction) if line in printed[1:]]
    assert len(printed) == 3  # the head of the table, and a row


@pytest.mark.parametrize("attribute", steptrace.library.ROWS_OF_STUDY)
def test_each_column_of_a_study_s_frame_is_documented(attribute: str, make_study_steps: steptrace.LoadedStudy) -> None:
    frame = getattr(make_study_steps, attribute).reset_index()
    described = [column.name for column in columns_of(steptrace.library.ROWS_OF_STUDY[attribute])]
    assert sorted(frame.drop(columns="index", errors="ignore").columns) == sorted(described)


@pytest.mark.parametrize("attribute", steptrace.library.TABLE_OF)
def test_each_column_of_a_trace_s_frame_is_documented(attribute: str) -> None:
    frame = getattr(steptrace.load_trace(recorded("two_ranks_0")), attribute)
    described = columns_of(ROW_TYPES[steptrace.library.TABLE_OF[attribute]])
    assert sorted(frame.columns) == sorted(column.name for column in described)
    assert all(column.meaning for column in described)


def test_a_study_prints_a_line_for_each_variant() -> None:
    study = steptrace.load_study(REFERENCE)
    lines = str(study).splitlines()
    assert study.document.title in lines
    for variant in study.document.variants:
        assert any(line.split()[:1] == [variant.name] for line in lines)


def test_a_variant_that_failed_prints_its_ending_and_no_figure() -> None:
    study = steptrace.load_study(REFERENCE)
    first, *others = study.document.variants
    none = structs.replace(first.syncs, measured_per_step=None, predicted_per_step=None)
    failed = structs.replace(first, status="out of memory", step_ms=None, ratio=None, syncs=none)
    document = structs.replace(study.document, question="", variants=(failed, *others))
    lines = str(steptrace.LoadedStudy(document, study.folder)).splitlines()
    assert all(lines)
    (line,) = (line for line in lines if line.split()[:1] == [failed.name])
    assert line.endswith("out of memory")
    assert "predicted" not in line
    assert "measured" not in line.replace("not measured", "")


def test_the_page_of_names_is_made_of_the_docstrings() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    assert page == python_reference.render(), "python -m steptrace.python_reference > docs/reference/python.md"
    for name in steptrace.__all__:
        assert getattr(steptrace, name).__doc__
        assert name in dir(steptrace)


def test_importing_the_package_imports_nothing_else() -> None:
    import subprocess
    import sys

    code = "import sys; before = set(sys.modules); import steptrace; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    others = {name.partition(".")[0] for name in done.stdout.split()} - set(sys.stdlib_module_names)
    assert others == {"steptrace"}


def test_a_plot_of_syncs_tells_none_from_not_known() -> None:
    syncs = pd.DataFrame(
        {"measured_per_step": [math.nan] * 3, "predicted_per_step": [0, math.nan, 4.5]}, index=["a", "b", "c"]
    )
    for rows in (syncs, syncs[:1], syncs[1:2]):
        axes = draw_syncs(rows, "title", None)
        expected = [fmt.count(value) for value in rows["predicted_per_step"]]
        assert [text.get_text().strip() for text in axes.texts] == expected
        assert axes.get_xlim()[0] == 0
        pyplot.close(axes.figure)
