"""Tensors of GPU and host in one operator: refused where CUDA refuses them. And a model on two GPUs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - PyTorch's own name for it

from steptrace.predict import backend, predict_syncs

Case = Callable[[Tensor, Tensor], object]

REFUSED: dict[str, Case] = {
    "add": lambda a, b: a + b,
    "in_place": lambda a, b: a.mul_(b),
    "out": lambda a, b: torch.add(a, a, out=b),
    "linear": F.linear,
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(b > 0, a, a),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 1.0),
    "cross_entropy": lambda a, b: F.cross_entropy(a, b[:, 0].long()),
    "lists": lambda a, b: torch._foreach_add_([a, b], [b, b]),
    "lists_and_one": lambda a, b: torch._foreach_mul_([a, b], torch.tensor(2.0, device=a.device)),
    "batch_norm": lambda a, b: F.batch_norm(a, b[0], b[1]),
    "put": lambda a, b: a.__setitem__(torch.tensor([0], device=a.device), b[0]),
    "put_to_host": lambda a, b: b.__setitem__(torch.tensor([0]), a[0]),
    "index_to_host": lambda a, b: b[a[:, 0].long()],
    "matmul": torch.mm,
    "embedding": lambda a, b: F.embedding(b.long(), a),
    "gather": lambda a, b: a.gather(0, b.long()),
    "scatter": lambda a, b: a.scatter(0, a.long(), b),
    "conv": lambda a, b: F.conv2d(a[None, None], b[None, None]),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None], a[None], a[None], b > 1),
    "bincount": lambda a, b: torch.bincount(a[0].long(), b[0]),
    "equal": torch.equal,
    "lengths": lambda a, _: nn.utils.rnn.pack_padded_sequence(a[None], a[0, :1].long(), batch_first=True),
    "segments": lambda a, b: torch.segment_reduce(a, "sum", lengths=b[0, :1].long() + 3),
    "memory": lambda a, b: a.set_(b),
    "clip": lambda a, b: torch.clamp(a, min=b),
    "clip_by_value": lambda a, b: torch.clamp(a, min=b[0, 0]),
    "clip_in_place_by_value": lambda a, b: a.clamp_(b[0, 0], b[1, 1]),
    "clip_min_by_value": lambda a, b: a.clamp_min(b[0, 0]),
    "is_in_value": lambda a, b: torch.isin(a, b[0, 0]),
    "search_value": lambda a, b: torch.searchsorted(a[0], b[0, 0]),
    "bucket_of_value": lambda a, b: torch.bucketize(b[0, 0], a[0]),
}
TAKEN: dict[str, Case] = {
    "copy": lambda a, b: a.copy_(b),
    "to": lambda a, b: a.to(b.device) + b,
    "slice": lambda a, b: a.__setitem__(slice(0, 2), b[0:2]),
    "value": lambda a, _: a + torch.tensor(1.0),
    "where_value": lambda a, b: torch.where(a > 0, a, b[0, 0]),
    "put_value": lambda a, b: a.__setitem__(torch.tensor([0], device=a.device), b[0, 0]),
    "put_value_to_host": lambda a, b: b.__setitem__(torch.tensor([0]), a[0, 0]),
    "put_by_mask_to_host": lambda a, b: b.__setitem__(a > 0, a[0, 0]),
    "masked_fill_value": lambda a, b: a.masked_fill(a > 0, b[0, 0]),
    "fill_value": lambda a, b: a.fill_(b[0, 0]),
    "fill_value_to_host": lambda a, b: b.fill_(a[0, 0]),
    "lists_alike": lambda a, b: torch._foreach_add_([a, b], [a, b]),
    "list_and_number": lambda a, b: torch._foreach_mul_([a, b], 2.0),
    "copies": lambda a, b: torch._foreach_copy_([a], [b]),
    "shape": lambda a, b: a.expand_as(b),
    "same_size": lambda a, b: a.is_same_size(b),
    "set_to": lambda a, b: a.is_set_to(b),
    "resize_as": lambda a, b: a.resize_as_(b),
    "index": lambda a, b: a[b[:, 0].long()],
    "mask": lambda a, b: a[b > 0],
    "index_put": lambda a, b: a.__setitem__(b[:, 0].long(), a[0].clone()),
    "lengths": lambda a, b: nn.utils.rnn.pack_padded_sequence(a[None], b[0, :1].long(), batch_first=True),
    "split": lambda a, b: torch.tensor_split(a, b[0, :1].long()),
    "ctc": lambda a, b: F.ctc_loss(
        a[:, None].log_softmax(-1), b[:1, :2].long(), b[0, :1].long() + 3, b[0, 1:2].long() + 1
    ),
    "scatters": lambda a, b: torch.slice_scatter(a, b),
    "probabilities": lambda a, b: a.bernoulli_(b.clamp(0, 1)),
}


def tensors() -> tuple[Tensor, Tensor]:
    """A tensor on the GPU, and one on the host."""
    return torch.eye(4, device="cuda:0") + 0.5, torch.eye(4) + 0.5


def expect(case: Case, *, refused: bool) -> None:
    if not refused:
        case(*tensors())
        return
    with pytest.raises(RuntimeError, match=r"same device|different device|get_device\(\)|should be the same|CPU int64"):
        case(*tensors())


#: On a device that computes nothing the places that a mask selects are any.
OF_VALUES = "put_by_mask_to_host"
CASES = [
    *(pytest.param(case, True, id=f"{name}-refused") for name, case in REFUSED.items()),
    *(
        pytest.param(case, False, id=f"{name}-taken", marks=[pytest.mark.gpu_values] if name == OF_VALUES else [])
        for name, case in TAKEN.items()
    ),
]


@pytest.mark.parametrize("refused", [True, False])
def test_a_prediction_refuses_what_cuda_refuses(*, refused):
    with predict_syncs() as syncs:
        for case in (REFUSED if refused else TAKEN).values():
            expect(case, refused=refused)
    assert not refused or syncs.unknown == []


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "refused"), CASES)
def test_cuda_refuses_it(case, *, refused):
    if not torch.cuda.device_count():
        pytest.skip("needs a CUDA device")
    expect(case, refused=refused)


def test_a_model_in_two_parts_is_followed_across_its_gpus(monkeypatch):
    monkeypatch.setattr(backend.machine, "gpus", 2)
    with predict_syncs() as syncs:
        first, second = nn.Linear(3, 3).to("cuda:0"), nn.Linear(3, 1).to("cuda:1")
        optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
        second(first(torch.ones(2, 3).to("cuda:0", non_blocking=True)).to("cuda:1")).sum().backward()
        optimizer.step()
        assert {p.grad.device.index for p in first.parameters() if p.grad is not None} == {0}
        assert second.weight.type(torch.cuda.HalfTensor).device == torch.device("cuda", 1)
    assert syncs.unknown == []


def test_data_parallel_over_two_gpus_makes_no_sync_of_its_own(monkeypatch):
    monkeypatch.setattr(backend.machine, "gpus", 2)
    with predict_syncs() as syncs:
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).to("cuda:0")
        parallel = nn.DataParallel(model)
        out = parallel(torch.randn(8, 4))
        assert (out.device, out.shape) == (torch.device("cuda", 0), (8, 2))
        syncs.reset()
        parallel(torch.randn(8, 4, device="cuda")).sum().backward()
        assert all(p.grad is not None and p.grad.device == p.device for p in model.parameters())
    assert (syncs.total, syncs.unknown) == (0, [])


def test_parts_of_a_tensor_on_several_gpus_are_those_of_torch(monkeypatch):
    monkeypatch.setattr(backend.machine, "gpus", 2)
    with predict_syncs():
        tensor = torch.arange(6.0, device="cuda")
        parts = torch.cuda.comm.scatter(tensor, [0, 1], chunk_sizes=[2, 4])
        assert [(part.device.index, part.tolist()) for part in parts] == [(0, [0.0, 1.0]), (1, [2.0, 3.0, 4.0, 5.0])]
        assert torch.cuda.comm.gather(parts, destination="cuda:1").tolist() == tensor.tolist()
        assert torch.cuda.comm.gather(parts, destination="cpu").tolist() == tensor.tolist()
        copies = torch.cuda.comm.broadcast(tensor, [0, 1])
        assert [copy.device.index for copy in copies] == [0, 1]
        assert torch.cuda.comm.reduce_add(copies, destination=1).tolist() == (2 * tensor).tolist()
