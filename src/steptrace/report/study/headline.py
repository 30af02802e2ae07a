"""What a study found, in a few sentences made from its data: speed, syncs, whether the answer is the same, gates.

Names stand in backticks; the page shows them as code.
"""

from collections.abc import Iterable, Sequence

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult, WaterfallPart
from steptrace.documents.finding import ANSWER
from steptrace.report.page.markup import sentence
from steptrace.report.study.model import SAME_OPERATORS, has_traced_syncs, is_baseline, measured, runs_ok
from steptrace.report.study.waterfall import CATEGORY_NAMES
from steptrace.stats import IQR_REFUSED, IQR_WARNING

#: How many names a clause lists before it only counts them.
_MOST_NAMES = 3
_MOST_LETTERS = 70
#: How many variants a list of figures holds before it gives the ends alone.
_MOST_LISTED = 8
#: How many parts of a step are named as the reason.
_MOST_PARTS = 4

#: A status as a sentence says it.
_ENDED = {"failed": "failed", "oom": "ran out of memory", "killed": "was killed", "not run": "was not run"}

#: What stands behind the claim that a variant is faster.
_ANSWERS = {"differs": ", but its answer differs", "failed": ", but the check of its answer failed"}


def summary(study: Comparison) -> str:
    """What a reader wants to know first: the headline and what is behind it."""
    return " ".join(filter(None, [headline(study), reasons(study)]))


def reasons(study: Comparison) -> str:
    """What is behind the headline: why the fastest is, where syncs stand, whether all compute the same."""
    found = [why(study), operators(study), syncs(study), _expected(study), answer(study), gates(study)]
    return " ".join(filter(None, found))


def _expected(study: Comparison) -> str:
    """What its finding on which variant to use expects of a GPU, where that is simulated and no time says it."""
    found = next((item.claim for item in study.findings if item.rule == ANSWER), None)
    return f"{sentence(found)}." if found is not None and study.on_simulated_gpu else ""


def headline(study: Comparison) -> str:
    """The speed of the variants: who is faster by how much and how sure, who is not, and what is missing."""
    if not measured(study):
        return _nothing_measured(study)
    if study.on_simulated_gpu:
        said = (
            "The GPU is simulated: neither its times nor its values can be trusted, and a branch on a computed value "
            "may go either way"
        )
        return "; ".join([said, *_missing(study.variants)]) + "."
    candidates = [variant for variant in study.variants if not is_baseline(variant)]
    if not any(_verdict(variant) for variant in candidates):
        return _without_verdict(study, candidates)
    faster = sorted(_with_verdict(candidates, "faster"), key=lambda v: (v.can_be_used, _ratio_value(v)), reverse=True)
    slower = sorted(_with_verdict(candidates, "slower"), key=_ratio_value)
    clauses = []
    if faster:
        clauses += [_effect(faster[0], study, "faster"), *_also_faster(study, faster)]
        clauses += _others(slower, "slower")
    elif slower:
        clauses.append(f"No variant is shown to be faster than {_baseline(study)}")
        clauses += [_effect(slower[0], study, "slower"), *_others(slower[1:], "also slower")]
    else:
        clauses.append(f"No variant is shown to be faster or slower than {_baseline(study)}")
    within = f" (within {fmt.setting(study.method.noise_floor)})"
    clauses += _listed(_with_verdict(candidates, "same"), f"the same{within}")
    clauses += _listed(_with_verdict(candidates, "undecided"), f"undecided{_uneven_runs(study)}")
    clauses += _unjudged([v for v in candidates if v.step_ms is not None and not _verdict(v)], study)
    return "; ".join([*clauses, *_missing(study.variants)]) + "."


def _also_faster(study: Comparison, faster: Sequence[VariantResult]) -> list[str]:
    """The others that are faster than the baseline, and whether these runs tell them from the fastest."""
    alike = study.not_told_apart(faster[0].name)
    tied = [variant for variant in faster[1:] if variant.name in alike]
    behind = [variant for variant in faster[1:] if variant.name not in alike]
    said = (
        [f"so {'is' if len(tied) == 1 else 'are'} {_some(tied)}, which these runs cannot tell from it"] if tied else []
    )
    return [*said, *_others(behind, "also faster")]


