"""Convolutions with results in the layout that cuDNN gives them, which decides what is copied behind them."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

_CONVOLUTION = torch.ops.aten.convolution.default
_BACKWARD = torch.ops.aten.convolution_backward.default
_IMAGES: Final = 4


def _convolution(images: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Tensor:
    made: Tensor = _CONVOLUTION(images, weight, *rest, **options)
    return _as_cudnn(made, images, weight)


def _backward(gradient: Tensor, images: Tensor, weight: Tensor, *rest: Any, **options: Any) -> Any:
    made = _BACKWARD(gradient, images, weight, *rest, **options)
    return *(None if one is None else _as_cudnn(one, images, weight) for one in made[:2]), made[2]


def _as_cudnn(made: Tensor, images: Tensor, weight: Tensor) -> Tensor:
    """With the channels last if either of the two has them so, see `cudnn_conv_suggest_memory_format`."""
    last = made.dim() == _IMAGES and any(map(_has_channels_last, (images, weight)))
    return made.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def _has_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


SUBSTITUTES: Final[dict[Any, Callable[..., Any]]] = {_CONVOLUTION: _convolution, _BACKWARD: _backward}
