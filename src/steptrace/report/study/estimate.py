"""The section "Estimated": every variant's step on a GPU that is not there, as bands; never mixed with measurements.

On a machine without a GPU it leads the page, and says which variant is faster where bands are apart. With a GPU of the
same name the ratio of the measured step time to the band stands beside it.
"""

from dataclasses import dataclass

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.documents.estimate import Estimate
from steptrace.estimate.gpus import gpu_of_driver
from steptrace.findings.estimated import (
    all_alike,
    busy_words,
    estimate_of,
    estimated_gpus,
    estimated_sentence,
    leads,
    memory_words,
    step_words,
)
from steptrace.report.draw.cells import Scale, interval_cell, time_axis
from steptrace.report.draw.svg import InlineSvg
from steptrace.report.page.markup import Html, render


@dataclass(frozen=True)
class EstimateRow:
    """A variant on one GPU, in words; `busy` is empty where it is not estimated.

    `measured` only where the study was measured on that GPU.
    """

    variant: VariantResult
    estimate: Estimate
    step: str
    bar: InlineSvg | None
    busy: str
    memory: str
    measured: str | None


def estimate(study: Comparison) -> Html:
    """Estimated step time, GPU busy, limit, syncs and memory of every variant on each GPU; nothing without any."""
    batches = sorted({one.batch for variant in study.variants for one in variant.estimates if one.batch is not None})
    return render(
        "study/estimate",
        tables=[
            (gpu, estimated_sentence(study, gpu), *_rows(study, gpu), len(study.variants) > 1 and all_alike(study, gpu))
            for gpu in estimated_gpus(study)
        ],
        leads=leads(study),
        batch=batches[0] if len(batches) == 1 else None,
        band=fmt.band_ms,
        limits={"memory": "memory bandwidth"},
    )


def _rows(study: Comparison, gpu: str) -> tuple[list[EstimateRow], tuple[InlineSvg, str] | None]:
    estimates = [(variant, one) for variant in study.variants if (one := estimate_of(variant, gpu)) is not None]
    ends = [end for _, one in estimates for end in one.step_ms or () if end > 0]
    scale = Scale.of(ends) if ends else None
    rows = [
        EstimateRow(
            variant=variant,
            estimate=one,
            step=step_words(one),
            bar=None if scale is None else _bar(variant, one, scale),
            busy="" if one.gpu_busy_pct is None else busy_words(one),
            memory=memory_words(one),
            measured=_against_measured(study, variant, one),
        )
        for variant, one in estimates
    ]
    return rows, None if scale is None else time_axis(scale)


def _bar(variant: VariantResult, one: Estimate, scale: Scale) -> InlineSvg | None:
    if one.step_ms is None or not one.step_ms[0]:
        return None
    middle = (one.step_ms[0] * one.step_ms[1]) ** 0.5
    alt = f"{variant.name}: estimated {step_words(one)}"
    return interval_cell(scale, middle, one.step_ms, None, "estimated", alt)


def _against_measured(study: Comparison, variant: VariantResult, one: Estimate) -> str | None:
    """Measured / estimated, where the study was measured on a GPU of that name."""
    gpu = None if study.environment is None else study.environment.gpu
    if variant.median_ms is None or one.step_ms is None or not _same_gpu(gpu, one.gpu):
        return None
    low, high = (variant.median_ms / end for end in reversed(one.step_ms))
    return f"{fmt.ratio(low)} to {fmt.ratio(high)}"


def _same_gpu(measured: str | None, estimated: str) -> bool:
    """Whether a device's own name is that of a data sheet: "NVIDIA H100 80GB HBM3" is an H100."""
    sheet = gpu_of_driver(measured)
    if sheet is not None:
        return sheet.name == estimated
    return measured is not None and f" {estimated.replace('-', ' ')} " in f" {measured.replace('-', ' ')} "