def _some(variants: Sequence[VariantResult]) -> str:
    return f"{len(variants)} more" if _too_many(variants) else fmt.enumeration([_code(v.name) for v in variants])


def why(study: Comparison) -> str:
    """The parts of a step by which the fastest variant is faster, and the rest; empty where the profile does not say.

    A part counts if it makes a tenth of the difference or more, and its interval, if there is one, excludes 0. Nothing
    is said where what the profiler changed is as large as the difference itself.
    """
    best = study.fastest()
    if best is None or best.step_difference is None:
        return ""
    total, parts = best.step_difference.delta_ms, best.waterfall
    if total >= 0 or any(part.category == "residual" and abs(part.delta_ms) >= -total for part in parts):
        return ""
    saved = sorted((part for part in parts if _is_saved(part, total)), key=lambda part: part.delta_ms)
    words = [f"{_part(part.category)} {fmt.duration_ms(-part.delta_ms)}" for part in saved[:_MOST_PARTS]]
    rest = total - sum(part.delta_ms for part in saved[:_MOST_PARTS])
    others = f"; other parts take {fmt.duration_ms(abs(rest))} {'more' if rest > 0 else 'less'}"
    said = f"{', '.join(words)}{others if abs(rest) >= -total / 20 else ''}"
    return f"Saved, by profiled steps: {said}." if words else ""


def operators(study: Comparison) -> str:
    """How many operators a step of the fastest variant calls and one of its baseline; empty where that is no reason."""
    best = study.fastest()
    before = next((v.operators_per_step for v in study.variants if best and v.name == best.baseline), None)
    if best is None or not before or not best.operators_per_step:
        return ""
    if before < SAME_OPERATORS * best.operators_per_step:
        return ""
    now = fmt.count(best.operators_per_step)
    return f"Operators per step: {fmt.count(before)} before, {now} in {_code(best.name)}."


def _is_saved(part: WaterfallPart, total: float) -> bool:
    large = part.category != "residual" and part.delta_ms <= total / 10
    return large and (part.high is None or part.high < 0)


def _part(category: str) -> str:
    name = CATEGORY_NAMES.get(category, category)
    return f"idle time ({name.removeprefix('idle: ')})" if name.startswith("idle: ") else name


def _uneven_runs(study: Comparison) -> str:
    """Why variants are undecided, where runs of one variant differ much."""
    most = max((variant.noise.between_runs or 0.0 for variant in study.variants), default=0.0)
    return f" (runs of one variant differ by up to {fmt.share(most)})" if most > IQR_WARNING else ""


def syncs(study: Comparison) -> str:
    """The variants' syncs per step in one sentence: measured where a GPU was, else predicted.

    A CPU's step times cannot show what a sync costs, so this is what a laptop's page has to say on the question.
    """
    traced = has_traced_syncs(study)
    counts = {
        variant.name: variant.syncs.measured_per_step if traced else variant.syncs.predicted_per_step
        for variant in study.variants
    }
    known = {name: count for name, count in counts.items() if count is not None}
    if not known:
        return "Syncs were neither measured nor predicted."
    if not any(known.values()):
        return _no_syncs(study, list(known), traced=traced)
    listed = ", ".join(f"{_code(name)} {count:g}" for name, count in known.items())
    if len(known) > 1 and len(set(known.values())) == 1:
        listed = (
            f"{next(iter(known.values())):g} in {'every variant' if len(known) == len(counts) else 'each looked at'}"
        )
    elif len(known) > _MOST_LISTED:
        least, most = min(known, key=lambda name: known[name]), max(known, key=lambda name: known[name])
        listed = f"from {known[least]:g} ({_code(least)}) to {known[most]:g} ({_code(most)}), of {len(known)} variants"
    return f"Syncs per step, measured: {listed}." if traced else f"Syncs per step on a GPU, predicted: {listed}."


def _no_syncs(study: Comparison, known: Sequence[str], *, traced: bool) -> str:
    where = (
        "in any variant" if len(known) == len(study.variants) else f"in {fmt.plural(len(known), 'variant')} looked at"
    )
    open_ = [] if traced else [variant for variant in study.variants if variant.predicted_unknown]
    judged = f"; parts of {_names(open_)} were not judged" if open_ else ""
    return f"No syncs {where} ({'measured' if traced else 'predicted'}{judged})."


