"""A study's file becomes variants: the matrix, the names, the references, and what a person can get wrong."""

import json
import shutil

import pytest
import yaml

from steptrace.config.study_file import cells
from steptrace.documents.run import SkippedVariant
from steptrace.errors import ConfigError

STUDY = """
title: Tiny
baseline: plain
reference: [loss=masked_reference, precision=fp32]
variants:
  plain: [loss=boolean_mask]
  other:
    overrides: [loss=where]
    hypothesis: It is faster.
"""
QUOTE = "next: quote a text, such as an override, that contains ["


def test_study_json_and_snapshots(plan_of, copy):
    text = STUDY + "overrides: [precision.tolerance.loss=1e-5]\n"
    study = plan_of(text, repeats=2, scale="cpu").studies["tiny"]
    document = json.loads((copy / "results/tiny/study.json").read_text())
    assert [document[key] for key in ("name", "baseline", "scale", "repeats")] == ["tiny", "plain", "cpu", 2]
    assert document["variants"][1] == {
        "name": "other",
        "overrides": ["loss=where"],
        "hypothesis": "It is faster.",
        "baseline": "plain",
        "reference": "reference.yaml",
        "digest": study.variants[1].digest,
        "entry": "other",
        "cell": {},
    }
    snapshot = yaml.safe_load((copy / "results/tiny/other/config.yaml").read_text())
    assert (snapshot["study"], snapshot["variant"], snapshot["digest"]) == ("tiny", "other", study.variants[1].digest)
    assert snapshot["loss"]["_target_"].endswith("WhereLoss")
    assert snapshot["precision"]["tolerance"]["loss"] == 1e-5  # YAML reads a bare 1e-05 as text
    reference = yaml.safe_load((copy / "results/tiny/reference.yaml").read_text())
    assert reference["loss"]["_target_"].endswith("ReferenceLoss")


def test_what_was_read_of_the_code_need_not_be_kept(plan_of):
    plan = plan_of(STUDY)
    shutil.rmtree(plan.project.workdir / "results", ignore_errors=True)
    (plan.project.workdir / "results").write_text("no folder: as little to write to as a full disk is")
    plan.key("training", *next(iter(plan.variants)))
    plan.cache.save()


def test_each_variant_also_as_a_gpu_would_train_it(plan_of, copy):
    scales = "scales:\n  cpu: [data.batch_size=2]\n  gpu: [data.batch_size=64]\n"
    on_cpu = plan_of(STUDY + scales, scale="cpu")
    snapshot = yaml.safe_load((copy / "results/tiny/other/config.gpu.yaml").read_text())
    assert (snapshot["device"], snapshot["data"]["batch_size"]) == ("cuda", 64)
    assert on_cpu.variants["tiny", "other"].config["data"]["batch_size"] == 2
    on_gpu = plan_of(STUDY + scales, scale="gpu")
    variant = on_gpu.variants["tiny", "other"]
    assert variant.on_gpu.config is variant.config
    assert on_gpu.key("prediction", "tiny", "other") == on_cpu.key("prediction", "tiny", "other")
    changed = plan_of(STUDY + scales.replace("64", "32"), scale="cpu").key("prediction", "tiny", "other")
    assert changed != on_cpu.key("prediction", "tiny", "other")
    kept = plan_of(STUDY + scales.replace("=2", "=3"), scale="cpu").key("prediction", "tiny", "other")
    assert kept == on_cpu.key("prediction", "tiny", "other")


def test_matrix_is_a_product_and_each_cell_has_its_baseline_and_reference(plan_of, copy):
    study = plan_of(STUDY + "matrix:\n  data.batch_size: [4, 8]\n  precision: [bf16]\n").studies["tiny"]
    assert len(study.variants) == 4
    by_name = {variant.name: variant for variant in study.variants}
    variant = by_name["other__batch_size-8__precision-bf16"]
    assert variant.baseline == "plain__batch_size-8__precision-bf16"
    assert by_name[variant.baseline].baseline == variant.baseline
    assert variant.overrides == ("loss=where", "data.batch_size=8", "precision=bf16")
    assert variant.config["data"]["batch_size"] == 8
    assert variant.config["precision"]["autocast"] == "bf16"
    assert variant.hypothesis == "It is faster."
    assert (variant.entry, variant.cell) == ("other", {"data.batch_size": "8", "precision": "bf16"})
    planned = json.loads((copy / "results/tiny/study.json").read_text())["variants"]
    assert [(one["entry"], one["cell"]) for one in planned if one["name"] == variant.name] == [
        (variant.entry, variant.cell)
    ]
    reference = study.references[variant.reference].config
    assert reference["data"]["batch_size"] == 8
    assert reference["precision"]["name"] == "fp32"
    assert (copy / "results/tiny" / variant.reference).is_file()
    assert study.baseline == "plain__batch_size-4__precision-bf16"


