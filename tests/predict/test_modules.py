"""Lazy modules get their weights on the virtual device, whenever they were moved there."""

import pytest
import torch
from torch import nn

from steptrace.predict import predict_syncs


def _in_context() -> nn.Module:
    with torch.device("cuda"):
        return nn.LazyLinear(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.LazyLinear(3, device="cuda"),
        lambda: nn.LazyLinear(3).cuda(),
        lambda: nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d()).to("cuda"),
        lambda: nn.LazyLinear(3).cuda().cpu().cuda(),
        _in_context,
    ],
)
def test_a_lazy_module_is_made_on_the_device_it_was_moved_to(make):
    with predict_syncs() as syncs:
        model = make()
        out = model(torch.ones(2, 3, 8, 8, device="cuda"))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        out.sum().backward()
        optimizer.step()
        tensors = [*model.parameters(), *model.buffers()]
        assert {tensor.device for tensor in tensors} == {torch.device("cuda", 0)}
        assert all(isinstance(parameter, nn.Parameter) for parameter in model.parameters())
    assert syncs.operator_total > 0


def test_a_lazy_module_keeps_its_type_and_stays_on_the_cpu_where_nobody_moves_it():
    with predict_syncs():
        model = nn.LazyLinear(3).to(torch.bfloat16)
        assert model(torch.ones(2, 4, dtype=torch.bfloat16)).dtype is torch.bfloat16
        assert {(p.dtype, p.device.type) for p in model.parameters()} == {(torch.bfloat16, "cpu")}
        on_cuda = nn.LazyLinear(3).cuda().half()
        on_cuda(torch.ones(2, 4, dtype=torch.half, device="cuda"))
        assert {(p.dtype, p.device.type) for p in on_cuda.parameters()} == {(torch.half, "cuda")}


def test_a_parameter_without_a_shape_says_its_device():
    with predict_syncs():
        parameter = nn.parameter.UninitializedParameter(device="cuda")
        assert (parameter.device, parameter.is_cuda) == (torch.device("cuda", 0), True)
        assert nn.parameter.UninitializedParameter().device == torch.device("cpu")
        layer = nn.LazyLinear(3).cuda()
        assert layer.weight.device == torch.device("cuda", 0)
        assert not nn.parameter.UninitializedBuffer(device="cpu").is_cuda
