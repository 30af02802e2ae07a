"""What the virtual device runs in place of an operator: CPU forms of what PyTorch implements for GPUs only.

Convolutions give results in the layout that cuDNN gives them, which decides what is copied behind them. Operators that
CUDA has a kernel of, and that PyTorch composes of others for a device without one, stay one operator.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.library import Library

from steptrace.predict import attention, collectives, recurrent, sync_norm
from steptrace.predict.operators import FUSED

_ATEN = torch.ops.aten
_CONVOLUTION = _ATEN.convolution.default
_CONVOLUTION_BACKWARD = _ATEN.convolution_backward.default
_IMAGES: Final = 4


def _convolution(images: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Tensor:
    made: Tensor = _CONVOLUTION(images, weight, *rest, **options)
    return _as_cudnn(made, images, weight)


def _convolution_backward(gradient: Tensor, images: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Any:
    made = _CONVOLUTION_BACKWARD(gradient, images, weight, *rest, **options)
    return *(None if one is None else _as_cudnn(one, images, weight) for one in made[:2]), made[2]


def _as_cudnn(made: Tensor, images: Tensor, weight: Tensor) -> Tensor:
    """With the channels last if either of the two has them so, see `cudnn_conv_suggest_memory_format`."""
    last = made.dim() == _IMAGES and any(map(_has_channels_last, (images, weight)))
    return made.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def _has_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _rms_norm_backward(*args: Any) -> Any:
    from torch._decomp.decompositions import _fused_rms_norm_backward

    return _fused_rms_norm_backward(*args)


def _group_norm(values: Tensor, *rest: Any, **options: Any) -> Any:
    """CUDA has no kernel for channels that lie last, so their values are copied first."""
    return _ATEN.group_norm.default.decompose(values.contiguous(), *rest, **options)


def _histc(values: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Of whole numbers too, which the CPU's does not count."""
    return torch.histc(values.double(), bins, min, max).to(values.dtype)


def _unscale(gradients: list[Tensor], found_inf: Tensor, inverse_scale: Tensor) -> None:
    """Says that all gradients are finite: the step followed is one that trains, not one that only lowers the scale.

    What is not finite becomes 0, or the weights and every later loss would be NaN.
    """
    _ATEN._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inverse_scale)
    found_inf.zero_()
    for gradient in gradients:
        gradient.nan_to_num_(0, 0, 0)


def _of_type(operator: Any, out_dtype: torch.dtype, *tensors: Tensor, **factors: Any) -> Tensor:
    """A product of 16-bit matrices with a result of 32 bits."""
    made: Tensor = operator(*(tensor.to(out_dtype) for tensor in tensors), **factors)
    return made


def _products_of_type() -> dict[Any, Callable[..., Any]]:
    """The products that have an overload with a type for their result, as far as this PyTorch has it."""

    def substitute(operator: Any, count: int) -> Callable[..., Any]:
        def product(*args: Any, out: Tensor | None = None, **named: Any) -> Tensor:
            *tensors, out_dtype = [*args, named.pop("out_dtype")] if "out_dtype" in named else args
            made = _of_type(operator, out_dtype, *tensors[:count], **named)
            return made if out is None else out.resize_(made.shape).copy_(made)

        return product

    packets = {_ATEN.mm: 2, _ATEN.bmm: 2, _ATEN.addmm: 3, _ATEN.baddbmm: 3}
    return {
        getattr(packet, overload): substitute(packet.default, count)
        for packet, count in packets.items()
        for overload in ("dtype", "dtype_out")
        if hasattr(packet, overload)
    }


#: Operator -> what runs in its place.
SUBSTITUTES: dict[Any, Callable[..., Any]] = {
    _ATEN.histc.default: _histc,
    # Of forward-mode derivatives; those without memory know PyTorch's own devices only.
    _ATEN._efficientzerotensor.default: torch.zeros,
    _ATEN._amp_foreach_non_finite_check_and_unscale_.default: _unscale,
    **_products_of_type(),
    **attention.SUBSTITUTES,
    _CONVOLUTION: _convolution,
    _CONVOLUTION_BACKWARD: _convolution_backward,
    _ATEN._fused_rms_norm_backward.default: _rms_norm_backward,
    **recurrent.SUBSTITUTES,
    **sync_norm.SUBSTITUTES,
    **collectives.SUBSTITUTES,
}
_libraries: list[Library] = []  # keeps the registrations alive


def ensure_registered() -> None:
    """Register what operators do where autograd records, unless this process has done so."""
    if _libraries:
        return
    aten = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(aten)
    aten.impl("group_norm", _group_norm, "AutogradPrivateUse1")  # type: ignore[no-untyped-call]
    for name in FUSED:
        # Never called, as virtual tensors come by in Python first: for a device with a kernel of its own autograd takes
        # PyTorch's formula of the operator, and does not compose it.
        aten.impl(name, getattr(_ATEN, name).default, "PrivateUse1")  # type: ignore[no-untyped-call]
