"""The section "Estimated": every variant's step on a GPU that is not there, as bands; never mixed with measurements.

On a machine without a GPU it leads the page, and says which variant is faster where bands are apart. Where that GPU
was measured it stands folded below what to do, beside the measured figures and with the ratio to them.
"""

from collections.abc import Callable, Mapping
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Estimate
from steptrace.documents.variant import VariantResult
from steptrace.estimate.gpus import gpu_of_driver
from steptrace.findings.estimated import (
    all_alike,
    busy_words,
    difference_words,
    estimate_of,
    estimated_gpus,
    estimated_sentence,
    leads,
    memory_words,
    rate_words,
    step_words,
    tested_words,
)
from steptrace.limits import MODERATE_SHARE
from steptrace.report.draw import Scale, interval_cell, time_axis
from steptrace.report.page.markup import Html, breakable, render
from steptrace.report.page.parts import Figure, figures_table

_LIMITS: Final = {"memory": "memory bandwidth"}
_AGAINST: Final = "Against the baseline"
#: Classes of kernels that are listed, those with most of the GPU's work.
_CLASSES: Final = 12
_NOTE: Final = Html('{}<span class="note">{}</span>')


def estimate(study: Comparison) -> Html:
    """Estimated step time, GPU busy, limit, syncs and memory of every variant on each GPU; nothing without any."""
    gpu_measured = None if study.environment is None else study.environment.gpu
    tables = []
    for gpu in estimated_gpus(study):
        measured = _ratios(study, gpu) if _same_gpu(gpu_measured, gpu) else None
        alike = "" if measured is not None else _alike(study, gpu)
        title = "" if measured is None else _title(gpu, measured)
        sentence = estimated_sentence(study, gpu)
        tables.append((gpu, title, sentence, alike, *_table(study, gpu, measured), *_details(study, gpu)))
    return render("study/estimate", tables=tables, leads=leads(study))


#: Of each variant the step time that was measured over both ends of the estimated one.
_Ratios = Mapping[str, tuple[float, float]]


def _ratios(study: Comparison, gpu: str) -> _Ratios:
    bands = {v.name: one.step_ms for v in study.variants if (one := estimate_of(v, gpu)) is not None}
    waiting = {v.name for v in study.measured if _waits_for_data(v)}  # which is in no estimate
    return {
        name: (ms / band[1], ms / band[0])
        for name, ms in study.step_times_ms.items()
        if (band := bands.get(name)) is not None and band[0] and name not in waiting
    }


def _waits_for_data(variant: VariantResult) -> bool:
    """Whether its steps wait for data: by what the GPU is idle meanwhile or, where no trace says that, by all of it."""
    wait = variant.input
    if wait is None or wait.wait_ms is None or wait.step_ms is None:
        return False
    return (wait.wait_ms / wait.step_ms if wait.share is None else wait.share) >= MODERATE_SHARE


def _title(gpu: str, ratios: _Ratios) -> str:
    title = f"Estimate for {gpu} beside what was measured"
    if not ratios:
        return title
    low, high = min(low for low, _ in ratios.values()), max(high for _, high in ratios.values())
    return f"{title}: step times are {low:.2f} to {high:.2f} times the estimated ones"


