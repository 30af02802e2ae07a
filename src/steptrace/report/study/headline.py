"""The speed of a study's variants in one sentence made from its data: who is faster, who is not, what is missing.

Names stand in backticks; the page shows them as code.
"""

from collections.abc import Iterable, Sequence

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.report.study.model import code
from steptrace.stats import IQR_REFUSED, IQR_WARNING

#: How many names a clause lists, and how long they may be, before it only counts them.
_MOST_NAMES = 3
_MOST_LETTERS = 70
#: How many step times are listed before the shortest and the longest stand for all.
_MOST_TIMES = 8

#: A status as a sentence says it.
_ENDED = {"failed": "failed", "oom": "ran out of memory", "killed": "was killed", "not run": "was not run"}

#: What stands behind the claim that a variant is faster.
_ANSWERS = {"differs": ", but its answer differs", "failed": ", but the check of its answer failed"}


def headline(study: Comparison) -> str:
    """The speed of the variants: who is faster by how much and how sure, who is not, and what is missing."""
    missing = _missing(study.variants)
    if not study.measured:
        return "No step time was measured" + (": " + "; ".join(missing) if missing else "") + "."
    return "; ".join([*_speeds(study), *missing]) + "."


def _speeds(study: Comparison) -> list[str]:
    """A clause for each verdict, the fastest variant first."""
    if study.on_simulated_gpu:
        untrusted = "neither its times nor its values can be trusted"
        return [f"The GPU is simulated: {untrusted}, and a branch on a computed value may go either way"]
    by_verdict: dict[str | None, list[VariantResult]] = {}
    for variant in study.measured:
        if not variant.is_baseline:
            by_verdict.setdefault(variant.verdict, []).append(variant)
    if not any(by_verdict):
        return _without_verdict(study)
    fastest = study.fastest()
    slower = sorted(by_verdict.get("slower", []), key=_ratio_value)
    if fastest is not None:
        clauses = [_effect(fastest, study, "faster"), *_also_faster(study, fastest, by_verdict["faster"])]
        clauses += _others(slower, "slower")
    elif slower:
        clauses = [f"No variant is shown to be faster than {_baseline(study)}", _effect(slower[0], study, "slower")]
        clauses += _others(slower[1:], "also slower")
    else:
        clauses = [f"No variant is shown to be faster or slower than {_baseline(study)}"]
    within = f" (within {fmt.setting(study.method.noise_floor)})"
    clauses += _listed(by_verdict.get("same", []), f"the same{within}")
    clauses += _listed(by_verdict.get("undecided", []), f"undecided{_uneven_runs(study)}")
    unjudged = by_verdict.get(None, [])
    return [*clauses, *_listed(unjudged, f"no verdict{_why_unjudged(unjudged, study)}", ("has ", "have "))]


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
    details.append(fmt.plural(variant.runs_ok, "run"))
    samples = {v.name: v.samples_per_step for v in study.variants}
    own, of_baseline = samples[variant.name], samples.get(variant.baseline)
    if own is not None and of_baseline is not None and own != of_baseline:
        details.append(f"steps of {fmt.plural(own, 'sample')} against {of_baseline}")
    baseline = code(variant.baseline)
    return (
        f"{code(variant.name)} is {fmt.ratio(value, low, high)} {word} than {baseline}"
        f" ({', '.join(details)}){_ANSWERS.get(variant.equivalence.status, '')}"
    )


def _also_faster(study: Comparison, fastest: VariantResult, faster: Sequence[VariantResult]) -> list[str]:
    """The others that are faster than the baseline, and whether these runs tell them from the fastest."""
    others = sorted(faster, key=lambda v: (v.can_be_used, _ratio_value(v)), reverse=True)[1:]
    alike = study.not_told_apart(fastest.name)
    tied = [variant for variant in others if variant.name in alike]
    said = []
    if tied:
        which = _names(tied) or f"{len(tied)} more"
        said = [f"so {'is' if len(tied) == 1 else 'are'} {which}, which these runs cannot tell from it"]
    return [*said, *_others([variant for variant in others if variant not in tied], "also faster")]


