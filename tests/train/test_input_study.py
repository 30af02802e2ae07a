"""Real trainings on real files: the variant that waits for its data is called so, and the repaired ones are not."""

from pathlib import Path

import pytest

from documents import fill
from steptrace.analysis import summarize
from steptrace.compare.study import compare
from steptrace.config.plan import make_plan
from steptrace.documents.base import write
from steptrace.documents.comparison import Comparison, LoaderWait
from steptrace.documents.run import Status
from steptrace.findings import with_findings, with_trace_findings
from steptrace.record import write_status
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
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    work = tmp_path_factory.mktemp("work")
    (work / "config/study").mkdir(parents=True)
    (work / "config/study/tiny.yaml").write_text(STUDY.replace("FOLDER", str(work / "images")))
    make_plan(ROOT, work, {"studies": ["tiny"], "scale": "cpu", "repeats": 1})
    study = work / "results/tiny"
    for variant in ("files", "offline", "pooled"):
        run = study / variant / "run0"
        assert main([str(study / variant / "config.yaml"), "--out", str(run), "--repeat", "0"]) == 0
        write_status(run, fill(Status, {"status": "ok", "exit_code": 0}))
        write(run / "summary.json", with_trace_findings(summarize([run / "trace.json.gz"])[0]))
    return with_findings(compare(study))


def waits(comparison: Comparison) -> dict[str, LoaderWait]:
    return {variant.name: variant.input for variant in comparison.variants if variant.input is not None}


def test_the_variant_that_waits_has_the_verdict_high_and_the_repaired_ones_do_not(comparison: Comparison) -> None:
    found = waits(comparison)
    assert found["files"].verdict == "high"
    assert found["offline"].verdict in ("none", "moderate")
    assert found["pooled"].verdict == "none"
    share, repaired = found["files"].share, found["offline"].share
    assert share is not None
    assert repaired is not None
    assert repaired < share / 2
    # The profiled windows say the same.
    traced, repaired = found["files"].traced_share, found["offline"].traced_share
    assert traced is not None
    assert repaired is not None
    assert traced > 0.2 > repaired


def test_the_finding_agrees_with_the_verdict(comparison: Comparison) -> None:
    bound = {finding.variant: finding for finding in comparison.findings if finding.rule == "input_bound"}
    assert bound["files"].severity == "high"
    assert "pooled" not in bound


def test_decoding_takes_most_of_loading_a_file(comparison: Comparison) -> None:
    files, offline = (waits(comparison)[name].breakdown_ms for name in ("files", "offline"))
    assert files is not None
    assert offline is not None
    assert (files.pin, files.copy) == (None, None)
    assert (files.fetch or 0) > 5 * (files.transform or 0) > 0
    assert (files.fetch or 0) > 5 * (offline.fetch or 0)