def _table(study: Comparison, gpu: str, measured: _Ratios | None) -> tuple[Html, list[str]]:
    """The estimates of all variants on a GPU, and why some have none.

    Each is drawn as a band on the scale of all; where that GPU was `measured` its step times stand beside them instead.
    """
    estimates = {v.name: (v, one) for v in study.variants if (one := estimate_of(v, gpu)) is not None}
    ends = [end for _, one in estimates.values() for end in one.step_ms or () if end > 0]
    scale = Scale.of(ends) if ends else None
    axis, words = ("", "") if scale is None else time_axis(scale)

    def figure(
        heading: str, of: Callable[[VariantResult, Estimate], str | float | None], look: str = "", **more: str
    ) -> Figure:
        return Figure(heading, {name: of(*pair) for name, pair in estimates.items()}, look=look, absent="", **more)

    def beside(estimated: str | float | None, value: float | None, words: Callable[[float], str]) -> str | float | None:
        """What was measured below what was estimated."""
        if measured is None or estimated is None or value is None:
            return estimated
        return _NOTE.format(
            estimated if isinstance(estimated, str) else fmt.count(estimated), f"measured: {words(value)}"
        )

    batches = sorted({one.batch for variant in study.variants for one in variant.estimates if one.batch is not None})
    batch = f", batch {batches[0]}" if len(batches) == 1 else ""
    figures = [
        figure(f"Estimated step{batch}", lambda _, one: _step(one, batch), "time"),
        figure(
            "GPU busy",
            lambda v, one: beside(busy_words(one) if one.gpu_busy_pct else None, v.gpu_busy_pct, fmt.percent),
            label="Busy",
        ),
        figure(_AGAINST, lambda _, one: difference_words(one) or None, label=_AGAINST),
        figure("Limited by", lambda _, one: _limit(one), label="Limit"),
        figure("Syncs per step", _syncs, "num", label="Syncs"),
        figure("Launches", lambda v, one: beside(one.launches, _launches(v), fmt.count), label="Launches"),
        figure(
            "Peak memory",
            lambda v, one: beside(memory_words(one) or None, v.peak_allocated_bytes, fmt.size_bytes),
            label="" if measured is None else "Peak memory",
        ),
    ]
    if measured is None:
        drawn = figure(
            f"Estimated range, {words}",
            lambda v, one: None if scale is None else _bar(v, one, scale),
            "drawn",
            foot=axis,
        )
        figures.insert(1, drawn)
    else:
        ratios = {name: " to ".join(map(fmt.ratio, ends)) for name, ends in measured.items()}
        figures[:0] = [
            Figure("Step time", study.step_times_ms, "ms"),
            Figure("Measured / estimated", ratios, absent=""),
        ]
    figures = [one for one in figures if one.heading != _AGAINST or any(one.values.values())]
    reasons = [f"`{v.name}`: {one.reason}" for v, one in estimates.values() if one.reason]
    rows = {name: breakable(name) for name in estimates}
    return figures_table("Variant", rows, figures, look="result" if measured is None else ""), reasons


def _details(study: Comparison, gpu: str) -> tuple[str, str]:
    """Throughput and tested share of every variant, and the work of the baseline by class; empty where not known."""
    estimates = {v.name: one for v in study.variants if (one := estimate_of(v, gpu)) is not None}
    known = {name: one for name, one in estimates.items() if one.work}
    if not known:
        return "", ""

    def figure(heading: str, words: Callable[[Estimate], str | None]) -> Figure:
        return Figure(heading, {name: words(one) for name, one in known.items()}, absent="")

    rates = [
        figure("Samples a second", lambda one: None if one.samples_per_s is None else rate_words(one.samples_per_s)),
        figure("MFU", lambda one: None if one.mfu_pct is None else fmt.band_percent(*one.mfu_pct)),
        figure("Kernels", lambda one: None if one.gpu_ms is None else fmt.band_ms(*one.gpu_ms)),
        figure("Collectives", lambda one: None if one.communication_ms is None else fmt.band_ms(*one.communication_ms)),
        figure("Waiting for them", lambda one: None if one.exposed_ms is None else fmt.band_ms(*one.exposed_ms)),
        figure("Tested", lambda one: None if one.tested_pct is None else fmt.percent(one.tested_pct)),
    ]
    first = known.get(study.baseline or "", next(iter(known.values())))
    works = {f"{work.kind}, {_format(work.format)}": work for work in first.work[:_CLASSES]}
    columns = [
        Figure("Share of GPU work", {name: fmt.percent(work.share_pct) for name, work in works.items()}, look="num"),
        Figure("FLOP", {name: _flop(work.flop) for name, work in works.items()}, absent=""),
        Figure("Bytes", {name: fmt.size_bytes(work.bytes) for name, work in works.items()}),
        Figure("Launches", {name: fmt.count(work.launches) for name, work in works.items()}),
        Figure("Tested", {name: tested_words(work) for name, work in works.items()}),
    ]
    variants = {name: breakable(name) for name in known}
    throughput = figures_table("Variant", variants, [one for one in rates if any(one.values.values())])
    return throughput, figures_table("Kernels of a step", {name: breakable(name) for name in works}, columns)


def _format(name: str) -> str:
    return "any format" if name == "none" else f"{name} bit" if name.isdigit() else name.upper()


def _flop(value: float) -> str | None:
    return f"{fmt.significant(value / 1e12)} T" if value else None


def _launches(variant: VariantResult) -> float | None:
    """Calls of a traced step that put work on the GPU, as the estimate counts them: kernels, copies and fills."""
    launches = None if variant.trace is None else variant.trace.launches
    return None if variant.trace is None or launches is None else launches.count / (variant.trace.quality.steps or 1)


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


def _same_gpu(measured: str | None, estimated: str) -> bool:
    """Whether a device's own name is that of a data sheet: "NVIDIA H100 80GB HBM3" is an H100."""
    sheet = gpu_of_driver(measured)
    if sheet is not None:
        return sheet.name == estimated
    return measured is not None and f" {estimated.replace('-', ' ')} " in f" {measured.replace('-', ' ')} "
