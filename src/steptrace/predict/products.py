"""Gradients of products as on a GPU, where the host reads whether there are zeros among the values.

As in `torch/csrc/autograd/FunctionsManual.cpp` (`prod_backward`, `cumprod_backward`), which reads nothing of tensors
that are a subclass's, as the virtual device's are.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from steptrace.predict.tensor import is_virtual


class _Product(Function):
    """Of all elements, or along a dimension."""

    @staticmethod
    def forward(values: Tensor, dim: int | None, keepdim: bool, dtype: torch.dtype | None) -> Tensor:  # noqa: FBT001 - torch's own
        return values.prod(dtype=dtype) if dim is None else values.prod(dim, keepdim, dtype=dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, ctx.dim, ctx.keepdim, _ = inputs
        ctx.save_for_backward(values, output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        values, made = ctx.saved_tensors
        gradient, values = gradients[0], values.to(gradients[0].dtype)
        return _of_product(gradient, values, made, ctx.dim, keepdim=ctx.keepdim), None, None, None


def _of_product(gradient: Tensor, values: Tensor, made: Tensor, dim: int | None, *, keepdim: bool) -> Tensor:
    if values.dim() == 0:
        return gradient
    if dim is None:
        zeros = (values == 0).nonzero().size(0)
        if zeros > 1:
            return torch.zeros_like(values)
    else:
        if not keepdim:
            gradient, made = gradient.unsqueeze(dim), made.unsqueeze(dim)
        zeros = int((values == 0).sum(dim, keepdim=True).sum().item())
    if not zeros:
        return gradient * (made / values).conj()
    if dim is None:
        return _without_division(gradient, values.contiguous().view(-1), 0).view_as(values)
    return _without_division(gradient, values, dim)


def _without_division(gradient: Tensor, values: Tensor, dim: int) -> Tensor:
    """The product of all values before each, times that of all values behind it."""
    size = values.size(dim)
    one = torch.ones_like(values.narrow(dim, 0, 1))
    before = torch.cat((one, values.narrow(dim, 0, size - 1)), dim).cumprod(dim)
    behind = torch.cat((one, values.narrow(dim, 1, size - 1).flip(dim)), dim).cumprod(dim).flip(dim)
    return gradient * (before * behind).conj()


class _RunningProduct(Function):
    """Along a dimension."""

    @staticmethod
    def forward(values: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
        return values.cumprod(dim, dtype=dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        values, ctx.dim, _ = inputs
        ctx.save_for_backward(values, output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        values, made = ctx.saved_tensors
        return _of_running_product(gradients[0].to(values.dtype), values, made, ctx.dim), None, None


def _of_running_product(gradient: Tensor, values: Tensor, made: Tensor, dim: int) -> Tensor:
    if values.numel() <= 1 or values.size(dim) == 1:
        return gradient
    weighted = made.conj() * gradient
    if not (values == 0).any().item():
        return weighted.flip(dim).cumsum(dim).flip(dim).div(values.conj())
    size, one = values.size(dim), torch.ones_like(values.narrow(dim, 0, 1))
    parts = []
    for place in range(size):
        others = values.narrow(dim, 0, place), one, values.narrow(dim, place + 1, size - place - 1)
        later = (gradient * torch.cat(others, dim).cumprod(dim).conj()).narrow(dim, place, size - place)
        parts.append(later.sum(dim, keepdim=True))
    return torch.cat(parts, dim)


def _needs_gradient(values: Tensor) -> bool:
    """Whether autograd records a call; transforms of functions (`torch.func`) take PyTorch's own formulas."""
    recorded = is_virtual(values) and values.requires_grad and torch.is_grad_enabled()
    return recorded and not torch._C._are_functorch_transforms_active()


def _product(input: Tensor, dim: int | None = None, keepdim: bool = False, **options: Any) -> Tensor:  # noqa: FBT001, FBT002 - torch's own
    if _needs_gradient(input) and "out" not in options:
        made: Tensor = _Product.apply(input, dim, keepdim, options.get("dtype"))  # type: ignore[no-untyped-call]
        return made
    return torch.prod(input, **options) if dim is None else torch.prod(input, dim, keepdim, **options)


def _running_product(input: Tensor, dim: int, **options: Any) -> Tensor:
    if _needs_gradient(input) and "out" not in options:
        made: Tensor = _RunningProduct.apply(input, dim, options.get("dtype"))  # type: ignore[no-untyped-call]
        return made
    return torch.cumprod(input, dim, **options)


#: What is called in place of a function.
REPLACED: Final[dict[Any, Callable[..., Tensor]]] = {
    torch.prod: _product,
    Tensor.prod: _product,
    torch.cumprod: _running_product,
    Tensor.cumprod: _running_product,
}
