"""What a convolution reads, its channels, and what kernels compute of those that have few.

A kernel computes the channels of its result in tiles; of fewer channels than a tile is wide, the rest of it is wasted.
"""

from typing import Final

from steptrace.documents.estimate import OperatorCalls, TensorSpec

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
