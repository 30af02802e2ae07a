"""Operators that CUDA has a kernel of: followed as one, with the values of their parts."""

import pytest
import torch
from torch import nn

from steptrace.predict import predict_syncs


@pytest.mark.parametrize(
    ("layer", "operators"),
    [
        (nn.SiLU(), {"silu", "silu_backward"}),
        (nn.Mish(), {"mish", "mish_backward"}),
        (nn.RMSNorm(8), {"_fused_rms_norm", "_fused_rms_norm_backward"}),
        (nn.RMSNorm(8, elementwise_affine=False), {"_fused_rms_norm", "_fused_rms_norm_backward"}),
    ],
)
def test_an_operator_with_a_kernel_on_cuda_is_one_operator(layer: nn.Module, operators: set[str]) -> None:
    values = torch.linspace(-1, 1, 32).view(4, 8)

    def gradients(device: str) -> list[torch.Tensor]:
        layer.to(device).zero_grad()
        given = values.clone().to(device).requires_grad_()
        (layer(given) ** 2).sum().backward()
        return [given.grad.cpu(), *(weight.grad.cpu().clone() for weight in layer.parameters())]

    plain = gradients("cpu")
    with predict_syncs() as syncs:
        followed = gradients("cuda")
        layer.to("cpu")
    others = {"_to_copy", "pow", "mul", "sum", "expand", "ones_like", "detach"}
    assert {call.name.split(".")[1] for call in syncs.operators} - others == operators
    torch.testing.assert_close(followed, plain)


def test_a_norm_under_a_transform_of_functions_is_differentiated() -> None:
    def gradients(device: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        layer = nn.RMSNorm(8).to(device)
        rows = torch.linspace(-1, 1, 32).view(4, 8).to(device)
        weights = {name: weight.detach() for name, weight in layer.named_parameters()}

        def loss(weights: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(layer, weights, (row.unsqueeze(0),)).square().sum()

        made = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, rows)
        return {name: gradient.cpu() for name, gradient in made.items()}

    with predict_syncs():
        followed = gradients("cuda")
    torch.testing.assert_close(followed, gradients("cpu"))


def test_large_values_and_16_bit() -> None:
    with predict_syncs() as syncs:
        layer = nn.RMSNorm(512, device="cuda", dtype=torch.bfloat16)
        given = torch.rand(512, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        layer(given).sum().backward()
        assert given.grad.shape == given.shape
        assert layer.weight.grad.dtype is torch.bfloat16
    assert syncs.assumed == []