def test_without_a_reference_it_is_the_baseline_in_full_precision(plan_of):
    text = STUDY.replace("reference: [loss=masked_reference, precision=fp32]\n", "")
    text = text.replace("[loss=boolean_mask]", "[loss=sort, precision=fp16, precision.grad_scaler=true, seed=5]")
    (reference,) = plan_of(text).studies["tiny"].references.values()
    assert reference.config["loss"]["_target_"].endswith("SortLoss")
    assert (reference.config["seed"], reference.config["precision"]["name"]) == (5, "fp32")
    assert reference.config["precision"]["grad_scaler"] is False
    in_cells = plan_of(text + "matrix: {data.batch_size: [4, 8]}\n").studies["tiny"].references
    assert [cell.config["data"]["batch_size"] for cell in in_cells.values()] == [4, 8]
    assert {cell.config["loss"]["_target_"] for cell in in_cells.values()} == {reference.config["loss"]["_target_"]}


def test_a_mistake_in_the_baseline_is_not_reported_for_the_reference(plan_of):
    text = STUDY.replace("reference: [loss=masked_reference, precision=fp32]\n", "")
    with pytest.raises(ConfigError, match=r"tiny\.yaml, variant 'plain'"):
        plan_of(text.replace("boolean_mask", "bolean_mask"))


def names_of(**matrix):
    """Names of a variant `plain` in each cell of a matrix."""
    return [cell.named("plain") for cell in cells(matrix)]


def test_matrix_values_become_file_safe_names():
    values = {"model.hidden": ["3", 4], "optimizer.lr": [0.001, 1.0e-05], "scale.threads": [None, 2]}
    names = names_of(**values)
    assert "plain__hidden-3__lr-0.001__threads-null" in names
    assert "plain__hidden-4__lr-1e-05__threads-2" in names
    assert len(set(names)) == 8


def test_two_keys_with_the_same_last_part_keep_their_full_names():
    assert names_of(**{"seed": [1], "data.dataset.seed": [2]}) == ["plain__seed-1__data.dataset.seed-2"]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (("baseline: plain", "baseline: plian"), ["the baseline 'plian' is not a variant", "did you mean 'plain'?"]),
        (("variants:", "varients:"), ["unknown field `varients`", "did you mean 'variants'?"]),
        (("title: Tiny\n", ""), ["missing required field `title`"]),
        (("[loss=where]", "loss=where"), ["variants.other: Expected `array`, got `str` - at `overrides`"]),
        (("hypothesis:", "hypotesis:"), ["variants.other: ", "unknown field `hypotesis`", "'hypothesis'"]),
        (("  other:", "  ot/her:"), ["line 7: 'ot/her' is not a valid name", "in `variants`"]),
        (("  other:", '  "other\\n":'), ["'other\n' is not a valid name", "in `variants`"]),
        (("  other:", f"  {'n' * 201}:"), ["line 7", "is not a valid name", "at most 200"]),
        (("  other:", "  Plain:"), ["'Plain' and 'plain' would share one folder"]),
        (("  other:", "  plain:"), ["duplicate key 'plain'\n  next: keep one of them"]),
        (("[loss=boolean_mask]", "boolean_mask"), ["variants.plain: is neither a list", "[] for none, or a mapping"]),
        (("  other:", "  no:"), ["Expected `str`, got `bool`", "in `variants`"]),
        (("  plain: [loss", "  plain: [los"), ["tiny.yaml, variant 'plain'", "next: did you mean 'loss'?"]),
        (("loss=masked_reference", "loss=masked_referense"), ["tiny.yaml, reference", "\tmasked_reference\n"]),
        (("title: Tiny", "title: [Tiny"), ["is not valid YAML"]),
        (("[loss=where]", "['python_path=[mien]']"), ["variant 'other': python_path: there is no folder 'mien'"]),
        (("[loss=where]", "[python_path=[plugins]]"), ["line 8: is not", QUOTE]),
        (("[loss=where]", "['a=[b]', loss={a: 1}]"), ["line 8: is not", QUOTE]),
    ],
)
def test_mistakes_in_a_study(plan_of, change, parts):
    assert change[0] in STUDY
    with pytest.raises(ConfigError) as caught:
        plan_of(STUDY.replace(*change))
    assert "tiny.yaml" in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("more", "part"),
    [
        ("scales: {cpu: [data.batch_size=0]}", "variant 'plain': Expected `int` >= 1 - at `data.batch_size`"),
        ("scales: {gpu: [data.batch_size=four]}", "variant 'plain' at scale gpu: Expected `int`"),
        ("overrides: [sed=1]", "variant 'plain': Could not override 'sed'"),
        ("matrix: {seed: [a]}", "variant 'plain__seed-a': Expected `int`, got `str` - at `seed`"),
        ("matrix: {loss: []}", "length >= 1 - at `matrix.loss`"),
        ("matrix: {data.batch_size: 4}", "Expected `array`, got `int` - at `matrix.data.batch_size`"),
        ("matrix: {data.batch_size: [4, 4]}", "would share one folder"),
        ("matrix: {precision.name: [a/b, a_b]}", "would share one folder"),
        ("matrix: {data.batch_sise: [4]}", "Could not override 'data.batch_sise'"),
    ],
)
def test_a_mistake_in_what_variants_share_names_the_variant_or_the_matrix(plan_of, more, part):
    with pytest.raises(ConfigError, match=r"tiny\.yaml") as caught:
        plan_of(STUDY + more, scale="cpu")
    assert part in str(caught.value)


