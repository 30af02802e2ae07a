"""The top of a study's page on one screen: its question, its answer, the result of each variant, and what to do."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER, Finding
from steptrace.documents.note import NO_VERDICT
from steptrace.documents.overview import part_name
from steptrace.documents.run import RunResult
from steptrace.documents.step_times import Statistic
from steptrace.documents.steps import STEP_FIGURES
from steptrace.documents.variant import VariantResult
from steptrace.findings.estimated import leads
from steptrace.findings.recommended import ABOUT_THE_METHOD, first_steps
from steptrace.findings.sections import differing_section, hidden_section
from steptrace.findings.verdict import verdict_of
from steptrace.limits import LONG_STEPS, SLOW_PROFILE
from steptrace.report.charts.cells import Interval, bar_cell, interval_cell, pieces_of, time_axis
from steptrace.report.charts.palette import colour_of
from steptrace.report.charts.scale import Scale
from steptrace.report.page.findings import device_of_study, findings
from steptrace.report.page.first_steps import first_steps_box
from steptrace.report.page.markup import Html, anchor, breakable, render
from steptrace.report.page.section import Explained, folded
from steptrace.report.page.table import NOT_MEASURED_CELL, Figure, figures_table
from steptrace.report.study.difference import difference
from steptrace.report.study.estimate import estimate
from steptrace.report.study.matrix import cells_table, is_matrix, matrix
from steptrace.report.study.removals import removals_picture
from steptrace.report.study.variants import (
    samples_per_step,
    status_badge,
    variants_shown,
    verdict_badge,
)
from steptrace.stats import IQR_REFUSED
from steptrace.words.notes import note_text
from steptrace.words.skipped import skipped_in_words

_LINK: Final = Html('<a class="variant" href="#{}">{}</a>')
_NOTE: Final = Html('<span class="note">{}{}</span>')
_ENDS: Final = Html('<span class="ends"> ({})</span>')
#: Characters of an error in the table.
_LONGEST_ERROR: Final = 80
#: More variants than this have low rows.
_MANY_ROWS: Final = 8
_NEEDED: Final = (
    f"no verdict: it takes two runs of each side, and steps whose IQR is at most {fmt.setting(IQR_REFUSED)}"
)


def first_screen(study: Comparison) -> Html:
    """Title, question and verdict; each variant's step time, syncs and parts; what to do first."""
    shown = variants_shown(study)
    parts = {variant.name: {} if variant.overview is None else variant.overview.of_step for variant in shown}
    items = first_steps(study)
    lead = "findings" if any(item.rule != ANSWER for item in _of_gpu(study)) else None
    verdict = verdict_of(study)
    estimated = estimate(study)
    first = first_steps_box(items, more=len(_of_gpu(study)) - len(items), anchor=lead)
    return render(
        "study/first_screen",
        study=study,
        paragraphs=_paragraphs(study.text),
        tone=verdict.tone,
        answer=verdict.sentences[0],
        others=" ".join(verdict.sentences[1:]),
        why=verdict.reason,
        checks=" ".join(verdict.checks),
        difference=removals_picture(study) or difference(study),
        facts=_facts(study),
        results=_results(study, shown, parts, estimated),
        profiled=_profiled(shown),
        first_above=first if leads(study) else "",
        first="" if leads(study) else first,
        device=device_of_study(study),
        estimated_below="" if leads(study) else estimated,
        notes=[
            *([] if leads(study) else _no_verdict(study)),
            *skipped_in_words(study.skipped),
        ],
    )


_FOLDED: Final = Html('<details class="{}"><summary>{}</summary>\n{}\n</details>')


def _results(
    study: Comparison, shown: Sequence[VariantResult], parts: Mapping[str, Mapping[str, float]], estimated: Html
) -> Html:
    """Each variant's result. Estimates that lead stand before them, and a matrix before both; then they are folded."""
    html = Html("")
    if study.measured or not leads(study):
        drawn = dict.fromkeys(name for of_step in parts.values() for name, ns in of_step.items() if ns)
        html = render(
            "study/results",
            table=_variants_table(study, shown, parts),
            legend=[(colour_of(name), part_name(name)) for name in drawn],
            left_out=len(study.variants) - len(shown),
            no_verdict=_no_verdict(study) if leads(study) else [],
        )
    if leads(study):
        html = Html(cells_table(study) + html) if html and is_matrix(study) else html
        html = _FOLDED.format("cpu-check", "CPU timings (they do not predict GPU speed)", html) if html else html
        html = Html(estimated + html)
    if is_matrix(study):
        html = Html(matrix(study) + _FOLDED.format("each", "Each variant of the matrix", html))
    return html


