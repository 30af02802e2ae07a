"""What a call takes at the data sheet's figures, and at most by its class: bounds to hold a trace against."""

from dataclasses import dataclass, replace
from typing import Final

from steptrace.documents.estimate import OperatorCalls
from steptrace.estimate.constants import shipped
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.rules import ONE_BLOCK, STRIDED, WITHOUT_RULE
from steptrace.estimate.times import band, ideal_seconds, kernel_seconds
from steptrace.estimate.work import kernels_of

#: Seconds that a launch takes at most, where a kernel has next to nothing to do.
_LONGEST_FLOOR_S: Final = 4e-6


@dataclass(frozen=True)
class KernelBounds:
    """Seconds of one call: at the data sheet's figures, and the upper end of the band of its class."""

    ideal_s: float
    slowest_s: float
    floor_s: float
    is_strided: bool


def kernel_bounds(call: OperatorCalls, gpu: Gpu, *, tf32: bool = False) -> KernelBounds | None:
    """The bounds of one call; None where it launches nothing, has no rule, or moves nothing."""
    kernels = kernels_of(call, tf32=tf32)
    if not kernels or any(kernel.kind in WITHOUT_RULE for kernel in kernels):
        return None
    # That one block of threads reduces a loss is what a trace is to show, and nothing that it has to be.
    kernels = tuple(replace(kernel, turns=0.0) if kernel.kind == ONE_BLOCK else kernel for kernel in kernels)
    # Elements that lie in the cache are still counted: a trace does not say where they lay.
    ideal = sum(max(ideal_seconds(replace(kernel, effort=1.0), gpu)) for kernel in kernels)
    if not ideal or any(kernel.flop and gpu.flops(kernel.arithmetic) is None for kernel in kernels):
        return None
    slowest = kernel_seconds(kernels, gpu, shipped(), alone=True).sum(axis=0)
    return KernelBounds(
        ideal_s=ideal,
        slowest_s=band(slowest)[1],
        floor_s=_LONGEST_FLOOR_S,
        is_strided=any(kernel.kind == STRIDED for kernel in kernels),
    )
