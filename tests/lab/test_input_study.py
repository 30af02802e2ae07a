"""Trainings on real files, from the plan of a study to its comparison."""

from pathlib import Path

import pytest

from steptrace.analysis import summarize
from steptrace.compare.study import compare
from steptrace.config.plan import make_plan
from steptrace.documents.base import write
from steptrace.findings import with_findings, with_trace_findings
from variant_runs import measure

ROOT = Path(__file__).parents[2]
STUDY = """
title: Tiny
baseline: files
overrides:
  - model=images
  - model.width=2
  - model.layers=1
  - model.halvings=0
  - loss=cross_entropy
  - data=images
  - data.dataset.length=4
  - data.dataset.image_size=64
  - data.dataset.crop=16
  - data.dataset.folder=FOLDER
  - data.batch_size=2
  - data.num_workers=0
  - data.prefetch_factor=null
  - data.persistent_workers=false
  - profile=light
  - scale.warmup_steps=2
  - scale.timed_steps=5
  - scale.input_steps=2
reference: [precision=fp32]
variants:
  files: []
  pooled: [data.dataset.stored=array, data.pool=2]
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_study_of_files_has_the_wait_and_the_parts_of_loading_of_each_variant(tmp_path: Path) -> None:
    (tmp_path / "config/study").mkdir(parents=True)
    (tmp_path / "config/study/tiny.yaml").write_text(STUDY.replace("FOLDER", str(tmp_path / "images")))
    make_plan(ROOT, tmp_path, {"studies": ["tiny"], "scale": "cpu", "repeats": 1}).write_snapshots()
    study = tmp_path / "results/tiny"
    for variant in ("files", "pooled"):
        run = study / variant / "run0"
        assert measure(study / variant / "config.yaml", run).status == "ok"
        write(run / "summary.json", with_trace_findings(summarize([run / "trace.json.gz"])[0]))
    files, pooled = (variant.input for variant in with_findings(compare(study)).variants)
    assert files is not None
    assert pooled is not None
    for wait in (files, pooled):
        assert 0 < (wait.share or 0) < 1
    parts = files.breakdown_ms
    assert parts is not None
    assert (parts.pin, parts.copy) == (None, None)
    assert (parts.fetch or 0) > 0