def _of_gpu(study: Comparison) -> list[Finding]:
    """The findings; if estimates of a GPU lead, without the findings on steps of this machine's CPU."""
    return [item for item in study.findings if not (leads(study) and _on_cpu(item))]


def _on_cpu(item: Finding) -> bool:
    return item.cost_ns_per_step is not None or item.rule in ABOUT_THE_METHOD


def _no_verdict(study: Comparison) -> list[str]:
    """The reasons why variants have no verdict, each with its variants; empty if all have one."""
    reasons: dict[str, list[str]] = {}
    for variant in study.measured:
        judged = variant.judged_ratio
        if (judged is None or judged.verdict is None) and not variant.is_baseline:
            texts = [note_text(note) for note in variant.noise.notes if note.code in NO_VERDICT]
            for text in texts or [_NEEDED]:
                reasons.setdefault(text, []).append(variant.name)
    return [f"{fmt.names(names)}: {text}." for text, names in reasons.items()]


def all_findings(study: Comparison) -> Html:
    """All findings except the answer, which is on the first screen; if estimates lead, those on the CPU are folded."""
    items = [item for item in study.findings if item.rule != ANSWER]
    on_cpu = [item for item in items if _on_cpu(item)]
    if not leads(study) or not on_cpu:
        return findings(items)
    title = f"{fmt.plural(len(on_cpu), 'finding')} on CPU timings, which do not predict GPU speed"
    on_gpu = [item for item in items if item not in on_cpu]
    beyond = (
        findings(on_gpu) if on_gpu else Html('<p class="note">Nothing to advise for a GPU beyond the answer above.</p>')
    )
    return Html(beyond + folded(title, Explained(findings(on_cpu))).html)


def _scale(shown: Sequence[VariantResult], step_times: Mapping[str, float]) -> Scale | None:
    """The scale of the step times shown; intervals too wide to say anything do not stretch it."""
    values = []
    for variant in shown:
        times = variant.step_ms
        if times is not None and times.value > 0:
            ends = against_baseline(variant, step_times)
            values += [times.value, *(() if ends is None or fmt.is_too_wide(*ends) else ends)]
            values += [ms for run in variant.runs if (ms := _of_run(run, times.statistic))]
    return Scale.showing(values) if values else None


def _of_run(run: RunResult, statistic: Statistic) -> float | None:
    """The step time of one run, in ms."""
    return run.mean_ms if statistic == "mean" else run.median_ms


def against_baseline(variant: VariantResult, step_times: Mapping[str, float]) -> tuple[float, float] | None:
    """The interval of a variant's step time in ms, from the interval of its ratio.

    It excludes the baseline's step time if a verdict holds. The interval of the step time alone would be wider: it also
    has the differences between runs that all variants share.
    """
    ratio = variant.ratio
    baseline = step_times.get(variant.baseline)
    if variant.is_baseline or ratio is None or baseline is None or not ratio.low or not ratio.high:
        return None
    return baseline / ratio.high, baseline / ratio.low


def _variants_table(
    study: Comparison, shown: Sequence[VariantResult], parts: Mapping[str, Mapping[str, float]]
) -> Html:
    """Each variant's step time on a common scale, its verdict, its syncs, and the parts of its profiled step."""
    step_times = study.step_times_ms
    scale = _scale(shown, step_times)
    axis, words = ("", "") if scale is None else time_axis(scale)
    traced = study.sync_counts[0] == "measured"
    step_time = "Mean step time" if study.statistic == "mean" else "Step time"
    has_intervals = any(variant.step_ms is not None and variant.step_ms.runs > 1 for variant in shown)
    drawn = f"Step time with {fmt.setting(study.method.confidence)} interval and runs"
    drawn = drawn if has_intervals else "Step time"

    def figure(heading: str, value_of: Callable[[VariantResult], str | float | None], look: str, **more: str) -> Figure:
        return Figure(heading, {variant.name: value_of(variant) for variant in shown}, look=look, **more)

    best = study.fastest()
    longest = _longest(shown, parts)
    section = differing_section(study)
    hidden = hidden_section(study)
    of_section = [] if section is None else [_section_times(section, shown)]
    return figures_table(
        "Variant",
        {variant.name: _LINK.format(anchor(variant), breakable(variant.name)) for variant in shown},
        [
            *(of_section if hidden is not None else ()),
            figure(step_time, _step_time, "time", label="Step time"),
            figure(
                f"{drawn}, {words}; line: baseline" if words else drawn,
                lambda variant: None if scale is None else _drawn(variant, scale, step_times),
                "drawn",
                foot=axis,
            ),
            figure("Verdict", _verdict, "verdict"),
            *(of_section if hidden is None else ()),
            figure(
                f"Syncs per step{'' if traced else ', predicted'}",
                lambda variant: _syncs(variant, traced=traced),
                "num syncs",
                label="Syncs",
            ),
            _used(shown),
            figure(
                "Where a step goes, profiled mean", lambda variant: _goes(variant, parts[variant.name], longest), "goes"
            ),
        ],
        look="result dense" if len(shown) > _MANY_ROWS else "result",
        looks={
            **({} if best is None else {best.baseline: "base", best.name: "best"}),
            **{variant.name: "ended-badly" for variant in shown if variant.status != "ok"},
        },
    )


