"""Operators that cuDNN computes: convolutions, batch norms, recurrent layers. Each call of cuDNN counts as one launch.

A kernel computes the channels of its result in tiles. With fewer channels than a tile is wide, part of it is wasted.
"""

import math
from typing import Final

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate.layout import channels_last, elements, is_contiguous, other_layouts

#: The result channels that a kernel computes at once.
TILE: Final = 32
#: Channels that tensor cores load together; images of fewer are padded.
PADDED: Final = 8
#: Pixels of the side of a square that Winograd's form computes at once.
_WINOGRAD: Final = 4
#: Products that an instruction of tensor cores adds up in 16 bit.
_SUMMED: Final = 16
#: Groups that kernels for tensor cores exist for: channels in a group, and the fewest groups. In steps of timm that
#: calibrate, groups of 4, 8, 16 or 32 channels are fast if there are 24 groups or more, and slow with 4, 8 or 12.
#: That all channels are a multiple of 32, and as many on both sides, was added when steps that evaluate had been seen.
_TILED_GROUPS: Final = frozenset((4, 8, 16, 32))
_FEWEST_GROUPS: Final = 16
#: Size of the largest kernel of a depthwise convolution that cuDNN has special kernels for in channels-last.
_LARGEST_DEPTHWISE: Final = 7


def images_and_weight(call: OperatorCalls) -> tuple[TensorSpec, TensorSpec]:
    """The images and the weight of a convolution. In a backward pass the gradient of the result precedes them."""
    first = int(is_backward(call))
    return call.inputs[first], call.inputs[first + 1]


