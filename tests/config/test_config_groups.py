"""The configuration that comes with the repository: every file of it must compose, and mean what it says."""

import functools
import itertools
import re
from pathlib import Path

import pytest

from steptrace.config.compose import check_allowed, compose
from steptrace.config.plan import make_plan

ROOT = Path(__file__).parents[2]
GROUPS = [path for path in sorted((ROOT / "config").iterdir()) if path.is_dir() and path.name != "study"]
STUDIES = sorted(path.stem for path in (ROOT / "config" / "study").glob("*.yaml"))
OPTIONS = [f"{group.name}={option.stem}" for group in GROUPS for option in sorted(group.glob("*.yaml"))]
#: The studies' files without their comments.
CHOSEN = "".join(re.sub("#.*", "", (ROOT / "config" / "study" / f"{study}.yaml").read_text()) for study in STUDIES)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A function from a scale to the plan of every study at it."""
    folder = tmp_path_factory.mktemp("planned")
    return functools.cache(lambda scale: make_plan(ROOT, folder, {"studies": STUDIES, "scale": scale}))


@pytest.mark.parametrize("option", [option for option in OPTIONS if not re.search(rf"{option}\b", CHOSEN)])
def test_every_option_that_no_study_chooses_composes_and_is_valid(option):
    # A workload's data set takes sizes from its model, so the two of one name go together.
    name = option.split("=")[1]
    partners = [f"{group}={name}" for group in ("model", "data") if f"{group}={name}" in OPTIONS]
    check_allowed(compose([ROOT / "config"], [option, *partners], where="test"), where="test")


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
@pytest.mark.parametrize("study", STUDIES)
def test_every_study_expands_at_every_scale(planned, study, scale):
    expanded = planned(scale).studies[study]
    assert len(expanded.variants) >= 2
    assert expanded.scale == scale
    assert len({variant.digest for variant in expanded.variants}) == len(expanded.variants)
    assert all(variant.config["device"] == {"cpu": "cpu", "gpu": "cuda"}[scale] for variant in expanded.variants)


def test_variants_of_masked_loss_differ_in_the_loss_alone(planned):
    study = planned("cpu").studies["masked_loss"]
    for one, other in itertools.combinations(study.variants, 2):
        assert one.config["loss"]["_target_"] != other.config["loss"]["_target_"]
        assert {**one.config, "loss": None} == {**other.config, "loss": None}
    assert study.references["reference.yaml"].config["loss"]["_target_"].endswith("ReferenceLoss")


@pytest.mark.parametrize("study", STUDIES)
def test_loading_is_no_part_of_a_gpu_s_step_where_it_is_not_the_question(planned, study):
    for variant in planned("gpu").studies[study].variants:
        data = variant.config["data"]
        held = data["pool"] or data["num_workers"] * (data["prefetch_factor"] or 0)
        if study == "input_pipeline":
            # Batches of workers lie in shared memory, which containers have little of.
            assert held * sample_bytes(data["dataset"]) * data["batch_size"] < 512e6
            continue
        assert data["num_workers"] == 0
        if study != "copies":  # whose question these are
            assert (data["pin_memory"], data["non_blocking"]) == (True, True)
        assert held == (2 if study == "masked_loss" else 4)
        assert held * sample_bytes(data["dataset"]) * data["batch_size"] < 2e9


def sample_bytes(settings):
    """Bytes of a sample's image and of what else is as large as it, at the data set's own size."""
    pixels = settings.get("crop", settings["image_size"]) ** 2
    name = settings["_target_"].rpartition(".")[2]
    return pixels * {"RandomBoxes": 1, "RandomMasks": 3 * 4 + 8, "RandomImages": 3 * 4, "Images": 3 * 4}[name]


def test_steps_of_a_hundred_thousand_launches_are_few(planned):
    study = planned("gpu").studies["giou"]
    loop = next(variant.config for variant in study.variants if variant.name == "loop")
    assert (loop["profile"]["active"], loop["profile"]["with_stack"]) == (1, False)
    phases = loop["scale"]["warmup_steps"] + loop["scale"]["timed_steps"] + loop["scale"]["section_steps"]
    assert phases <= 16
