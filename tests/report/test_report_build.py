import json
import re
import shutil
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from documents import an_estimate, fill
from figures import figures_in
from report.conftest import BASE, ratio, traced
from shown import Page
from steptrace.documents.base import write
from steptrace.documents.summary import Summary
from steptrace.errors import RecordError
from steptrace.report.index import load_imported, load_index, render_index
from steptrace.report.study.small import small_picture
from steptrace.report.study.step_times import load_steps, step_times
from steptrace.report.study.variants import load_study


@pytest.mark.parametrize("text", [None, "", "[1]", "{", '{"study": "x"}'])
def test_a_wrong_or_missing_comparison_is_one_clear_error(tmp_path, text):
    path = tmp_path / "comparison.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecordError) as caught:
        load_study(path)
    assert caught.value.where == str(path)
    assert caught.value.next_step or caught.value.expected
    if text is None:
        assert "is missing" in str(caught.value)
        assert "run the study" in str(caught.value)


def test_steps_are_read_beside_the_comparison_wherever_it_lies(make_study, tmp_path):
    moved = shutil.copytree(make_study("cpu").parent, tmp_path / "elsewhere")
    path = moved / "comparison.json"
    steps = load_steps(load_study(path), path)
    assert len(steps) == 12
    assert {run.timed.size for run in steps} == {20}
    assert {run.warmup.size for run in steps} == {5}
    assert "5 warm-up steps per run left out" in str(step_times(load_study(path), path))


def test_steps_that_the_comparison_left_out_count_as_warmup(make_study):
    path = make_study("cpu")
    raw: dict[str, Any] = json.loads(path.read_text())
    raw["variants"][0]["runs"][0]["warmup_left_out"] = 3
    before = load_steps(load_study(path), path)[0]
    path.write_text(json.dumps(raw))
    run = load_steps(load_study(path), path)[0]
    assert run.warmup.size == 8
    np.testing.assert_array_equal(run.timed, before.timed[3:])


def test_runs_without_steps_are_passed_over(make_study):
    path = make_study("cpu")
    (path.parent / "where" / "run1" / "steps.parquet").unlink()
    assert len(load_steps(load_study(path), path)) == 11


@pytest.mark.parametrize(
    ("broken", "words"),
    [(True, r"where/run1/steps\.parquet"), (False, r"step times cannot be read.*step_ns")],
)
def test_a_steps_file_that_is_broken_or_lacks_a_column_is_one_clear_error(make_study, words, *, broken):
    path = make_study("cpu")
    file = path.parent / "where" / "run1" / "steps.parquet"
    if broken:
        file.write_bytes(b"PAR1 no")
    else:
        pq.write_table(pq.read_table(file).drop_columns(["step_ns"]), file)
    with pytest.raises(RecordError, match=words):
        load_steps(load_study(path), path)


def test_the_parts_of_a_step_are_the_gpus_where_there_is_one(make_study):
    gpu = load_study(make_study("gpu"))
    cpu = load_study(make_study("cpu"))
    labels = [[*s.variants[0].overview.parts_ns] for s in (gpu, cpu)]
    assert labels[0] == ["compute", "exposed_comm", "exposed_memory", "idle"]
    assert labels[1] == ["data", "forward", "loss", "backward", "optimizer"]


def test_the_index_shows_each_study_s_result(make_study):
    whole, broken = load_index([make_study("cpu"), make_study("broken")], "reports")
    assert (whole.href, whole.problems, whole.scale) == ("masked_loss.html", (), "cpu")
    assert whole.machine == "Intel Xeon Platinum 8488C, no GPU"
    assert (broken.problems, broken.detail) == (("incomplete",), "5 variants, 5 of 12 runs ok")


def test_the_index_calls_no_study_ok_that_has_a_broken_gate_or_another_answer(study_builder, tmp_path):
    study_builder.add("boolean_mask", [10.0], equivalence={"status": "failed"})
    study_builder.add("where", [10.0], equivalence={"status": "differs"})
    study_builder.comparison["gates"] = [{"outcome": outcome} for outcome in ("broken", "broken", "held")]
    study = study_builder.write()
    (entry,) = load_index([study], "reports")
    assert entry.problems == ("gates broken", "answer differs", "answer not checked")
    assert entry.detail == "2 variants, 2 of 2 runs ok, 2 of 3 gates broken"
    render_index([study], tmp_path / "index.html")
    badges = Page((tmp_path / "index.html").read_text(encoding="utf-8")).with_class("bad")
    assert [badge for badge in badges if badge in entry.problems] == [*entry.problems]
    assert "ok" not in badges
    assert figures_in(entry.headline)[-1] == 2  # broken gates


