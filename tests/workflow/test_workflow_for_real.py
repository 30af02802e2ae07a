"""The whole way once, with nothing replaced: YAML, trainings, traces, tables, comparison, pages and exit code."""

import json
import sys

import pytest

from snakemake_calls import run_checkout

pytestmark = pytest.mark.workflow

VARIANTS = """
scales:
  gpu: [data.pin_memory=true, data.non_blocking=true]
variants:
  boolean_mask: [loss=boolean_mask]
  ranks: [loss=ignore_index, distributed.world_size=2, scale.threads=1]
  broken: [loss=own, loss.broken=true]
"""
# A person's own loss: a folder with code, one YAML file, and its package on the list of allowed targets.
OWN_LOSS = """
from steptrace.workloads.masked_losses import IgnoreIndexLoss


class Loss(IgnoreIndexLoss):
    def __init__(self, broken, **arguments):
        super().__init__(**arguments)
        self.broken = broken

    def forward(self, output, target):
        if self.broken:
            raise ValueError("the own loss is broken")
        return super().forward(output, target)
"""
# Of the first variant's six syncs three are in the allowed function, the other three break the gate.
GATES = """
gates:
  small:
    boolean_mask:
      syncs.per_step: {at_most: 1, allow: [cross_entropy, "masked_losses.py:1"]}
    ranks:
      syncs.per_step: {at_most: 0}
"""
OWN_GROUP = "_target_: own_losses.Loss\nbroken: false\nignore_index: -1\nbackground: 9\n"


def test_a_study_with_ones_own_loss_and_a_failing_variant(small_study, tmp_path):
    tmp_path = tmp_path / "Zoë's own folder"
    files = {
        "config/workflow.yaml": "studies: [small]\nrepeats: 1\nscale: cpu\nallow_targets: [own_losses]\n" + GATES,
        "config/study/small.yaml": small_study + VARIANTS,
        "config/loss/own.yaml": OWN_GROUP,
        "plugins/own_losses.py": OWN_LOSS,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = run_checkout(tmp_path, python=sys.executable)
    assert result.returncode == 1, result.stdout  # one variant failed, and that is all
    assert "small/broken run0, equivalence: failed, ValueError: the own loss is broken (see results" in result.stdout

    comparison = json.loads((tmp_path / "results/small/comparison.json").read_text())
    variants = {variant["name"]: variant for variant in comparison["variants"]}
    assert {name: variant["status"] for name, variant in variants.items()} == {
        "boolean_mask": "ok",
        "ranks": "ok",
        "broken": "failed",
    }, {name: [run["error"] for run in variant["runs"]] for name, variant in variants.items()}
    predicted = {name: variant["syncs"]["predicted_per_step"] for name, variant in variants.items()}
    assert predicted == {"boolean_mask": 6, "ranks": 0, "broken": None}
    assert "gate broken: small/boolean_mask syncs.per_step (predicted) beyond those allowed is 3" in result.stdout
    for name in ("boolean_mask", "ranks"):
        assert variants[name]["equivalence"]["status"] == "same"
        assert variants[name]["step_ms"]["steps"] > 0
        assert variants[name]["operators_per_step"] > 0
        assert variants[name]["gpu_busy_pct"] is None  # not measured on a CPU, and not 0
    assert variants["broken"]["step_ms"] is None
    assert "the own loss is broken" in variants["broken"]["runs"][0]["error"]["error"]

    communication = variants["ranks"]["communication"]
    assert communication["world_size"] == 2
    assert communication["expected_ns"] > 0
    traced = variants["ranks"]["ranks"]["all_reduce"]
    assert traced["measured_ns_per_step"] >= traced["exposed_ns_per_step"] > 0
    assert traced["count_per_step"] == len(communication["bucket_bytes"])
    assert variants["boolean_mask"]["communication"] is None

    page = (tmp_path / "reports/small.html").read_text()
    assert '<td data-label="Backend">gloo</td>' in page
    assert "the own loss is broken" in page
    assert "1 of 2 broken" in page
    assert "labels = torch.unique(target)" in page
    assert "A very small study" in (tmp_path / "reports/index.html").read_text()
    verdict = json.loads((tmp_path / "results/verdict.json").read_text())
    assert {failure["variant"] for failure in verdict["failed"]} == {"broken"}
    assert [gate["outcome"] for gate in verdict["gates"]] == ["broken", "held"]
