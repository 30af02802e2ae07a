"""Attention on the virtual device: the operator that a GPU takes, with the values and gradients of plain products."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from steptrace.predict import predict_syncs


def _step(device: str, dtype: torch.dtype, *, mask: bool, is_causal: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 8, 16).to(device, dtype).requires_grad_() for _ in range(3))
    bias = torch.randn(8, 8).to(device, dtype).requires_grad_() if mask else None
    out = scaled_dot_product_attention(query, key, value, bias, is_causal=is_causal)
    (out.float() ** 2).sum().backward()
    gradients = [one.grad for one in (query, key, value, bias) if one is not None]
    return [one.detach().cpu().float() for one in (out, *gradients) if one is not None]


@pytest.mark.parametrize(
    ("dtype", "mask", "is_causal", "operator"),
    [
        (torch.float32, False, False, "_scaled_dot_product_efficient_attention"),
        (torch.float32, True, False, "_scaled_dot_product_efficient_attention"),
        (torch.float32, False, True, "_scaled_dot_product_efficient_attention"),
        (torch.bfloat16, False, True, "_scaled_dot_product_flash_attention"),
    ],
)
def test_the_fused_operator_has_the_values_of_plain_products(*, dtype, mask, is_causal, operator):
    expected = _step("cpu", dtype, mask=mask, is_causal=is_causal)
    with predict_syncs() as syncs:
        predicted = _step("cuda", dtype, mask=mask, is_causal=is_causal)
    names = [call.name.split(".")[1] for call in syncs.operators]
    assert operator in names
    assert f"{operator}_backward" in names
    assert not {"bmm", "_softmax"} & set(names)
    assert len(predicted) == len(expected)
    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    for one, other in zip(predicted, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("length", "padded"), [(8, False), (6, True)])
def test_a_mask_is_padded_to_rows_of_a_multiple_of_eight(*, length, padded):
    with predict_syncs() as syncs:
        query = torch.randn(2, 3, length, 16).to("cuda")
        scaled_dot_product_attention(query, query, query, torch.zeros(length, length, device="cuda"))
    assert any("constant_pad_nd" in call.name for call in syncs.operators) is padded


def test_heads_that_the_fused_operators_refuse_are_computed_plainly():
    with predict_syncs() as syncs:
        query = torch.randn(2, 3, 8, 5).to("cuda")
        scaled_dot_product_attention(query, query, query)
    assert not [call for call in syncs.operators if "scaled_dot" in call.name]


def test_autocast_attends_in_its_type():
    with predict_syncs() as syncs, torch.autocast("cuda", torch.bfloat16):
        query = torch.randn(2, 3, 8, 16).to("cuda")
        assert scaled_dot_product_attention(query, query, query).dtype is torch.bfloat16
    assert [call.name for call in syncs.operators if "scaled_dot" in call.name] == [
        "aten._scaled_dot_product_flash_attention.default"
    ]
