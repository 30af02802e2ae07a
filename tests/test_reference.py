"""The results measured on a GPU that come with the repository: this version reads them, and they hold what docs say."""

from pathlib import Path

import pytest

from steptrace.documents.base import read
from steptrace.documents.comparison import Comparison

FILES = sorted((Path(__file__).parents[1] / "reports" / "reference").glob("*/*/comparison.json"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parts[-3]}-{file.parts[-2]}")
def test_a_gpu_made_the_syncs_that_were_predicted_and_the_memory_peak_is_near_the_estimate(file: Path) -> None:
    comparison = read(file, Comparison)
    assert comparison.environment is not None
    assert comparison.environment.gpu is not None
    for variant in comparison.variants:
        syncs = variant.syncs
        assert syncs.predicted_per_step == syncs.measured_per_step == syncs.warned_per_step, variant.name
        assert variant.equivalence is not None
        assert variant.equivalence.status == "same", variant.name
        (estimate,) = variant.estimates
        assert estimate.peak_memory_bytes == pytest.approx(variant.peak_allocated_bytes, rel=0.05), variant.name


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parts[-3]}-{file.parts[-2]}")
def test_measured_steps_lie_within_their_estimated_bands(file: Path) -> None:
    comparison = read(file, Comparison)
    outside = [
        variant.name
        for variant in comparison.variants
        for estimate in variant.estimates
        if variant.step_ms is not None
        and estimate.step_ms is not None
        and not estimate.step_ms[0] <= variant.step_ms.median <= estimate.step_ms[1]
    ]
    assert outside == []


def test_there_are_results_of_a_gpu() -> None:
    assert [file.parts[-3:-1] for file in FILES] == [("h100", "giou"), ("h100", "masked_loss")]
