"""Lower and upper bounds on the time of one operator call, to compare measured times in a trace with."""

from dataclasses import dataclass, replace
from typing import Final

from steptrace.documents.estimate import OperatorCalls
from steptrace.estimate.constants import shipped
from steptrace.estimate.gpus import Gpu
from steptrace.estimate.kernel_classes import NEVER_MEASURED, ONE_BLOCK, STRIDED
from steptrace.estimate.times import band, ideal_seconds, kernel_seconds
from steptrace.estimate.work import kernels_of, on_gpu

#: The longest time of a kernel with almost no work, in seconds.
_LONGEST_FLOOR_S: Final = 4e-6


@dataclass(frozen=True)
class KernelBounds:
    """Bounds on the time of one call, and its work.

    Attributes:
        ideal_s: seconds at the full figures of the data sheet.
        slowest_s: seconds at the upper end of the band of its class.
        floor_s: the longest time of a kernel with almost no work.
        is_strided: whether it runs a strided elementwise kernel.
        flop: floating-point operations.
        arithmetic: the number format that most of them are in; None without any.
        bytes: bytes read and written, at least.
    """

    ideal_s: float
    slowest_s: float
    floor_s: float
    is_strided: bool
    flop: float
    bytes: float
    arithmetic: str | None = None


def kernel_bounds(call: OperatorCalls, gpu: Gpu, *, tf32: bool = False) -> KernelBounds | None:
    """The bounds of one call; None if it launches nothing, has no rule, or moves no data."""
    kernels = tuple(on_gpu(kernel, gpu) for kernel in kernels_of(call, tf32=tf32))
    if not kernels or any(kernel.kind in NEVER_MEASURED for kernel in kernels):
        return None
    # A loss that a single block of threads reduces is slow for no good reason, and the trace should show that. So the
    # bound does not allow for it.
    kernels = tuple(replace(kernel, turns=0.0) if kernel.kind == ONE_BLOCK else kernel for kernel in kernels)
    # Bytes served by the cache are counted too, since a trace does not show cache hits.
    ideal = sum(max(ideal_seconds(replace(kernel, effort=1.0), gpu)) for kernel in kernels)
    if not ideal or any(kernel.flop and gpu.flops(kernel.arithmetic) is None for kernel in kernels):
        return None
    slowest = kernel_seconds(kernels, gpu, shipped(), alone=True).sum(axis=0)
    return KernelBounds(
        ideal_s=ideal,
        slowest_s=band(slowest)[1],
        floor_s=_LONGEST_FLOOR_S,
        is_strided=any(kernel.kind == STRIDED for kernel in kernels),
        flop=sum(kernel.flop for kernel in kernels),
        bytes=sum(kernel.bytes for kernel in kernels),
        arithmetic=max(kernels, key=lambda kernel: kernel.flop).arithmetic if any(k.flop for k in kernels) else None,
    )
