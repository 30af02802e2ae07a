"""Sync counts of operations and idioms that the rules were written with in view.

The first part is PyTorch's own list: `test_sync_warning` of its test/test_torch.py says which of these wait, not how
often; the counts follow from the source named in the rule.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everyone knows it by
from torch.utils.data import DataLoader, TensorDataset

from steptrace.predict import predict_syncs

OWN_TEST = "PyTorch's test/test_torch.py, test_sync_warning"
Step = Callable[[], object]


class Case(NamedTuple):
    step: Callable[["Inputs"], object]
    expected: int
    source: str


class Inputs:
    """The inputs of test_sync_warning."""

    def __init__(self) -> None:
        self.x = torch.rand(4, device="cuda")
        self.y = torch.rand((), device="cuda")
        self.ind = torch.randint(4, (3,), device="cuda")
        self.ind_cpu = self.ind.cpu()
        self.repeats = torch.full((1,), 2, device="cuda")
        self.mask = torch.tensor([True, False, True, True], device="cuda")
        self.mask_cpu = self.mask.cpu()
        self.pinned = torch.rand(4, pin_memory=True)
        self.pageable = torch.rand(4)


def put(x: torch.Tensor, index: object, value: object) -> None:
    x[index] = value


def truth(x: torch.Tensor) -> torch.Tensor:
    return x if x else 2 * x


CASES = {
    # No sync, says PyTorch's own test
    "put mask number": Case(lambda i: put(i.x, i.mask, 1.0), 0, OWN_TEST),
    "put cpu mask device scalar": Case(lambda i: put(i.x, i.mask_cpu, i.y), 0, OWN_TEST),
    "put indices device scalar": Case(lambda i: put(i.x, i.ind, i.y), 0, OWN_TEST),
    "get cpu mask": Case(lambda i: i.x[i.mask_cpu], 0, OWN_TEST),
    "get indices": Case(lambda i: i.x[i.ind], 0, OWN_TEST),
    "one_hot of known size": Case(lambda i: F.one_hot(i.ind, num_classes=4), 0, OWN_TEST),
    "randperm": Case(lambda _: torch.randperm(20000, device="cuda"), 0, OWN_TEST),
    "repeat_interleave number": Case(lambda i: torch.repeat_interleave(i.x, 2, output_size=8), 0, OWN_TEST),
    "repeat_interleave sized": Case(lambda i: torch.repeat_interleave(i.x, i.repeats, output_size=8), 0, OWN_TEST),
    "any": Case(lambda i: torch.any(i.y), 0, OWN_TEST),
    # A sync, says PyTorch's own test
    "put mask device scalar": Case(lambda i: put(i.x, i.mask, i.y), 1, OWN_TEST),
    "put cpu indices": Case(lambda i: put(i.x, i.ind_cpu, i.y), 1, OWN_TEST),
    "get mask": Case(lambda i: i.x[i.mask], 1, OWN_TEST),
    "get cpu indices": Case(lambda i: i.x[i.ind_cpu], 1, OWN_TEST),
    "nonzero": Case(lambda i: i.x.nonzero(), 1, OWN_TEST),
    "truth": Case(lambda i: truth(i.y), 1, OWN_TEST),
    "one_hot": Case(lambda i: F.one_hot(i.ind), 1, OWN_TEST),
    "repeat_interleave": Case(lambda i: torch.repeat_interleave(i.x, i.repeats), 2, OWN_TEST),
    # Reading values
    "item": Case(lambda i: i.y.item(), 1, "native/cuda/CUDAScalar.cu"),
    "float": Case(lambda i: float(i.y), 1, "native/cuda/CUDAScalar.cu"),
    "int": Case(lambda i: int(i.y), 1, "native/cuda/CUDAScalar.cu"),
    "tolist": Case(lambda i: i.x.tolist(), 1, "csrc/utils/tensor_list.cpp: to(cpu)"),
    "numpy": Case(lambda i: i.x.cpu().numpy(), 1, "native/cuda/Copy.cu"),
    "numpy forced": Case(lambda i: i.x.numpy(force=True), 1, "native/cuda/Copy.cu"),
    "masked_select": Case(lambda i: torch.masked_select(i.x, i.mask), 1, "native/cuda/IndexKernel.cpp"),
    "unique": Case(lambda i: torch.unique(i.ind), 1, "native/cuda/UniqueCub.cu"),
    "where without values": Case(lambda i: torch.where(i.mask), 1, "native/TensorCompare.cpp: nonzero_numpy"),
    "two masks": Case(lambda i: (i.x[i.mask], i.x[~i.mask]), 2, "native/IndexingUtils.h"),
    "shape and dtype": Case(lambda i: (i.x.shape, i.x.numel(), i.x.dtype, len(i.x)), 0, "metadata"),
    # Building
    "tensor of number": Case(lambda _: torch.tensor(1.0, device="cuda"), 1, "csrc/utils/tensor_new.cpp"),
    "tensor of list": Case(lambda _: torch.tensor([1, 2], device="cuda"), 1, "csrc/utils/tensor_new.cpp"),
    "zeros": Case(lambda _: torch.zeros(3, device="cuda"), 0, "native/Fill.cpp"),
    "zeros_like": Case(lambda i: torch.zeros_like(i.x), 0, "native/Fill.cpp"),
    "empty_like host": Case(lambda i: torch.empty_like(i.pageable, device="cuda"), 0, "native/TensorFactories"),
    "put indices number": Case(lambda i: put(i.x, i.ind, 0.0), 1, "csrc/autograd/python_variable_indexing.cpp"),
    "put host, device scalar": Case(lambda i: put(i.pageable, i.ind_cpu, i.y), 1, "native/TensorAdvancedIndexing.cpp"),
    "put host, device indices": Case(lambda i: put(i.pageable, i.ind, 0.0), 1, "native/TensorAdvancedIndexing.cpp"),
    "fill host, device scalar": Case(lambda i: i.pageable.fill_(i.y), 1, "native/Fill.cpp: value.item()"),
    "integer index": Case(lambda i: i.x[2], 0, "native/TensorShape.cpp select"),
    # Copies
    "to device": Case(lambda i: i.pageable.cuda(), 1, "native/cuda/Copy.cu"),
    "to device, pinned": Case(lambda i: i.pinned.cuda(), 1, "native/cuda/Copy.cu"),
    "to device, pinned, non-blocking": Case(lambda i: i.pinned.cuda(non_blocking=True), 0, "native/cuda/Copy.cu"),
    "to device, pageable, non-blocking": Case(lambda i: i.pageable.cuda(non_blocking=True), 0, "a staged copy"),
    "to cpu": Case(lambda i: i.x.cpu(), 1, "native/cuda/Copy.cu"),
    "to same device": Case(lambda i: i.x.to("cuda"), 0, "native/TensorConversions.cpp: nothing to do"),
    "to other dtype": Case(lambda i: i.x.half(), 0, "native/cuda/Copy.cu: a kernel"),
    "copy_ between tensors of the device": Case(lambda i: i.x.copy_(i.x.clone()), 0, "native/cuda/Copy.cu: a kernel"),
    "copy_ from cpu": Case(lambda i: i.x.copy_(i.pageable), 1, "native/cuda/Copy.cu"),
    "empty copy": Case(lambda i: i.x[:0].cpu(), 0, "native/Copy.cpp returns early"),
    "view of pinned": Case(lambda i: i.pinned[1:].to("cuda", non_blocking=True), 0, "native/cuda/Copy.cu"),
    # Waiting
    "synchronize": Case(lambda _: torch.cuda.synchronize(), 1, "cudaDeviceSynchronize"),
    "event": Case(lambda _: torch.cuda.Event().synchronize(), 1, "cudaEventSynchronize"),
    "stream": Case(lambda _: torch.cuda.current_stream().synchronize(), 1, "cudaStreamSynchronize"),
    "event wait": Case(lambda _: torch.cuda.Event().wait(), 0, "cudaStreamWaitEvent"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operation_makes_the_expected_number_of_syncs(name: str) -> None:
    with predict_syncs() as syncs:
        inputs = Inputs()
        before = syncs.total
        CASES[name].step(inputs)
        count = syncs.total - before
    assert count == CASES[name].expected, CASES[name].source
    assert not syncs.unknown


@pytest.mark.parametrize(
    ("pin_memory", "non_blocking", "expected"), [(True, True, 0), (True, False, 2), (False, False, 2), (False, True, 0)]
)
@pytest.mark.parametrize("num_workers", [0, 1])
def test_loader_batches(num_workers: int, pin_memory: bool, non_blocking: bool, expected: int) -> None:  # noqa: FBT001
    data = TensorDataset(torch.rand(2, 3), torch.arange(2))
    with predict_syncs() as syncs:
        (batch,) = DataLoader(data, batch_size=2, pin_memory=pin_memory, num_workers=num_workers)
        assert [part.is_pinned() for part in batch] == [pin_memory, pin_memory]
        for part in batch:
            part.to("cuda", non_blocking=non_blocking)
    assert syncs.total == expected
    assert {(site.kind, site.pinned) for site in syncs.sites} <= {("h2d_copy", pin_memory)}


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("form", ["foreach", "fused", "neither"])
def test_optimizers_make_no_syncs(make: Callable[..., torch.optim.Optimizer], form: str) -> None:
    options = {"foreach": form == "foreach", "fused": form == "fused"}
    with predict_syncs() as syncs:
        model = nn.Linear(4, 2).cuda()
        optimizer = make(model.parameters(), lr=0.1, **options)
        model(torch.rand(3, 4, device="cuda")).sum().backward()
        before = syncs.total
        optimizer.step()
        optimizer.step()
        assert syncs.total == before


def test_the_default_form_of_an_optimizer_is_foreach_as_on_cuda() -> None:
    with predict_syncs() as syncs:
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(20))).cuda()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        syncs.reset()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert syncs.operator_total == 1  # _foreach_add_ over 40 parameters


@pytest.mark.parametrize(("grad_mode", "unknown"), [(torch.no_grad, 1), (torch.enable_grad, 0)])
def test_an_encoder_that_is_evaluated_reads_its_padding_mask(grad_mode: Callable[[], Any], unknown: int) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    with predict_syncs() as syncs:
        encoder = torch.nn.TransformerEncoder(layer, 1).cuda().eval()
        batch, padding = torch.rand(2, 3, 8, device="cuda"), torch.zeros(2, 3, dtype=torch.bool, device="cuda")
        syncs.reset()
        with grad_mode():
            encoder(batch, src_key_padding_mask=padding)
    assert [(site.kind, site.op) for site in syncs.sites] == [
        ("d2h_copy", "aten::_nested_tensor_from_mask_left_aligned")
    ]
    assert len(syncs.unknown) == unknown
