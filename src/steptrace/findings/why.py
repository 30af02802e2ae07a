"""Why a variant is faster: in which parts of a step, and by which kernels, its time is saved.

Figures of a profiled step explain the difference of unprofiled ones. The profiler slows the host, so the time that a
profiled step has more than an unprofiled one is taken off its idle time without a launch. What the parts still leave
over is unexplained.
"""

from collections.abc import Mapping
from typing import Final

from steptrace import format as fmt
from steptrace.documents.variant import KernelSaving, Saving, VariantResult, Why

#: A part, or a kernel, that makes less of the difference than this is not named as its reason.
LEAST_PART: Final = 0.1
_IDLE_HOST: Final = "idle_host"
#: The class of the kernels that make a part of the step.
_CLASSES: Final[Mapping[str, str]] = {"compute": "compute", "exposed_comm": "comm", "exposed_memory": "memory"}


def why(baseline: VariantResult | None, variant: VariantResult | None) -> Why | None:
    """Where a variant's step is shorter; None where it is not, or where the profiles do not say."""
    if baseline is None or variant is None or baseline is variant:
        return None
    before, after = _parts(baseline), _parts(variant)
    saved_ns = ((baseline.step_time_ms or 0.0) - (variant.step_time_ms or 0.0)) * fmt.NS_PER_MS
    if saved_ns <= 0 or not before.keys() & after.keys():
        return None
    less = {part: before.get(part, 0.0) - after.get(part, 0.0) for part in {**before, **after}}
    if abs(saved_ns - sum(less.values())) >= saved_ns:
        return None
    by_size = sorted(less, key=lambda part: -abs(less[part]))
    least_ns = LEAST_PART * saved_ns
    shorter = tuple(
        Saving(part, less[part], _kernels(baseline, variant, part, least_ns))
        for part in by_size
        if less[part] >= least_ns
    )
    longer = tuple(Saving(part, -less[part], ()) for part in by_size if -less[part] >= least_ns)
    return Why(saved_ns, shorter, longer, _syncs_ns(baseline, variant))


def _parts(variant: VariantResult) -> dict[str, float]:
    """The parts of a step in ns, without the host time that the profiler added."""
    overview = variant.overview
    if overview is None:
        return {}
    parts = dict(overview.of_step)
    if _IDLE_HOST in parts and overview.step_ns is not None and variant.step_time_ms is not None:
        added_ns = max(overview.step_ns - variant.step_time_ms * fmt.NS_PER_MS, 0.0)
        parts[_IDLE_HOST] = max(parts[_IDLE_HOST] - added_ns, 0.0)
    return parts


def _kernels(baseline: VariantResult, variant: VariantResult, part: str, least_ns: float) -> tuple[KernelSaving, ...]:
    """The kernels of a part that take less time in a step of the variant, the largest difference first."""
    before, after = (_by_kernel(one, _CLASSES.get(part)) for one in (baseline, variant))
    less = {name: ns - after.get(name, 0.0) for name, ns in before.items()}
    names = {row.name: row.short_name for row in (() if baseline.trace is None else baseline.trace.kernels)}
    chosen = sorted((name for name in less if less[name] >= least_ns), key=lambda name: -less[name])
    return tuple(KernelSaving(names[name], less[name]) for name in chosen)


def _by_kernel(variant: VariantResult, kind: str | None) -> dict[str, float]:
    """The time of each kernel of a class in a step, in ns."""
    trace = variant.trace
    if trace is None or kind is None:
        return {}
    steps = trace.quality.steps or 1
    return {row.name: row.sum_ns / steps for row in trace.kernels if row.class_ == kind}


def _syncs_ns(baseline: VariantResult, variant: VariantResult) -> float | None:
    """What the syncs of the baseline that the variant lacks can have cost in a step."""
    before, after = (_sync_ceiling_ns(one) for one in (baseline, variant))
    counts = baseline.syncs.measured_per_step, variant.syncs.measured_per_step
    if before is None or after is None or None in counts or not (counts[1] or 0) < (counts[0] or 0):
        return None
    return max(before - after, 0.0)


def _sync_ceiling_ns(variant: VariantResult) -> float | None:
    trace = variant.trace
    if trace is None or trace.syncs.ceiling_ns is None:
        return None
    return trace.syncs.ceiling_ns / (trace.quality.steps or 1)