def _section_times(section: str, shown: Sequence[VariantResult]) -> Figure:
    """The time of one section from sync to sync, in a separate pass, as in the article's tables."""
    times = {
        variant.name: variant.synced_sections_ms.get(section) if variant.synced_sections_ms else None
        for variant in shown
    }
    words = {name: None if ms is None else fmt.duration_ms(ms) for name, ms in times.items()}
    return Figure(f"{section}, from sync to sync", words, look="num", label=section)


def _used(shown: Sequence[VariantResult]) -> Figure:
    """GPU busy by the trace, or as sampled if there is no trace; without a GPU the number of operators in a step."""
    busy = {variant.name: _busy(variant) for variant in shown}
    if any(value is not None for value in busy.values()):
        return Figure(_heading("gpu_busy_pct"), busy, look="num used", label="Busy")
    operators = {variant.name: variant.operators_per_step for variant in shown}
    return Figure(_heading("operators_per_step"), operators, look="used", label="Operators")


def _heading(figure: str) -> str:
    return next(step_figure.heading for step_figure in STEP_FIGURES if step_figure.name == figure)


def _busy(variant: VariantResult) -> str | None:
    if variant.gpu_busy_pct is not None:
        return fmt.percent(variant.gpu_busy_pct)
    sampled = variant.nvml_util_pct
    return None if sampled is None else Html(f"{fmt.percent(sampled)} ") + _NOTE.format("NVML", "")


def _step_time(variant: VariantResult) -> str | None:
    """The step time; if it is a mean over steps with some long ones, the median as well."""
    times = variant.step_ms
    if times is None:
        return None
    is_far = times.statistic == "mean" and times.mean > LONG_STEPS * times.median
    note = _NOTE.format(f"median {fmt.duration_ms(times.median)}", "") if is_far else ""
    return Html(fmt.duration_ms(times.value)) + note


def _drawn(variant: VariantResult, scale: Scale, step_times: Mapping[str, float]) -> str:
    if variant.step_time_ms is None:
        return ""
    look = "base" if variant.is_baseline else variant.verdict or "none"
    differs = ", but differs" if variant.equivalence.status == "differs" else ""
    compared = "no verdict" if variant.ratio_per_sample is None else "another number of samples than the baseline"
    words = "the baseline" if look == "base" else f"{variant.verdict or compared}{differs}"
    alt = f"{variant.name}: {fmt.duration_ms(variant.step_time_ms)}, {words}"
    ends = against_baseline(variant, step_times)
    by_run = [_of_run(run, variant.step_ms.statistic) for run in variant.runs if variant.step_ms is not None]
    points = [ms for ms in by_run if ms is not None] if len(by_run) > 1 else []
    line = step_times.get(variant.baseline)
    return interval_cell(scale, Interval(variant.step_time_ms, ends, points), line, look, alt)


def _verdict(variant: VariantResult) -> str | None:
    """The verdict with the ratio, or how the variant's runs failed."""
    html = verdict_badge(variant) if variant.status == "ok" else _ending(variant)
    ratio = variant.judged_ratio
    if html is None or ratio is None or variant.is_baseline:
        return html
    has_ends = ratio.low is not None and ratio.high is not None and not fmt.is_narrow(ratio.low, ratio.high)
    ends = _ENDS.format(fmt.ratio_interval(ratio.low, ratio.high)) if has_ends else ""
    compared = "" if variant.ratio_per_sample is None else " per sample"
    return html + _NOTE.format(f"{fmt.ratio(ratio.value, ratio.low, ratio.high)}{compared}", ends)


def _ending(variant: VariantResult) -> Html:
    """How its runs ended, with the first error."""
    errors = [run.error.error for run in variant.runs if run.error is not None and run.error.error]
    html = status_badge(variant)
    return html + _NOTE.format(fmt.clipped(errors[0], _LONGEST_ERROR), "") if errors else html


