"""The verdict of a study, for its page, the index and its first finding: sentences, reasons, what to do.

Names are in backticks; pages show them as code.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Estimate
from steptrace.documents.overview import part_name
from steptrace.documents.variant import RatioToBaseline, Saving, VariantResult, Why
from steptrace.findings.advice import advice_of, estimated_advice, times_as_fast, unconfirmed
from steptrace.findings.estimated import MOST_NAMED, estimated_gpus, estimated_sentence, estimated_winner, leads
from steptrace.findings.why import LEAST_PART, why
from steptrace.stats import IQR_REFUSED

#: So many kernels are named as the reason of a part.
_MOST_KERNELS: Final = 3

#: What a step of the baseline waits for, by its estimate: the reason where the chosen variant has fewer of these.
_LIMITS: Final = {"launches": "the host's launches of kernels", "syncs": "syncs"}

_Counted = Literal["launches", "kernels", "operators", "syncs"]


@dataclass(frozen=True)
class _Fewer:
    """What a step has fewer of, with the numbers per step of the baseline and of the variant."""

    what: _Counted
    before: float
    now: float


Tone = Literal["good", "care", "bad", "neutral"]


@dataclass(frozen=True)
class StudyVerdict:
    """The result of a study.

    Attributes:
        sentence: which variant is faster, by how much and how sure; what failed.
        details: why, the syncs, whether all compute the same, broken gates.
        advice: what to do; may be empty.
        use: the variant to use; None if there is none to recommend.
        tone: `bad` if nothing was measured, `care` if a gate is broken or the fastest cannot be used.
    """

    sentence: str
    details: tuple[str, ...]
    advice: str
    use: str | None
    tone: Tone


def verdict_of(study: Comparison) -> StudyVerdict:
    """The verdict on a study; on a machine without a GPU that of the estimates, where there are some."""
    if leads(study):
        return _estimated(study)
    best = study.fastest()
    chosen = best if best is None or not study.alike else study.variant(study.alike[0])
    sentence = " ".join([*_speeds(study, chosen), *_failed(study.variants)])
    details = (*_reason(study, chosen), _answers(study), _gates(study))
    advice, use = advice_of(study, chosen)
    return StudyVerdict(sentence, tuple(filter(None, details)), advice, use, _tone(study, chosen))


def _estimated(study: Comparison) -> StudyVerdict:
    """The verdict of the estimates."""
    gpus = estimated_gpus(study)
    winners = [estimated_winner(study, gpu) for gpu in gpus]
    best = winners[0] if all(winner is winners[0] for winner in winners) else None
    sentences = [*(estimated_sentence(study, gpu) for gpu in gpus), *_failed(study.variants)]
    advice, use = estimated_advice(study, best, gpus)
    usable = best is not None and best.can_be_used
    tone: Tone = "care" if broken_gates(study) or (best is not None and not usable) else "good" if usable else "neutral"
    details = tuple(filter(None, (*_reason(study, best, estimated=True), _answers(study), _gates(study))))
    return StudyVerdict(" ".join(sentences), details, advice, use, tone)


def _failed(variants: Iterable[VariantResult]) -> list[str]:
    """A sentence for each way in which variants ended without a step time."""
    words = {
        "failed": "failed",
        "out of memory": "ran out of memory",
        "killed": "stopped by a signal",
        "not run": "did not run",
    }
    ended: dict[str, list[VariantResult]] = defaultdict(list)
    for variant in variants:
        if variant.step_ms is None and variant.status != "ok":
            ended[words[variant.status]].append(variant)
    return [f"{_names_of(group)} {word}." for word, group in ended.items()]


def _reason(study: Comparison, chosen: VariantResult | None, *, estimated: bool = False) -> tuple[str, str]:
    """Why the chosen variant is faster, and the syncs of all where that does not name them."""
    reasons = None if estimated else why(None if chosen is None else study.variant(chosen.baseline), chosen)
    fewer = _fewer(study, chosen, estimated=estimated)
    text, names_counts = _fewer_in_words(study, chosen, fewer, estimated=estimated), True
    if reasons is not None and reasons.shorter:
        names_counts = reasons.shorter[0].part == "idle_host"
        text = f"{_why(reasons)} {text if names_counts else ''}".rstrip()
    has_syncs = names_counts and any(one.what == "syncs" for one in fewer)
    is_covered = not any(variant.predicted_unknown for variant in study.variants)
    return text, "" if has_syncs and is_covered else _syncs(study)


def _why(reasons: Why) -> str:
    """The parts of a step, and the kernels, by which a variant is faster."""
    text = f"Where a step is shorter: {', '.join(map(_saving, reasons.shorter[:MOST_NAMED]))}."
    more = ", ".join(f"{part_name(one.part)} {fmt.duration_ns(one.ns)}" for one in reasons.longer)
    text += f" It takes longer for: {more}." if more else ""
    if not reasons.by_syncs and reasons.syncs_ns is not None:
        text += f" The syncs that are gone cost {fmt.duration_ns(reasons.syncs_ns)} at most."
    return text


def _saving(one: Saving) -> str:
    """A part with the time that it takes less, and the kernels that account for most of that."""
    kernels = ", ".join(f"`{kernel.name}` {fmt.duration_ns(kernel.ns)}" for kernel in one.kernels[:_MOST_KERNELS])
    return f"{part_name(one.part)} {fmt.duration_ns(one.ns)}" + (f" ({kernels})" if kernels else "")


def _fewer(study: Comparison, chosen: VariantResult | None, *, estimated: bool = False) -> list[_Fewer]:
    """What a step of the chosen variant has fewer of than its baseline's: launches (kernels, operators) and syncs."""
    baseline = None if chosen is None else study.variant(chosen.baseline)
    if chosen is None or baseline is None or baseline is chosen:
        return []
    pair, (_, syncs) = (baseline, chosen), study.sync_counts
    counts: dict[_Counted, list[float | None]] = {
        "launches": [next((one.launches for one in v.estimates), None) if estimated else None for v in pair],
        "kernels": [None if estimated else v.kernels_per_step for v in pair],
        "operators": [None if estimated or v.kernels_per_step is not None else v.operators_per_step for v in pair],
        "syncs": [syncs.get(v.name) for v in pair],
    }
    return [
        _Fewer(what, before, now)
        for what, (before, now) in counts.items()
        if before is not None and now is not None and now <= (1 - LEAST_PART) * before and before
    ]


