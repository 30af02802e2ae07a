"""Substitutes for operators on the virtual device: CPU forms of operators that PyTorch implements for GPUs only.

Convolutions return results in cuDNN's layout, which decides about later copies. An operator that has a kernel on CUDA
stays one operator, although PyTorch composes it of others on a device without such a kernel.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.library import Library

from steptrace.predict import attention, collectives, nested, recurrent, spectral, sync_norm
from steptrace.predict.limit import cannot_follow
from steptrace.predict.operators import FUSED
from steptrace.predict.pytorch import aten, substitute_table
from steptrace.torch_names import private

_CONVOLUTION: Final[Any] = aten("convolution")
_CONVOLUTION_BACKWARD: Final[Any] = aten("convolution_backward")
_UNSCALE: Final[Any] = aten("_amp_foreach_non_finite_check_and_unscale_")
_IMAGES: Final = 4


def _convolution(images: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Tensor:
    output: Tensor = _CONVOLUTION(images, weight, *rest, **options)
    return _as_cudnn(output, images, weight)


def _convolution_backward(gradient: Tensor, images: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Any:
    gradients = _CONVOLUTION_BACKWARD(gradient, images, weight, *rest, **options)
    return *(None if part is None else _as_cudnn(part, images, weight) for part in gradients[:2]), gradients[2]


def _as_cudnn(output: Tensor, images: Tensor, weight: Tensor) -> Tensor:
    """With the channels last if either of the two has them so, see `cudnn_conv_suggest_memory_format`."""
    last = output.dim() == _IMAGES and any(map(_has_channels_last, (images, weight)))
    return output.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def _has_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def _rms_norm_backward(*args: Any) -> Any:
    decomposed = private("torch._decomp.decompositions._fused_rms_norm_backward")
    if decomposed is None:
        raise cannot_follow("the backward pass of rms_norm with this PyTorch", "use a release from 2.11 to 2.14")
    return decomposed(*args)


def _group_norm(values: Tensor, *rest: Any, **options: Any) -> Any:
    """CUDA has no kernel for channels that lie last, so their values are copied first."""
    return torch.ops.aten.group_norm.default.decompose(values.contiguous(), *rest, **options)


def _sparse_mm(sparse: Tensor, dense: Tensor) -> Tensor:
    """PyTorch's C++ takes compressed sparse tensors for strided ones, and would turn such a product round."""
    if sparse.layout is dense.layout is torch.sparse_coo:
        return aten("_sparse_sparse_matmul")(sparse, dense)  # type: ignore[no-any-return]
    first, second = (sparse, dense) if sparse.layout is not torch.strided else (dense.t(), sparse.t())
    zeros = torch.zeros(first.shape[0], second.shape[1], dtype=second.dtype, device=second.device)
    product: Tensor = aten("_sparse_addmm")(zeros, first, second, beta=0, alpha=1)
    return product if first is sparse else product.t()


def _histc(values: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The histogram, also of whole numbers, which the CPU's operator does not take."""
    return torch.histc(values.double(), bins, min, max).to(values.dtype)


def _unscale(gradients: list[Tensor], found_inf: Tensor, inverse_scale: Tensor) -> None:
    """Unscale gradients and say that all are finite: the followed step should train, and not only lower the scale.

    Values that are not finite become 0. Otherwise the weights and every later loss would be NaN.
    """
    _UNSCALE(gradients, found_inf, inverse_scale)
    found_inf.zero_()
    for gradient in gradients:
        gradient.nan_to_num_(0, 0, 0)


def _of_type(operator: Any, out_dtype: torch.dtype, *tensors: Tensor, **factors: Any) -> Tensor:
    """A product of 16-bit matrices with a result of 32 bits."""
    result: Tensor = operator(*(tensor.to(out_dtype) for tensor in tensors), **factors)
    return result


def _products_of_type() -> dict[Any, Callable[..., Any]]:
    """The products that have an overload with a type for their result, as far as this PyTorch has it."""

    def substitute(operator: Any, count: int) -> Callable[..., Any]:
        def product(*args: Any, out: Tensor | None = None, **named: Any) -> Tensor:
            *tensors, out_dtype = [*args, named.pop("out_dtype")] if "out_dtype" in named else args
            result = _of_type(operator, out_dtype, *tensors[:count], **named)
            return result if out is None else out.resize_(result.shape).copy_(result)

        return product

    return substitute_table(
        *(
            (f"{name}.{overload}", substitute(aten(name), count))
            for name, count in {"mm": 2, "bmm": 2, "addmm": 3, "baddbmm": 3}.items()
            for overload in ("dtype", "dtype_out")
        )
    )


#: Operator -> what runs in its place.
SUBSTITUTES: dict[Any, Callable[..., Any]] = {
    **substitute_table(
        ("histc", _histc),
        # Used by forward-mode derivatives. Tensors without memory exist on PyTorch's own devices only.
        ("_efficientzerotensor", torch.zeros),
        ("_amp_foreach_non_finite_check_and_unscale_", _unscale),
        ("convolution", _convolution),
        ("convolution_backward", _convolution_backward),
        ("_fused_rms_norm_backward", _rms_norm_backward),
    ),
    **_products_of_type(),
    **attention.SUBSTITUTES,
    **recurrent.SUBSTITUTES,
    **spectral.SUBSTITUTES,
    **sync_norm.SUBSTITUTES,
    **nested.SUBSTITUTES,
    **collectives.SUBSTITUTES,
}
#: Composite operator -> what runs in its place where it arrives whole, as in inference mode.
WHOLE: dict[Any, Callable[..., Any]] = substitute_table(("group_norm", _group_norm), ("_sparse_mm", _sparse_mm))
_libraries: list[Library] = []  # keeps the registrations alive


def ensure_registered() -> None:
    """Register what operators do where autograd records, unless this process has done so."""
    if _libraries:
        return
    library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    library.impl("group_norm", _group_norm, "AutogradPrivateUse1")  # type: ignore[no-untyped-call]
    library.impl("_sparse_mm", _sparse_mm, "AutogradPrivateUse1")  # type: ignore[no-untyped-call]
    for name in filter(aten, FUSED):
        # Never called, since Python catches virtual tensors first. With a kernel registered for the device, autograd
        # uses PyTorch's formula of the operator, and does not compose the operator of others.
        library.impl(name, aten(name), "PrivateUse1")  # type: ignore[no-untyped-call]
