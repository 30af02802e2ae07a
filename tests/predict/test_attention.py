"""Attention on the virtual device: the operator that a GPU takes, with the values and gradients of plain products."""

import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from steptrace.estimate.driver import driver_facts
from steptrace.estimate.gpus import gpu_named
from steptrace.predict import predict_syncs


def _on(gpu: str):
    return predict_syncs(driver=driver_facts(gpu_named(gpu)))


def _attended_by(syncs) -> list[str]:
    """The fused forward operators, without what all of their names share."""
    names = [call.name.split(".")[1] for call in syncs.operators]
    return [name[len("_scaled_dot_product_") : -len("_attention")] for name in names if name.endswith("_attention")]


#: GPUs by what their PyTorch tries first.
_FLASH_FIRST = ("A100-80", "L4", "RTX-4090", "RTX-PRO-6000", "RTX-5090")
_CUDNN_FIRST = ("H100", "H200", "H100-PCIe", "B200", "GB200")


@pytest.mark.parametrize(
    ("gpu", "form"), [*((gpu, "flash") for gpu in _FLASH_FIRST), *((gpu, "cudnn") for gpu in _CUDNN_FIRST)]
)
def test_hopper_and_blackwell_of_the_data_center_begin_with_cudnn(gpu, form):
    with _on(gpu) as syncs:
        query = torch.randn(2, 3, 8, 16).to("cuda", torch.bfloat16)
        scaled_dot_product_attention(query, query, query)
    assert _attended_by(syncs) == [form]


@pytest.mark.parametrize(
    ("gpu", "heads", "form"),
    [("H100", (256, 256), "cudnn"), ("H100", (64, 256), "cudnn"), ("B200", (128, 128), "cudnn"),
     ("B200", (192, 192), "flash"), ("B200", (192, 128), "cudnn"), ("H100", (12, 12), "flash"),
     ("B200", (256, 128), "efficient")],
)  # fmt: skip
def test_cudnn_takes_heads_of_the_sizes_that_it_has_on_a_gpu(gpu, heads, form):
    of_key, of_value = heads
    with _on(gpu) as syncs:
        query = torch.randn(2, 3, 8, of_key).to("cuda", torch.bfloat16)
        scaled_dot_product_attention(query, query, torch.randn(2, 3, 8, of_value).to("cuda", torch.bfloat16))
    assert _attended_by(syncs) == [form]


def test_what_cudnn_does_not_take_on_an_h100_goes_to_the_next(monkeypatch):
    def forms(lengths=(8, 8), dropout=0.0, **options):
        with _on("H100") as syncs:
            query, key = (torch.randn(2, 3, length, 16).to("cuda", torch.bfloat16) for length in lengths)
            scaled_dot_product_attention(query, key, key, dropout_p=dropout, **options)
        return _attended_by(syncs)

    assert forms() == ["cudnn"]
    assert forms(attn_mask=None, is_causal=True) == ["cudnn"]
    assert forms(lengths=(8, 1)) == ["flash"]
    assert forms(dropout=0) == ["cudnn"]  # C++ takes a whole number, too
    assert forms(dropout=0.1) == ["flash"]
    assert forms(dropout=0.125) == ["cudnn"]
    assert forms(lengths=(1, 8), dropout=0.125) == ["flash"]
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert forms() == ["flash"]
    monkeypatch.delenv("TORCH_CUDNN_SDPA_DEPRIORITIZED")
    torch.use_deterministic_algorithms(mode=True)
    try:
        assert forms() == ["flash"]
    finally:
        torch.use_deterministic_algorithms(mode=False)


def _step(device: str, dtype: torch.dtype, *, mask: bool, is_causal: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 8, 16).to(device, dtype).requires_grad_() for _ in range(3))
    bias = torch.randn(8, 8).to(device, dtype).requires_grad_() if mask else None
    out = scaled_dot_product_attention(query, key, value, bias, is_causal=is_causal)
    (out.float() ** 2).sum().backward()
    gradients = [one.grad for one in (query, key, value, bias) if one is not None]
    return [one.detach().cpu().float() for one in (out, *gradients) if one is not None]


@pytest.mark.parametrize(
    ("gpu", "dtype", "mask", "is_causal", "operator"),
    [
        ("H100", torch.float32, False, False, "_scaled_dot_product_efficient_attention"),
        ("H100", torch.float32, True, False, "_scaled_dot_product_efficient_attention"),
        ("H100", torch.float32, False, True, "_scaled_dot_product_efficient_attention"),
        ("H100", torch.bfloat16, False, True, "_scaled_dot_product_cudnn_attention"),
        ("A100-80", torch.bfloat16, False, True, "_scaled_dot_product_flash_attention"),
        ("A100-80", torch.bfloat16, True, False, "_scaled_dot_product_efficient_attention"),
    ],
)
def test_the_fused_operator_has_the_values_of_plain_products(*, gpu, dtype, mask, is_causal, operator):
    expected = _step("cpu", dtype, mask=mask, is_causal=is_causal)
    with _on(gpu) as syncs:
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
    with _on("A100-80") as syncs, torch.autocast("cuda", torch.bfloat16):
        query = torch.randn(2, 3, 8, 16).to("cuda")
        assert scaled_dot_product_attention(query, query, query).dtype is torch.bfloat16
    assert [call.name for call in syncs.operators if "scaled_dot" in call.name] == [
        "aten._scaled_dot_product_flash_attention.default"
    ]