def _fewer_in_words(
    study: Comparison, chosen: VariantResult | None, fewer: Sequence[_Fewer], *, estimated: bool
) -> str:
    """What the chosen variant has fewer of, and whether that is what limits its baseline; empty without any."""
    baseline = None if chosen is None else study.variant(chosen.baseline)
    if chosen is None or baseline is None or baseline is chosen:
        return ""
    source = study.sync_counts[0]
    words = [
        f"{fmt.count(one.now)} {f'{source} syncs' if one.what == 'syncs' else one.what} per step instead of "
        f"{fmt.count(one.before)}"
        for one in fewer
    ]
    if estimated:
        words += _less_gpu_work(*(next(iter(v.estimates), None) for v in (baseline, chosen)))
    reason = f"`{chosen.name}` has {fmt.enumeration(words)}." if words else ""
    limits = {one.limited_by for one in baseline.estimates} if estimated else set()
    limit = limits.pop() if len(limits) == 1 else None  # the same on every GPU
    if limit in _LIMITS and any(one.what == limit for one in fewer):
        reason = f"A step of `{baseline.name}` is limited by {_LIMITS[limit]}: {reason}"
    return reason


def _less_gpu_work(before: Estimate | None, after: Estimate | None) -> list[str]:
    """The GPU's work of both, where the bands are apart."""
    if before is None or after is None or before.gpu_ms is None or after.gpu_ms is None:
        return []
    less = after.gpu_ms[1] < before.gpu_ms[0]
    return [f"{fmt.band_ms(*after.gpu_ms)} of GPU work instead of {fmt.band_ms(*before.gpu_ms)}"] if less else []


