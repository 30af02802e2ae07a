"""Channels of convolutions, and what kernels compute of those that have few.

A kernel computes the channels of its result in tiles; of fewer channels than a tile is wide, the rest of it is wasted.
"""

from typing import Final

from steptrace.documents.operators import OperatorCalls

#: Result channels that a kernel computes at once, at the least.
TILE: Final = 32


def groups(call: OperatorCalls) -> int:
    """In how many groups of channels a convolution computes; a depthwise one has as many as channels."""
    read, made = _channels(call)
    out_channels, in_channels = call.inputs[_backward(call) + 1].shape[:2]
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
    if _backward(call):
        images = call.inputs[1].shape
        results = [read if one.shape == images else made for one in call.outputs if len(one.shape) > 1]
    return call.flop * sum(max(1.0, TILE / channels) for channels in results) / max(1, len(results))


def _backward(call: OperatorCalls) -> int:
    """1 of a backward pass, which has the gradient before its images and weight."""
    return int("backward" in call.name)


def _channels(call: OperatorCalls) -> tuple[int, int]:
    """Channels of the images, and of what is made of them."""
    made = call.inputs[0] if _backward(call) else call.outputs[0]
    return call.inputs[_backward(call)].shape[1], made.shape[1]
