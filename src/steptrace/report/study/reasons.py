"""What stands behind a study's headline: why the fastest is faster, syncs, whether all compute the same, gates.

Names stand in backticks; the page shows them as code.
"""

from collections.abc import Sequence

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult, WaterfallPart
from steptrace.documents.finding import ANSWER
from steptrace.report.page.markup import sentence
from steptrace.report.study.headline import headline
from steptrace.report.study.model import SAME_OPERATORS, code, has_traced_syncs
from steptrace.report.study.waterfall import CATEGORY_NAMES

#: How many variants a list holds, and how long their names may be, before fewer words stand for all.
_MOST_LISTED = 8
_MOST_LETTERS = 140
#: How many parts of a step are named as the reason.
_MOST_PARTS = 4


def summary(study: Comparison) -> str:
    """What a reader wants to know first: the headline and what is behind it."""
    return " ".join(filter(None, [headline(study), reasons(study)]))


def reasons(study: Comparison) -> str:
    """What is behind the headline: why the fastest is, where syncs stand, whether all compute the same."""
    found = [why(study), operators(study), syncs(study), _expected(study), answer(study), gates(study)]
    return " ".join(filter(None, found))


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


def _is_saved(part: WaterfallPart, total: float) -> bool:
    large = part.category != "residual" and part.delta_ms <= total / 10
    return large and (part.high is None or part.high < 0)


def _part(category: str) -> str:
    name = CATEGORY_NAMES.get(category, category)
    return f"idle time ({name.removeprefix('idle: ')})" if name.startswith("idle: ") else name


def operators(study: Comparison) -> str:
    """How many operators a step of the fastest variant calls and one of its baseline; empty where that is no reason."""
    best = study.fastest()
    before = next((v.operators_per_step for v in study.variants if best and v.name == best.baseline), None)
    if best is None or not before or not best.operators_per_step:
        return ""
    if before < SAME_OPERATORS * best.operators_per_step:
        return ""
    now = fmt.count(best.operators_per_step)
    return f"Operators per step: {fmt.count(before)} before, {now} in {code(best.name)}."


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
    listed = ", ".join(f"{code(name)} {count:g}" for name, count in known.items())
    if len(known) > 1 and len(set(known.values())) == 1:
        listed = (
            f"{next(iter(known.values())):g} in {'every variant' if len(known) == len(counts) else 'each looked at'}"
        )
    elif len(known) > _MOST_LISTED:
        least, most = min(known, key=lambda name: known[name]), max(known, key=lambda name: known[name])
        listed = f"from {known[least]:g} ({code(least)}) to {known[most]:g} ({code(most)}), of {len(known)} variants"
    return f"Syncs per step, measured: {listed}." if traced else f"Syncs per step on a GPU, predicted: {listed}."


def _no_syncs(study: Comparison, known: Sequence[str], *, traced: bool) -> str:
    where = (
        "in any variant" if len(known) == len(study.variants) else f"in {fmt.plural(len(known), 'variant')} looked at"
    )
    open_ = [] if traced else [variant for variant in study.variants if variant.predicted_unknown]
    judged = f"; parts of {_names(open_)} were not judged" if open_ else ""
    return f"No syncs {where} ({'measured' if traced else 'predicted'}{judged})."


def _expected(study: Comparison) -> str:
    """What its finding on which variant to use expects of a GPU, where that is simulated and no time says it."""
    found = next((item.claim for item in study.findings if item.rule == ANSWER), None)
    return f"{sentence(found)}." if found is not None and study.on_simulated_gpu else ""


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


def _names(variants: Sequence[VariantResult]) -> str:
    """Their names, or how many they are where that is too long to read."""
    named = fmt.enumeration([code(variant.name) for variant in variants])
    listed = len(variants) <= _MOST_LISTED and len(named) <= _MOST_LETTERS
    return named if listed or len(variants) == 1 else f"{len(variants)} variants"


def gates(study: Comparison) -> str | None:
    """How many gates are broken; None if none is."""
    broken = broken_gates(study)
    return f"{fmt.plural(broken, 'gate')} {'is' if broken == 1 else 'are'} broken." if broken else None


def broken_gates(study: Comparison) -> int:
    """The number of broken gates."""
    return sum(gate.outcome == "broken" for gate in study.gates)


def tone(study: Comparison) -> str:
    """`bad` if nothing was measured, `care` if a gate is broken or the fastest is no choice, else `good`."""
    if not study.measured:
        return "bad"
    if broken_gates(study) or study.on_simulated_gpu:
        return "care"
    best = study.fastest()
    if best is None:
        return "neutral"
    return "good" if best.can_be_used else "care"
