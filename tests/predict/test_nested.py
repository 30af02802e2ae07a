"""Nested tensors of the strided layout are followed: the same values, gradients and errors as on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steptrace.predict import predict_syncs

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def nested(device: str, **options: Any) -> Tensor:
    """Two parts, of two rows and of three."""
    parts = [torch.arange(8.0).view(2, 4), torch.arange(12.0).view(3, 4)]
    return torch.nested.nested_tensor(parts, device=device, **options)


def heads(device: str) -> Tensor:
    """Two heads of four numbers, for two sequences."""
    parts = [torch.arange(24.0).view(2, 3, 4) / 24, torch.arange(40.0).view(2, 5, 4) / 40]
    return torch.nested.nested_tensor(parts, device=device, requires_grad=True)


def network(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.LayerNorm(6), nn.Linear(6, 5)).to(device)


def trained(device: str) -> list[Tensor]:
    model = network(device)
    values = nested(device, requires_grad=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(values).to_padded_tensor(0.0).square().sum().backward()
    optimizer.step()
    assert values.grad is not None
    assert values.grad.is_nested
    return [*model.parameters(), *values.grad.unbind()]


def attended(device: str) -> list[Tensor]:
    values = heads(device)
    nn.functional.scaled_dot_product_attention(values, values, values).to_padded_tensor(0.0).square().sum().backward()
    assert values.grad is not None
    return list(values.grad.unbind())


WORK: list[Callable[[str], list[Tensor]]] = [
    trained,
    attended,
    lambda device: list(nested(device).unbind()),
    lambda device: [nested(device).to_padded_tensor(-1.0)],
    lambda device: list((nested(device) * 2 + nested(device)).unbind()),
    lambda device: list(nested(device).softmax(-1).unbind()),
    lambda device: list((nested(device) @ nested(device).transpose(1, 2)).unbind()),
    lambda device: list(nested(device).half().unbind()),
    lambda device: list(nested("cpu").to(device).unbind()),
    lambda device: list(torch.nested.as_nested_tensor([torch.ones(2, device=device)] * 2).unbind()),
    lambda device: list(torch.nested.nested_tensor([[1.0, 2.0], [3.0]], device=device).unbind()),
    lambda device: list(nn.Embedding.from_pretrained(torch.eye(3)).to(device)(
        torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([0])], device=device)
    ).unbind()),
]  # fmt: skip


@pytest.mark.parametrize("compute", WORK)
def test_values_and_gradients_are_those_of_the_cpu(compute):
    expected = compute("cpu")
    with predict_syncs():
        results = compute("cuda")
        assert {tensor.device.type for tensor in results} == {"cuda"}
        on_host = [tensor.detach().cpu() for tensor in results]
    torch.testing.assert_close(on_host, [tensor.detach() for tensor in expected])


def test_a_nested_tensor_says_what_it_is():
    with predict_syncs():
        values = nested("cuda")
        assert (values.is_nested, values.is_cuda, values.device) == (True, True, torch.device("cuda:0"))
        assert (values.dim(), values.size(0), values.size(-1), values.numel()) == (3, 2, 4, 20)
        assert type(values) == torch.Tensor  # noqa: E721 - as a program may ask
        assert values.layout is torch.strided
        for ask in (lambda tensor: tensor.size(1), lambda tensor: tensor.size(), lambda tensor: tensor.shape):
            with pytest.raises(RuntimeError) as expected:
                ask(nested("cpu"))
            with pytest.raises(RuntimeError) as raised:
                ask(values)
            assert str(raised.value) == str(expected.value)
        assert values.cpu().device.type == "cpu"


@pytest.mark.parametrize(
    ("compute", "count"),
    [
        (lambda values: values * 2, 0),
        (lambda values: values.to_padded_tensor(0.0), 1),  # the sizes of the parts are copied to the device
        (lambda values: values.cpu(), 1),
        (lambda values: values.to_padded_tensor(0.0).sum().item(), 2),
        (lambda values: torch.nested.nested_tensor(list(values.unbind())), 0),
        # PyTorch joins the parts where they are, and copies the whole at once.
        (lambda _: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device="cuda"), 1),
        (lambda _: torch.nested.nested_tensor([[1.0, 2.0], [3.0]], device="cuda", dtype=torch.float16), 1),
        (lambda _: torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)], device="cuda"), 1),
        (lambda values: torch.nested.nested_tensor(list(values.unbind()), device="cuda", dtype=torch.float16), 0),
        (lambda values: torch.nested.nested_tensor(list(values.unbind()), device="cpu"), 1),
        (lambda values: torch.nested.as_nested_tensor(list(values.unbind()), device="cpu"), 1),
        (lambda _: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]).cuda(), 1),
    ],
)
def test_what_waits(compute, count):
    with predict_syncs() as syncs:
        values = nested("cuda")
        syncs.reset()
        compute(values)
        assert (syncs.total, syncs.unknown) == (count, [])


@pytest.mark.parametrize("name", ["nested_tensor", "as_nested_tensor"])
@pytest.mark.parametrize(("source", "target"), [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda"), ("cuda", None)])
def test_a_nested_tensor_is_on_the_device_that_it_is_made_for(name, source, target):
    with predict_syncs():
        parts = [torch.ones(2, device=source), torch.zeros(3, device=source)]
        values = getattr(torch.nested, name)(parts, device=target, dtype=torch.float64)
        assert (values.device.type, values.dtype) == (target or source, torch.float64)
        assert [part.tolist() for part in values.unbind()] == [[1, 1], [0, 0, 0]]
        empty = torch.nested.nested_tensor([], device=target)
        assert (empty.is_nested, empty.device.type) == (True, target or "cpu")


def test_a_nested_tensor_of_parts_elsewhere_has_their_gradients():
    with predict_syncs():
        parts = [torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)]
        values = torch.nested.as_nested_tensor(parts, device="cuda")
        (values * 2).to_padded_tensor(0.0).sum().backward()
        assert [part.grad.tolist() for part in parts] == [[2, 2], [2, 2, 2]]
        assert {part.grad.device.type for part in parts} == {"cpu"}


def test_only_lists_are_taken():
    with predict_syncs(), pytest.raises(TypeError, match="Only lists"):
        torch.nested.nested_tensor((torch.ones(2, device="cuda"),))


def test_parts_on_several_devices_are_refused():
    with predict_syncs(), pytest.raises(RuntimeError, match="to be on the same device"):
        torch.nested.nested_tensor([torch.ones(2, device="cuda"), torch.ones(3)])


def test_weights_without_values_leave_nested_tensors_as_they_are():
    with predict_syncs() as syncs:
        model = nn.Linear(512, 512).cuda()
        parts = [torch.randn(200, 512, device="cuda"), torch.randn(300, 512, device="cuda")]
        result = model(torch.nested.as_nested_tensor(parts))
        assert [tuple(part.shape) for part in result.unbind()] == [(200, 512), (300, 512)]
        result.to_padded_tensor(0.0).sum().backward()
        assert model.weight.grad.shape == (512, 512)
        syncs.reset()
        result.to_padded_tensor(0.0).sum().item()
        assert (syncs.total, bool(syncs.assumed)) == (2, True)


def test_attention_of_nested_tensors_is_said_to_be_unknown():
    with predict_syncs() as syncs:
        attended("cuda")
        assert "aten::scaled_dot_product_attention" in {unknown.op for unknown in syncs.unknown}