def _others(variants: Sequence[VariantResult], word: str) -> list[str]:
    """One clause with the ratio of each; of many how many they are."""
    if not variants:
        return []
    if _names(variants) is None:
        more = "more " * word.startswith("also ")
        return [f"{len(variants)} {more}{'is' if len(variants) == 1 else 'are'} {word.removeprefix('also ')}"]
    ratios = [(v.name, v.ratio) for v in variants]
    named = [code(n) + (f" ({fmt.ratio(r.value, r.low, r.high)})" if r is not None else "") for n, r in ratios]
    return [f"{word}: {fmt.enumeration(named)}"]


def _listed(variants: Sequence[VariantResult], said: str, verb: tuple[str, str] = ("is ", "are ")) -> list[str]:
    """One clause, "`a` and `b`: the same", of many "5 are the same"; none without any."""
    if not variants:
        return []
    names = _names(variants)
    return [f"{len(variants)} {verb[len(variants) > 1]}{said}" if names is None else f"{names}: {said}"]


def _why_unjudged(variants: Sequence[VariantResult], study: Comparison) -> str:
    """Why these measured variants have no verdict, where it is the same for all."""
    uneven = {v.name for v in study.variants if (v.noise.iqr_over_median or 0) > IQR_REFUSED}
    return ", since steps are too uneven" if all({v.name, v.baseline} & uneven for v in variants) else ""


def _missing(variants: Iterable[VariantResult]) -> list[str]:
    """One clause for each way in which variants ended without a step time."""
    ended: dict[str, list[VariantResult]] = {}
    for variant in variants:
        if variant.step_ms is None:
            ended.setdefault(_ENDED.get(variant.status, "was not measured"), []).append(variant)
    clauses = []
    for word, found in ended.items():
        word = word.replace("was", "were", 1) if len(found) > 1 and word.startswith("was") else word
        clauses.append(f"{_names(found) or len(found)} {word}")
    return clauses


def _names(variants: Sequence[VariantResult]) -> str | None:
    """Their names; None where that is too long to read."""
    if len(variants) > _MOST_NAMES or sum(len(variant.name) for variant in variants) > _MOST_LETTERS:
        return None
    return fmt.enumeration([code(variant.name) for variant in variants])


def _ratio_value(variant: VariantResult) -> float:
    return variant.ratio.value if variant.ratio is not None else 1.0


def _baseline(study: Comparison) -> str:
    """The baseline by name; in a matrix each cell has its own."""
    baselines = {variant.baseline for variant in study.variants}
    return code(study.baseline) if len(baselines) == 1 else "its baseline"


def _uneven_runs(study: Comparison) -> str:
    """Why variants are undecided, where runs of one variant differ much."""
    most = max((variant.noise.between_runs or 0.0 for variant in study.variants), default=0.0)
    return f" (runs of one variant differ by up to {fmt.share(most)})" if most > IQR_WARNING else ""


def _without_verdict(study: Comparison) -> list[str]:
    """Something was measured, but nothing may be claimed: why, and the medians that there are."""
    timed = sorted(study.measured, key=lambda variant: study.medians_ms[variant.name])
    if study.baseline in {v.name for v in study.variants if v.step_ms is None}:
        reason = f"The baseline {code(study.baseline)} has no step time, so nothing is compared"
    elif all(v.is_baseline for v in timed):
        reason = f"Only the baseline {code(study.baseline)} was measured, so there is nothing to compare"
    elif all(v.runs_ok <= 1 for v in timed):
        reason = "One run each, so no verdict"
    else:
        reason = f"No verdict{_why_unjudged([v for v in timed if not v.is_baseline], study)}"
    spans = [(code(v.name), fmt.duration_ms(v.median_ms, 4)) for v in timed]
    told = "median step times: " + ", ".join(f"{name} {span}" for name, span in spans)
    if len(spans) > _MOST_TIMES:
        (shortest, least), (longest, most) = spans[0], spans[-1]
        told = f"of {len(spans)} median step times the shortest is {least} ({shortest}), the longest {most} ({longest})"
    return [reason, told]
