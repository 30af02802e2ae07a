"""Gradients of products: those of a CPU, and the host reads whether there are zeros, as on a GPU."""

import pytest
import torch
from torch import Tensor

from steptrace.estimate.work import kernels_of
from steptrace.predict import predict_syncs


@pytest.mark.parametrize(
    ("product", "waits"),
    [
        (lambda values: values.prod(), 1),
        (lambda values: values.prod(1), 1),
        (lambda values: values.prod(-1, keepdim=True).double(), 1),
        (lambda values: values.prod(0, dtype=torch.float64), 1),
        (lambda values: values.cumprod(1), 1),
        pytest.param(
            lambda values: values.cumprod(0, dtype=torch.float64),
            1,
            marks=pytest.mark.skipif(torch.__version__ < "2.12", reason="PyTorch 2.11 fails with zeros, on a CPU, too"),
        ),
        (lambda values: values[:, :1].prod(1), 1),
        (lambda values: values[:, :1].cumprod(1), 0),
        (lambda values: values.sum().prod(), 0),
    ],
)
def test_a_product_has_the_gradient_of_a_cpu_and_waits_once(product, waits):
    def gradient(device: str, values: Tensor) -> Tensor:
        given = values.clone().to(device, non_blocking=True).requires_grad_()
        made = product(given)
        (made * torch.ones_like(made).cumsum(0)).sum().backward()
        return given.grad

    for zeros in range(3):
        values = torch.linspace(0.5, 2, 12).view(3, 4)
        values.view(-1)[:zeros] = 0
        with predict_syncs() as syncs:
            followed = gradient("cuda", values)
            assert syncs.total == waits
            assert syncs.unknown == []
            followed = followed.cpu()
        torch.testing.assert_close(followed, gradient("cpu", values))


def test_the_gradient_of_a_gradient_and_torch_func():
    values = torch.linspace(0.5, 2, 12).view(3, 4)

    def results(device: str) -> list[Tensor]:
        given = values.clone().to(device).requires_grad_()
        (first,) = torch.autograd.grad(given.prod(1).square().sum(), given, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), given)
        third = torch.func.grad(lambda one: one.prod(1).sum())(given.detach())
        return [second.cpu(), third.cpu()]

    with predict_syncs():
        followed = results("cuda")
    torch.testing.assert_close(followed, results("cpu"))


def test_a_large_product_has_no_values_and_no_zeros():
    with predict_syncs() as syncs:
        given = torch.rand(512, 512, device="cuda", requires_grad=True)
        given.prod(1).sum().backward()
        assert given.grad.shape == given.shape
    assert [(place.op, place.count) for place in syncs.assumed] == [("aten::_local_scalar_dense", 1)]


@pytest.mark.parametrize(
    ("operator", "program", "flop"),
    [
        ("_euclidean_dist", lambda: torch.cdist(_of(40, 3), _of(50, 3)), 2 * 40 * 50 * 5),
        (
            "_trilinear",
            lambda: torch.nn.functional.bilinear(_of(8, 16), _of(8, 32), _of(4, 16, 32)),
            2 * 8 * 16 * 32 * 4,
        ),
        ("_int_mm", lambda: torch._int_mm(_of(32, 64).to(torch.int8), _of(64, 16).to(torch.int8)), 2 * 32 * 64 * 16),
        (
            "_addmm_activation",
            lambda: torch.ops.aten._addmm_activation(_of(16), _of(8, 32), _of(32, 16)),
            2 * 8 * 32 * 16,
        ),
        ("addbmm", lambda: torch.addbmm(_of(8, 16), _of(4, 8, 32), _of(4, 32, 16)), 2 * 4 * 8 * 32 * 16),
        ("addbmm_", lambda: _of(8, 16).addbmm_(_of(4, 8, 32), _of(4, 32, 16)), 2 * 4 * 8 * 32 * 16),
        ("addmm_", lambda: _of(8, 16).addmm_(_of(8, 32), _of(32, 16)), 2 * 8 * 32 * 16),
        ("addmv_", lambda: _of(64).addmv_(_of(64, 32), _of(32)), 2 * 64 * 32),
        ("baddbmm_", lambda: _of(4, 8, 16).baddbmm_(_of(4, 8, 32), _of(4, 32, 16)), 2 * 4 * 8 * 32 * 16),
        (
            "_weight_int8pack_mm",
            lambda: torch._weight_int8pack_mm(_half(32, 64), _of(16, 64).to(torch.int8), _half(16)),
            2 * 32 * 64 * 16,
        ),
        # Groups of rows, of terms of the sums, of columns, and of matrices.
        ("_grouped_mm", lambda: torch._grouped_mm(_half(32, 64), _half(4, 64, 16), offs=_ends(32)), 2 * 32 * 64 * 16),
        ("_grouped_mm", lambda: torch._grouped_mm(_half(32, 64), _half(64, 16), offs=_ends(64)), 2 * 32 * 64 * 16),
        ("_grouped_mm", lambda: torch._grouped_mm(_half(4, 32, 64), _half(64, 32), offs=_ends(32)), 2 * 32 * 64 * 32),
        ("_grouped_mm", lambda: torch._grouped_mm(_half(4, 32, 64), _half(4, 64, 16)), 2 * 4 * 32 * 64 * 16),
        ("mv", lambda: _of(64, 32) @ _of(32), 2 * 64 * 32),
        ("addmv", lambda: torch.addmv(_of(64), _of(64, 32), _of(32)), 2 * 64 * 32),
        ("dot", lambda: torch.dot(_of(64), _of(64)), 2 * 64),
    ],
)
def test_products_that_pytorch_does_not_count_are_counted(operator, program, flop):
    with predict_syncs() as syncs:
        program()
        counted = {call.name.split(".")[1]: call.flop for call in syncs.operators}
    assert counted[operator] == flop


def test_each_pass_of_a_grouped_product_multiplies_as_often():
    with predict_syncs() as syncs:
        rows = _half(32, 64).requires_grad_()
        weights = _half(4, 64, 16).requires_grad_()
        torch._grouped_mm(rows, weights, offs=_ends(32)).float().square().sum().backward()
        kernels = [kernel for call in syncs.operators for kernel in kernels_of(call) for _ in range(call.calls)]
    products = [(kernel.flop, kernel.format) for kernel in kernels if kernel.kind == "product"]
    assert products == [(2 * 32 * 64 * 16, "16")] * 3


def _of(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="cuda")


def _half(*shape: int) -> torch.Tensor:
    return torch.ones(shape, device="cuda", dtype=torch.bfloat16)


def _ends(count: int) -> torch.Tensor:
    """The ends of four groups of the same size."""
    return torch.tensor([count // 4 * group for group in (1, 2, 3, 4)], dtype=torch.int32).to("cuda")
