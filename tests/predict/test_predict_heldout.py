"""Sync counts written down before the rules were run on them.

Every expectation was taken from PyTorch's documentation, its source or its own tests, and this table was committed
before `steptrace.predict` existed, so the score of its first run says something about operations nobody tuned the
rules for. That score was 62 of 69. Of the other seven, one expectation was wrong (see `CORRECTED`), one operator
lacked its row (index_fill with a tensor), and five could not run: autocast's casts of the virtual device (2) and a
method of streams that Adam asks for (3) were missing.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name everyone knows it by

from steptrace.predict import predict_syncs

Step = Callable[[], object]


class Case(NamedTuple):
    prepare: Callable[[], Step]
    expected: int
    source: str


CASES: dict[str, Case] = {}
#: Expectations that were wrong, not the rules: name -> (what was written at first, why it changed).
CORRECTED: dict[str, tuple[int, str]] = {
    "normal_of_tensors": (1, "the check runs when the result is made and again when it is filled"),
    "print_float_scalar": (7, "sci_mode stays a tensor after the `or` chain, and is asked for its truth twice more"),
}


def case(expected: int, source: str) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    def keep(prepare: Callable[[], Step]) -> Callable[[], Step]:
        CASES[prepare.__name__] = Case(prepare, expected, source)
        return prepare

    return keep


def vector(n: int = 8) -> torch.Tensor:
    return torch.linspace(0.25, 2.0, n, device="cuda")


def indices() -> torch.Tensor:
    return torch.arange(8, device="cuda") % 3


def matrix() -> torch.Tensor:
    return torch.eye(4, device="cuda") * 2 + 0.1


# Random sampling


@case(0, "native/Distributions.cpp multinomial_out: checks by _assert_async")
def multinomial_one_sample() -> Step:
    w = vector()
    return lambda: torch.multinomial(w, 1)


@case(0, "native/cuda/MultinomialKernel.cu: kernels only")
def multinomial_with_replacement() -> Step:
    w = vector()
    return lambda: torch.multinomial(w, 3, replacement=True)


@case(2, "native/DistributionTemplates.h CHECK_NORMAL_TENSOR_STD: std.min().ge(0).item(), on making and on filling")
def normal_of_tensors() -> Step:
    x = vector()
    return lambda: torch.normal(x, x)


@case(1, "torch/distributions/distribution.py: one bool() for the validation of probs; sample() draws by multinomial")
def categorical_sample_validated() -> Step:
    w = vector() / vector().sum()
    return lambda: torch.distributions.Categorical(probs=w, validate_args=True).sample()


@case(0, "torch/distributions/distribution.py: no validation, no bool()")
def categorical_sample_unvalidated() -> Step:
    w = vector() / vector().sum()
    return lambda: torch.distributions.Categorical(probs=w, validate_args=False).sample()


# Counting and searching


@case(2, "native/cuda/SummaryOps.cu _bincount_cuda_template: self.min().cpu(), self.max().item()")
def bincount_int64() -> Step:
    i = indices()
    return lambda: torch.bincount(i)


@case(1, "native/cuda/SummaryOps.cu: the minimum is not read for uint8")
def bincount_uint8() -> Step:
    i = indices().to(torch.uint8)
    return lambda: torch.bincount(i, minlength=5)


@case(2, "native/cuda/SummaryOps.cu _histc_cuda_template: min and max are read if the bounds are equal")
def histc_without_bounds() -> Step:
    x = vector()
    return lambda: torch.histc(x, bins=4)


@case(0, "native/cuda/SummaryOps.cu: given bounds are used as they are")
def histc_with_bounds() -> Step:
    x = vector()
    return lambda: torch.histc(x, bins=4, min=0.0, max=2.0)


@case(2, "native/TensorCompare.cpp isin_sorting: _unique of both arguments")
def isin_of_many() -> Step:
    a, b = torch.arange(1000, device="cuda"), torch.arange(500, device="cuda")
    return lambda: torch.isin(a, b)


@case(0, "native/TensorCompare.cpp isin: few test elements go to the elementwise kernel")
def isin_of_few() -> Step:
    a, b = torch.arange(1000, device="cuda"), torch.arange(5, device="cuda")
    return lambda: torch.isin(a, b)


@case(2, "native/BucketizationUtils.h: vmin and vmax of the sorter are read")
def searchsorted_with_sorter() -> Step:
    x, order = vector(), torch.arange(8, device="cuda")
    return lambda: torch.searchsorted(x, x, sorter=order)


@case(0, "native/BucketizationUtils.h: nothing to check without a sorter")
def searchsorted_plain() -> Step:
    x = vector()
    return lambda: torch.searchsorted(x, x)


@case(1, "native/cuda/UniqueCub.cu compute_unique: num_out.item()")
def unique_with_inverse_and_counts() -> Step:
    i = indices()
    return lambda: torch.unique(i, return_inverse=True, return_counts=True)


@case(1, "native/cuda/UniqueCub.cu, consecutive")
def unique_consecutive() -> Step:
    i = indices()
    return lambda: torch.unique_consecutive(i)


@case(1, "native/cuda/Nonzero.cu memcpy_and_sync, reached by argwhere")
def argwhere() -> Step:
    x = vector()
    return lambda: torch.argwhere(x > 1)


@case(0, "torch.nonzero_static documentation: the size is given, so nothing is read back")
def nonzero_static() -> Step:
    x = vector()
    return lambda: torch.nonzero_static(x > 1, size=4)


@case(2, "native/Itertools.cpp combinations: masked_select of each of r grids")
def combinations() -> Step:
    x = vector(4)
    return lambda: torch.combinations(x)


@case(0, "native/Sorting.cpp quantile: the range of q is checked on the CPU only, 'to avoid synchronizing'")
def quantile() -> Step:
    x = vector()
    return lambda: torch.quantile(x, 0.5)


@case(0, "native/cuda/Sort.cpp, TensorTopK.cu, ScanKernels.cpp: kernels only")
def sort_topk_cumsum() -> Step:
    x = vector()
    return lambda: (x.sort(), x.topk(2), x.cumsum(0))


# Linear algebra


@case(1, "native/BatchLinearAlgebra.cpp _linalg_check_errors: infos.any().item()")
def cholesky() -> Step:
    m = matrix()
    return lambda: torch.linalg.cholesky(m)


@case(0, "torch.linalg.cholesky_ex documentation: check_errors=False avoids the synchronization")
def cholesky_ex() -> Step:
    m = matrix()
    return lambda: torch.linalg.cholesky_ex(m)


@case(1, "torch.linalg.inv documentation: synchronizes that device with the CPU")
def inverse() -> Step:
    m = matrix()
    return lambda: torch.linalg.inv(m)


@case(1, "torch.linalg.solve documentation: synchronizes that device with the CPU")
def solve() -> Step:
    m, b = matrix(), vector(4)
    return lambda: torch.linalg.solve(m, b)


@case(0, "native/BatchLinearAlgebra.cpp _linalg_slogdet: lu_factor_ex without check")
def slogdet() -> Step:
    m = matrix()
    return lambda: torch.linalg.slogdet(m)


# Filling, selecting, comparing


@case(1, "native/cuda/Indexing.cu masked_fill__cuda: value.item()")
def masked_fill_with_device_scalar() -> Step:
    x, v = vector(), torch.zeros((), device="cuda")
    return lambda: x.masked_fill(x > 1, v)


@case(0, "native/cuda/Indexing.cu masked_fill__cuda with a Scalar")
def masked_fill_with_number() -> Step:
    x = vector()
    return lambda: x.masked_fill(x > 1, 0.0)


@case(1, "native/TensorCompare.cpp where_self_out: a CPU scalar is moved by a blocking .to(device)")
def where_with_cpu_scalar() -> Step:
    x, zero = vector(), torch.tensor(0.0)
    return lambda: torch.where(x > 1, x, zero)


@case(0, "native/TensorCompare.cpp where with a Scalar: scalar_tensor on the device, a fill")
def where_with_number() -> Step:
    x = vector()
    return lambda: torch.where(x > 1, x, 0.0)


@case(0, "native/TensorIterator.cpp: a CPU scalar is passed to the kernel by value")
def add_cpu_scalar_tensor() -> Step:
    x, two = vector(), torch.tensor(2.0)
    return lambda: x + two


@case(1, "native/TensorAdvancedIndexing.cpp index_fill_ with a tensor: source.item()")
def index_fill_with_device_scalar() -> Step:
    x, i, v = vector(), indices(), torch.zeros((), device="cuda")
    return lambda: x.index_fill(0, i, v)


@case(1, "native/cuda/Equal.cpp: at::cuda::eq(...).all().item()")
def equal() -> Step:
    x = vector()
    y = x + 1
    return lambda: torch.equal(x, y)


@case(1, "native/TensorCompare.cpp allclose: isclose(...).all().item()")
def allclose() -> Step:
    x = vector()
    return lambda: torch.allclose(x, x)


@case(1, "tools/autograd/derivatives.yaml: the gradient of source is masked_select; forward has none")
def masked_scatter_backward() -> Step:
    x, source = vector(), vector().requires_grad_()
    return lambda: x.masked_scatter(x > 1, source).sum().backward()


@case(2, "native/Repeat.h: cumsum[-1].item() and (repeats >= 0).all().item()")
def repeat_interleave_by_tensor() -> Step:
    x, n = vector(), torch.full((8,), 2, device="cuda")
    return lambda: torch.repeat_interleave(x, n)


# Python reading values


@case(1, "torch/_tensor.py __format__: item()")
def format_loss() -> Step:
    x = vector().mean()
    return lambda: f"{x:.3f}"


@case(8, "torch/_tensor_str.py: masked_select, ceil test, two scale tests, twice sci_mode, format(), item()")
def print_float_scalar() -> Step:
    x = torch.full((), 0.5, device="cuda")
    return lambda: str(x)


@case(4, "torch/_tensor_str.py: one format() per integer, then tolist()")
def print_three_integers() -> Step:
    x = torch.arange(3, device="cuda")
    return lambda: str(x)


@case(3, "torch/_tensor.py __iter__: unbind; one item() per float()")
def float_of_each_element() -> Step:
    x = vector(3)
    return lambda: [float(v) for v in x]


@case(1, "torch/_tensor.py __contains__: (element == self).any().item()")
def contains() -> Step:
    x = indices()
    return lambda: 2 in x


@case(1, "torch/csrc/autograd/python_variable.cpp: bool() is item()")
def assertion_on_device() -> Step:
    x = vector()

    def step() -> None:
        assert (x > 0).all()

    return step


@case(1, "native/RangeFactories: a Scalar argument given as a tensor is item()")
def arange_to_device_scalar() -> Step:
    n = torch.full((), 5, device="cuda")
    return lambda: torch.arange(n, device="cuda")


@case(1, "torch/csrc/autograd/python_variable_indexing.cpp: a 0-dim integer index is item()")
def index_by_device_scalar() -> Step:
    x = vector()
    best = x.argmax()
    return lambda: x[best]


@case(1, "usual metric; only item() reads a value")
def accuracy_metric() -> Step:
    logits, y = torch.rand(8, 3, device="cuda"), indices()
    return lambda: (logits.argmax(1) == y).float().mean().item()


# Building and assigning


@case(1, "csrc/utils/tensor_new.cpp internal_new_from_data: built on the CPU, moved by a blocking to()")
def new_tensor_from_list() -> Step:
    x = vector()
    return lambda: x.new_tensor([1.0, 2.0])


@case(1, "csrc/utils/tensor_new.cpp: the list becomes a tensor on the device of self, index itself is free")
def index_by_python_list() -> Step:
    x = vector()
    return lambda: x[[0, 2]]


@case(1, "native/cuda/Copy.cu: blocking H2D of pageable memory")
def as_tensor_of_numpy() -> Step:
    a = np.ones(4, dtype=np.float32)
    return lambda: torch.as_tensor(a, device="cuda")


@case(0, "native/Fill.cpp, RangeFactories.cu: made on the device")
def factories_on_device() -> Step:
    return lambda: (torch.full((3,), 2.0, device="cuda"), torch.ones(3, device="cuda"), torch.arange(3, device="cuda"))


@case(1, "ATen/TensorIndexing.h copy_to: same (empty) sizes, so a copy of the CPU scalar")
def assign_number_to_element() -> Step:
    x = vector()

    def step() -> None:
        x[0] = 1.0

    return step


@case(0, "ATen/TensorIndexing.h copy_to: a CPU scalar into a larger slice is fill_")
def assign_number_to_slice() -> Step:
    x = vector()

    def step() -> None:
        x[0:2] = 1.0

    return step


# Copies


@case(0, "native/TensorConversions.cpp _to_copy: the destination of a non-blocking D2H is pinned")
def to_cpu_non_blocking() -> Step:
    x = vector()
    return lambda: x.to("cpu", non_blocking=True)


@case(1, "CUDA driver API, synchronization behaviour: D2H into pageable memory returns once it has completed")
def copy_into_pageable_non_blocking() -> Step:
    x, out = vector(), torch.empty(8)
    return lambda: out.copy_(x, non_blocking=True)


@case(0, "native/cuda/Copy.cu: cudaMemcpyAsync into pinned memory")
def copy_into_pinned_non_blocking() -> Step:
    x, out = vector(), torch.empty(8, pin_memory=True)
    return lambda: out.copy_(x, non_blocking=True)


@case(1, "native/cuda/Copy.cu: memcpy_and_sync whether pinned or not")
def pinned_batch_blocking() -> Step:
    batch = torch.rand(8).pin_memory()
    return lambda: batch.to("cuda")


@case(0, "native/cuda/Copy.cu: conversions of a non-blocking H2D happen on the device")
def pinned_batch_non_blocking_with_dtype() -> Step:
    batch = torch.ones(8, dtype=torch.uint8).pin_memory()
    return lambda: batch.to("cuda", dtype=torch.float32, non_blocking=True)


# Training


@case(0, "torch/nn/utils/clip_grad.py: the norm stays on the device")
def clip_grad_norm() -> Step:
    p = vector().requires_grad_()
    p.grad = vector()
    return lambda: nn.utils.clip_grad_norm_([p], 1.0)


@case(1, "torch/nn/utils/clip_grad.py: error_if_nonfinite asks bool() of the norm")
def clip_grad_norm_error_if_nonfinite() -> Step:
    p = vector().requires_grad_()
    p.grad = vector()
    return lambda: nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)


def _amp_step(*, fused: bool) -> Step:
    model = nn.Linear(4, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cuda")
    x = torch.rand(3, 4, device="cuda")

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


@case(1, "torch/amp/grad_scaler.py _maybe_opt_step: found_inf.item()")
def grad_scaler_step() -> Step:
    return _amp_step(fused=False)


@case(0, "torch/amp/grad_scaler.py: a fused optimizer takes found_inf as a tensor")
def grad_scaler_step_fused() -> Step:
    return _amp_step(fused=True)


def _optimizer_step(make: Callable[..., torch.optim.Optimizer], **options: object) -> Step:
    model = nn.Linear(4, 2).cuda()
    optimizer = make(model.parameters(), **options)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    return optimizer.step


@case(0, "torch/optim/adam.py _multi_tensor_adam: steps live on the CPU")
def adam_foreach() -> Step:
    return _optimizer_step(torch.optim.Adam)


@case(0, "torch/optim/adamw.py fused: steps live on the device and are never read")
def adamw_fused() -> Step:
    return _optimizer_step(torch.optim.AdamW, fused=True)


@case(0, "torch/optim/sgd.py _single_tensor_sgd")
def sgd_for_loop() -> Step:
    return _optimizer_step(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False)


@case(1, "torch/nn/modules/batchnorm.py: float(self.num_batches_tracked) if momentum is None")
def batchnorm_cumulative_average() -> Step:
    layer = nn.BatchNorm1d(4, momentum=None).cuda()
    x = torch.rand(8, 4, device="cuda")
    return lambda: layer(x)


@case(0, "native/cuda/Embedding.cu: forward, backward and renorm count on the device")
def embedding_with_max_norm() -> Step:
    layer = nn.Embedding(10, 4, max_norm=1.0).cuda()
    i = indices()
    return lambda: layer(i).sum().backward()


@case(0, "native/transformers: no value is read")
def attention() -> Step:
    layer = nn.MultiheadAttention(8, 2, batch_first=True).cuda()
    x = torch.rand(2, 5, 8, device="cuda")
    return lambda: layer(x, x, x)[0].sum().backward()


@case(0, "native/cuda/Loss.cu, NLLLoss2d.cu: targets are checked by device asserts")
def cross_entropy_with_ignore_index() -> Step:
    logits, y = torch.rand(8, 3, device="cuda", requires_grad=True), indices()
    return lambda: F.cross_entropy(logits, y, ignore_index=2).backward()


@case(1, "torch/csrc/autograd/engine.cpp needs none; reading the loss once is item()")
def training_step_logging_its_loss() -> Step:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.rand(8, 4, device="cuda"), indices() % 2

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


# Streams and events


@case(1, "cudaEventSynchronize; elapsed_time and query only ask")
def event_synchronize_and_elapsed_time() -> Step:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def step() -> float:
        start.record()
        end.record()
        end.synchronize()
        end.query()
        return start.elapsed_time(end)

    return step


@case(0, "cudaStreamWaitEvent makes the stream wait, not the host")
def wait_stream() -> Step:
    side = torch.cuda.Stream()

    def step() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            vector().mul_(2)
        torch.cuda.current_stream().wait_stream(side)

    return step


@pytest.mark.parametrize("name", CASES)
def test_held_out_cases_have_the_expected_number_of_syncs(name: str) -> None:
    with predict_syncs() as syncs:
        step = CASES[name].prepare()
        before = syncs.total
        step()
        count = syncs.total - before
    assert count == CASES[name].expected, CASES[name].source
    assert not syncs.unknown


def test_each_corrected_expectation_belongs_to_a_case_and_differs_from_the_first_one() -> None:
    for name, (first, why) in CORRECTED.items():
        assert CASES[name].expected != first
        assert why
