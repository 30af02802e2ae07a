"""What CUDA accepts beside plain steps: transforms of functions, checkpoints, FSDP, attention, old and rare forms."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everyone knows it by
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from steptrace.predict import predict_syncs


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


VALUES = torch.linspace(-1, 1, 8).view(2, 4)


def _per_sample(model: nn.Module, values: Tensor) -> Any:
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: Any, sample: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (sample,)).square().sum()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, values)["0.weight"]


def _checkpointed(model: nn.Module, values: Tensor) -> Tensor:
    checkpoint(model, values, use_reentrant=False).square().sum().backward()
    gradient = model[0].weight.grad
    model.zero_grad()
    return gradient


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize(
    "form",
    [
        _per_sample,
        _checkpointed,
        lambda model, values: torch.func.jacrev(model)(values),
        lambda model, values: torch.func.jacfwd(model)(values),
        lambda model, values: torch.func.jvp(model, (values,), (values,))[1],
        lambda model, values: torch.func.jvp(lambda one: 1 - (model(one) * 2 + 1) / 3, (values,), (values,))[1],
        lambda model, values: torch.func.hessian(lambda one: model(one).square().sum())(values[0]),
        lambda model, values: torch.autograd.functional.jacobian(model, values),
    ],
)
def test_a_form_has_the_values_of_a_cpu_and_does_not_wait(form):
    model = _model()
    plain = form(model, VALUES)
    with predict_syncs() as syncs:
        model.cuda()
        values = VALUES.cuda()
        syncs.reset()
        followed = form(model, values)
        assert syncs.total == 0
        followed = followed.cpu()
    torch.testing.assert_close(followed, plain)


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
def test_flex_attention_is_followed_as_it_runs_uncompiled():
    def gradient(device: str) -> Tensor:
        mask = create_block_mask(lambda _batch, _head, i, j: i >= j, 1, 1, 128, 128, device=device)
        query = torch.linspace(-1, 1, 128 * 16).view(1, 1, 128, 16).to(device).requires_grad_()
        flex_attention(query, query, query, block_mask=mask).square().sum().backward()
        return query.grad.cpu()

    with predict_syncs():
        followed = gradient("cuda")
    query = torch.linspace(-1, 1, 128 * 16).view(1, 1, 128, 16).requires_grad_()
    F.scaled_dot_product_attention(query, query, query, is_causal=True).square().sum().backward()
    torch.testing.assert_close(followed, query.grad)


def test_a_weight_that_a_graph_holds_can_be_moved():
    with pytest.warns(FutureWarning, match="weight_norm"):
        layer = torch.nn.utils.weight_norm(nn.Linear(4, 3))
    with predict_syncs():
        layer.cuda()
        layer(VALUES.cuda()).sum().backward()
        assert [weight.device.type for weight in layer.parameters()] == ["cuda"] * 3
        assert layer.weight_g.grad is not None


def test_a_number_names_a_gpu():
    with predict_syncs():
        assert torch.device(0) == torch.device("cuda", 0)
        assert torch.ones(2, device=torch.device(0)).device == torch.device("cuda:0")
        assert torch.Generator(0).device == torch.device("cuda:0")
        assert torch.Generator("cuda").device == torch.device("cuda:0")
        assert torch.Generator().device == torch.device("cpu")


@pytest.mark.filterwarnings("ignore:FSDP is switching to use `NO_SHARD`:UserWarning")
def test_fsdp_takes_the_number_of_a_gpu():
    with predict_syncs() as syncs:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("nccl", store=store, rank=0, world_size=1)
        try:
            model = torch.distributed.fsdp.FullyShardedDataParallel(_model(), device_id=0)
            model(VALUES.cuda()).sum().backward()
            assert next(model.parameters()).device == torch.device("cuda:0")
        finally:
            torch.distributed.destroy_process_group()
    assert syncs.unknown == []


@pytest.mark.parametrize(
    "function",
    [
        lambda t: t.gather(1, torch.tensor([[0], [1], [0], [2]], device=t.device)),
        lambda t: t.index_select(0, torch.tensor([0, 0, 1], device=t.device)),
        lambda t: t.masked_select(torch.eye(4, device=t.device) > 0),
        lambda t: t.max(1)[0],
        lambda t: t.sort(1)[0][:, :2],
        lambda t: t.cummax(0)[0],
        lambda t: torch.atan2(t, t + 1),
        lambda t: t.trace(),
    ],
)
def test_gradients_that_pytorch_writes_into_zeros_in_place_are_right_and_have_gradients(function):
    values = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    found = []
    for device in ("cpu", "cuda"):
        with predict_syncs():
            leaf = values.to(device).requires_grad_()
            (first,) = torch.autograd.grad(function(leaf).square().sum(), leaf, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), leaf)
            found.append((first.detach().cpu(), second.cpu()))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("ignored", [-100, 1])
def test_smoothed_labels_with_weights_have_the_loss_of_the_cpu_and_a_sync(ignored):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(8, 3, generator=generator)
    labels = torch.arange(8) % 3
    weight = torch.tensor([0.2, 0.5, 0.3])
    options = {"label_smoothing": 0.1, "ignore_index": ignored}
    with predict_syncs() as syncs:
        there = [tensor.to("cuda", non_blocking=True) for tensor in (scores, labels, weight)]
        loss = F.cross_entropy(there[0], there[1], weight=there[2], **options)
        assert [site.op for site in syncs.sites] == ["aten::masked_select"]
        torch.testing.assert_close(loss.cpu(), F.cross_entropy(scores, labels, weight=weight, **options))


def test_one_hot_of_other_whole_numbers_is_refused_as_by_cuda():
    with predict_syncs(), pytest.raises(RuntimeError, match="type LongTensor"):
        F.one_hot(torch.tensor([0, 1], dtype=torch.int32, device="cuda"))
