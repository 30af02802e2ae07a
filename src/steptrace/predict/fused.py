"""Operators that CUDA has a kernel of, and that PyTorch composes of others for a device without one."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.overload import FUSED

_ATEN = torch.ops.aten
_RMS_NORM = _ATEN._fused_rms_norm.default
_RMS_NORM_BACKWARD = _ATEN._fused_rms_norm_backward.default


class _RmsNorm(torch.autograd.Function):
    """The operator with its gradient, of which PyTorch has a formula for CUDA alone."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Any:
        """Normalise; also the reciprocals of the root mean squares."""
        with torch._C._AutoDispatchBelowAutograd():
            made, scale = _RMS_NORM(values, shape, weight, eps)
        ctx.save_for_backward(values, scale, weight)
        ctx.shape = shape
        ctx.mark_non_differentiable(scale)
        ctx.set_materialize_grads(False)
        return made, scale

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """The gradients of values and weight."""
        values, scale, weight = ctx.saved_tensors
        needed = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        of_values, of_weight = _RMS_NORM_BACKWARD(gradients[0], values, ctx.shape, scale, weight, needed)
        return of_values, None, of_weight, None


def _rms_norm(values: Tensor, shape: Sequence[int], weight: Tensor | None, eps: float | None) -> Any:
    if not torch._C._are_functorch_transforms_active():
        return _RmsNorm.apply(values, shape, weight, eps)  # type: ignore[no-untyped-call]
    # `torch.func` differentiates no function of `_RmsNorm`'s kind: of other operators, as without the kernel.
    dims = tuple(range(-len(shape), 0))
    scale = (values.square().mean(dims, keepdim=True) + (torch.finfo(values.dtype).eps if eps is None else eps)).rsqrt()
    made = values * scale
    return (made if weight is None else made * weight), scale


def _rms_norm_backward(*args: Any) -> Any:
    from torch._decomp.decompositions import _fused_rms_norm_backward

    return _fused_rms_norm_backward(*args)


def _group_norm(values: Tensor, *rest: Any, **options: Any) -> Any:
    """CUDA has no kernel for channels that lie last, so their values are copied first."""
    return _ATEN.group_norm.default.decompose(values.contiguous(), *rest, **options)


def _whole(operator: Any) -> Callable[..., Any]:
    """An operator of a backward pass as one: it reaches the virtual device instead of being composed."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args, **kwargs)

    return kernel


#: By operator, what its call does where autograd records.
KERNELS: Final[dict[str, Callable[..., Any]]] = {
    **{name: _whole(getattr(_ATEN, name).default) for name in FUSED},
    "_fused_rms_norm": _rms_norm,
    "group_norm": _group_norm,
}
SUBSTITUTES: Final[dict[Any, Callable[..., Any]]] = {_RMS_NORM_BACKWARD: _rms_norm_backward}
