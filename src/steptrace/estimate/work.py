"""The GPU's work in one call of an operator: its time, as a band."""

import math
from dataclasses import dataclass

from steptrace.documents.estimate import Band, OperatorCalls
from steptrace.estimate.channels import computed_flop
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.launches import launches
from steptrace.estimate.moved import converted_bytes, may_be_unconverted, moved_bytes
from steptrace.estimate.reductions import reads_in_turn
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
    Rule,
    arithmetic_of,
    base_name,
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
        if converted and not may_be_unconverted(call, kind):
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
