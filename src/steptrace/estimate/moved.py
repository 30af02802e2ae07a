"""Bytes that an operator reads and writes."""

import math
from collections.abc import Sequence
from typing import Final

from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.estimate.channels import images_and_weight, is_backward
from steptrace.estimate.layout import elements, item_bytes
from steptrace.estimate.lists import is_of_lists, lists_of
from steptrace.estimate.rules import LOOKED_UP, TENSOR_CORES, base_name, is_convolution

_OUTPUT_ONLY: Final = frozenset(("zero_", "fill_", "copy_", "random_", "uniform_", "normal_", "bernoulli_"))
#: One kernel is for the input's gradient, one for those of weight and bias.
_READ_TWICE: Final = ("native_layer_norm_backward", "_fused_rms_norm_backward")


def moved_bytes(call: OperatorCalls) -> int:
    """Bytes that one call reads and writes at least: those of its inputs and its outputs."""
    if call.host is not None:
        return _over_bus(call, call.host)
    name = base_name(call.name)
    inputs: Sequence[TensorSpec] = call.inputs
    if name in _OUTPUT_ONLY or name in LOOKED_UP:
        inputs = inputs[1:]
    if name in _READ_TWICE:
        inputs = (*inputs, *inputs[:2])
    written = sum(map(_bytes, call.outputs)) * (2 if name in LOOKED_UP else 1)
    if is_of_lists(name) and not call.outputs:
        share = lists_of(call)
        written = (
            sum(map(_bytes, inputs)) * max(1, share - 1) // share
            if name.startswith("_fused_")
            else sum(map(_bytes, inputs[: len(inputs) // share]))
        )
    return sum(map(_bytes, inputs)) + written


def _over_bus(call: OperatorCalls, host: TensorSpec) -> int:
    """Bytes of a copy between host and GPU, in the host's type unless the host waits for it, and so can cast."""
    there = call.outputs[0] if call.outputs else call.inputs[0]
    moved = host if call.arguments.get("non_blocking") else there
    return max(elements(host), elements(there)) * item_bytes(moved)


def converted_bytes(call: OperatorCalls, arithmetic: str) -> int:
    """Bytes that a convolution on tensor cores reads and writes beside its own where images are not channels-last.

    cuDNN's kernels for tensor cores take channels last: what has another layout is converted before, and the result
    after. A backward pass converts for each of its two gradients.
    """
    tensors = [one for one in (*call.inputs, *call.outputs) if len(one.shape) >= 4]
    if not (is_convolution(call) and arithmetic in TENSOR_CORES) or len(tensors) < 3 or tensors[0].strides[1] == 1:
        return 0
    images, _ = images_and_weight(call)
    if not is_backward(call):
        return 2 * (_bytes(images) + _bytes(call.outputs[0]))
    of_images = [one for one in call.outputs if one.shape == images.shape]
    return 2 * (_bytes(images) + sum(map(_bytes, of_images)) + 2 * _bytes(call.inputs[0]))


def may_be_unconverted(call: OperatorCalls, arithmetic: str) -> bool:
    """Whether it may do without: kernels for TF32 may take other layouts, and those of size 1 are products."""
    _, weight = images_and_weight(call)
    return arithmetic == "tf32" or all(size == 1 for size in weight.shape[2:])


def _bytes(tensor: TensorSpec) -> int:
    """Bytes of the elements that it has of its own: a broadcast one is read once, a sparse one has parts."""
    if tensor.shape and not tensor.strides:
        return 0
    own = math.prod(size for size, stride in zip(tensor.shape, tensor.strides, strict=True) if stride or size == 0)
    return own * item_bytes(tensor)