def _syncs(variant: VariantResult, *, traced: bool) -> str | None:
    """The measured syncs, or the predicted ones, which are marked if other variants have measured syncs."""
    counts = variant.syncs
    unknown = variant.predicted_unknown
    count = counts.predicted_per_step if counts.measured_per_step is None else counts.measured_per_step
    if count is None and not unknown:
        return None
    predicted = " predicted" if traced and counts.measured_per_step is None else ""
    html = NOT_MEASURED_CELL if count is None else Html("<b>{}</b>{}").format(fmt.count(count), predicted)
    if unknown and counts.measured_per_step is None:
        html += _NOTE.format(f"{fmt.plural(len(unknown), 'operation')} not covered", "")
    return html


def _longest(shown: Sequence[VariantResult], parts: Mapping[str, Mapping[str, float]]) -> float:
    """The length of a profiled step that fills the width of the bars.

    A step that is mostly the profiler's would make the others too short to read, so it does not count, and is marked.
    """
    lengths = {variant.name: sum(parts[variant.name].values()) for variant in shown}
    return max(
        (lengths[variant.name] for variant in shown if _slower(variant) is None),
        default=max(lengths.values(), default=0.0),
    )


def _goes(variant: VariantResult, parts: Mapping[str, float], longest: float) -> str | None:
    total = sum(parts.values())
    slower = _slower(variant)
    if not total:
        return None
    html = bar_cell(pieces_of(parts), max(longest, total))
    if slower is None:
        return html
    words = Html('<b class="warn">profiled: {} times as long</b>').format(fmt.significant(slower, 2))
    return html + _NOTE.format(words, "")


def _slower(variant: VariantResult) -> float | None:
    """How many times longer its profiled step is, if most of that is the profiler's time; otherwise None."""
    slower = variant.profiled_over_unprofiled
    return None if slower is None or slower < SLOW_PROFILE else slower


def _profiled(shown: Sequence[VariantResult]) -> str:
    """The lengths of profiled steps against the unprofiled step times, in a sentence; empty if unknown."""
    ratios = [variant.profiled_over_unprofiled for variant in shown if variant.overview is not None]
    known = sorted(ratio for ratio in ratios if ratio is not None)
    if not known:
        return ""
    ends = dict.fromkeys((fmt.ratio(known[0]), fmt.ratio(known[-1])))
    return f"Step times are those of unprofiled steps. A profiled step takes {' to '.join(ends)} as long."


def _facts(study: Comparison) -> list[str]:
    """The machine and the settings of the measurement, in a few words each."""
    runs = [variant.runs_ok for variant in study.measured]
    steps = [variant.step_ms.steps for variant in study.measured if variant.step_ms is not None]
    environment = study.environment
    facts = [
        study.machine,
        f"scale {study.scale}",
        f"runs per variant: {_span(runs)}" if runs else None,
        f"timed steps per variant: {_span(steps)}{_left_out(study, sum(steps))}" if steps else None,
        f"samples per step: {_span(samples)}{_estimated_samples(study)}"
        if (samples := samples_per_step(study))
        else None,
        f"PyTorch {environment.torch}" if environment is not None else None,
        f"steptrace {environment.steptrace}" if environment is not None else None,
        f"measured code at commit {commit(study)}" if commit(study) else None,
    ]
    return [fact for fact in facts if fact]


def _left_out(study: Comparison, counted: int) -> str:
    """The number of timed steps that count as warm-up, in words."""
    left_out = sum(run.warmup_left_out or 0 for variant in study.measured for run in variant.runs)
    return f" ({left_out} of {counted + left_out} left out as still warming up)" if left_out else ""


def _estimated_samples(study: Comparison) -> str:
    """The number of samples of the estimates, in words, if it differs from that of the measurements."""
    batches = {
        estimate.batch for variant in study.variants for estimate in variant.estimates if estimate.batch is not None
    }
    return f" ({_span(sorted(batches))} in the estimate)" if batches - set(samples_per_step(study)) else ""


def _paragraphs(text: str) -> tuple[str, ...]:
    """The paragraphs of a text, which blank lines separate."""
    blocks = text.replace("\r\n", "\n").split("\n\n")
    return tuple(" ".join(block.split()) for block in blocks if block.strip())


def commit(study: Comparison) -> str | None:
    """The short commit, and whether there were uncommitted changes."""
    environment = study.environment
    if environment is None or environment.git_commit is None:
        return None
    return environment.git_commit[:10] + (" with uncommitted changes" if environment.git_dirty else "")


def _span(values: Sequence[int]) -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    return fmt.count(low) if low == high else f"{fmt.count(low)} to {fmt.count(high)}"
