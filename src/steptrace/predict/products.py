"""Gradients of products as on a GPU, where the host reads whether there are zeros among the values.

The formulas are those of `torch/csrc/autograd/FunctionsManual.cpp` (`prod_backward`, `cumprod_backward`). The code
there reads no values of tensor subclasses, and the virtual device's tensors are of one.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from steptrace.predict.tensor import is_virtual
from steptrace.torch_names import private

#: Whether a transform of functions is running.
_TRANSFORMS: Final[Callable[[], bool]] = private("torch._C._are_functorch_transforms_active") or (lambda: False)


class _Product(Function):
    """A product of values, with its gradient by a formula of the product's gradient, the values, and the product."""

    @staticmethod
    def forward(values: Tensor, product: Callable[[Tensor], Tensor], _formula: Callable[..., Tensor]) -> Tensor:
        return product(values)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, _, ctx.formula = inputs
        ctx.save_for_backward(values, output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.formula(*gradients, *ctx.saved_tensors), None, None


def _of_product(
    gradient: Tensor,
    values: Tensor,
    product: Tensor,
    dim: int | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - torch's own
    **_: Any,
) -> Tensor:
    values = values.to(gradient.dtype)
    if values.dim() == 0:
        return gradient
    if dim is None:
        zeros = (values == 0).nonzero().size(0)
        if zeros > 1:
            return torch.zeros_like(values)
    else:
        if not keepdim:
            gradient = gradient.unsqueeze(dim)
            product = product.unsqueeze(dim)
        zeros = int((values == 0).sum(dim, keepdim=True).sum().item())
    if not zeros:
        return gradient * (product / values).conj()
    if dim is None:
        return _without_division(gradient, values.contiguous().view(-1), 0).view_as(values)
    return _without_division(gradient, values, dim)


def _without_division(gradient: Tensor, values: Tensor, dim: int) -> Tensor:
    """For each value, the product of all values before it and all values after it."""
    size = values.size(dim)
    ones = torch.ones_like(values.narrow(dim, 0, 1))
    before = torch.cat((ones, values.narrow(dim, 0, size - 1)), dim).cumprod(dim)
    behind = torch.cat((ones, values.narrow(dim, 1, size - 1).flip(dim)), dim).cumprod(dim).flip(dim)
    return gradient * (before * behind).conj()


def _of_running_product(gradient: Tensor, values: Tensor, product: Tensor, dim: int, **_: Any) -> Tensor:
    gradient = gradient.to(values.dtype)
    if values.numel() <= 1 or values.size(dim) == 1:
        return gradient
    weighted = product.conj() * gradient
    if (values == 0).any().item():
        return torch.ops.aten.cumprod_backward(gradient, values, dim, product)  # type: ignore[no-any-return]
    return weighted.flip(dim).cumsum(dim).flip(dim).div(values.conj())


def _differentiated(product: Callable[..., Tensor], formula: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A product with its gradient by a formula; transforms of functions (`torch.func`) take PyTorch's own."""

    def call(input: Tensor, *args: Any, **options: Any) -> Tensor:
        recorded = is_virtual(input) and input.requires_grad and torch.is_grad_enabled() and "out" not in options
        if not recorded or _TRANSFORMS():
            return product(input, *args, **options)
        result: Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            input,
            lambda values: product(values, *args, **options),
            lambda *tensors: formula(*tensors, *args, **options),
        )
        return result

    return call


_product = _differentiated(torch.prod, _of_product)
_running_product = _differentiated(torch.cumprod, _of_running_product)
#: The replacements of functions.
REPLACED: Final[dict[Any, Callable[..., Tensor]]] = {
    torch.prod: _product,
    Tensor.prod: _product,
    torch.cumprod: _running_product,
    Tensor.cumprod: _running_product,
}
