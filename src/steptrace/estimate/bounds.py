"""What a call takes at the data sheet's figures, and at most by its class: bounds to hold a trace against."""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from steptrace.documents.estimate import OperatorCalls
from steptrace.estimate.constants import shipped
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.rules import STRIDED, WITHOUT_RULE
from steptrace.estimate.times import ideal_seconds, kernel_seconds
from steptrace.estimate.work import kernels_of

_SLOWEST: Final = 0.99
#: Seconds that a launch takes at most, where a kernel has next to nothing to do.
_LONGEST_FLOOR_S: Final = 4e-6


@dataclass(frozen=True)
class KernelBounds:
    """Seconds of one call: at the data sheet's figures, and what only one of a hundred kernels of its class exceeds."""

    ideal_s: float
    slowest_s: float
    floor_s: float
    is_strided: bool


def kernel_bounds(call: OperatorCalls, gpu: Gpu, *, tf32: bool = False) -> KernelBounds | None:
    """The bounds of one call; None where it launches nothing, has no rule, or moves nothing."""
    kernels = kernels_of(call, tf32=tf32)
    if not kernels or any(kernel.kind in WITHOUT_RULE for kernel in kernels):
        return None
    # Elements that lie in the cache are still counted: a trace does not say where they lay.
    ideal = sum(max(ideal_seconds(replace(kernel, effort=1.0), gpu)) for kernel in kernels)
    if not ideal or any(kernel.flop and gpu.flops(kernel.arithmetic) is None for kernel in kernels):
        return None
    slowest = kernel_seconds(kernels, gpu, shipped()).sum(axis=0)
    return KernelBounds(
        ideal_s=ideal,
        slowest_s=float(np.quantile(slowest, _SLOWEST)),
        floor_s=_LONGEST_FLOOR_S,
        is_strided=any(kernel.kind == STRIDED for kernel in kernels),
    )
