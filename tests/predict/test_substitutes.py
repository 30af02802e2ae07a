"""Operators in the form of CUDA's: layouts that cuDNN gives, one operator where CUDA has a kernel, values of a CPU."""

import pytest
import torch
from torch import nn

from steptrace.predict import predict_syncs


@pytest.mark.parametrize("size", [6, 128])  # with values, and of a size at which none are computed
@pytest.mark.parametrize("last", [False, True])
def test_results_have_the_channels_last_if_the_images_have(*, last, size):
    layout = torch.channels_last if last else torch.contiguous_format
    with predict_syncs():
        images = torch.randn(4, 8, size, size).to("cuda").contiguous(memory_format=layout).requires_grad_()
        weight = torch.randn(16, 8, 1, 1).to("cuda").requires_grad_()
        made = torch.nn.functional.conv2d(images, weight)
        made.backward(torch.ones(made.shape, device="cuda"))
        assert images.grad is not None
        for one in (made, images.grad):
            assert one.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("last", [False, True])
def test_a_group_norm_copies_images_whose_channels_lie_last(*, last):
    layout = torch.channels_last if last else torch.contiguous_format
    images = torch.rand(2, 8, 6, 6).contiguous(memory_format=layout)
    layer = torch.nn.GroupNorm(2, 8)
    plain = layer(images)
    with predict_syncs() as syncs:
        made = layer.to("cuda")(images.to("cuda").requires_grad_())
        made.square().sum().backward()
        copies = sum(call.calls for call in syncs.operators if call.name == "aten.clone.default")
        assert made.is_contiguous()
        torch.testing.assert_close(made.cpu(), plain)
    assert copies == last


@pytest.mark.parametrize("last", [False, True])
def test_a_group_norm_copies_them_in_inference_mode_too(*, last):
    layout = torch.channels_last if last else torch.contiguous_format
    with predict_syncs() as syncs, torch.inference_mode():
        images = torch.rand(2, 8, 6, 6, device="cuda").contiguous(memory_format=layout)
        syncs.reset()
        made = nn.GroupNorm(2, 8, device="cuda")(images)
        names = [call.name for call in syncs.operators if "clone" in call.name or "norm" in call.name]
        assert made.is_contiguous()
    assert names == [*(["aten.clone.default"] if last else []), "aten.native_group_norm.default"]


def test_results_have_the_values_of_a_cpu():
    images = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last)
    weight = torch.randn(4, 8, 3, 3)
    with predict_syncs():
        made = torch.nn.functional.conv2d(images.to("cuda"), weight.to("cuda")).cpu()
    torch.testing.assert_close(made, torch.nn.functional.conv2d(images, weight))


@pytest.mark.parametrize(
    ("layer", "operators"),
    [
        (nn.SiLU(), {"silu", "silu_backward"}),
        (nn.Mish(), {"mish", "mish_backward"}),
        (nn.RMSNorm(8), {"_fused_rms_norm", "_fused_rms_norm_backward"}),
        (nn.RMSNorm(8, elementwise_affine=False), {"_fused_rms_norm", "_fused_rms_norm_backward"}),
    ],
)
def test_an_operator_with_a_kernel_on_cuda_is_one_operator(layer, operators):
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


def test_a_norm_under_a_transform_of_functions_is_differentiated():
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


def test_large_values_and_16_bit():
    with predict_syncs() as syncs:
        layer = nn.RMSNorm(512, device="cuda", dtype=torch.bfloat16)
        given = torch.rand(512, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        layer(given).sum().backward()
        assert given.grad.shape == given.shape
        assert layer.weight.grad.dtype is torch.bfloat16
    assert syncs.assumed == []


def test_a_norm_may_begin_a_forward_pass():
    with predict_syncs() as syncs:
        layer = nn.RMSNorm(8).cuda()
        given = torch.ones(2, 8, device="cuda")
        for _ in range(2):
            syncs.reset()
            layer(given).sum().backward()
    assert [call.phase for call in syncs.operators if "rms_norm" in call.name] == ["forward", "backward"]
