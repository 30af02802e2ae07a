"""The section "Variants": all side by side, what to read with care, gates, and the runs that failed."""

from collections.abc import Sequence

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, Equivalence, GateOutcome, VariantResult, is_measuring
from steptrace.documents.comparison.runs import ProcessError
from steptrace.limits import PROFILER_OVERHEAD
from steptrace.report.page.markup import Html, render
from steptrace.report.study.model import samples_per_step


def variants(study: Comparison) -> Html:
    """All variants side by side, what to read with care, the runs that failed, and the terms."""
    groups: dict[str, list[VariantResult]] = {}
    for variant in study.variants:
        groups.setdefault(variant.baseline, []).append(variant)
    return render(
        "study/variants",
        study=study,
        groups=list(groups.items()),
        care=care(study),
        endings_of=endings,
        held=errors_to_reference,
        limits_of=limits,
        samples_per_step=samples_per_step(study),
        overhead=PROFILER_OVERHEAD,
        failures=[variant for variant in study.variants if endings(variant)],
    )


def needs_a_look(study: Comparison) -> bool:
    """Whether something failed: a run, a check of the answer, or a gate."""
    return any(map(endings, study.variants)) or any(gate.outcome == "broken" for gate in study.gates)


def errors_to_reference(check: Equivalence) -> list[tuple[str, float | None, float, bool]]:
    """What was held against the reference: its name, relative error, tolerance, and whether it is out of it."""
    return [(name, error, most, error is None or error > most) for name, error, most in check.held if most is not None]


def endings(variant: VariantResult) -> list[tuple[str, ProcessError]]:
    """The errors of a variant's runs and of its equivalence check; runs that ended in the same way stand together."""
    repeats_of: dict[ProcessError, list[str]] = {}
    for run in variant.runs:
        error = run.error
        # A run that never started left neither an end nor a message.
        if error is not None and (error.status != "not run" or error.error or error.log_tail):
            repeats_of.setdefault(error, []).append(str(run.repeat))
    named = [
        (f"{'Run' if len(repeats) == 1 else 'Runs'} {fmt.enumeration(repeats)}", error)
        for error, repeats in repeats_of.items()
    ]
    check = variant.equivalence.failure
    return [*named, *([("Equivalence check", check)] if check is not None else [])]


def limits(gate: GateOutcome) -> str:
    """A gate's limits in words: "at most 0, allow a.py:1 b.py"."""
    texts = {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in gate.limits.items()}
    return ", ".join(f"{key.replace('_', ' ')} {text}" for key, text in texts.items())


def care(study: Comparison) -> list[str]:
    """What a reader should know before comparing the rows; what makes figures uncertain is among the findings."""
    sentences = []
    if len(samples := samples_per_step(study)) > 1:
        sentences.append(
            f"Steps take {fmt.count(samples[0])} to {fmt.count(samples[-1])} samples. Ratio and verdict compare steps; "
            "samples per second stand below each step time."
        )
    return sentences + _measured_differently(study)


def _measured_differently(study: Comparison) -> list[str]:
    """How variants were profiled and timed, where a study does not measure all alike."""
    ways: dict[tuple[str, ...], list[VariantResult]] = {}
    for variant in study.variants:
        own = tuple(text for text in variant.overrides if is_measuring(text))
        ways.setdefault(own, []).append(variant)
    if len(ways) < 2:
        return []
    return [
        f"Measured differently from the others: {_who([v.name for v in measured], study)}, by "
        f"{fmt.enumeration([f'`{text}`' for text in settings])}{_timed_steps(measured)}."
        for settings, measured in ways.items()
        if settings
    ]


def _timed_steps(variants: Sequence[VariantResult]) -> str:
    steps = sorted({variant.step_ms.steps for variant in variants if variant.step_ms is not None})
    return f" ({fmt.enumeration([fmt.count(n) for n in steps])} timed steps in all)" if steps else ""


def _who(names: Sequence[str], study: Comparison) -> str:
    """The variants that a warning concerns, by name."""
    everyone = len(names) == len(study.variants) > 1
    return "all variants" if everyone else fmt.enumeration([f"`{name}`" for name in names])
