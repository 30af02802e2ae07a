"""The section "Estimated": every variant's step on a GPU that is not there, as bands; never mixed with measurements.

On a machine without a GPU it leads the page, and says which variant is faster where bands are apart. Where that GPU
was measured it stands folded below what to do, beside the measured figures and with the ratio to them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Estimate
from steptrace.documents.variant import VariantResult
from steptrace.estimate.gpus import gpu_of_driver
from steptrace.findings.estimated import all_alike, estimate_of, estimated_answer, estimated_gpus, leads
from steptrace.limits import MODERATE_SHARE
from steptrace.report.charts.cells import Interval, difference_cell, interval_cell, time_axis
from steptrace.report.charts.scale import Scale
from steptrace.report.page.markup import Html, breakable, render
from steptrace.report.page.table import Figure, figures_table
from steptrace.words.compiled import compiled_words
from steptrace.words.estimate import (
    busy_words,
    difference_words,
    memory_words,
    rate_words,
    reason_words,
    saved_words,
    step_words,
    tested_words,
)
from steptrace.words.estimated_answer import estimated_sentence

_LIMITS: Final = {"memory": "memory bandwidth"}
_AGAINST: Final = "Against the baseline"
#: Classes of kernels that are listed, those with most of the GPU's work.
_CLASSES: Final = 12
_NOTE: Final = Html('{}<span class="note">{}</span>')
#: A variant and its estimate for one GPU, by the name of the variant.
_Pairs = Mapping[str, tuple[VariantResult, Estimate]]


def estimate(study: Comparison) -> Html:
    """Estimated step time, GPU busy, limit, syncs and memory of every variant on each GPU; nothing without any."""
    gpu_measured = None if study.environment is None else study.environment.gpu
    estimates = []
    for gpu in estimated_gpus(study):
        measured = _ratios(study, gpu) if _same_gpu(gpu_measured, gpu) else None
        alike = "" if measured is not None else _alike(study, gpu)
        title = "" if measured is None else _title(gpu, measured)
        form: _Form = "leads" if leads(study) else "stands_alone"
        if measured is not None:
            form = "beside_measured"
        elif alike:
            form = "alike"
        table, reasons = _estimates_table(study, gpu, measured)
        rates, work = _details(study, gpu)
        sentence = estimated_sentence(estimated_answer(study, gpu))
        estimates.append(_OfGpu(gpu, form, title, sentence, alike, table, reasons, rates, work))
    return render("study/estimate", estimates=estimates)


#: How the estimates for a GPU are shown: folded, beside what was measured on it; in one sentence, where all variants
#: have the same; at the top of the page; or in a part of their own.
_Form = Literal["beside_measured", "alike", "leads", "stands_alone"]


@dataclass(frozen=True)
class _OfGpu:
    """The estimates of all variants for a GPU.

    Attributes:
        gpu: its name.
        form: how they are shown.
        title: what unfolds them, beside measured figures.
        sentence: which variant is faster.
        alike: what all variants have in common, where all have the same.
        table: the estimates.
        reasons: why variants have none.
        rates: throughput; may be empty.
        work: the work by class of kernel; may be empty.
    """

    gpu: str
    form: _Form
    title: str
    sentence: str
    alike: str
    table: Html
    reasons: Sequence[str]
    rates: str
    work: str


#: For each variant, its measured step time over both ends of the estimated one.
_Ratios = Mapping[str, tuple[float, float]]


def _ratios(study: Comparison, gpu: str) -> _Ratios:
    bands = {
        variant.name: estimate.step_ms
        for variant in study.variants
        if (estimate := estimate_of(variant, gpu)) is not None
    }
    waiting = {variant.name for variant in study.measured if _waits_for_data(variant)}  # which is in no estimate
    return {
        name: (ms / band[1], ms / band[0])
        for name, ms in study.step_times_ms.items()
        if (band := bands.get(name)) is not None and band[0] and name not in waiting
    }


def _waits_for_data(variant: VariantResult) -> bool:
    """Whether its steps wait for data. Waits with a busy GPU do not count, if a trace says which these are."""
    wait = variant.input
    if wait is None or wait.wait_ms is None or wait.step_ms is None:
        return False
    return (wait.wait_ms / wait.step_ms if wait.share is None else wait.share) >= MODERATE_SHARE


def _title(gpu: str, ratios: _Ratios) -> str:
    title = f"Estimate for {gpu} beside what was measured"
    if not ratios:
        return title
    inside = sum(low <= 1 <= high for low, high in ratios.values())
    return f"{title}: {inside} of {fmt.plural(len(ratios), 'step time')} within the estimated range"


def _estimates_table(study: Comparison, gpu: str, measured: _Ratios | None) -> tuple[Html, list[str]]:
    """The estimates of all variants on a GPU, and why some have none.

    Each is drawn as a band on the scale of all; where that GPU was `measured` its step times stand beside them instead.
    """
    estimates = {
        variant.name: (variant, estimate)
        for variant in study.variants
        if (estimate := estimate_of(variant, gpu)) is not None
    }
    figures = _drawn(estimates) if measured is None else _beside_step_times(study, estimates, measured)
    figures += _columns(study, estimates, is_measured=measured is not None)
    # Below the first screen, in a fold, there is room for it.
    if measured is not None or not _with_work(study, gpu):
        figures += _of_compiled_code({name: estimate for name, (_, estimate) in estimates.items()})
    missing = [(variant.name, estimate) for variant, estimate in estimates.values() if estimate.step_ms is None]
    reasons = [f"`{name}`: {reason_words(estimate)}" for name, estimate in missing]
    rows = {name: breakable(name) for name in estimates}
    return figures_table("Variant", rows, figures, look="result" if measured is None else ""), reasons


def _beside_step_times(study: Comparison, estimates: _Pairs, measured: _Ratios) -> list[Figure]:
    """The columns on the measured step times, and what the estimates say of the same difference."""
    ratios = {name: " to ".join(map(fmt.ratio, ends)) for name, ends in measured.items()}
    differences = {name: estimate.difference for name, (_, estimate) in estimates.items()}
    words = {name: None if pair is None else difference_words(pair) for name, pair in differences.items()}
    return [
        Figure("Step time", study.step_times_ms, "ms"),
        Figure("Measured / estimated", ratios, absent=""),
        Figure(_AGAINST, words, absent="", label=_AGAINST),
    ]


def _columns(study: Comparison, estimates: _Pairs, *, is_measured: bool) -> list[Figure]:
    """The columns of the table without those on the step time; if the GPU was measured, with the measured figures."""

    def figure(
        heading: str, value_of: Callable[[VariantResult, Estimate], str | float | None], label: str, look: str = "more"
    ) -> Figure:
        values = {name: value_of(*pair) for name, pair in estimates.items()}
        return Figure(heading, values, look=look, absent="", label=label)

    def launches(variant: VariantResult, estimate: Estimate) -> str | float | None:
        return _with_measured(estimate.launches, _launches(variant) if is_measured else None, fmt.count)

    def peak(variant: VariantResult, estimate: Estimate) -> str | float | None:
        estimated = memory_words(estimate, says_it_fits=False)
        return _with_measured(estimated, variant.peak_allocated_bytes if is_measured else None, fmt.size_bytes)

    def busy(variant: VariantResult, estimate: Estimate) -> str | float | None:
        estimated = busy_words(estimate) if estimate.gpu_busy_pct else None
        return _with_measured(estimated, variant.gpu_busy_pct if is_measured else None, fmt.percent)

    batches = sorted(
        {estimate.batch for variant in study.variants for estimate in variant.estimates if estimate.batch is not None}
    )
    batch = f", batch {batches[0]}" if len(batches) == 1 else ""
    return [
        figure("Syncs per step", _syncs, "Syncs", "num"),
        figure("Launches", launches, "Launches", ""),
        figure("Peak memory", peak, "Peak memory"),
        figure(f"Estimated step{batch}", lambda _, estimate: _step(estimate, batch), "Step"),
        figure("GPU busy", busy, "Busy"),
        figure("Limited by", lambda _, estimate: _limit(estimate, more=is_measured), "Limit"),
    ]


def _with_measured(
    estimated: str | float | None, measured: float | None, words: Callable[[float], str]
) -> str | float | None:
    """An estimated figure, with the measured one below it if both are known."""
    if estimated is None or measured is None:
        return estimated
    shown = estimated if isinstance(estimated, str) else fmt.count(estimated)
    return _NOTE.format(shown, f"measured: {words(measured)}")


def _with_work(study: Comparison, gpu: str) -> dict[str, Estimate]:
    """The estimates that have GPU work by class, by the names of their variants."""
    estimates = {
        variant.name: estimate for variant in study.variants if (estimate := estimate_of(variant, gpu)) is not None
    }
    return {name: estimate for name, estimate in estimates.items() if estimate.work}


def _of_compiled_code(estimates: Mapping[str, Estimate]) -> list[Figure]:
    """What torch.compile changes in the variants that use it; no column where none does."""
    found = {name: words for name, estimate in estimates.items() if (words := compiled_words(estimate)) is not None}
    return [Figure("With torch.compile, against without", found, look="more", absent="")] if found else []


def _drawn(estimates: _Pairs) -> list[Figure]:
    """What each variant saves against its baseline, in words and as a range; without such pairs the steps' bands."""
    pairs = {name: estimate.difference for name, (_, estimate) in estimates.items() if estimate.difference is not None}
    if pairs:
        scale = Scale.with_zero([end for pair in pairs.values() for end in pair.saved_ms])
        axis, unit = time_axis(scale)
        words = {name: saved_words(pair) for name, pair in pairs.items()}
        looks = {name: "told" if pair.is_faster or pair.is_slower else "open" for name, pair in pairs.items()}
        cells = {
            name: difference_cell(scale, pair.saved_ms, looks[name], f"{name}: {difference_words(pair)}")
            for name, pair in pairs.items()
        }
        baselines = {variant.name: "baseline" for variant, _ in estimates.values() if variant.is_baseline}
        return [
            Figure("Saved per step, estimated", baselines | words, look="time", absent="", label=""),
            Figure(f"Saved against the baseline, {unit}; line: 0", cells, look="drawn", absent="", foot=axis),
        ]
    ends = [end for _, estimate in estimates.values() for end in estimate.step_ms or () if end > 0]
    if not ends:
        return []
    scale = Scale.showing(ends)
    axis, unit = time_axis(scale)
    bands = {name: _bar(*pair, scale) for name, pair in estimates.items()}
    return [Figure(f"Estimated range, {unit}", bands, look="drawn", absent="", foot=axis)]


