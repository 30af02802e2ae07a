"""Real trainings on real files: the variant that waits for its data is called so, and the repaired ones are not."""

from pathlib import Path
from typing import Any

import pytest

from documents import plain
from steptrace.analysis import summarize
from steptrace.compare import compare
from steptrace.config.plan import make_plan
from steptrace.documents.base import write
from steptrace.findings import with_findings
from steptrace.record import Status, write_status
from steptrace.train.main import main

ROOT = Path(__file__).parents[2]
#: Decoding two files takes about as long as the network; what is left without it about a fiftieth.
STUDY = """
title: Tiny
baseline: files
overrides:
  - model=images
  - model.width=64
  - model.layers=14
  - model.halvings=0
  - loss=cross_entropy
  - data=images
  - data.dataset.length=4
  - data.dataset.image_size=640
  - data.dataset.crop=16
  - data.dataset.folder=FOLDER
  - data.batch_size=2
  - data.num_workers=0
  - data.prefetch_factor=null
  - data.persistent_workers=false
  - profile=light
  - scale.warmup_steps=2
  - scale.timed_steps=12
  - scale.input_steps=4
reference: [precision=fp32]
variants:
  files: []
  offline: [data.dataset.stored=array]
  pooled: [data.pool=2]
"""


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    work = tmp_path_factory.mktemp("work")
    (work / "config/study").mkdir(parents=True)
    (work / "config/study/tiny.yaml").write_text(STUDY.replace("FOLDER", str(work / "images")))
    make_plan(ROOT, work, {"studies": ["tiny"], "scale": "cpu", "repeats": 1})
    study = work / "results/tiny"
    for variant in ("files", "offline", "pooled"):
        run = study / variant / "run0"
        assert main(["--config", str(study / variant / "config.yaml"), "--out", str(run), "--repeat", "0"]) == 0
        write_status(run, Status("ok", 0, None, None, (), "2026-01-01T00:00:00+00:00", 1.0, 1))
        write(run / "summary.json", summarize([run / "trace.json.gz"])[0])
    return plain(with_findings(compare(study)))


def test_the_variant_that_waits_is_called_so_and_the_repaired_ones_are_not(comparison: dict[str, Any]) -> None:
    found = {variant["name"]: variant["input"] for variant in comparison["variants"]}
    assert found["files"]["verdict"] == "high"
    assert found["offline"]["verdict"] in ("none", "moderate")
    assert found["offline"]["share"] < found["files"]["share"] / 2
    assert found["pooled"]["verdict"] == "none"
    # The profiled windows say the same.
    assert found["files"]["traced_share"] > 0.2 > found["offline"]["traced_share"]


def test_the_finding_goes_with_the_verdict(comparison: dict[str, Any]) -> None:
    bound = {item["variant"]: item for item in comparison["findings"] if item["rule"] == "input_bound"}
    assert bound["files"]["severity"] == "high"
    assert "pooled" not in bound
    assert any("of the work of loading a batch is fetch" in line for line in bound["files"]["evidence"])


def test_most_of_loading_a_file_is_decoding_it(comparison: dict[str, Any]) -> None:
    files, offline = (variant["input"]["breakdown_ms"] for variant in comparison["variants"][:2])
    assert files["fetch"] > 5 * files["transform"] > 0
    assert files["fetch"] > 5 * offline["fetch"]
    assert files["pin"] is files["copy"] is None