def test_a_variant_of_one_scale_is_left_out_elsewhere(plan_of):
    text = STUDY + "  pinned:\n    overrides: [data.pin_memory=true]\n    scales: [gpu]\n"
    on_cpu = plan_of(text, scale="cpu").studies["tiny"]
    skipped = SkippedVariant(name="pinned", reason="other_scale", scales=("gpu",))
    assert ([v.name for v in on_cpu.variants], on_cpu.skipped) == (["plain", "other"], (skipped,))
    on_gpu = plan_of(text, scale="gpu").studies["tiny"]
    assert ([v.name for v in on_gpu.variants], on_gpu.skipped) == (["plain", "other", "pinned"], ())
    # A limit on it is no mistake.
    gates = {"tiny": {"pinned": {"ratio.low": {"at_least": 1, "scale": "gpu"}}}}
    plan_of(text, scale="cpu", gates=gates)
    with pytest.raises(ConfigError, match="pin_memry"):
        plan_of(text.replace("pin_memory", "pin_memry"), scale="cpu")


def test_a_variant_whose_package_is_missing_is_skipped_with_that_reason(plan_of, copy):
    text = STUDY + "  special:\n    overrides: [data.pin_memory=true]\n    requires: [msgspec, no_such_package]\n"
    study = plan_of(text, scale="cpu").studies["tiny"]
    assert [variant.name for variant in study.variants] == ["plain", "other"]
    document = json.loads((copy / "results/tiny/study.json").read_text())
    assert document["skipped"] == [
        {"name": "special", "reason": "package_missing", "scales": [], "packages": ["no_such_package"]}
    ]
    there = plan_of(text.replace(", no_such_package", ""), scale="cpu").studies["tiny"]
    assert ([variant.name for variant in there.variants], there.skipped) == (["plain", "other", "special"], ())


def test_a_baseline_whose_package_is_missing_is_refused(plan_of):
    baseline = "  plain:\n    overrides: [loss=boolean_mask]\n    requires: [no_such_package]\n"
    with pytest.raises(ConfigError, match=r"the baseline 'plain' needs no_such_package"):
        plan_of(STUDY.replace("  plain: [loss=boolean_mask]\n", baseline), scale="cpu")


def test_what_is_required_is_the_name_of_a_package(plan_of):
    text = STUDY + "  special:\n    overrides: []\n    requires: [os.system]\n"
    with pytest.raises(ConfigError, match=r"variants\.special"):
        plan_of(text, scale="cpu")


def test_a_scale_that_does_not_exist_is_refused_wherever_it_is_named(plan_of, copy):
    with pytest.raises(ConfigError, match=r"tiny\.yaml, scales: there is no scale 'gpus'\n  next: did you mean 'gpu'"):
        plan_of(f"{STUDY}scales: {{gpus: [data.batch_size=64]}}\n")
    with pytest.raises(ConfigError, match=r"variants\.pinned: there is no scale 'large'"):
        plan_of(STUDY + "  pinned: {overrides: [data.pin_memory=true], scales: [gpu, large]}\n")
    program = "title: T\nbaseline: a\nprogram: {command: [python, -V]}\nvariants: {a: []}\n"
    with pytest.raises(ConfigError, match=r"--config: there is no scale 'large'\n  next: choose one of: cpu, gpu"):
        plan_of(program, scale="large")
    (copy / "config/scale/large.yaml").write_text((copy / "config/scale/gpu.yaml").read_text())
    plan_of(f"{STUDY}scales: {{large: [data.batch_size=64]}}\n")


def test_a_baseline_that_does_not_run_at_the_scale_is_refused(plan_of):
    text = STUDY.replace("plain: [loss=boolean_mask]", "plain: {overrides: [loss=boolean_mask], scales: [gpu]}")
    plan_of(text, scale="gpu")
    with pytest.raises(ConfigError, match="the baseline 'plain' does not run at scale cpu"):
        plan_of(text, scale="cpu")


def test_a_claim_names_a_variant_of_the_study(plan_of, copy):
    claim = "claims:\n  - {says: Few., source: article, variant: other, label: loss, kernels: 30}\n"
    plan_of(STUDY + claim, scale="cpu")
    document = json.loads((copy / "results/tiny/study.json").read_text())
    assert document["claims"] == [
        {"says": "Few.", "source": "article", "variant": "other", "label": "loss", "kernels": 30.0}
    ]
    with pytest.raises(ConfigError, match=r"claims: 'othr' is not a variant\n(.*\n)*.*did you mean 'other'"):
        plan_of(STUDY + claim.replace("variant: other", "variant: othr"), scale="cpu")