_FORCED = {
    SDPBackend.FLASH_ATTENTION: "_scaled_dot_product_flash_attention",
    SDPBackend.EFFICIENT_ATTENTION: "_scaled_dot_product_efficient_attention",
    SDPBackend.CUDNN_ATTENTION: "_scaled_dot_product_cudnn_attention",
    SDPBackend.MATH: "bmm",
}


@pytest.mark.parametrize("backend", _FORCED, ids=lambda backend: backend.name)
@pytest.mark.parametrize("is_causal", [True, False])
def test_a_forced_operator_is_taken_with_its_values(backend, *, is_causal):
    expected = _step("cpu", torch.bfloat16, mask=False, is_causal=is_causal)
    with predict_syncs() as syncs, sdpa_kernel(backend):
        predicted = _step("cuda", torch.bfloat16, mask=False, is_causal=is_causal)
    names = {call.name.split(".")[1] for call in syncs.operators}
    assert {name for name in _FORCED.values() if name in names} == {_FORCED[backend]}
    for one, other in zip(predicted, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=3e-2, atol=3e-2)


def test_cudnn_adds_a_mask():
    allowed = torch.ones(8, 8, dtype=torch.bool).tril()
    expected = _step("cpu", torch.bfloat16, mask=False, is_causal=True)
    with predict_syncs(), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        torch.manual_seed(0)
        query, key, value = (torch.randn(2, 3, 8, 16).to("cuda", torch.bfloat16) for _ in range(3))
        attended = scaled_dot_product_attention(query, key, value, allowed.cuda()).float().cpu()
    torch.testing.assert_close(attended, expected[0], rtol=3e-2, atol=3e-2)


def test_the_order_of_a_program_is_kept():
    both = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
    with predict_syncs() as syncs:
        query = torch.randn(2, 3, 8, 16).to("cuda", torch.bfloat16)
        with sdpa_kernel(both, set_priority=True):
            scaled_dot_product_attention(query, query, query)
    assert [call.name for call in syncs.operators if "scaled_dot" in call.name] == [
        "aten._scaled_dot_product_cudnn_attention.default"
    ]


@pytest.mark.parametrize(
    ("backend", "dtype", "size"),
    [
        (SDPBackend.FLASH_ATTENTION, torch.float32, 16),
        (SDPBackend.CUDNN_ATTENTION, torch.float32, 16),
        (SDPBackend.CUDNN_ATTENTION, torch.bfloat16, 12),
        (SDPBackend.EFFICIENT_ATTENTION, torch.bfloat16, 12),
    ],
)
def test_a_forced_operator_refuses_what_it_refuses_on_a_gpu(backend, dtype, size):
    with predict_syncs(), sdpa_kernel(backend):
        query = torch.randn(2, 3, 8, size).to("cuda", dtype)
        with pytest.raises(RuntimeError, match="No available kernel"):
            scaled_dot_product_attention(query, query, query)


def test_flash_attention_pads_heads():
    with predict_syncs() as syncs:
        query = torch.randn(2, 3, 8, 12).to("cuda", torch.bfloat16)
        attended = scaled_dot_product_attention(query, query, query).float().cpu()
        host = query.cpu()
    expected = scaled_dot_product_attention(host, host, host).float()
    torch.testing.assert_close(attended, expected, rtol=3e-2, atol=3e-2)
    assert any("flash_attention" in call.name for call in syncs.operators)


@pytest.mark.parametrize(("gpu", "form"), [("A100-80", "flash"), ("H100", "cudnn")])
def test_heads_that_share_a_key_are_attended_to_by_a_fused_operator(gpu, form):
    with _on(gpu) as syncs:
        query = torch.randn(2, 4, 8, 16).to("cuda", torch.bfloat16).requires_grad_()
        key = torch.randn(2, 2, 8, 16).to("cuda", torch.bfloat16).requires_grad_()
        scaled_dot_product_attention(query, key, key, enable_gqa=True).sum().backward()
        assert key.grad.shape == key.shape
    assert _attended_by(syncs) == [form]


def test_a_distributed_tensor_is_attended_to_by_the_operator_of_its_parts():
    with predict_syncs() as syncs:
        distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
        try:
            mesh = init_device_mesh("cuda", (1,))
            local = torch.randn(2, 4, 8, 16).to("cuda", torch.bfloat16)
            query = distribute_tensor(local, mesh, [Shard(1)]).requires_grad_()
            syncs.reset()
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
            assert query.grad.shape == query.shape
        finally:
            distributed.destroy_process_group()
    names = {call.name.split(".")[1] for call in syncs.operators}
    assert {"_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"} <= names
    assert not syncs.total


@pytest.mark.parametrize(("keys", "form"), [(8, "flash"), (12, "efficient")])
def test_a_causal_bias_is_no_mask_where_it_starts_at_the_left(keys, form):
    """A bias from the lower right of a rectangle is written out as a mask."""
    with _on("A100-80") as syncs:
        query = torch.randn(2, 3, 8, 16).to("cuda", torch.bfloat16)
        key = torch.randn(2, 3, keys, 16).to("cuda", torch.bfloat16)
        syncs.reset()
        assert scaled_dot_product_attention(query, key, key, attn_mask=causal_lower_right(8, keys)).shape == query.shape
    assert (_attended_by(syncs), syncs.total) == ([form], 0)