def answer(study: Comparison) -> str:
    """Whether the variants compute the same, by the check of loss and gradient against the float64 reference."""
    if study.on_simulated_gpu:
        return ""
    by_status: dict[str, list[VariantResult]] = {}
    for variant in study.variants:
        by_status.setdefault(variant.equivalence.status, []).append(variant)
    if set(by_status) == {"same"}:
        return "All variants compute the same." if len(study.variants) > 1 else "It computes what the reference does."
    if set(by_status) == {"not measured"}:
        return "Whether the variants compute the same was not checked."
    differing, same = by_status.get("differs", []), by_status.get("same", [])
    said = []
    if differing:
        everyone = len(differing) == len(study.variants) > 1
        word = "computes" if len(differing) == 1 else "compute"
        said.append(
            f"{'All variants' if everyone else _names(differing)} {word} a different result from the reference."
        )
    elif same:
        said.append(
            "All variants that were checked compute the same." if len(same) > 1 else f"{_names(same)} is right."
        )
    if failed := by_status.get("failed"):
        said.append(f"The check of the answer failed for {_names(failed)}.")
    if unlike := by_status.get("not comparable"):
        said.append(f"The answer cannot be compared for {_names(unlike)}.")
    if unchecked := by_status.get("not measured"):
        said.append(f"The answer was not checked for {_names(unchecked)}.")
    return " ".join(said)


def gates(study: Comparison) -> str | None:
    """How many gates are broken; None if none is."""
    broken = broken_gates(study)
    return f"{fmt.plural(broken, 'gate')} {'is' if broken == 1 else 'are'} broken." if broken else None


def broken_gates(study: Comparison) -> int:
    """The number of broken gates."""
    return sum(gate.outcome == "broken" for gate in study.gates)


def _names(variants: Sequence[VariantResult]) -> str:
    """Their names, or how many they are where that is too long to read."""
    named = fmt.enumeration([_code(variant.name) for variant in variants])
    listed = len(variants) <= _MOST_LISTED and len(named) <= 2 * _MOST_LETTERS
    return named if listed or len(variants) == 1 else f"{len(variants)} variants"


def tone(study: Comparison) -> str:
    """`bad` if nothing was measured, `care` if a gate is broken or the fastest is no choice, else `good`."""
    if not measured(study):
        return "bad"
    if broken_gates(study) or study.on_simulated_gpu:
        return "care"
    best = study.fastest()
    if best is None:
        return "neutral"
    return "good" if best.can_be_used else "care"


def _verdict(variant: VariantResult) -> str | None:
    return None if variant.ratio is None or variant.step_ms is None else variant.ratio.verdict


def _with_verdict(variants: Iterable[VariantResult], verdict: str) -> list[VariantResult]:
    return [variant for variant in variants if _verdict(variant) == verdict]


def _ratio_value(variant: VariantResult) -> float:
    return variant.ratio.value if variant.ratio is not None else 1.0


def _baseline(study: Comparison) -> str:
    """The baseline by name; in a matrix each cell has its own."""
    baselines = {variant.baseline for variant in study.variants}
    return _code(study.baseline) if len(baselines) == 1 else "its baseline"


def _code(name: str) -> str:
    return f"`{name}`"


def _effect(variant: VariantResult, study: Comparison, word: str) -> str:
    """ "`a` is 1.18× faster than `b` (95 % interval 1.12 to 1.25, 3 runs)", marked if its answer differs."""
    ratio = variant.ratio
    assert ratio is not None
    numbers = [ratio.value, ratio.low, ratio.high]
    if word == "slower":
        numbers = [None if n is None or n == 0 else 1 / n for n in (ratio.value, ratio.high, ratio.low)]
    value, low, high = numbers
    details = []
    if low is not None and high is not None:
        details.append(f"{fmt.setting(study.method.confidence)} interval {fmt.ratio_interval(low, high)}")
    details.append(fmt.plural(runs_ok(variant), "run"))
    samples = {v.name: v.samples_per_step for v in study.variants}
    own, of_baseline = samples[variant.name], samples.get(variant.baseline)
    if own is not None and of_baseline is not None and own != of_baseline:
        details.append(f"steps of {fmt.plural(own, 'sample')} against {of_baseline}")
    baseline = _code(variant.baseline)
    return (
        f"{_code(variant.name)} is {fmt.ratio(value, low, high)} {word} than {baseline}"
        f" ({', '.join(details)}){_ANSWERS.get(variant.equivalence.status, '')}"
    )


