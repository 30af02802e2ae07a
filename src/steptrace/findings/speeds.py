"""The sentences of a study's verdict on its measured step times.

Names are in backticks; pages show them as code.
"""

from collections import defaultdict
from collections.abc import Sequence

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.variant import RatioToBaseline, VariantResult
from steptrace.findings.advice import times_as_fast, unconfirmed
from steptrace.findings.estimated import MOST_NAMED
from steptrace.stats import IQR_REFUSED


def speeds(study: Comparison, chosen: VariantResult | None) -> list[str]:
    """Which variant is faster than its baseline, by how much and how sure; which are not, and which are open."""
    if not study.measured:
        return ["No step time was measured."]
    others = [v for v in study.measured if not v.is_baseline]
    by_verdict: dict[str | None, list[VariantResult]] = defaultdict(list)
    for variant in others:
        by_verdict[variant.verdict].append(variant)
    if set(by_verdict) <= {None}:
        return [_no_verdict(study, others)]
    apart = unconfirmed(study)
    near = [v for v in by_verdict["undecided"] if v not in apart]
    if chosen is not None:
        sentences = [_faster(study, chosen)]
        alike = [v for v in by_verdict["faster"] if v.name in study.alike and v is not chosen]
        more = [v for v in by_verdict["faster"] if v.name not in study.alike and v is not chosen]
        sentences += _clause(alike, "about equally fast") + _clause(more, "faster, too", ratios=True)
    elif apart:
        sentences = []
    elif by_verdict["slower"]:
        sentences = ["No variant is faster."]
    else:
        return ["No measurable difference.", *_clause(by_verdict[None], "without a verdict")]
    sentences += _unconfirmed(study, apart) + _clause(by_verdict["slower"], "slower", ratios=True)
    sentences += _clause(by_verdict["same"], "as fast as the baseline")
    sentences += [f"No measurable difference: {names_of(near)}."] if near else []
    return [*sentences, *_clause(by_verdict[None], "without a verdict")]


def _unconfirmed(study: Comparison, apart: Sequence[VariantResult]) -> list[str]:
    """The variants that measured apart from their baselines without a verdict, with their step times, and why."""
    sentences, of_variants = [], study.step_times_ms
    for word in ("faster", "slower"):
        group = [v for v in apart if (times_as_fast(v) > 1) == (word == "faster")]
        ratios, times = sorted(map(times_as_fast, group)), sorted(of_variants[v.name] for v in group)
        baselines = sorted({v.baseline for v in group})
        names = names_of(group, ratios=True)
        if len(group) > MOST_NAMED:
            names += f" ({fmt.ratio(ratios[0])} to {fmt.ratio(ratios[-1])})"
        if len(baselines) == 1:
            span = " to ".join(dict.fromkeys(map(fmt.duration_ms, (times[0], times[-1]))))
            before = fmt.duration_ms(of_variants.get(baselines[0]))
            sentences.append(f"{names} measured {word} than `{baselines[0]}`: {span} per step instead of {before}.")
        elif group:
            sentences.append(f"{names} measured {word} than their baselines.")
    if not apart:
        return []
    sides = {v.name for v in apart} | {v.baseline for v in apart}
    runs = fmt.plural(min(v.runs_ok for v in study.measured if v.name in sides), "run")
    confidence = fmt.setting(study.method.confidence)
    excludes = f"their {confidence} intervals exclude" if len(apart) > 1 else f"its {confidence} interval excludes"
    few = f"{runs} per variant are too few for a verdict (correction: {study.method.correction})"
    return [*sentences, f"Not certain yet: {excludes} 1, but {few}."]


def _faster(study: Comparison, variant: VariantResult) -> str:
    ratio, times = variant.ratio, study.step_times_ms
    assert ratio is not None  # there is a verdict
    wrong = {"differs": ", but computes something else", "failed": ", but the check of its answer failed"}
    now, before = times[variant.name], times.get(variant.baseline)
    instead = "" if before is None else f": {fmt.duration_ms(now)} per step instead of {fmt.duration_ms(before)}"
    by = f"{fmt.ratio(ratio.value, ratio.low, ratio.high)} faster than `{variant.baseline}`{_interval(study, ratio)}"
    samples = {v.name: v.samples_per_step for v in study.variants}
    own, others = samples[variant.name], samples.get(variant.baseline)
    differ = own is not None and others is not None and own != others
    of = f" of {fmt.plural(own or 0, 'sample')} instead of {others}" if differ else ""
    return f"`{variant.name}` is {by}{instead}{of}{wrong.get(variant.equivalence.status, '')}."


def _interval(study: Comparison, ratio: RatioToBaseline) -> str:
    if ratio.low is None:
        return ""
    return f" ({fmt.setting(study.method.confidence)} interval {fmt.ratio_interval(ratio.low, ratio.high)})"


def _no_verdict(study: Comparison, others: Sequence[VariantResult]) -> str:
    """Why there is no verdict, with the step times that there are."""
    baselines = {v.baseline for v in study.variants} & {v.name for v in study.measured}
    if not baselines:
        reason = f"The baseline `{study.baseline}` has no step time, so nothing is compared"
    elif not others:
        reason = "Only the baseline was measured"
    elif all(v.runs_ok <= 1 for v in study.measured):
        reason = "One run each, so no verdict"
    elif any((v.noise.iqr_over_median or 0) > IQR_REFUSED for v in study.measured):
        reason = "Too noisy to compare"
    else:
        reason = "No verdict"
    times = sorted((ms, name) for name, ms in study.step_times_ms.items())
    if len(times) > MOST_NAMED:
        times = [times[0], times[-1]]
        reason += f"; shortest and longest of {len(study.step_times_ms)} step times"
    return f"{reason}: {', '.join(f'`{name}` {fmt.duration_ms(ms)}' for ms, name in times)}."


def _clause(variants: Sequence[VariantResult], words: str, *, ratios: bool = False) -> list[str]:
    """ "`a` and `b` are slower."; of many their number."""
    if not variants:
        return []
    verb = "is" if len(variants) == 1 else "are"
    return [f"{names_of(variants, ratios=ratios)} {verb} {words}."]


def names_of(variants: Sequence[VariantResult], *, ratios: bool = False) -> str:
    """The variants' names; of many their number."""
    if len(variants) > MOST_NAMED:
        return f"{len(variants)} variants"
    return fmt.enumeration([f"`{v.name}`{_ratio_words(v) if ratios else ''}" for v in variants])


def _ratio_words(variant: VariantResult) -> str:
    ratio = variant.ratio
    return "" if ratio is None else f" ({fmt.ratio(ratio.value, ratio.low, ratio.high)})"
