"""Code that a program compiles: its calls are counted as they are made, and what compiling folds is no sync."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from steptrace.predict import predict_syncs
from steptrace.predict.recorder import Syncs


def syncs_of(function: Callable[..., object], *shape: int, **options: object) -> tuple[int, int]:
    """The syncs of a function of a tensor of this shape: uncompiled, and compiled with these options."""
    totals = []
    for compiled in (False, True):
        with predict_syncs() as syncs:
            run = torch.compile(function, **options) if compiled else function
            x = torch.linspace(-1, 1, torch.Size(shape).numel(), device="cuda").view(shape)
            syncs.reset()
            run(x)
        totals.append(syncs.total)
    return totals[0], totals[1]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(x > 0, x, torch.tensor(-1.0, device=x.device)),
        lambda x: x * torch.tensor(2.0).to(x.device),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device),
        lambda x: x + x.new_tensor(3.0),
        lambda x: x[torch.tensor([0, 2])],
        lambda x: x[[0, 1]],
        lambda x: x + torch.arange(4).to(x.device),
        lambda x: x + (torch.zeros(4) + 1).to(x.device),
        lambda x: x.masked_fill(x > 0, torch.zeros((), device=x.device)),
        lambda x: torch.where(x > 0, x, torch.tensor(1.0)),
    ],
    ids=["where", "to", "list", "new_tensor", "index", "index list", "arange", "chain", "masked_fill", "host scalar"],
)
def test_small_constants_and_what_the_cpu_makes_of_none_are_no_copies_of_compiled_code(function):
    assert syncs_of(function, 4, 4) == (1, 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.cpu(),
        lambda x: x + torch.tensor([float(place) for place in range(64)], device=x.device),
    ],
    ids=["item", "if", "mask", "nonzero", "cpu", "many values"],
)
def test_what_breaks_the_graph_or_is_too_large_for_a_kernel_waits_as_uncompiled(function):
    assert syncs_of(function, 64) == (1, 1)


def test_a_copy_of_what_the_code_is_given_stays():
    table = torch.ones(4)
    assert syncs_of(lambda x: x + table.to(x.device), 4) == (1, 1)


def test_a_backend_that_fuses_nothing_folds_nothing():
    def function(x: Tensor) -> Tensor:
        return x * torch.tensor(2.0, device=x.device)

    assert syncs_of(function, 4, backend="eager") == (1, 1)
    assert syncs_of(function, 4, disable=True) == (1, 1)


def test_the_backward_pass_of_compiled_code_is_compiled():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(_, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(_, gradient: Tensor) -> Tensor:
            return gradient * torch.tensor(2.0, device=gradient.device)

    totals = []
    for compiled in (False, True):
        with predict_syncs() as syncs:
            run = torch.compile(lambda x: Scaled.apply(x)) if compiled else Scaled.apply
            run(torch.ones(4, device="cuda", requires_grad=True)).sum().backward()
        totals.append(syncs.total)
    assert totals == [1, 0]


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
def test_compiled_flex_attention_copies_nothing():
    def followed(attention: Callable[..., Tensor]) -> Syncs:
        with predict_syncs() as syncs:
            mask = create_block_mask(lambda _b, _h, i, j: i >= j, None, None, 128, 128, device="cuda")
            query = torch.ones(1, 1, 128, 16, device="cuda", requires_grad=True)
            run = torch.compile(attention) if attention is flex_attention else attention
            syncs.reset()
            run(query, query, query, block_mask=mask).sum().backward()
        return syncs

    assert followed(lambda *args, **named: flex_attention(*args, **named)).total > 0
    compiled = followed(flex_attention)
    assert compiled.total == 0
    assert sum(place.count for place in compiled.unknown) == 1


def test_each_call_of_a_compiled_module_or_function_is_noted_once():
    with predict_syncs() as syncs:
        inner = torch.compile(nn.Linear(8, 8).cuda())
        outer = torch.compile(lambda x: inner(x).relu())
        x = torch.zeros(4, 8, device="cuda")
        syncs.reset()
        for _ in range(2):
            inner(x)
        outer(x)
    assert sorted(place.count for place in syncs.unknown) == [1, 2]


def test_a_compiled_module_is_one_as_pytorch_makes_it():
    with predict_syncs() as syncs:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda()
        compiled = torch.compile(model)
        assert compiled._orig_mod is model
        assert all(name.startswith("_orig_mod.") for name in compiled.state_dict())
        twin = copy.deepcopy(compiled).eval()
        assert model.training
        x = torch.ones(2, 4, device="cuda")
        torch.testing.assert_close(twin(x).cpu(), nn.functional.relu(model[0](x)).cpu())
        model.compile()
        model(x)
    assert sum(place.count for place in syncs.unknown) == 2
