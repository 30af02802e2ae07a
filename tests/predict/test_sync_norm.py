"""`nn.SyncBatchNorm` waits three times in each forward pass, and has the values of a batch norm."""

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.nn.modules._functions import SyncBatchNorm

from steptrace.predict import predict_syncs


@pytest.fixture
def group():
    """A group of one rank, which asks for NCCL."""

    def start():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        return dist.group.WORLD

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


def _trained(device, dtype, normalise):
    torch.manual_seed(0)
    values = torch.randn(4, 3, 2, 5).to(device, dtype).requires_grad_()
    norm = nn.BatchNorm2d(3)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 2)
        norm.bias.uniform_(-1, 1)
    norm = norm.to(device)
    (normalise(norm, values).float() * torch.linspace(0, 1, 120).view(4, 3, 2, 5).to(device)).sum().backward()
    results = (values.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var)
    return [result.detach().float().cpu() for result in results]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_and_gradients_are_those_of_a_batch_norm(group, dtype):
    expected = _trained("cpu", dtype, lambda norm, values: norm(values))
    with predict_syncs() as syncs:
        world = group()

        def normalise(norm, values):
            syncs.reset()
            made = SyncBatchNorm.apply(
                values, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps, norm.momentum, world, 1
            )
            assert [(site.op, site.label, site.count) for site in syncs.sites] == [
                ("aten::index", "SyncBatchNorm.forward", 3)
            ]
            assert any("_allgather_base_" in call.name for call in syncs.operators)
            return made

        results = _trained("cuda", dtype, normalise)
        assert not syncs.unknown
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for result, other in zip(results, expected, strict=True):
        torch.testing.assert_close(result, other, rtol=tolerance, atol=tolerance)


def test_large_values_have_shapes_alone(group):
    with predict_syncs() as syncs:
        world = group()
        values = torch.randn(64, 64, 64, 64, device="cuda")
        weight, bias = (torch.ones(64, device="cuda") for _ in range(2))
        made = SyncBatchNorm.apply(values.requires_grad_(), weight, bias, None, None, 1e-5, 0.1, world, 1)
        made.sum().backward()
        assert made.shape == values.grad.shape == values.shape
    assert syncs.total == 3


def _function(*names):
    """The first of these functions that this PyTorch has."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


def test_a_whole_tensor_is_gathered_into_one_of_any_shape(group):
    with predict_syncs():
        group()
        gathered = torch.empty(1, 6, device="cuda")
        _function("all_gather_single", "all_gather_into_tensor")(gathered, torch.arange(6.0, device="cuda").view(2, 3))
        assert gathered.tolist() == [[0, 1, 2, 3, 4, 5]]
        scattered = torch.empty(3, 2, device="cuda")
        _function("reduce_scatter_single", "reduce_scatter_tensor")(scattered, gathered)
        assert scattered.tolist() == [[0, 1], [2, 3], [4, 5]]
