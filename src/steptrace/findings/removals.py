"""How long syncs block the host, beside what a step gains without them.

Blocked time is not what a sync costs: the GPU works meanwhile. The two figures together show what it costs.
"""

from collections.abc import Mapping
from typing import Final

from steptrace import format as fmt
from steptrace.documents.answer import SyncRemoval
from steptrace.documents.comparison import Comparison
from steptrace.documents.variant import VariantResult
from steptrace.findings.estimated import estimate_of, estimated_gpus, leads
from steptrace.findings.matrix import varying_cell

#: A sync launches one copy at most, so variants that differ in their syncs alone differ by so many launches a sync.
_LAUNCHES_PER_SYNC: Final = 1
#: Counts of launches that differ by less are equal: means over steps.
_ROUNDING: Final = 0.5


def removals(study: Comparison) -> list[SyncRemoval]:
    """A row for each variant whose syncs per step differ from its baseline's: measured, or estimated if that leads.

    Measured blocked time is of profiled steps, and the gain of unprofiled ones. Estimates are for the first GPU.
    """
    gpu = estimated_gpus(study)[0] if leads(study) else None
    rows = []
    for variant in study.variants:
        baseline = study.variant(variant.baseline)
        if baseline is not None and not variant.is_baseline and not study.has_other_batch(variant):
            cell = varying_cell(study, variant)
            row = _measured(baseline, variant, cell) if gpu is None else _estimated(baseline, variant, cell, gpu)
            rows += [] if row is None else [row]
    return rows


def removals_of_answer(study: Comparison) -> tuple[SyncRemoval, ...]:
    """The rows that answer the study's question: for each cell the variant that removes most syncs.

    Empty unless variants differ from their baselines in nothing but syncs: otherwise the gain is not that of syncs.
    """
    rows = removals(study)
    changed = {variant.name for variant in study.variants if not variant.is_baseline}
    if not rows or {row.name for row in rows} != changed:
        return ()
    if not all(_is_only_syncs(study, row) for row in rows):
        return ()
    most: dict[tuple[str, ...], SyncRemoval] = {}
    for row in rows:
        cell = tuple(row.cell.values())
        if row.syncs < row.baseline_syncs and (cell not in most or row.syncs < most[cell].syncs):
            most[cell] = row
    return tuple(most.values())


def _is_only_syncs(study: Comparison, row: SyncRemoval) -> bool:
    """Whether a variant launches what its baseline does, except for the copies of the syncs."""
    baseline, variant = study.variant(row.baseline), study.variant(row.name)
    if baseline is None or variant is None:
        return False
    before, now = (_launches(result, row.gpu) for result in (baseline, variant))
    if before is None or now is None:
        return False
    return abs(before - now) <= _LAUNCHES_PER_SYNC * abs(row.baseline_syncs - row.syncs) + _ROUNDING


def _launches(variant: VariantResult, gpu: str | None) -> float | None:
    if gpu is None:
        return variant.kernels_per_step
    estimate = estimate_of(variant, gpu)
    return None if estimate is None else estimate.launches


def _estimated(
    baseline: VariantResult, variant: VariantResult, cell: Mapping[str, str], gpu: str
) -> SyncRemoval | None:
    before, now = estimate_of(baseline, gpu), estimate_of(variant, gpu)
    if before is None or now is None or now.difference is None or before.syncs == now.syncs:
        return None
    if before.blocked_ms is None or now.blocked_ms is None:
        return None
    return SyncRemoval(
        name=variant.name,
        entry=variant.entry or variant.name,
        baseline=baseline.name,
        cell=dict(cell),
        gpu=gpu,
        baseline_syncs=before.syncs,
        syncs=now.syncs,
        baseline_blocked_ms=before.blocked_ms,
        blocked_ms=now.blocked_ms,
        saved_ms=now.difference.saved_ms,
        baseline_step_ms=before.step_ms,
        baseline_busy_pct=before.gpu_busy_pct,
    )


def _measured(baseline: VariantResult, variant: VariantResult, cell: Mapping[str, str]) -> SyncRemoval | None:
    before, now = _blocked_ms(baseline), _blocked_ms(variant)
    counts = baseline.syncs.measured_per_step, variant.syncs.measured_per_step
    if before is None or now is None or not (baseline.sync_sites or variant.sync_sites):
        return None
    if counts[0] is None or counts[1] is None or counts[0] == counts[1]:
        return None
    step = baseline.step_time_ms
    ratio = variant.ratio
    if step is None or ratio is None:
        return None
    low, high = (end or ratio.value for end in (ratio.low, ratio.high))
    busy = baseline.gpu_busy_pct
    return SyncRemoval(
        name=variant.name,
        entry=variant.entry or variant.name,
        baseline=baseline.name,
        cell=dict(cell),
        gpu=None,
        baseline_syncs=counts[0],
        syncs=counts[1],
        baseline_blocked_ms=(before, before),
        blocked_ms=(now, now),
        saved_ms=(_shorter(step, low), _shorter(step, high)),
        baseline_step_ms=(step, step),
        baseline_busy_pct=None if busy is None else (busy, busy),
    )


def _blocked_ms(variant: VariantResult) -> float | None:
    """How long syncs block the host in a profiled step; None where it was not measured."""
    if variant.trace is None or variant.trace.syncs.blocked_ns is None or not variant.trace.quality.steps:
        return None
    return variant.trace.syncs.blocked_ns / variant.trace.quality.steps / fmt.NS_PER_MS


def _shorter(baseline_ms: float, ratio: float) -> float:
    """How much shorter than the baseline's a step is whose ratio this is."""
    return baseline_ms * (1 - 1 / ratio)
