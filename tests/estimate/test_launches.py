"""Launches of a program's operators as they are followed: what depends on arguments, and on the host's tensors."""

import copy
import io
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.torch_version import TorchVersion

from documents import fill
from steptrace.documents.estimate import OperatorCalls
from steptrace.documents.prediction import FollowedWork, PredictedStep
from steptrace.estimate.gpus import gpu_named
from steptrace.estimate.launches import launches
from steptrace.estimate.step import estimate_prediction
from steptrace.estimate.work import moved_bytes
from steptrace.predict import predict_syncs


def followed(code: str) -> tuple[OperatorCalls, ...]:
    """The operators of an expression of these names."""
    with predict_syncs() as syncs:
        names: dict[str, Any] = {
            "torch": torch, "copy": copy, "io": io, "x": torch.arange(8.0).to("cuda"), "m": torch.ones(4, 4).to("cuda"),
            "i": torch.arange(8).to("cuda"), "b": torch.tensor([True, False] * 4).to("cuda"), "host": torch.ones(8),
            "square": torch.ones(4, 4), "y": torch.ones(8).to("cuda"), "lin": nn.Linear(4, 4).to("cuda"),
            "norm": nn.BatchNorm2d(3).to("cuda"), "images": torch.ones(2, 3, 4, 4, requires_grad=True).to("cuda"),
            "file": io.BytesIO(),
        }  # fmt: skip
        syncs.reset()
        exec(code, names)
        return syncs.operators


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x.topk(3)", 2),
        ("torch.allclose(x[:0], x[:0])", 2),
        ("m.addbmm_(torch.ones(3, 4, 4, device='cuda'), torch.ones(3, 4, 4, device='cuda'))", 5),  # with the ones
        ("m.to_sparse_bsr((2, 2))", 16),
        ("m.to_sparse_bsc((2, 2))", 19),
        ("torch.linalg.eigvals(m)", 11),
        ("torch.linalg.svd(m[:0])", 2),
        ("torch.linalg.det(m[:0, :0])", 7),
        ("torch.linalg.solve_ex(m[:0, :0], m[:0])", 1),
        ("torch.linalg.qr(m[:0])", 2),
        ("torch.linalg.lu_factor_ex(m)", 2),
        ("torch.linalg.lu_factor_ex(m[:3])", 8),
        ("torch.linalg.lu_factor_ex(m[:, :3])", 6),
        ("torch.linalg.lu(m)", 10),
        ("torch.linalg.lu(m[:3])", 16),
        ("torch.multinomial(x, 2, replacement=True)", 6),
        ("torch.unique(m, dim=0)", 5),
        ("torch.unique(m, dim=1, return_inverse=True)", 11),
        ("torch.unique_consecutive(x)", 3),
        ("torch.unique_consecutive(x, return_inverse=True)", 6),
        ("torch.unique_consecutive(x, dim=0, return_counts=True)", 8),
        ("torch.segment_reduce(x, 'sum', offsets=torch.tensor([0, 8]).to('cuda'))", 3),
        ("torch.segment_reduce(x, 'sum', lengths=i[7:], unsafe=True)", 5),
        ("torch.segment_reduce(x[:7], 'sum', lengths=i[7:])", 11),
        ("y.index_put_((i,), x)", 1),
        ("y.index_put((i,), x)", 2),
        ("y[i] = 0.0", 2),
        ("y[i.cpu()] = x", 3),  # with the copy of i
        ("m[i[:4], i[:4]] = 0.0", 2),
        ("m[torch.arange(4), i[:4]]", 2),
        ("m[torch.arange(4), torch.arange(4)]", 3),
        ("m[torch.arange(4), i[:4]] = x[:4]", 2),
        ("m[i[:4].int()]", 3),  # with what makes the index
        ("z = i.clone(); z[i] = 0", 3),
        ("z = i.int(); z[i] = i.int()", 3),
        ("y.index_put_((torch.arange(8),), x, accumulate=True)", 5),
        ("m.index_put_((torch.arange(4), i[:4]), x[:4], accumulate=True)", 13),
        ("x[:0].cpu()", 0),
        ("i.reshape(2, 4).bool().nonzero()", 6),
        ("b.nonzero()", 4),
        ("b.repeat(600).nonzero()", 6),
        ("x[b]", 5),
        ("m[m > 0]", 7),
        ("m.masked_select(m > 0)", 7),
        ("torch.bincount(i)", 5),
        ("torch.isin(i, 3)", 1),
        ("torch.isin(i, i)", 4),
        ("torch.isin(i, i.repeat(10))", 26),
        ("torch.isin(i, i.repeat(10), assume_unique=True)", 12),
        ("torch.isin(i.repeat(500), i.repeat(10), assume_unique=True)", 13),
        ("torch.isin(i.repeat(625), i.repeat(10), assume_unique=True)", 30),
        ("x.repeat_interleave(i)", 8),
        ("x.repeat_interleave(i, output_size=28)", 4),
        ("y.index_put_((i,), x, accumulate=True)", 11),
        ("y.index_put_((i,), x[0], accumulate=True)", 12),
        ("m.index_put_((i[:4], i[:4]), x[:4], accumulate=True)", 19),
        ("x.requires_grad_()[i].backward(x)", 8),
        ("m.to_sparse().to_dense()", 10),
        ("m.to_sparse_csr().to_dense()", 32),
        ("m.to_sparse() @ m", 16),
        ("m.to_sparse().abs()", 10),
        ("torch.sparse_coo_tensor(i.view(2, 4) % 4, y[:4], (4, 4), check_invariants=False).abs()", 18),
        ("torch.stack([m.to_sparse(), m.to_sparse()])", 23),
        ("torch.cat([m.to_sparse(), m.to_sparse(), m.to_sparse()])", 28),
        ("m.to_sparse().index_select(0, i[:2])", 23),
        ("x.requires_grad_().gather(0, i).sum().backward()", 5),
        ("x.requires_grad_().index_select(0, i).sum().backward()", 5),
        ("x.requires_grad_().max(0)[0].backward()", 4),
        ("x.scatter(0, i, x)", 2),
        ("torch.nn.functional.soft_margin_loss(x.requires_grad_(), y).backward()", 15),
        ("torch.fft.rfft(x)", 1),
        ("torch.fft.fft(x, norm='ortho')", 3),
        ("torch.fft.irfft2(torch.fft.rfft2(m))", 4),
        ("torch.fft.ifft(torch.fft.fft(x))", 4),
        ("host.half().to('cuda', torch.float32)", 1),
        ("host.half().to('cuda', torch.float32, non_blocking=True)", 2),
        ("square.t().to('cuda')", 1),
        ("square.t().to('cuda', torch.float16)", 2),
        ("m.t().copy_(square)", 2),
        ("m.copy_(host[::2])", 1),
        ("x.to('cpu', torch.float64)", 1),
        ("x.to('cpu', torch.float64, non_blocking=True)", 2),
        ("m.t().to('cpu', torch.float64, non_blocking=True)", 3),
        ("x[::2].to('cpu', torch.float64, non_blocking=True)", 2),
        ("square.copy_(m.t())", 2),
        ("square.copy_(x[:4])", 2),
        ("x.copy_(x.view(8))", 0),
        ("m.copy_(x[:4])", 1),
        ("lin.load_state_dict(lin.state_dict())", 0),
        ("norm(images).sum().backward()", 7),
        ("norm.eval()(images).sum().backward()", 5),
        ("copy.deepcopy(x)", 1),
        ("torch.save([x, m, x], file)", 2),
        ("torch.save([x, m], file); file.seek(0); torch.load(file)", 4),
    ],
)
def test_launches_are_those_of_the_stand_in_device(code, expected):
    assert sum(launches(call) * call.calls for call in followed(code)) == expected