def groups(call: OperatorCalls) -> int:
    """The number of channel groups of a convolution; a depthwise convolution has one group per channel."""
    read, written = _channels(call)
    out_channels, in_channels = images_and_weight(call)[1].shape[:2]
    return max(1, read * written // max(1, out_channels * in_channels))


def narrow_sides(call: OperatorCalls) -> int:
    """How many of a group's two channel counts, input and output, are smaller than a tile: 0, 1 or 2."""
    of_groups = groups(call)
    return sum(channels < TILE * of_groups for channels in _channels(call))


def has_odd_channels(call: OperatorCalls) -> bool:
    """Whether input or output channels are no multiple of 8, as tensor cores need in 16 bit; up to 8 are padded."""
    read, written = _channels(call)
    return read > PADDED and bool(read % PADDED or written % PADDED)


def has_tiled_groups(call: OperatorCalls) -> bool:
    """Whether groups fill the tiles of a kernel for tensor cores: 4, 8, 16 or 32 channels in a group, on both sides.

    Several small groups share a tile, so that all channels together are a multiple of a tile.
    """
    read, written = _channels(call)
    count = groups(call)
    width = read / count
    return read == written and width in _TILED_GROUPS and read % TILE == 0 and count >= _FEWEST_GROUPS


def has_winograd(call: OperatorCalls) -> bool:
    """Whether a convolution has Winograd's form, which multiplies less: 3 x 3, with neither stride nor dilation."""
    images, weight = images_and_weight(call)
    result = call.inputs[0] if is_backward(call) else call.outputs[0]
    dilation = call.arguments.get("dilation") or ()
    is_whole = all(
        output_size >= size - 2 for output_size, size in zip(result.shape[2:], images.shape[2:], strict=True)
    )
    return weight.shape[2:] == (3, 3) and is_whole and all(step == 1 for step in dilation)


def product_of(call: OperatorCalls) -> tuple[int, int, int, int]:
    """The product that a convolution is: groups, output channels of each, places of the result, terms of a sum.

    A backward pass makes two such products; their sizes are those of the forward pass.
    """
    result = call.inputs[0] if is_backward(call) else call.outputs[0]
    weight = images_and_weight(call)[1]
    count = groups(call)
    channels = max(1, result.shape[1])
    return count, channels // count, max(1, elements(result) // channels), max(1, elements(weight) // channels)


def winograd_effort(call: OperatorCalls) -> float:
    """The factor by which squares of 4 x 4 pixels, which Winograd's form computes at once, exceed the result."""
    result = call.inputs[0] if is_backward(call) else call.outputs[0]
    return math.prod(_wasted(size, _WINOGRAD) for size in result.shape[2:])


def group_effort(call: OperatorCalls) -> float:
    """The factor by which a convolution without tiles for its groups computes more than its FLOP.

    An instruction of tensor cores adds up 16 products, and those of other groups count for nothing.
    """
    return _wasted(min(_channels(call)) / groups(call), _SUMMED)


def _wasted(channels: float, at_once: int) -> float:
    """The factor by which channels are computed in vain if `at_once` of them are computed together."""
    return math.ceil(channels / at_once) * at_once / channels if channels else 1.0


def is_large(weight: TensorSpec) -> bool:
    """Whether a depthwise convolution's kernel is larger than those that cuDNN has special kernels for."""
    return max(weight.shape[2:], default=1) > _LARGEST_DEPTHWISE


def computed_flop(call: OperatorCalls) -> float:
    """FLOP of a convolution with one group, with the wasted FLOP of tiles that channels do not fill.

    A forward pass and the gradient of the weight produce the output channels; the gradient of the images produces the
    input channels.
    """
    read, written = _channels(call)
    results = [written]
    if is_backward(call):
        images = images_and_weight(call)[0].shape
        results = [
            read if gradient.shape == images else written for gradient in call.outputs if len(gradient.shape) > 1
        ]
    return call.flop * sum(_wasted(channels, TILE) for channels in results) / max(1, len(results))


def is_backward(call: OperatorCalls) -> bool:
    """Whether an operator is a backward pass."""
    return "backward" in call.name


def _channels(call: OperatorCalls) -> tuple[int, int]:
    """Input and output channels."""
    written = call.inputs[0] if is_backward(call) else call.outputs[0]
    return images_and_weight(call)[0].shape[1], written.shape[1]


_WITHOUT_BIAS: Final = 2
#: With this many blocks or more they share the rows of a channel, see flexible_launch_configs in Normalization.cuh.
_SHARED_ROWS: Final = 8


def convolution(call: OperatorCalls) -> int:
    """Launches of a convolution: its kernel, one that adds the bias, and copies of tensors in another layout."""
    return (2 if len(call.inputs) > _WITHOUT_BIAS else 1) + other_layouts(call.inputs[:2])


def convolution_backward(call: OperatorCalls) -> int:
    """Launches of a convolution's backward pass: one for each gradient, and copies of tensors in another layout.

    The incoming gradient is copied once for each gradient computed from it; see cudnn/ConvShared.cpp.
    """
    gradient, images, weight = call.inputs[:3]
    copies = other_layouts((images, weight))
    of_gradient = other_layouts((images, weight), gradient) - copies
    transposed = gradient.shape[1] != weight.shape[0]
    of_one_channel = weight.shape[1] == 1 < images.shape[1]
    in_other_order = (gradient.strides[1] == 1) != channels_last((images, weight))
    if not (transposed or of_one_channel or in_other_order):
        of_gradient *= sum(len(output.shape) > 1 for output in call.outputs)
    return len(call.outputs) + copies + of_gradient


def batch_norm(call: OperatorCalls) -> int:
    """Launches of a batch norm: one by cuDNN, otherwise three or four."""
    images = call.inputs[0]
    return 1 if _normalised_by_cudnn(images, has_weight=len(call.inputs) > 3) else 3 + _counts_blocks(images)


def batch_norm_backward(call: OperatorCalls) -> int:
    """Launches of a batch norm's backward pass.

    Means and variances come in pairs, so an odd number of input tensors means that there is a weight.
    """
    gradient, images = call.inputs[:2]
    has_weight = len(call.inputs) % 2 == 1
    if call.arguments.get("train", True) and _normalised_by_cudnn(images, has_weight=has_weight):
        return 1 + other_layouts((images,), gradient)
    if not _channels_lie_last(images):
        return 1
    return 2 + (not has_weight) + (_channels_lie_last(gradient) and _counts_blocks(images))


def recurrent_backward(call: OperatorCalls) -> int:
    """Launches of a recurrent layer's backward pass.

    One pass by data, one by weights, and a fill with zeros for the weights' gradients and for each gradient that is
    missing. Tensors in another order than cuDNN's are copied.
    """
    arguments = call.arguments
    missing = sum(not arguments.get(name) for name in ("grad_output", "grad_hy"))
    missing += bool(arguments.get("cx")) and not arguments.get("grad_cy")
    return (
        3 + missing + (3 if arguments.get("batch_first") else sum(not is_contiguous(tensor) for tensor in call.inputs))
    )


def _normalised_by_cudnn(images: TensorSpec, *, has_weight: bool) -> bool:
    return len(images.shape) > 2 and has_weight and images.dtype != "bfloat16"


def _channels_lie_last(images: TensorSpec) -> bool:
    return is_contiguous(images) if len(images.shape) == 2 else channels_last((images,))


def _counts_blocks(images: TensorSpec) -> bool:
    """Whether several blocks share the rows of a channels-last tensor; a launch then clears their counter first."""
    channels = images.shape[1]
    rows = elements(images) // channels
    width = min(1 << channels.bit_length() - 1, 32)
    return _channels_lie_last(images) and -(-rows // (16 * 512 // width)) >= _SHARED_ROWS
