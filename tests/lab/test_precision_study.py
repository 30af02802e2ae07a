"""The study `precision`: every variant gives the same answer, on a CPU, within the tolerance of its number format."""

from pathlib import Path

import msgspec
import pytest
import torch
from msgspec.structs import replace

from steptrace.config.plan import make_plan
from steptrace.config.schema import RootConfig
from steptrace.equivalence.reference import cases_of, compare_on
from steptrace.equivalence.verdict import verdict_on

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    plan = make_plan(ROOT, tmp_path_factory.mktemp("precision"), {"studies": ["precision"], "scale": "cpu"})
    return plan.studies["precision"]


@pytest.mark.parametrize(
    "name", ["fp32", "bf16", "fp16", "channels_last", "foreach", "fused", "all"]
)  # others: as fp32
def test_a_variant_gives_the_same_answer(study, name):
    variant = next(variant for variant in study.variants if variant.name == name)
    config, reference = (
        msgspec.convert(composed.config, RootConfig) for composed in (variant, study.references["reference.yaml"])
    )
    step = replace(config.step, compile=None)  # compiling takes a minute: tests/lab/test_model_form.py has a small one
    config = replace(config, step=step, equivalence=replace(config.equivalence, seeds=[0]))
    torch.set_num_threads(1)
    cases = [compare_on(config, reference, *case) for case in cases_of(config)]
    assert verdict_on(cases).status == "same"


def test_the_precision_study_has_these_variants(study):
    assert [variant.name for variant in study.variants] == [
        "fp32", "tf32", "bf16", "fp16", "channels_last", "compiled", "foreach", "fused", "all",
    ]  # fmt: skip
    compiled = [variant for variant in study.variants if variant.config["step"]["compile"]]
    assert all(variant.config["scale"]["warmup_steps"] >= 3 for variant in compiled)
