"""Attention and encoder layers in inference: values of the CPU, launches of PyTorch's fast path on CUDA."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steptrace.estimate.launches import launches
from steptrace.estimate.work import kernels_of
from steptrace.predict import predict_syncs

SEQUENCES = torch.linspace(-1, 1, 2 * 16 * 32).view(2, 16, 32)
NARROW = SEQUENCES[..., :4].contiguous()
MASK = torch.arange(16).expand(2, 16) > 12


def layer(width: int, heads: int, **options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True, **options).eval()


def attention(width: int, heads: int) -> nn.MultiheadAttention:
    return nn.MultiheadAttention(width, heads, batch_first=True).eval()


#: The module, what it is called with, and launches by operator, as the stand-in device counted them.
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Callable[[Tensor], Tensor]], Any], dict[str, int]]]
CASES = {
    "fused": (
        lambda: layer(32, 4),
        lambda module, to: module(to(SEQUENCES)),
        {"addmm": 3, "_scaled_dot_product_efficient_attention": 1, "add_": 2, "native_layer_norm": 2,
         "_addmm_activation": 1},
    ),
    "narrow heads": (
        lambda: layer(4, 2),
        lambda module, to: module(to(NARROW)),
        {"mm": 1, "_transform_bias_rescale_qkv": 1, "bmm": 2, "_softmax": 1, "clone": 1, "addmm": 2, "add_": 2,
         "native_layer_norm": 2, "_addmm_activation": 1},
    ),
    "norm first, GELU": (
        lambda: layer(32, 4, norm_first=True, activation="gelu"),
        lambda module, to: module(to(SEQUENCES)),
        {"addmm": 3, "_scaled_dot_product_efficient_attention": 1, "add_": 2, "native_layer_norm": 2,
         "_addmm_activation": 1},
    ),
    "attention with weights": (
        lambda: attention(32, 4),
        lambda module, to: module(*[to(SEQUENCES)] * 3),
        {"mm": 1, "_transform_bias_rescale_qkv": 1, "bmm": 2, "_softmax": 1, "clone": 1, "addmm": 1, "sum": 1,
         "div_": 1},
    ),
}  # fmt: skip


def run(name: str, to: Callable[[Tensor], Tensor], mode: Any) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    make, call, _ = CASES[name]
    module = make()
    for parameter in module.parameters():
        parameter.data = to(parameter.data)
    with mode():
        made = call(module, to)
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_the_cpu_and_launches_those_of_cuda(name, mode):
    on_cpu = run(name, lambda tensor: tensor, mode)
    with predict_syncs() as syncs:
        on_gpu = [one.cpu() for one in run(name, lambda tensor: tensor.cuda(), mode)]
        counts: Counter[str] = Counter()
        for call in syncs.operators:
            counts[call.name.split(".")[1]] += launches(call) * call.calls
    for one, other in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    del counts["_to_copy"]
    assert +counts == CASES[name][2]


def test_the_products_of_the_fast_path_count_as_work():
    with predict_syncs() as syncs:
        module = layer(32, 4).cuda()
        tensor = SEQUENCES.cuda()
        syncs.reset()
        with torch.no_grad():
            module(tensor)
        kernels = [kernel for call in syncs.operators for kernel in kernels_of(call) for _ in range(call.calls)]
    products = sum(kernel.flop for kernel in kernels if kernel.kind == "product")
    assert products == 2 * 32 * (32 * 96 + 32 * 32 + 32 * 64 + 64 * 32)
    assert sum(kernel.flop for kernel in kernels if kernel.kind == "attention") == 4 * 2 * 4 * 16 * 16 * 8


def test_padded_sequences_keep_their_mask():
    torch.manual_seed(0)
    module = layer(32, 4)
    with torch.no_grad():
        on_cpu = module(SEQUENCES, src_key_padding_mask=MASK)
        with predict_syncs() as syncs:
            on_gpu = module.cuda()(SEQUENCES.cuda(), src_key_padding_mask=MASK.cuda()).cpu()
            names = {call.name for call in syncs.operators}
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-4, atol=1e-5)
    assert "aten._masked_softmax.default" in names


def test_training_and_gradients_take_the_usual_path():
    with predict_syncs() as syncs:
        module = layer(32, 4).cuda()
        module(SEQUENCES.cuda()).sum().backward()
        assert not any("_addmm_activation" in call.name for call in syncs.operators)


class OfProgram(Tensor):
    pass


def by_default_device(module, tensor):
    with torch.device("cuda"):
        return module(tensor)


@pytest.mark.parametrize(
    "call", [by_default_device, lambda module, tensor: module(tensor.as_subclass(OfProgram))], ids=["mode", "class"]
)
def test_a_mode_or_class_of_the_program_takes_the_usual_path_as_on_cuda(call):
    with predict_syncs() as syncs, torch.no_grad():
        call(layer(32, 4).cuda(), SEQUENCES.cuda())
    assert not any("_addmm_activation" in call.name for call in syncs.operators)
