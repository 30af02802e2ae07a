"""Result and FLOP of a convolution that a trace records: by the sizes of its inputs and its other arguments."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

_TEXTS: Final = msgspec.json.Decoder(list[str])
_VALUE: Final = msgspec.json.Decoder(bool | int | list[bool | int])


@dataclass(frozen=True)
class RecordedConvolution:
    """The shapes that a convolution, or its backward pass, returns, and the FLOP of one call."""

    outputs: tuple[tuple[int, ...], ...]
    flop: int


@dataclass(frozen=True)
class _Arguments:
    """The places of the arguments that a result depends on, by PyTorch's schemas. None: there is no such argument."""

    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: int | None = None
    output_padding: int | None = None


_GENERAL: Final = _Arguments(stride=3, padding=4, dilation=5, transposed=6, output_padding=7, groups=8)
_FORWARD: Final = {
    "convolution": _GENERAL,
    "_convolution": _GENERAL,
    "convolution_overrideable": _GENERAL,
    "cudnn_convolution": _Arguments(padding=2, stride=3, dilation=4, groups=5),
    "cudnn_convolution_transpose": _Arguments(padding=2, output_padding=3, stride=4, dilation=5, groups=6),
    "cudnn_convolution_relu": _Arguments(stride=3, padding=4, dilation=5, groups=6),
}
_TRANSPOSED: Final = "cudnn_convolution_transpose"
_BACKWARD: Final = "convolution_backward"
#: In the backward pass: whether the convolution is transposed, and which gradients it makes, of images, weight, bias.
_BACKWARD_TRANSPOSED: Final = 7
_BACKWARD_OUTPUTS: Final = 10


def recorded_convolution(name: str, sizes: Sequence[Sequence[int]], settings: str) -> RecordedConvolution | None:
    """A convolution's result and FLOP; None where the trace does not say enough.

    Args:
        name: such as `cudnn_convolution`, without namespace.
        sizes: the shape of each argument; empty for arguments that are no tensors.
        settings: the JSON list of the other arguments, each as PyTorch writes it into a trace: `"[2, 2]"`, `"False"`.
    """
    try:
        values = [_VALUE.decode(text.lower()) if text else None for text in _TEXTS.decode(settings)]
        return _backward(sizes, values) if name == _BACKWARD else _forward(name, sizes, values)
    except (msgspec.DecodeError, RecursionError, IndexError, KeyError, TypeError, ValueError):
        return None


def _forward(name: str, sizes: Sequence[Sequence[int]], values: Sequence[Any]) -> RecordedConvolution:
    places = _FORWARD[name]
    images, weight = sizes[:2]
    transposed = name == _TRANSPOSED or (places.transposed is not None and values[places.transposed])
    spatial = len(images) - 2
    stride, padding, dilation = (
        _for_each(values[place], spatial) for place in (places.stride, places.padding, places.dilation)
    )
    beyond = [0] * spatial if places.output_padding is None else _for_each(values[places.output_padding], spatial)
    lengths = []
    for place in range(spatial):
        size = images[2 + place]
        step = stride[place]
        pads = 2 * padding[place]
        reach = dilation[place] * (weight[2 + place] - 1) + 1
        if transposed:
            lengths.append((size - 1) * step - pads + reach + beyond[place])
        else:
            lengths.append((size + pads - reach) // step + 1)
    channels = weight[1] * values[places.groups] if transposed else weight[0]
    shape = (images[0], channels, *lengths)
    if min(shape) <= 0:
        raise ValueError(shape)
    return RecordedConvolution((shape,), convolution_flop(images if transposed else shape, weight))


def _backward(sizes: Sequence[Sequence[int]], values: Sequence[Any]) -> RecordedConvolution:
    gradient, images, weight = sizes[:3]
    of_images, of_weight, of_bias = values[_BACKWARD_OUTPUTS]
    shapes = [tuple(shape) for shape, wanted in ((images, of_images), (weight, of_weight)) if wanted]
    flop_of_each = convolution_flop(images if values[_BACKWARD_TRANSPOSED] else gradient, weight)
    return RecordedConvolution((*shapes, *([(gradient[1],)] if of_bias else ())), flop_of_each * len(shapes))


def convolution_flop(places: Sequence[int], weight: Sequence[int]) -> int:
    """The FLOP of a convolution: at each place each weight is multiplied once.

    Args:
        places: the shape of the result; of a transposed convolution that of its images.
        weight: the shape of the weight, of any number of groups.
    """
    return 2 * places[0] * math.prod(places[2:]) * math.prod(weight)


def _for_each(value: Any, spatial: int) -> list[int]:
    """A value for each dimension: one number, or a list of one, is for all."""
    listed = value if isinstance(value, list) else [value]
    listed = listed * spatial if len(listed) == 1 else listed
    if len(listed) != spatial or not all(isinstance(number, int) for number in listed):
        raise ValueError(value)
    return listed
