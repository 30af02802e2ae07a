"""The top of a study's page: what it asks, what came out variant by variant, and what to do, on one screen."""

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.finding import ANSWER, Finding
from steptrace.documents.note import NO_VERDICT
from steptrace.documents.overview import part_name
from steptrace.documents.steps import STEP_FIGURES
from steptrace.documents.variant import VariantResult
from steptrace.findings.estimated import leads
from steptrace.findings.verdict import verdict_of
from steptrace.limits import LONG_STEPS, SLOW_PROFILE
from steptrace.report.draw import Scale, bar_cell, colour_of, interval_cell, pieces_of, time_axis
from steptrace.report.page.findings import ABOUT_THE_METHOD, device_of_study, findings, first_steps
from steptrace.report.page.markup import Html, anchor, breakable, render
from steptrace.report.page.parts import NOT_MEASURED_CELL, Explained, Figure, figures_table, folded
from steptrace.report.study.estimate import estimate
from steptrace.report.study.variants import (
    samples_per_step,
    status_badge,
    variants_shown,
    verdict_badge,
)
from steptrace.stats import IQR_REFUSED
from steptrace.words.notes import note_text

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
    parts = {v.name: {} if v.overview is None else v.overview.of_step for v in shown}
    items = first_steps(study)
    lead = "findings" if any(item.rule != ANSWER for item in _of_gpu(study)) else None
    drawn = dict.fromkeys(name for of_step in parts.values() for name, ns in of_step.items() if ns)
    return render(
        "study/first_screen",
        study=study,
        paragraphs=_paragraphs(study.text),
        verdict=verdict_of(study),
        facts=_facts(study),
        table=_table(study, shown, parts),
        left_out=len(study.variants) - len(shown),
        legend=[(colour_of(name), part_name(name)) for name in drawn],
        profiled=_profiled(shown),
        first=render("page/first", items=items, more=len(_of_gpu(study)) - len(items), anchor=lead, nothing=""),
        device=device_of_study(study),
        estimated=estimate(study),
        estimate_leads=leads(study),
        no_verdict=_no_verdict(study),
    )


def _of_gpu(study: Comparison) -> list[Finding]:
    """The findings; where an estimate leads, without those on the steps of this machine's CPU."""
    return [item for item in study.findings if not (leads(study) and _on_cpu(item))]


def _on_cpu(item: Finding) -> bool:
    return item.cost_ns_per_step is not None or item.rule in ABOUT_THE_METHOD


def _no_verdict(study: Comparison) -> list[str]:
    """Why variants have no verdict, each reason once with its variants; nothing where all have one."""
    reasons: dict[str, list[str]] = {}
    for variant in study.measured:
        if variant.verdict is None and not variant.is_baseline:
            texts = [note_text(one) for one in variant.noise.notes if one.code in NO_VERDICT]
            for text in texts or [_NEEDED]:
                reasons.setdefault(text, []).append(variant.name)
    return [f"{fmt.names(names)}: {text}." for text, names in reasons.items()]