def _syncs(study: Comparison) -> str:
    source, counts = study.sync_counts
    if not counts:
        return "Syncs were neither measured nor predicted."
    values = set(counts.values())
    not_covered = [v for v in study.variants if v.predicted_unknown] if source == "predicted" else []
    left = f"; of {_names_of(not_covered)} not all is covered" if not_covered else ""
    if len(values) == 1:
        return f"Syncs per step, {source}: {fmt.count(values.pop())} in every variant{left}."
    if len(counts) > 2 * MOST_NAMED:
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        counted = f"{fmt.count(counts[least])} (`{least}`) to {fmt.count(counts[most])} (`{most}`)"
    else:
        counted = ", ".join(f"`{name}` {fmt.count(count)}" for name, count in counts.items())
    return f"Syncs per step, {source}: {counted}{left}."


def _answers(study: Comparison) -> str:
    """Whether the variants compute the same, by the check against the float64 reference."""
    by_status: dict[str, list[VariantResult]] = defaultdict(list)
    for variant in study.variants:
        by_status[variant.equivalence.status].append(variant)
    if len(by_status) == 1 and "same" in by_status:
        return "All variants compute the same." if len(study.variants) > 1 else "It computes what the reference does."
    reasons = {variant.equivalence.reason for variant in study.variants}
    if len(by_status) == len(reasons) == 1 and "not comparable" in by_status and None not in reasons:
        return f"Losses and gradients cannot be compared: {reasons.pop()}."
    words = {
        "differs": "a different result",
        "failed": "check of the answer failed",
        "not comparable": "answer cannot be compared",
        "not measured": "answer not checked",
    }
    return " ".join(f"{_names_of(by_status[key])}: {word}." for key, word in words.items() if by_status[key])


def broken_gates(study: Comparison) -> int:
    """The number of broken gates."""
    return sum(gate.outcome == "broken" for gate in study.gates)


def _gates(study: Comparison) -> str:
    broken = broken_gates(study)
    return f"{fmt.plural(broken, 'gate')} {'is' if broken == 1 else 'are'} broken." if broken else ""


def _tone(study: Comparison, chosen: VariantResult | None) -> Tone:
    if not study.measured:
        return "bad"
    if broken_gates(study) or (chosen is not None and not chosen.can_be_used):
        return "care"
    return "neutral" if chosen is None else "good"


def _speeds(study: Comparison, chosen: VariantResult | None) -> list[str]:
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
    sentences += [f"No measurable difference: {_names_of(near)}."] if near else []
    return [*sentences, *_clause(by_verdict[None], "without a verdict")]


def _unconfirmed(study: Comparison, apart: Sequence[VariantResult]) -> list[str]:
    """The variants that measured apart from their baselines without a verdict, with their step times, and why."""
    sentences, of_variants = [], study.step_times_ms
    for word in ("faster", "slower"):
        group = [v for v in apart if (times_as_fast(v) > 1) == (word == "faster")]
        ratios, times = sorted(map(times_as_fast, group)), sorted(of_variants[v.name] for v in group)
        baselines = sorted({v.baseline for v in group})
        names = _names_of(group, ratios=True)
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
    return [f"{_names_of(variants, ratios=ratios)} {verb} {words}."]


def _names_of(variants: Sequence[VariantResult], *, ratios: bool = False) -> str:
    """The variants' names; of many their number."""
    if len(variants) > MOST_NAMED:
        return f"{len(variants)} variants"
    return fmt.enumeration([f"`{v.name}`{_ratio_words(v) if ratios else ''}" for v in variants])


def _ratio_words(variant: VariantResult) -> str:
    ratio = variant.ratio
    return "" if ratio is None else f" ({fmt.ratio(ratio.value, ratio.low, ratio.high)})"