@pytest.mark.parametrize(
    ("code", "launched"),
    [
        ("x.topk(3, sorted=False)", 1),
        ("torch.histc(x, 4)", 5),
        ("torch.histc(x, 4, 0, 1)", 2),
        ("torch.multinomial(x, 1, replacement=True)", 12),
        ("torch.multinomial(m, 2, replacement=True)", 5),
        ("y.index_put_((b,), torch.tensor(1.0), accumulate=True)", 17),
        ("torch.bincount(i.to(torch.uint8))", 5),
        ("i.cumsum(0)", 3),
        ("m.cumsum(0)", 1),
        ("torch.nn.functional.pad(x, (-1, -1))", 1),
        ("m.to_sparse().clone()", 10),
    ],
)
def test_what_layouts_and_arguments_change_by_two_at_most_is_left_out(code, launched):
    """The launches are those of the stand-in device."""
    assert abs(sum(launches(call) * call.calls for call in followed(code)) - launched) <= 2


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("torch.ones(8, dtype=torch.uint8).to('cuda', torch.float32, non_blocking=True)", 8),
        ("torch.ones(8, dtype=torch.uint8).to('cuda', torch.float32)", 32),
        ("x.copy_(host)", 32),
        ("host.copy_(x)", 32),
        ("x.to('cpu', torch.float64, non_blocking=True)", 64),
        ("x.to('cpu', torch.float64)", 32),
    ],
)
def test_what_goes_over_the_bus_is_cast_by_the_host_where_it_waits(code, expected):
    (copied,) = followed(code)
    assert moved_bytes(copied) == expected