def _others(variants: Sequence[VariantResult], word: str) -> list[str]:
    if not variants:
        return []
    if _too_many(variants):
        return [f"{_number(variants, 'more ' * word.startswith('also '))} {word.removeprefix('also ')}"]
    names = []
    for variant in variants:
        ratio = variant.ratio
        text = "" if ratio is None else f" ({fmt.ratio(ratio.value, ratio.low, ratio.high)})"
        names.append(_code(variant.name) + text)
    return [f"{word}: {fmt.enumeration(names)}"]


def _too_many(variants: Sequence[VariantResult]) -> bool:
    return len(variants) > _MOST_NAMES or sum(len(variant.name) for variant in variants) > _MOST_LETTERS


def _number(variants: Sequence[VariantResult], more: str = "") -> str:
    return f"{len(variants)} {more}{'is' if len(variants) == 1 else 'are'}"


def _listed(variants: Sequence[VariantResult], word: str) -> list[str]:
    if not variants:
        return []
    if _too_many(variants):
        return [f"{_number(variants)} {word}"]
    return [f"{fmt.enumeration([_code(variant.name) for variant in variants])}: {word}"]


def _unjudged(variants: Sequence[VariantResult], study: Comparison) -> list[str]:
    """The measured variants without a verdict, and why there is none where it is the same for all."""
    if not variants:
        return []
    uneven = {v.name for v in study.variants if (v.noise.iqr_over_median or 0) > IQR_REFUSED}
    reason = ", since steps are too uneven" if all({v.name, v.baseline} & uneven for v in variants) else ""
    if _too_many(variants):
        return [f"{len(variants)} {'has' if len(variants) == 1 else 'have'} no verdict{reason}"]
    return [f"{fmt.enumeration([_code(variant.name) for variant in variants])}: no verdict{reason}"]


def _missing(variants: Iterable[VariantResult]) -> list[str]:
    """One clause for each way in which variants ended without a step time."""
    ended: dict[str, list[VariantResult]] = {}
    for variant in variants:
        if variant.step_ms is None:
            word = _ENDED.get(variant.status, "was not measured")
            ended.setdefault(word, []).append(variant)
    clauses = []
    for word, names in ended.items():
        word = word.replace("was", "were", 1) if len(names) > 1 and word.startswith("was") else word
        subject = str(len(names)) if _too_many(names) else fmt.enumeration([_code(v.name) for v in names])
        clauses.append(f"{subject} {word}")
    return clauses


def _nothing_measured(study: Comparison) -> str:
    missing = _missing(study.variants)
    return "No step time was measured" + (": " + "; ".join(missing) if missing else "") + "."


def _without_verdict(study: Comparison, candidates: Sequence[VariantResult]) -> str:
    """Something was measured, but nothing may be claimed: say why, and give the medians that there are."""
    baseline = next((v for v in study.variants if v.name == study.baseline), None)
    timed = sorted(measured(study), key=lambda v: v.step_ms.median if v.step_ms is not None else 0.0)
    if baseline is not None and baseline.step_ms is None:
        reason = f"The baseline {_code(study.baseline)} has no step time, so nothing is compared"
    elif not any(v.step_ms is not None for v in candidates):
        reason = f"Only the baseline {_code(study.baseline)} was measured, so there is nothing to compare"
    elif all(runs_ok(v) <= 1 for v in timed):
        reason = "One run each, so no verdict"
    else:
        reason = "No verdict"
    spans = [(_code(v.name), fmt.duration_ms(v.step_ms.median, 4)) for v in timed if v.step_ms is not None]
    told = "median step times: " + ", ".join(f"{name} {span}" for name, span in spans)
    if len(spans) > _MOST_LISTED:
        (shortest, least), (longest, most) = spans[0], spans[-1]
        told = f"of {len(spans)} median step times the shortest is {least} ({shortest}), the longest {most} ({longest})"
    return f"{reason}; {told}" + "".join(f"; {m}" for m in _missing(study.variants)) + "."
