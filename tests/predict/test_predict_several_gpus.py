"""Tensors of two GPUs in one operator: refused where CUDA refuses them, in a prediction and on two devices."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it

from steptrace.predict import collectives, predict_syncs

Case = Callable[[Tensor, Tensor], object]

REFUSED: dict[str, Case] = {
    "add": lambda a, b: a + b,
    "add_value": lambda a, b: a + b[0, 0],
    "in_place": lambda a, b: a.mul_(b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "linear": F.linear,
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(b > 0, a, a),
    "index": lambda a, b: a[b[:, 0].long()],
    "mask": lambda a, b: a[b > 0],
    "index_put": lambda a, b: a.__setitem__(torch.tensor([0], device=a.device), b[0]),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 1.0),
    "cross_entropy": lambda a, b: F.cross_entropy(a, b[:, 0].long()),
    "lists": lambda a, b: torch._foreach_add_([a, b], [b, b]),
    "lists_and_one": lambda a, b: torch._foreach_mul_([a, b], torch.tensor(2.0, device=a.device)),
    "batch_norm": lambda a, b: F.batch_norm(a, b[0], b[1]),
}
TAKEN: dict[str, Case] = {
    "copy": lambda a, b: a.copy_(b),
    "to": lambda a, b: a.to(b.device) + b,
    "slice": lambda a, b: a.__setitem__(slice(0, 2), b[0:2]),
    "value_of_host": lambda a, _: a + torch.tensor(1.0),
    "index_of_host": lambda a, _: a[torch.tensor([0, 1])],
    "where_value": lambda a, b: torch.where(a > 0, a, b[0, 0]),
    "put_value": lambda a, b: a.__setitem__(torch.tensor([0], device=a.device), b[0, 0]),
    "masked_fill_value": lambda a, b: a.masked_fill(a > 0, b[0, 0]),
    "fill_value": lambda a, b: a.fill_(b[0, 0]),
    "lists_alike": lambda a, b: torch._foreach_add_([a, b], [a, b]),
    "copies": lambda a, b: torch._foreach_copy_([a], [b]),
    "shape": lambda a, b: a.expand_as(b),
    "same_size": lambda a, b: a.is_same_size(b),
    "set_to": lambda a, b: a.is_set_to(b),
    "resize_as": lambda a, b: a.resize_as_(b),
}


def two_gpus() -> tuple[Tensor, Tensor]:
    """A tensor on each."""
    return torch.eye(4, device="cuda:0") + 0.5, torch.eye(4, device="cuda:1") + 0.5


def expect(case: Case, *, refused: bool) -> None:
    if not refused:
        case(*two_gpus())
        return
    with pytest.raises(RuntimeError, match="same device"):
        case(*two_gpus())


@pytest.mark.parametrize("name", [*REFUSED, *TAKEN])
def test_a_prediction_refuses_what_cuda_refuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives.machine, "gpus", 2)
    with predict_syncs():
        expect((REFUSED | TAKEN)[name], refused=name in REFUSED)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", [*REFUSED, *TAKEN])
def test_cuda_refuses_it(name: str) -> None:
    expect((REFUSED | TAKEN)[name], refused=name in REFUSED)


def test_a_model_in_two_parts_is_followed_across_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives.machine, "gpus", 2)
    with predict_syncs() as syncs:
        first, second = nn.Linear(3, 3).to("cuda:0"), nn.Linear(3, 1).to("cuda:1")
        optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
        second(first(torch.ones(2, 3).to("cuda:0", non_blocking=True)).to("cuda:1")).sum().backward()
        optimizer.step()
        assert {p.grad.device.index for p in first.parameters() if p.grad is not None} == {0}
    assert syncs.unknown == []
