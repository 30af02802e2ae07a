"""What a right answer may be off by: it follows from the format and the size, and from nothing else."""

import math

import pytest
import torch
from torch import nn

from steptrace.config.schema import PrecisionConfig
from steptrace.equivalence.tolerance import NetworkSize, gradient_tolerance, loss_tolerance, roundoff
from steptrace.lab.precision import NumberFormats


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_unit_roundoff_is_half_the_distance_between_neighbours_above_1(dtype):
    assert roundoff(dtype) == torch.finfo(dtype).eps / 2


def test_a_loss_may_be_off_by_its_operations_and_the_depth_of_its_sum():
    assert loss_tolerance(torch.float32, 1024) == (32 + 10) * 2.0**-24
    assert gradient_tolerance(torch.float32, 1024, torch.float32) == (84 + 4) * 2.0**-24
    # The loss computes in float32 all the same: only the result is rounded to the predictions' format.
    coarse = gradient_tolerance(torch.float32, 1024, torch.bfloat16)
    assert coarse == 84 * 2.0**-24 + 4 * 2.0**-8


def test_a_sum_in_float32_is_as_good_as_its_tolerance_says():
    terms = torch.rand(1 << 20, generator=torch.Generator().manual_seed(0))
    error = abs(terms.mean().item() / terms.double().mean().item() - 1)
    assert 0 < error < loss_tolerance(torch.float32, terms.numel())


def test_a_network_s_size_is_that_of_its_layers_and_of_what_goes_through_them():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
    size = NetworkSize.from_model(model)
    assert (size.depth, size.terms) == (2, 288)
    with size.watched(model):
        model(torch.zeros(4, 3, 8, 8))
    model(torch.zeros(9, 3, 8, 8))  # no longer watched
    assert size.positions == 4 * 6 * 6
    unit = 2.0**-24
    assert size.parameters() == pytest.approx((6 * 2 + math.sqrt(4 * 288) + 144) * unit)
    assert size.predictions(torch.float32, torch.float32, tf32=False) == pytest.approx(
        (3 * math.sqrt(2) + math.sqrt(2 * 288)) * unit
    )


@pytest.mark.parametrize(
    ("autocast", "tf32", "dtype", "unit"),
    [
        (None, False, torch.float32, 2.0**-24),
        (None, True, torch.float32, 2.0**-11),
        ("bf16", False, torch.bfloat16, 2.0**-8),
        ("bf16", False, torch.float32, 2.0**-8),  # the last operation alone is one in float32
        ("fp16", False, torch.float32, 2.0**-11),
        (None, False, torch.float16, 2.0**-11),  # a model that is float16 without autocast
    ],
)
def test_predictions_are_as_coarse_as_the_coarsest_format(autocast, tf32, dtype, unit):
    config = PrecisionConfig(name="one", autocast=autocast, tf32=tf32)
    products = NumberFormats.from_config(config, "cpu").autocast_dtype or torch.float32
    assert NetworkSize(1, 0).predictions(dtype, products, tf32=tf32) == 3 * unit
