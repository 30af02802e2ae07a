"""The variants of a matrix, each against the baseline of its cell: in how many cells they are faster, and how much.

Cells are never compared with each other: a matrix changes the work of a step.
"""

from collections.abc import Sequence

from steptrace.documents.answer import CellSpeed, MatrixSpeed
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Band
from steptrace.documents.variant import VariantResult
from steptrace.findings.estimated import estimate_of


def axes(study: Comparison) -> dict[str, list[str]]:
    """The keys of the matrix that have several values, with these in their order; empty without a matrix."""
    values: dict[str, dict[str, None]] = {}
    for variant in study.variants:
        for key, value in variant.cell.items():
            values.setdefault(key, {})[value] = None
    return {key: [*of_key] for key, of_key in values.items() if len(of_key) > 1}


def varying_cell(study: Comparison, variant: VariantResult) -> dict[str, str]:
    """The values of a variant's cell, of the keys that have several."""
    return {key: variant.cell[key] for key in axes(study) if key in variant.cell}


def matrix_speeds(study: Comparison, gpu: str | None = None) -> tuple[MatrixSpeed, ...]:
    """Each entry of the study's file that is not a baseline, the most often faster first; empty without a matrix.

    Args:
        study: the comparison.
        gpu: the GPU whose estimates count; None for the measured step times.
    """
    keys = tuple(axes(study))
    entries: dict[str, list[VariantResult]] = {}
    for variant in study.variants if keys else ():
        if not variant.is_baseline:
            entries.setdefault(variant.entry or variant.name, []).append(variant)
    speeds = [
        speed for entry, variants in entries.items() if (speed := _speed(study, entry, variants, keys, gpu)) is not None
    ]
    return tuple(sorted(speeds, key=lambda speed: -speed.faster))


def _speed(
    study: Comparison, entry: str, variants: Sequence[VariantResult], keys: tuple[str, ...], gpu: str | None
) -> MatrixSpeed | None:
    """One entry's speed; None where no cell has a ratio."""
    ratios = [(variant, _compared(study, variant, gpu)) for variant in variants]
    compared = [(variant, ratio) for variant, ratio in ratios if ratio is not None]
    # A cell may lack its baseline if results are missing.
    baselines = (study.variant(variant.baseline) for variant in variants)
    baseline = next((result for result in baselines if result is not None), None)
    if not compared or baseline is None:
        return None
    told = [(variant, ratio) for variant, (ratio, direction) in compared if direction]
    cells = sorted(
        (CellSpeed(cell=varying_cell(study, variant), times_as_fast=ratio) for variant, ratio in told),
        key=lambda cell: cell.times_as_fast[0] * cell.times_as_fast[1],
    )
    return MatrixSpeed(
        entry=entry,
        baseline=baseline.entry or baseline.name,
        keys=keys,
        cells=len(compared),
        not_compared=len(variants) - len(compared),
        faster=sum(direction > 0 for _, (_, direction) in compared),
        slower=sum(direction < 0 for _, (_, direction) in compared),
        least=cells[0] if cells else None,
        most=cells[-1] if cells else None,
        gpu=gpu,
    )


def _compared(study: Comparison, variant: VariantResult, gpu: str | None) -> tuple[Band, int] | None:
    """How many times as fast as its baseline a variant is, and 1 if it is shown to be faster, -1 if slower, else 0."""
    if gpu is not None:
        estimate = estimate_of(variant, gpu)
        pair = None if estimate is None else estimate.difference
        return None if pair is None else (pair.times_as_fast, int(pair.is_faster) - int(pair.is_slower))
    ratio = variant.ratio
    if ratio is None or ratio.verdict is None or study.has_other_batch(variant):
        return None
    ends = (ratio.value, ratio.value) if ratio.low is None or ratio.high is None else (ratio.low, ratio.high)
    return ends, {"faster": 1, "slower": -1}.get(ratio.verdict, 0)