def _details(study: Comparison, gpu: str) -> tuple[str, str]:
    """Throughput and tested share of every variant, and the work of the baseline by class; empty where not known."""
    known = _with_work(study, gpu)
    if not known:
        return "", ""

    def figure(heading: str, words: Callable[[Estimate], str | None]) -> Figure:
        return Figure(heading, {name: words(estimate) for name, estimate in known.items()}, absent="")

    rates = [
        figure(
            "Samples a second",
            lambda estimate: None if estimate.samples_per_s is None else rate_words(estimate.samples_per_s),
        ),
        figure("MFU", lambda estimate: None if estimate.mfu_pct is None else fmt.band_percent(*estimate.mfu_pct)),
        figure("Kernels", lambda estimate: None if estimate.gpu_ms is None else fmt.band_ms(*estimate.gpu_ms)),
        figure(
            "Collectives",
            lambda estimate: None if estimate.communication_ms is None else fmt.band_ms(*estimate.communication_ms),
        ),
        figure(
            "Waiting for them",
            lambda estimate: None if estimate.exposed_ms is None else fmt.band_ms(*estimate.exposed_ms),
        ),
        figure("Tested", lambda estimate: None if estimate.tested_pct is None else fmt.percent(estimate.tested_pct)),
        *_of_compiled_code(known),
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
    throughput = figures_table("Variant", variants, [rate for rate in rates if any(rate.values.values())])
    return throughput, figures_table("Kernels of a step", {name: breakable(name) for name in works}, columns)


def _format(name: str) -> str:
    if name == "none":
        return "any format"
    if name.isdigit():
        return f"{name} bit"
    return name.upper()


def _flop(value: float) -> str | None:
    return f"{fmt.significant(value / 1e12)} T" if value else None


def _launches(variant: VariantResult) -> float | None:
    """Calls of a traced step that put work on the GPU, as the estimate counts them: kernels, copies and fills."""
    launches = None if variant.trace is None else variant.trace.launches
    return None if variant.trace is None or launches is None else launches.count / (variant.trace.quality.steps or 1)


def _alike(study: Comparison, gpu: str) -> str:
    """One sentence, if all estimates are the same and the measured times lead; otherwise empty."""
    if leads(study) or len(study.variants) < 2 or not all_alike(study, gpu):
        return ""
    estimate = next(estimate for variant in study.variants if (estimate := estimate_of(variant, gpu)) is not None)
    if estimate.step_ms is None:
        return ""
    batch = "" if estimate.batch is None else f" at batch {estimate.batch}"
    busy = f", GPU busy {busy_words(estimate)}" if estimate.gpu_busy_pct else ""
    limit = f", limited by {_LIMITS.get(estimate.limited_by, estimate.limited_by)}" if estimate.limited_by else ""
    memory = f"; peak memory {memory_words(estimate)}" if estimate.peak_memory_bytes else ""
    return f"A step takes {step_words(estimate)}{batch}{busy}{limit}{memory}."


def _step(estimate: Estimate, batch: str) -> str:
    return (
        _NOTE.format(step_words(estimate), f"batch {estimate.batch}")
        if estimate.batch and not batch
        else step_words(estimate)
    )


def _limit(estimate: Estimate, *, more: bool) -> str | None:
    """The limit of the step. With `more`, also the time of its kernels if launches are the limit."""
    if estimate.limited_by is None:
        return None
    words = _LIMITS.get(estimate.limited_by, estimate.limited_by)
    if not more or estimate.limited_by != "launches" or not estimate.gpu_ms:
        return words
    return _NOTE.format(words, f"the kernels alone take {fmt.band_ms(*estimate.gpu_ms)}")


def _syncs(variant: VariantResult, estimate: Estimate) -> str | float | None:
    unknown = variant.predicted_unknown
    if not unknown:
        return estimate.syncs
    words = f"at least {fmt.count(estimate.syncs)}" if estimate.syncs else "unknown"
    return _NOTE.format(words, f"{fmt.plural(len(unknown), 'operation')} not covered")


def _bar(variant: VariantResult, estimate: Estimate, scale: Scale) -> str:
    if estimate.step_ms is None or not estimate.step_ms[0]:
        return ""
    middle = (estimate.step_ms[0] * estimate.step_ms[1]) ** 0.5
    alt = f"{variant.name}: estimated {step_words(estimate)}"
    return interval_cell(scale, Interval(middle, estimate.step_ms), None, "estimated", alt)


def _same_gpu(measured: str | None, estimated: str) -> bool:
    """Whether a device's own name is that of a data sheet: "NVIDIA H100 80GB HBM3" is an H100."""
    sheet = gpu_of_driver(measured)
    if sheet is not None:
        return sheet.name == estimated
    return measured is not None and f" {estimated.replace('-', ' ')} " in f" {measured.replace('-', ' ')} "
