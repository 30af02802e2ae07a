"""The GPU's work in one call of an operator: its time, as a band, and the bytes that it reads and writes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from steptrace.documents.estimate import Band, OperatorCalls, TensorSpec
from steptrace.estimate.cudnn import computed_flop, images_and_weight, is_backward
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.launches import launches
from steptrace.estimate.layout import elements, item_bytes, reads_in_turn
from steptrace.estimate.lists import is_of_lists, lists_of
from steptrace.estimate.rules import (
    CONVERSION,
    HOST_COPY,
    IRREGULAR,
    LOOKED_UP,
    NARROWEST_CONVOLUTION,
    NO_ARITHMETIC,
    POWER_LIMITED,
    READ_LATENCY,
    RECURRENT,
    REDUCTION,
    SHORT,
    TENSOR_CORES,
    Rule,
    arithmetic_of,
    base_name,
    is_convolution,
    misaligned,
    rule_of,
)


@dataclass(frozen=True)
class Work:
    """The GPU's work in one call of an operator, and what it is spent on.

    Attributes:
        call: the operator.
        rule: of its class.
        launches: of one call.
        time: seconds of one call alone, lowest and highest.
        typical: seconds of one call as a part of many of its class.
        limited_by: `arithmetic` or `memory`, None if the kernel is too short for either.
    """

    call: OperatorCalls
    rule: Rule
    launches: int
    time: Band
    typical: Band
    limited_by: str | None

    @property
    def middle(self) -> float:
        """Seconds of all calls in the middle of the typical band."""
        return self.call.calls * sum(self.typical) / 2


def work_of(call: OperatorCalls, gpu: Gpu, *, tf32: bool = False) -> Work | None:
    """The GPU's work in one call; None where it launches nothing."""
    count = launches(call)
    if not count:
        return None
    kind = arithmetic_of(call, gpu, tf32=tf32)
    rule = rule_of(call, kind)
    moved = moved_bytes(call)
    arithmetic = gpu.flops(kind) if call.flop else None
    if call.flop and arithmetic is None:
        rule, arithmetic = NO_ARITHMETIC, gpu.flops("float32")
    slowest = gpu.flops("float32") if misaligned(call) else arithmetic
    computed = computed_flop(call) if rule is NARROWEST_CONVOLUTION else call.flop
    flop_low, flop_high = (computed / rate if rate else 0.0 for rate in (arithmetic, slowest))
    bytes_s = moved / (gpu.pcie_gbs * 1e9 if rule is HOST_COPY else gpu.bandwidth)
    if rule is IRREGULAR and bytes_s / rule.memory.kernel[0] <= count * rule.floor[0]:
        rule = SHORT
    reduced = call.inputs[1:] if base_name(call.name) in LOOKED_UP else call.inputs
    turns = reads_in_turn(reduced[0], call.outputs) if rule is REDUCTION and reduced else (0, 0)
    waits = (turns[0] * READ_LATENCY[0], turns[1] * READ_LATENCY[1])
    if rule is RECURRENT and (given := call.arguments):
        length = len(given["batch_sizes"]) or call.inputs[0].shape[given["batch_first"]]  # sizes: of packed sequences
        in_turn = length * given["num_layers"] * (1 + given["bidirectional"])
        waits = (in_turn * rule.floor[0], in_turn * rule.floor[1])
    converted = converted_bytes(call, kind) / gpu.bandwidth
    bands = []
    for of_flop, of_bytes in (
        (rule.arithmetic.kernel, rule.memory.kernel),
        (rule.arithmetic.typical, rule.memory.typical),
    ):
        slow = _slowest_share(of_flop, gpu)
        low = count * rule.floor[0] + max(flop_low / of_flop[1], bytes_s / of_bytes[1], waits[0])
        high = count * rule.floor[1] + max(flop_high / slow, bytes_s / of_bytes[0], waits[1])
        high += converted / CONVERSION[0]
        if converted and not _may_be_unconverted(call, kind):
            low += converted / CONVERSION[1]
        bands.append((low, high))
    by_flop, by_bytes = flop_low / rule.arithmetic.typical[1], bytes_s / rule.memory.typical[1]
    what = "arithmetic" if by_flop > by_bytes else "memory"
    return Work(call, rule, count, bands[0], bands[1], None if max(by_flop, by_bytes) < count * rule.floor[0] else what)


def _slowest_share(shares: Band, gpu: Gpu) -> float:
    """The lowest share of arithmetic; of a card limited by its power that of the middle of the band."""
    return min(shares[0], POWER_LIMITED * math.sqrt(shares[0] * shares[1])) if gpu.power_limited else shares[0]


def ideal_s(call: OperatorCalls, gpu: Gpu, *, tf32: bool = False) -> float | None:
    """Seconds of one call at the data sheet's figures; None of what launches nothing or has no rule."""
    work = work_of(call, gpu, tf32=tf32)
    if work is None or work.rule is SHORT or work.rule.not_covered is not None:
        return None
    arithmetic = gpu.flops(arithmetic_of(call, gpu, tf32=tf32)) if call.flop else None
    rate = gpu.pcie_gbs * 1e9 if work.rule is HOST_COPY else gpu.bandwidth
    return max(call.flop / arithmetic if arithmetic else 0.0, moved_bytes(call) / rate)


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


def _may_be_unconverted(call: OperatorCalls, arithmetic: str) -> bool:
    """Whether it may do without: kernels for TF32 may take other layouts, and those of size 1 are products."""
    _, weight = images_and_weight(call)
    return arithmetic == "tf32" or all(size == 1 for size in weight.shape[2:])


def _bytes(tensor: TensorSpec) -> int:
    """Bytes of the elements that it has of its own: a broadcast one is read once, a sparse one has parts."""
    if tensor.shape and not tensor.strides:
        return 0
    own = math.prod(size for size, stride in zip(tensor.shape, tensor.strides, strict=True) if stride or size == 0)
    return own * item_bytes(tensor)
