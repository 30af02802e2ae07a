"""The section "Estimated": every variant's step on a GPU that is not there, as bands; never mixed with measurements.

On a machine without a GPU it leads the page, and says which variant is faster where bands are apart. Where that GPU
was measured it stands folded below what to do, beside the measured figures and with the ratio to them.
"""

from collections.abc import Callable, Sequence
from typing import Final

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
from steptrace.report.page.markup import Html, breakable, render
from steptrace.report.page.table import Figure, figures_table

_LIMITS: Final = {"memory": "memory bandwidth"}
_NOTE: Final = Html('{}<span class="note">{}</span>')


def estimate(study: Comparison) -> Html:
    """Estimated step time, GPU busy, limit, syncs and memory of every variant on each GPU; nothing without any."""
    gpu_measured = None if study.environment is None else study.environment.gpu
    batches = sorted({one.batch for variant in study.variants for one in variant.estimates if one.batch is not None})
    return render(
        "study/estimate",
        tables=[
            (gpu, estimated_sentence(study, gpu), _alike(study, gpu), *_table(study, gpu, batches))
            for gpu in estimated_gpus(study)
            if not _same_gpu(gpu_measured, gpu)
        ],
        beside=[_beside(study, gpu) for gpu in estimated_gpus(study) if _same_gpu(gpu_measured, gpu)],
        leads=leads(study),
    )


def _table(study: Comparison, gpu: str, batches: Sequence[int]) -> tuple[Html, list[str]]:
    """The estimates of all variants on a GPU, each as a band on the scale of all, and why some have none."""
    estimates = {v.name: (v, one) for v in study.variants if (one := estimate_of(v, gpu)) is not None}
    ends = [end for _, one in estimates.values() for end in one.step_ms or () if end > 0]
    scale = Scale.of(ends) if ends else None
    axis, words = ("", "") if scale is None else time_axis(scale)

    def figure(
        heading: str, of: Callable[[VariantResult, Estimate], str | float | None], look: str = "", **more: str
    ) -> Figure:
        return Figure(heading, {name: of(*pair) for name, pair in estimates.items()}, look=look, absent="", **more)

    batch = f", batch {batches[0]}" if len(batches) == 1 else ""
    figures = [
        figure(f"Estimated step{batch}", lambda _, one: _step(one, batch), "time"),
        figure(
            f"Estimated range, {words}",
            lambda v, one: None if scale is None else _bar(v, one, scale),
            "drawn",
            foot=axis,
        ),
        figure("GPU busy", lambda _, one: _busy(one), label="Busy"),
        figure("Limited by", lambda _, one: _limit(one), label="Limit"),
        figure("Syncs per step", _syncs, "num", label="Syncs"),
        figure("Launches", lambda _, one: one.launches, label="Launches"),
        figure("Peak memory", lambda _, one: memory_words(one) or None, label=""),
    ]
    reasons = [f"`{v.name}`: {one.reason}" for v, one in estimates.values() if one.reason]
    return figures_table("Variant", {name: breakable(name) for name in estimates}, figures, look="result"), reasons


def _alike(study: Comparison, gpu: str) -> str:
    """One sentence for all variants where their estimates are the same and the measured times lead; else empty."""
    if leads(study) or len(study.variants) < 2 or not all_alike(study, gpu):
        return ""
    one = next(one for v in study.variants if (one := estimate_of(v, gpu)) is not None)
    if one.step_ms is None:
        return ""
    batch = "" if one.batch is None else f" at batch {one.batch}"
    busy = f", GPU busy {busy_words(one)}" if one.gpu_busy_pct else ""
    limit = f", limited by {_LIMITS.get(one.limited_by, one.limited_by)}" if one.limited_by else ""
    memory = f"; peak memory {memory_words(one)}" if one.peak_memory_bytes else ""
    return f"A step takes {step_words(one)}{batch}{busy}{limit}{memory}."


def _step(one: Estimate, batch: str) -> str:
    return _NOTE.format(step_words(one), f"batch {one.batch}") if one.batch and not batch else step_words(one)


def _busy(one: Estimate) -> str | None:
    return None if one.gpu_busy_pct is None else busy_words(one)


def _limit(one: Estimate) -> str | None:
    if one.limited_by is None:
        return None
    words = _LIMITS.get(one.limited_by, one.limited_by)
    if one.limited_by != "launches" or not one.gpu_ms:
        return words
    return _NOTE.format(words, f"the kernels alone take {fmt.band_ms(*one.gpu_ms)}")


def _syncs(variant: VariantResult, one: Estimate) -> str | float | None:
    unknown = variant.predicted_unknown
    if not unknown:
        return one.syncs
    words = f"at least {fmt.count(one.syncs)}" if one.syncs else "unknown"
    return _NOTE.format(words, f"{fmt.plural(len(unknown), 'operation')} not covered")


def _bar(variant: VariantResult, one: Estimate, scale: Scale) -> str:
    if one.step_ms is None or not one.step_ms[0]:
        return ""
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