def test_the_index_has_each_study_in_small_and_links_to_its_notebook_and_its_result(tmp_path, study_builder):
    study_builder.comparison["baseline"] = "base"
    for n, median in enumerate((40.0, 30.0, 20.0)):
        name = f"fast{n}" if n else "base"
        parts = {"compute": median * 2 / 3, "idle_host": median / 3}
        verdict = ratio(40.0 / median, 1.1, 2.5, "faster") if n else BASE
        study_builder.add(name, [median, median], ratio=verdict, trace=traced(median, parts))
    comparison = study_builder.write()
    pages = tmp_path / "reports"
    (entry,) = load_index([comparison], pages)
    assert entry.links == (("JSON", "../results/masked_loss/comparison.json"),)
    pages.mkdir()
    (pages / "masked_loss.ipynb").touch()
    (entry,) = load_index([comparison], pages)
    assert [words for words, _ in entry.links] == ["notebook", "JSON"]
    widths = [float(w) for w in re.findall(r'<rect x="0%" width="([\d.]+)%"', str(entry.picture))]
    assert widths == pytest.approx([200 / 3, 50, 100 / 3], rel=1e-2)  # two thirds of each step is the first part
    assert entry.why.count("ms") >= 1


def test_in_small_a_study_without_a_gpu_shows_what_each_variant_saves(study_builder):
    study_builder.comparison["baseline"] = "base"
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": None}
    pair = {"baseline": "base", "saved_ms": (1.0, 7.0), "times_as_fast": (1.1, 1.2), "faster_pct": 100}
    for name, more in (("base", {}), ("fast", {"difference": pair})):
        study_builder.add(name, [30.0], estimates=[an_estimate(20 + len(more), 30) | more])
    picture = str(small_picture(study_builder.study()))
    assert picture.count("on-scale difference told") == 1
    assert "7.0 ms" in picture


def test_of_many_variants_the_picture_in_small_has_the_first_and_the_fastest(study_builder):
    study_builder.comparison["baseline"] = "v0"
    for n in range(12):
        study_builder.add(f"v{n}", [30.0 - n], ratio=ratio(30 / (30 - n), 1.1, 2.5, "faster") if n else BASE)
    picture = str(small_picture(study_builder.study()))
    assert re.findall(r"<span>(v\d+)</span>", picture) == ["v0", "v1", "v2", "v3", "v4", "v11"]
    assert "6 more" in picture


def test_the_index_lists_results_of_real_gpus_beside_it_and_leaves_out_those_of_another_version(
    tmp_path, study_builder
):
    study_builder.comparison["environment"] = {**study_builder.comparison["environment"], "gpu": "NVIDIA H100"}
    study_builder.add("base", [30.0])
    folder = tmp_path / "reports" / "reference"
    for name in ("h100", "old"):
        (folder / name / "masked_loss").mkdir(parents=True)
        shutil.copy(study_builder.write(), folder / name / "masked_loss")
    (folder / "old" / "masked_loss" / "comparison.json").write_text('{"schema_version": 1}')
    index = tmp_path / "reports" / "index.html"
    render_index([], index)
    page = index.read_text()
    assert 'href="reference/h100/masked_loss.html"' in page
    assert 'href="reference/h100/masked_loss/comparison.json"' in page
    assert "NVIDIA H100" in page
    assert "reference/old" not in page


def test_the_index_links_to_the_page_of_an_imported_trace(tmp_path):
    summary = tmp_path / "results" / "traces" / "mine" / "summary.json"
    summary.parent.mkdir(parents=True)
    write(summary, fill(Summary, {"traces": [{"gpu_busy_pct": 24.2, "syncs": {"per_step": 8.0}}]}))
    (entry,) = load_imported([summary], tmp_path / "reports")
    assert entry.href == "../results/traces/mine/report.html"
    assert figures_in(entry.headline) == [24, 8]
