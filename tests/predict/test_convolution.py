"""Convolutions on the virtual device have their results in the layout that cuDNN gives them."""

import pytest
import torch

from steptrace.predict import predict_syncs


@pytest.mark.parametrize("size", [6, 128])  # with values, and of a size at which none are computed
@pytest.mark.parametrize("last", [False, True])
def test_results_have_the_channels_last_if_the_images_have(*, last: bool, size: int) -> None:
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
def test_a_group_norm_copies_images_whose_channels_lie_last(*, last: bool) -> None:
    layout = torch.channels_last if last else torch.contiguous_format
    images, layer = torch.rand(2, 8, 6, 6).contiguous(memory_format=layout), torch.nn.GroupNorm(2, 8)
    plain = layer(images)
    with predict_syncs() as syncs:
        made = layer.to("cuda")(images.to("cuda").requires_grad_())
        made.square().sum().backward()
        copies = sum(call.calls for call in syncs.operators if call.name == "aten.clone.default")
        assert made.is_contiguous()
        torch.testing.assert_close(made.cpu(), plain)
    assert copies == last


def test_results_have_the_values_of_a_cpu() -> None:
    images, weight = torch.randn(2, 8, 6, 6).contiguous(memory_format=torch.channels_last), torch.randn(4, 8, 3, 3)
    with predict_syncs():
        made = torch.nn.functional.conv2d(images.to("cuda"), weight.to("cuda")).cpu()
    torch.testing.assert_close(made, torch.nn.functional.conv2d(images, weight))
