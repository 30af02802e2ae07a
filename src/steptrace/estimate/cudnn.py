"""What cuDNN computes, each of its calls one launch: convolutions by their channels, batch norms, recurrent layers.

A kernel computes the channels of its result in tiles; of fewer channels than a tile is wide, the rest of it is wasted.
"""

from typing import Final

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate.layout import channels_last, elements, is_contiguous, other_layouts

#: Result channels that a kernel computes at once, at the least.
TILE: Final = 32


def images_and_weight(call: OperatorCalls) -> tuple[TensorSpec, TensorSpec]:
    """What a convolution reads; its backward pass has the gradient of its result before them."""
    first = int(is_backward(call))
    return call.inputs[first], call.inputs[first + 1]


def groups(call: OperatorCalls) -> int:
    """In how many groups of channels a convolution computes; a depthwise one has as many as channels."""
    read, made = _channels(call)
    out_channels, in_channels = images_and_weight(call)[1].shape[:2]
    return max(1, read * made // max(1, out_channels * in_channels))


def narrow_sides(call: OperatorCalls) -> int:
    """How many of a convolution's two sides, the channels that a group reads and makes, are fewer than a tile."""
    of_groups = groups(call)
    return sum(channels < TILE * of_groups for channels in _channels(call))


def computed_flop(call: OperatorCalls) -> float:
    """FLOP of a convolution in one group, with those of channels that its tiles compute in vain.

    The channels of the result of a forward pass, and of the gradient of its weight, are those it makes; of the gradient
    of its images those it reads.
    """
    read, made = _channels(call)
    results = [made]
    if is_backward(call):
        images = images_and_weight(call)[0].shape
        results = [read if one.shape == images else made for one in call.outputs if len(one.shape) > 1]
    return call.flop * sum(max(1.0, TILE / channels) for channels in results) / max(1, len(results))


def is_backward(call: OperatorCalls) -> bool:
    """Whether a convolution is a backward pass."""
    return "backward" in call.name


def _channels(call: OperatorCalls) -> tuple[int, int]:
    """Channels of the images, and of what is made of them."""
    made = call.inputs[0] if is_backward(call) else call.outputs[0]
    return images_and_weight(call)[0].shape[1], made.shape[1]


_WITHOUT_BIAS: Final = 2
#: From so many blocks on they share the rows of a channel, see flexible_launch_configs in Normalization.cuh.
_SHARED_ROWS: Final = 8


def convolution(call: OperatorCalls) -> int:
    """With a kernel that adds the bias, and copies of what has another layout."""
    return (2 if len(call.inputs) > _WITHOUT_BIAS else 1) + other_layouts(call.inputs[:2])


def convolution_backward(call: OperatorCalls) -> int:
    """Copies of what has another layout, of the gradient for each that is made of it; see cudnn/ConvShared.cpp."""
    gradient, images, weight = call.inputs[:3]
    copies = other_layouts((images, weight))
    of_gradient = other_layouts((images, weight), gradient) - copies
    transposed, of_one_channel = gradient.shape[1] != weight.shape[0], weight.shape[1] == 1 < images.shape[1]
    in_other_order = (gradient.strides[1] == 1) != channels_last((images, weight))
    if not (transposed or of_one_channel or in_other_order):
        of_gradient *= sum(len(one.shape) > 1 for one in call.outputs)
    return len(call.outputs) + copies + of_gradient


def batch_norm(call: OperatorCalls) -> int:
    """One by cuDNN, else three."""
    images = call.inputs[0]
    return 1 if _normalised_by_cudnn(images, has_weight=len(call.inputs) > 3) else 3 + _counts_blocks(images)


def batch_norm_backward(call: OperatorCalls) -> int:
    """Means and variances come in pairs, so that an odd number of tensors has a weight among them."""
    gradient, images = call.inputs[:2]
    has_weight = len(call.inputs) % 2 == 1
    if call.arguments.get("train", True) and _normalised_by_cudnn(images, has_weight=has_weight):
        return 1 + other_layouts((images,), gradient)
    if not _channels_lie_last(images):
        return 1
    return 2 + (not has_weight) + (_channels_lie_last(gradient) and _counts_blocks(images))


def recurrent_backward(call: OperatorCalls) -> int:
    """By data and by weights, whose gradients begin as zeros, as do those that are missing; all in cuDNN's order."""
    given = call.arguments
    missing = sum(not given.get(name) for name in ("grad_output", "grad_hy"))
    missing += bool(given.get("cx")) and not given.get("grad_cy")
    return 3 + missing + (3 if given.get("batch_first") else sum(not is_contiguous(one) for one in call.inputs))


def _normalised_by_cudnn(images: TensorSpec, *, has_weight: bool) -> bool:
    return len(images.shape) > 2 and has_weight and images.dtype != "bfloat16"


def _channels_lie_last(images: TensorSpec) -> bool:
    return is_contiguous(images) if len(images.shape) == 2 else channels_last((images,))


def _counts_blocks(images: TensorSpec) -> bool:
    """Whether several blocks share the rows of channels that lie last, of which a counter is cleared first."""
    channels = images.shape[1]
    rows, width = elements(images) // channels, min(1 << channels.bit_length() - 1, 32)
    return _channels_lie_last(images) and -(-rows // (16 * 512 // width)) >= _SHARED_ROWS
