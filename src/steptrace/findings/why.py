"""Why a variant is faster: the parts of a step, and the kernels, that take less time.

Figures of a profiled step explain the difference of unprofiled steps. The profiler slows the host, so the difference
between a profiled and an unprofiled step is subtracted from the idle time without a launch. The rest of the difference
is unexplained.
"""

from collections.abc import Mapping
from typing import Final

from steptrace import format as fmt
from steptrace.documents.variant import VariantResult
from steptrace.documents.why import KernelSaving, Saving, Why

#: The least share of the difference that a part, or a kernel, must have to be named as its reason.
LEAST_PART: Final = 0.1
_IDLE_HOST: Final = "idle_host"
#: The part of the difference that profiled steps do not explain.
UNEXPLAINED: Final = "unexplained"
#: The class of the kernels that make a part of the step.
_CLASSES: Final[Mapping[str, str]] = {"compute": "compute", "exposed_comm": "comm", "exposed_memory": "memory"}


def why(baseline: VariantResult | None, variant: VariantResult | None) -> Why | None:
    """The parts in which a variant's step is shorter; None if it is not shorter, or if the profiles do not say."""
    if baseline is None or variant is None or baseline is variant:
        return None
    changes = part_changes(baseline, variant)
    saved_ns = -_longer_ns(baseline, variant)
    if saved_ns <= 0 or changes is None or abs(changes[UNEXPLAINED]) >= saved_ns:
        return None
    less = {part: -ns for part, ns in changes.items() if part != UNEXPLAINED}
    by_size = sorted(less, key=lambda part: -abs(less[part]))
    least_ns = LEAST_PART * saved_ns
    shorter = tuple(
        Saving(part, less[part], _kernels(baseline, variant, part, least_ns))
        for part in by_size
        if less[part] >= least_ns
    )
    longer = tuple(Saving(part, -less[part], ()) for part in by_size if -less[part] >= least_ns)
    return Why(saved_ns, shorter, longer, _syncs_ns(baseline, variant))


def part_changes(baseline: VariantResult, variant: VariantResult) -> dict[str, float] | None:
    """How much longer each part of a step is in a variant than in its baseline, in ns; negative if it is shorter.

    The changes and the unexplained part add up to the difference of the unprofiled step times. It is None if one of
    the two has no step time, or if their profiles have no part in common.
    """
    before, after = _parts(baseline), _parts(variant)
    if baseline.step_time_ms is None or variant.step_time_ms is None or not before.keys() & after.keys():
        return None
    changes = {part: after.get(part, 0.0) - before.get(part, 0.0) for part in {**before, **after}}
    return changes | {UNEXPLAINED: _longer_ns(baseline, variant) - sum(changes.values())}


def _longer_ns(baseline: VariantResult, variant: VariantResult) -> float:
    """How much longer an unprofiled step of the variant is."""
    return ((variant.step_time_ms or 0.0) - (baseline.step_time_ms or 0.0)) * fmt.NS_PER_MS


def _parts(variant: VariantResult) -> dict[str, float]:
    """The parts of a step in ns, without the host time that the profiler added; none where some are not known."""
    overview = variant.overview
    if overview is None or None in overview.parts_ns.values():
        return {}
    parts = dict(overview.of_step)
    if _IDLE_HOST in parts and overview.step_ns is not None and variant.step_time_ms is not None:
        added_ns = max(overview.step_ns - variant.step_time_ms * fmt.NS_PER_MS, 0.0)
        parts[_IDLE_HOST] = max(parts[_IDLE_HOST] - added_ns, 0.0)
    return parts


def _kernels(baseline: VariantResult, variant: VariantResult, part: str, least_ns: float) -> tuple[KernelSaving, ...]:
    """The kernels of a part that take less time in a step of the variant, the largest difference first."""
    before, after = (_by_kernel(side, _CLASSES.get(part)) for side in (baseline, variant))
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
    """The most that the syncs which the variant has removed cost in a step of the baseline."""
    before, after = (_sync_ceiling_ns(side) for side in (baseline, variant))
    counts = baseline.syncs.measured_per_step, variant.syncs.measured_per_step
    if before is None or after is None or None in counts or not (counts[1] or 0) < (counts[0] or 0):
        return None
    return max(before - after, 0.0)


def _sync_ceiling_ns(variant: VariantResult) -> float | None:
    trace = variant.trace
    if trace is None or trace.syncs.ceiling_ns is None:
        return None
    return trace.syncs.ceiling_ns / (trace.quality.steps or 1)
