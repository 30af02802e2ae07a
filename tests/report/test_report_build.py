import json
import shutil
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from documents import fill
from steptrace.documents.base import write
from steptrace.documents.summary import Summary
from steptrace.errors import RecordError
from steptrace.report.index import load_imported, load_index
from steptrace.report.page.markup import render
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
    gpu, cpu = load_study(make_study("gpu")), load_study(make_study("cpu"))
    labels = [[*s.variants[0].overview.parts_ns] for s in (gpu, cpu)]
    assert labels[0] == ["compute", "exposed_comm", "exposed_memory", "idle"]
    assert labels[1] == ["data", "forward", "loss", "backward", "optimizer"]


def test_the_index_shows_each_study_s_result(make_study):
    whole, broken = load_index([make_study("cpu"), make_study("broken")])
    assert (whole.href, whole.problems, whole.scale) == ("masked_loss.html", (), "cpu")
    assert whole.machine == "Intel Xeon Platinum 8488C, no GPU"
    assert (broken.problems, broken.detail) == (("incomplete",), "5 variants, 5 of 12 runs ok")


def test_the_index_calls_no_study_ok_that_has_a_broken_gate_or_another_answer(study_builder):
    study_builder.add("boolean_mask", [10.0], equivalence={"status": "failed"})
    study_builder.add("where", [10.0], equivalence={"status": "differs"})
    study_builder.comparison["gates"] = [{"outcome": outcome} for outcome in ("broken", "broken", "held")]
    (entry,) = load_index([study_builder.write()])
    assert entry.problems == ("gates broken", "answer differs", "answer not checked")
    assert entry.detail == "2 variants, 2 of 2 runs ok, 2 of 3 gates broken"
    shown = str(render("index", studies=[entry], traces=[]))
    assert '<span class="badge bad">gates broken</span>' in shown
    assert ">ok<" not in shown
    assert "2 gates are broken." in entry.headline


def test_the_index_links_to_the_page_of_an_imported_trace(tmp_path):
    summary = tmp_path / "results" / "traces" / "mine" / "summary.json"
    summary.parent.mkdir(parents=True)
    write(summary, fill(Summary, {"traces": [{"gpu_busy_pct": 24.2, "syncs": {"per_step": 8.0}}]}))
    (entry,) = load_imported([summary], tmp_path / "reports")
    assert entry.href == "../results/traces/mine/report.html"
    assert entry.headline == "GPU busy 24 %, syncs per step 8."
