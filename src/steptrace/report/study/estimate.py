"""The section "Estimated": every variant's step on a GPU that is not there, as bands; never mixed with measurements.

On a machine without a GPU it leads the page, and says which variant is faster where bands are apart. Where that GPU
was measured it stands folded below what to do, beside the measured figures and with the ratio to them.
"""

from collections.abc import Callable
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
from steptrace.report.page.markup import Html, breakable, render
from steptrace.report.page.table import Figure, figures_table


@dataclass(frozen=True)
class EstimateRow:
    """A variant on one GPU, in words; `busy` is empty where it is not estimated."""

    variant: VariantResult
    estimate: Estimate
    step: str
    bar: InlineSvg | None
    busy: str
    memory: str


def estimate(study: Comparison) -> Html:
    """Estimated step time, GPU busy, limit, syncs and memory of every variant on each GPU; nothing without any."""
    gpu_measured = None if study.environment is None else study.environment.gpu
    batches = sorted({one.batch for variant in study.variants for one in variant.estimates if one.batch is not None})
    return render(
        "study/estimate",
        tables=[
            (gpu, estimated_sentence(study, gpu), *_rows(study, gpu), len(study.variants) > 1 and all_alike(study, gpu))
            for gpu in estimated_gpus(study)
            if not _same_gpu(gpu_measured, gpu)
        ],
        beside=[_beside(study, gpu) for gpu in estimated_gpus(study) if _same_gpu(gpu_measured, gpu)],
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


def _beside(study: Comparison, gpu: str) -> tuple[str, Html, list[str]]:
    """The estimate of the GPU that was measured: a sentence, both side by side, and why some have none."""
    estimates = {v.name: one for v in study.variants if (one := estimate_of(v, gpu)) is not None}
    medians = study.medians_ms
    ratios = {
        name: (medians[name] / one.step_ms[1], medians[name] / one.step_ms[0])
        for name, one in estimates.items()
        if one.step_ms is not None and one.step_ms[0] and name in medians
    }

    def measured(name: str) -> dict[str, float | None]:
        return {v.name: getattr(v, name) for v in study.variants}

    def estimated(words: Callable[[Estimate], str]) -> dict[str, str]:
        return {name: words(one) for name, one in estimates.items() if words(one)}

    launches = {name: one.launches for name, one in estimates.items()}
    figures = [
        Figure("Step time", medians, "ms"),
        Figure("Estimated step time", estimated(step_words), absent="not estimated"),
        Figure(
            "Measured / estimated",
            {name: " to ".join(map(fmt.ratio, ends)) for name, ends in ratios.items()},
            absent="",
        ),
        Figure("GPU busy", measured("gpu_busy_pct"), "%"),
        Figure(
            "Estimated GPU busy", estimated(lambda one: "" if one.gpu_busy_pct is None else busy_words(one)), absent=""
        ),
        Figure("Launches per step", {v.name: _launches(v) for v in study.variants}),
        Figure("Estimated launches", launches, absent=""),
        Figure("Peak memory", measured("peak_allocated_bytes"), "B"),
        Figure("Estimated peak memory", estimated(memory_words), absent=""),
    ]
    title = f"Estimate for {gpu} beside what was measured"
    if ratios:
        low, high = min(low for low, _ in ratios.values()), max(high for _, high in ratios.values())
        title += f": step times are {low:.2f} to {high:.2f} times the estimated ones"
    variants = {v.name: breakable(v.name) for v in study.variants}
    reasons = [f"`{name}`: {one.reason}" for name, one in estimates.items() if one.reason]
    return title, figures_table("Variant", variants, figures), reasons


def _launches(variant: VariantResult) -> float | None:
    """Calls of a traced step that put work on the GPU, as the estimate counts them: kernels, copies and fills."""
    launches = None if variant.trace is None else variant.trace.launches
    return None if variant.trace is None or launches is None else launches.count / (variant.trace.quality.steps or 1)


def _same_gpu(measured: str | None, estimated: str) -> bool:
    """Whether a device's own name is that of a data sheet: "NVIDIA H100 80GB HBM3" is an H100."""
    sheet = gpu_of_driver(measured)
    if sheet is not None:
        return sheet.name == estimated
    return measured is not None and f" {estimated.replace('-', ' ')} " in f" {measured.replace('-', ' ')} "