@pytest.mark.parametrize(
    ("version", "cuda", "expected"),
    [("2.11.0+cu130", "13.0", 8), ("2.12.0+cu126", "12.6", 8), ("2.12.0+cu130", "13.0", 2), ("2.13.0+cpu", None, 2)],
)
def test_lists_are_launched_in_the_parts_of_the_pytorch_that_was_followed(version, cuda, expected, monkeypatch):
    """Also where another one reads the prediction."""
    with monkeypatch.context() as followed_with:
        followed_with.setattr(torch, "__version__", TorchVersion(version))
        followed_with.setattr(torch.version, "cuda", cuda)
        calls = followed("torch._foreach_add_([x] * 771, 1)")
    work = FollowedWork(steps=1, operator_calls=tuple(calls), queue=())
    saved = msgspec.json.encode(fill(PredictedStep, {"devices": 1, "followed": msgspec.to_builtins(work)}))
    read = estimate_prediction(msgspec.json.decode(saved, type=PredictedStep), gpu_named("H100"))
    assert read.launches == expected


@pytest.mark.parametrize(
    ("optimizer", "read", "written", "of_one_launch"),
    [
        ("SGD([p], 0.1, fused=True)", 2, 1, 448),
        ("SGD([p], 0.1, momentum=0.9, fused=True)", 3, 2, 336),
        ("Adam([p], 0.1, fused=True)", 4, 3, 252),
        ("AdamW([p], 0.1, amsgrad=True, fused=True)", 5, 4, 210),
    ],
)
def test_a_fused_optimizer_reads_and_writes_all_of_its_lists(optimizer, read, written, of_one_launch):
    """An optimizer may keep a further list: momenta, or the largest averages."""
    made = "p = torch.nn.Parameter(torch.ones(1024, device='cuda')); p.grad = p.detach()"
    (call,) = [call for call in followed(f"{made}; torch.optim.{optimizer}.step()") if "_fused_" in call.name]
    assert moved_bytes(call) == pytest.approx(4096 * (read + written), rel=0.01)
    for count, expected in ((of_one_launch, 1), (of_one_launch + 1, 2)):
        inputs = tuple(tensor for tensor in call.inputs for _ in range(count))
        assert launches(replace(call, inputs=inputs, torch=(2, 13), cuda=13)) == expected