def all_findings(study: Comparison) -> Html:
    """Every finding but the answer, which the first screen gives; where an estimate leads, those on CPU steps fold."""
    items = [item for item in study.findings if item.rule != ANSWER]
    on_cpu = [item for item in items if _on_cpu(item)]
    if not leads(study) or not on_cpu:
        return findings(items)
    title = f"CPU check: {fmt.plural(len(on_cpu), 'finding')} on this machine's CPU, no guide to a GPU"
    others = [item for item in items if item not in on_cpu]
    beyond = (
        findings(others) if others else Html('<p class="note">Nothing to advise for a GPU beyond the answer above.</p>')
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
    return Scale.of(values) if values else None


def against_baseline(variant: VariantResult, step_times: Mapping[str, float]) -> tuple[float, float] | None:
    """The interval of a variant's step time by that of its ratio, in ms: it excludes the baseline where a claim holds.

    The interval of the step time alone also holds what differs from run to run for all variants alike.
    """
    ratio, baseline = variant.ratio, step_times.get(variant.baseline)
    if variant.is_baseline or ratio is None or baseline is None or not ratio.low or not ratio.high:
        return None
    return baseline / ratio.high, baseline / ratio.low


def _table(study: Comparison, shown: Sequence[VariantResult], parts: Mapping[str, Mapping[str, float]]) -> Html:
    """Each variant's step time, on the scale of all, its verdict, its syncs, and where its profiled step goes."""
    step_times = study.step_times_ms
    scale = _scale(shown, step_times)
    axis, words = ("", "") if scale is None else time_axis(scale)
    traced = study.sync_counts[0] == "measured"
    of_gpu = any(variant.kernels_per_step is not None for variant in study.variants)
    launched = next(f for f in STEP_FIGURES if f.name == ("kernels_per_step" if of_gpu else "operators_per_step"))
    step_time = "Mean step time" if study.statistic == "mean" else "Step time"
    interval = f"Step time with {fmt.setting(study.method.confidence)} interval"

    def figure(heading: str, of: Callable[[VariantResult], str | float | None], look: str, **more: str) -> Figure:
        return Figure(heading, {v.name: of(v) for v in shown}, look=look, **more)

    best, longest = study.fastest(), _longest(shown, parts)
    return figures_table(
        "Variant",
        {v.name: _LINK.format(anchor(v), breakable(v.name)) for v in shown},
        [
            figure(step_time, _step_time, "time", label="Step time"),
            figure(
                f"{interval}, {words}; line: the baseline" if words else interval,
                lambda v: None if scale is None else _drawn(v, scale, step_times),
                "drawn",
                foot=axis,
            ),
            figure("Verdict", _verdict, "verdict"),
            figure(
                f"Syncs per step{'' if traced else ', predicted'}",
                lambda v: _syncs(v, traced=traced),
                "num syncs",
                label="Syncs",
            ),
            figure(
                launched.heading,
                attrgetter(launched.name),
                "launched",
                label=launched.heading.removesuffix(" per step"),
            ),
            figure("Where a step goes, profiled mean", lambda v: _goes(v, parts[v.name], longest), "goes"),
        ],
        look="result dense" if len(shown) > _MANY_ROWS else "result",
        looks={
            **({} if best is None else {best.baseline: "base", best.name: "best"}),
            **{v.name: "ended-badly" for v in shown if v.status != "ok"},
        },
    )


def _step_time(variant: VariantResult) -> str | None:
    """Its step time; where that is a mean of steps of which some are long, the median as well."""
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
    words = "the baseline" if look == "base" else f"{variant.verdict or 'no verdict'}{differs}"
    alt = f"{variant.name}: {fmt.duration_ms(variant.step_time_ms)}, {words}"
    ends = against_baseline(variant, step_times)
    return interval_cell(scale, variant.step_time_ms, ends, step_times.get(variant.baseline), look, alt)


def _verdict(variant: VariantResult) -> str | None:
    """How its runs ended if not well, else its verdict; with the ratio."""
    html = verdict_badge(variant) if variant.status == "ok" else _ending(variant)
    ratio = variant.ratio
    if html is None or ratio is None or variant.is_baseline:
        return html
    ends = "" if ratio.low is None else _ENDS.format(fmt.ratio_interval(ratio.low, ratio.high))
    return html + _NOTE.format(fmt.ratio(ratio.value, ratio.low, ratio.high), ends)


def _ending(variant: VariantResult) -> Html:
    """How its runs ended, with the first error."""
    errors = [run.error.error for run in variant.runs if run.error is not None and run.error.error]
    html = status_badge(variant)
    return html + _NOTE.format(fmt.clipped(errors[0], _LONGEST_ERROR), "") if errors else html


def _syncs(variant: VariantResult, *, traced: bool) -> str | None:
    """The syncs measured, or those predicted and called so beside measured ones."""
    of, unknown = variant.syncs, variant.predicted_unknown
    count = of.predicted_per_step if of.measured_per_step is None else of.measured_per_step
    if count is None and not unknown:
        return None
    predicted = " predicted" if traced and of.measured_per_step is None else ""
    html = NOT_MEASURED_CELL if count is None else Html("<b>{}</b>{}").format(fmt.count(count), predicted)
    if unknown and of.measured_per_step is None:
        html += _NOTE.format(f"{fmt.plural(len(unknown), 'operation')} not covered", "")
    return html


def _longest(shown: Sequence[VariantResult], parts: Mapping[str, Mapping[str, float]]) -> float:
    """The longest profiled step, for the bars.

    One that is mostly the profiler's would make the others too short to read: it is as long as theirs, and marked.
    """
    lengths = {variant.name: sum(parts[variant.name].values()) for variant in shown}
    return max((lengths[v.name] for v in shown if _slower(v) is None), default=max(lengths.values(), default=0.0))


def _goes(variant: VariantResult, parts: Mapping[str, float], longest: float) -> str | None:
    total, slower = sum(parts.values()), _slower(variant)
    if not total:
        return None
    words: str = fmt.duration_ns(total)
    if slower is not None:
        words = Html('<b class="warn">profiled: {} times as long</b>').format(fmt.significant(slower, 2))
    return bar_cell(pieces_of(parts), max(longest, total)) + _NOTE.format(words, "")


def _slower(variant: VariantResult) -> float | None:
    """How many times longer its profiled step is, where that is mostly the profiler's."""
    slower = variant.profiled_over_unprofiled
    return None if slower is None or slower < SLOW_PROFILE else slower


def _profiled(shown: Sequence[VariantResult]) -> str:
    """How the profiled steps of the bars fit the step times, which are of unprofiled ones; empty where unknown."""
    ratios = [v.profiled_over_unprofiled for v in shown if v.overview is not None]
    known = sorted(ratio for ratio in ratios if ratio is not None)
    if not known:
        return ""
    ends = dict.fromkeys((fmt.ratio(known[0]), fmt.ratio(known[-1])))
    return f"Step times are those of unprofiled steps. A profiled step takes {' to '.join(ends)} as long."


def _facts(study: Comparison) -> list[str]:
    """Where and how it was measured, in a few words each."""
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
    """How many timed steps do not count, since their run was still warming up."""
    left_out = sum(run.warmup_left_out or 0 for variant in study.measured for run in variant.runs)
    return f" ({left_out} of {counted + left_out} left out as still warming up)" if left_out else ""


def _estimated_samples(study: Comparison) -> str:
    """How many the estimates are for, where that is another number."""
    batches = {one.batch for variant in study.variants for one in variant.estimates if one.batch is not None}
    return f" ({_span(sorted(batches))} in the estimate)" if batches - set(samples_per_step(study)) else ""


def _paragraphs(text: str) -> tuple[str, ...]:
    """A text's paragraphs: blank lines part them, single line breaks do not."""
    blocks = text.replace("\r\n", "\n").split("\n\n")
    return tuple(" ".join(block.split()) for block in blocks if block.strip())


def commit(study: Comparison) -> str | None:
    """The commit in short, with a word on uncommitted changes."""
    environment = study.environment
    if environment is None or environment.git_commit is None:
        return None
    return environment.git_commit[:10] + (" with uncommitted changes" if environment.git_dirty else "")


def _span(values: Sequence[int]) -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    return fmt.count(low) if low == high else f"{fmt.count(low)} to {fmt.count(high)}"
