"""The variants of a study: which are shown, and the section with all side by side, gates, and the runs that failed."""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final

from steptrace import format as fmt
from steptrace.documents.base import columns_of, read
from steptrace.documents.comparison import Comparison, GateOutcome, is_measuring
from steptrace.documents.note import NO_VERDICT, UNEVEN
from steptrace.documents.run import ProcessError
from steptrace.documents.steps import STEP_FIGURES
from steptrace.documents.variant import Equivalence, VariantResult
from steptrace.report.page.markup import Html, anchor, badge, breakable, inline_code, render, sentence
from steptrace.report.page.parts import Figure, Unit, figures_table, text_table
from steptrace.stats import IQR_WARNING
from steptrace.words.notes import note_text

#: More variants than this do not fit a screen: the baselines and those that differ most stand for all.
MOST_ROWS = 15
_NOTE: Final = Html('<span class="note">{}</span>')


def load_study(path: Path | str) -> Comparison:
    """Read a comparison.json.

    Raises:
        RecordError: the file is missing or does not hold a comparison.
    """
    return read(Path(path), Comparison)


def samples_per_step(study: Comparison) -> tuple[int, ...]:
    """The different numbers of samples that the measured variants' steps take, ascending."""
    return tuple(sorted({v.samples_per_step for v in study.measured if v.samples_per_step is not None}))


def variants_shown(study: Comparison) -> list[VariantResult]:
    """All variants in the study's order, those of which nothing was measured last.

    Of many the baselines and those whose verdict and ratio say the most.
    """
    if len(study.variants) <= MOST_ROWS:
        return sorted(study.variants, key=lambda variant: variant.status != "ok" and variant.step_ms is None)

    def interest(variant: VariantResult) -> tuple[bool, bool, float]:
        ratio = variant.ratio
        decided = ratio is not None and ratio.verdict in ("faster", "slower")
        effect = abs(math.log(ratio.value)) if ratio is not None and ratio.value > 0 else 0.0
        return variant.name == study.baseline, decided, effect

    chosen = sorted(study.variants, key=interest, reverse=True)[:MOST_ROWS]
    return [variant for variant in study.variants if variant in chosen]


def variants(study: Comparison) -> Html:
    """All variants side by side, what to read with care, gates, the runs that failed, and the terms."""
    figures = _figures(study)
    expected = [(breakable(v.name), inline_code(v.hypothesis)) for v in study.variants if v.hypothesis]
    shown = {figure.heading for figure in figures if any(value is not None for value in figure.values.values())}
    terms = ["StepTimes.median", "RatioToBaseline.value", "RatioToBaseline.verdict", "Method.noise_floor"]
    terms += ["SyncCounts.measured_per_step", "Equivalence.status", "VariantResult.profiled_over_unprofiled"]
    terms += [f"StepFigures.{figure.name}" for figure in STEP_FIGURES if figure.heading in shown]
    terms += ["VariantResult.nvml_util_pct"] if _NVML in shown else []
    return render(
        "study/variants",
        study=study,
        table=figures_table(
            "Variant", {v.name: _named(v) for v in study.variants}, figures, {v.name: anchor(v) for v in study.variants}
        ),
        of_gpu=any(v.gpu_busy_pct is not None for v in study.variants),
        care=care(study),
        expected=text_table(("Variant", "Expected"), expected) if expected else "",
        endings_of=endings,
        limits_of=limits,
        failures=[variant for variant in study.variants if endings(variant)],
        terms=terms,
    )


_NVML: Final = next(one.heading for one in columns_of(VariantResult) if one.name == "nvml_util_pct")


def _figures(study: Comparison) -> list[Figure]:
    """The columns: speed, from unprofiled steps; waiting and use of the GPU; trust."""
    compared = [v for v in study.variants if not v.is_baseline]
    ratios = {v.name: v.ratio for v in compared if v.ratio is not None}
    values = {v.name: 1.0 for v in study.measured if v.is_baseline} if ratios else {}
    values |= {name: of.value for name, of in ratios.items()}
    ends = {name: None if of.low is None else fmt.ratio_interval(of.low, of.high) for name, of in ratios.items()}
    some_unknown = any(v.predicted_unknown and v.syncs.measured_per_step is None for v in study.variants)
    times = {v.name: v.step_ms for v in study.variants if v.step_ms is not None}
    interval = f"{fmt.setting(study.method.confidence)} interval"

    def figure(
        heading: str,
        of: Callable[[VariantResult], str | float | None],
        unit: Unit = None,
        absent: str = fmt.NOT_MEASURED,
    ) -> Figure:
        return Figure(heading, {v.name: of(v) for v in study.variants}, unit, absent)

    samples_differ = len(samples_per_step(study)) > 1
    several = len({v.baseline for v in study.variants}) > 1
    return [
        figure("Baseline", lambda v: v.baseline if several else None),
        Figure("Step time", {name: of.value for name, of in times.items()}, "ms"),
        Figure(interval, {name: fmt.step_time(of.value, of.low, of.high)[1] for name, of in times.items()}),
        Figure("p95", {name: of.p95 for name, of in times.items()}, "ms"),
        figure("Samples", lambda v: v.samples_per_step if samples_differ else None),
        figure(
            "Samples a second",
            lambda v: v.samples_per_s if samples_differ else None,
            lambda rate: fmt.count(round(rate)),
        ),
        Figure("Ratio", values, fmt.ratio),
        Figure(f"{interval} of the ratio", {**dict.fromkeys(values, ""), **ends}),
        figure("Verdict", verdict_badge),
        figure("Syncs per step", lambda v: v.syncs.measured_per_step),
        figure("Syncs per step, predicted", lambda v: v.syncs.predicted_per_step, absent="not predicted"),
        figure("Not covered", lambda v: len(v.predicted_unknown) if some_unknown else None),
        *(figure(one.heading, attrgetter(one.name), one.unit) for one in STEP_FIGURES),
        figure(_NVML, lambda v: v.nvml_util_pct, "%"),
        figure("Equivalence", lambda v: _equivalence(v.equivalence)),
        figure("Runs", lambda v: f"{v.runs_ok} of {len(v.runs)}" if v.runs else "not run"),
        figure("Profiled / unprofiled", lambda v: v.profiled_over_unprofiled, fmt.ratio),
    ]


def _named(variant: VariantResult) -> Html:
    """The name, and how its runs ended if not well."""
    html = Html('<span class="variant">{}</span>').format(breakable(variant.name))
    return html if variant.status == "ok" else html + Html(" ") + status_badge(variant)


def status_badge(variant: VariantResult) -> Html:
    """How its runs ended."""
    return badge(variant.status, "not-run" if variant.status == "not run" else "bad")


def verdict_badge(variant: VariantResult) -> Html | None:
    """Its verdict, and whether its answer differs; None where nothing was measured."""
    if variant.step_ms is None and not variant.is_baseline:
        return None
    html = badge("baseline" if variant.is_baseline else variant.verdict or "no verdict")
    return html + Html(" ") + badge("differs", "bad") if variant.equivalence.status == "differs" else html


def _equivalence(check: Equivalence) -> Html | None:
    """Whether it computes the same, and by how much it differs."""
    if check.status == "not measured":
        return None
    word = "check failed" if check.status == "failed" else check.status
    html = badge(word, {"differs": "bad", "failed": "bad", "same": "same-answer"}.get(check.status, "undecided"))
    if check.status == "same":
        return html + _NOTE.format(f"within {fmt.relative_error(check.max_rel_err)}")
    if check.status == "not comparable" and check.reason:
        return html + _NOTE.format(check.reason)
    if check.status == "differs":
        for name, error, tolerance, out in errors_to_reference(check):
            if out:
                words = "not finite" if error is None else fmt.relative_error(error)
                html += _NOTE.format(f"{name} {words} (tolerance {fmt.relative_error(tolerance)})")
        within = [name for name, *_, out in errors_to_reference(check) if not out]
        html += _NOTE.format(f"{', '.join(within)} within") if within else Html("")
    return html


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
    """What a reader should know before comparing the rows."""
    sentences = []
    if len(samples := samples_per_step(study)) > 1:
        sentences.append(
            f"Steps take {fmt.count(samples[0])} to {fmt.count(samples[-1])} samples: ratio and verdict compare steps."
        )
    return sentences + _measured_differently(study) + _warnings(study)


#: Notes that the first screen shows in the verdict's sentences.
_ON_FIRST_SCREEN: Final = frozenset({*NO_VERDICT, "lost_by_correction"})


def _warnings(study: Comparison) -> list[str]:
    """The notes that neither the first screen nor a finding on noise shows, each once with its variants."""
    names: dict[str, list[str]] = {}
    for variant in study.variants:
        noise = variant.noise
        in_finding = UNEVEN if (noise.iqr_over_median or 0.0) > IQR_WARNING else frozenset[str]()
        for one in noise.notes:
            if one.code not in in_finding and one.code not in _ON_FIRST_SCREEN:
                names.setdefault(note_text(one).rstrip("."), []).append(variant.name)
    return [f"{sentence(text)}: {_who(variants, study)}." for text, variants in names.items()]


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
    return "all variants" if len(names) == len(study.variants) > 1 else fmt.names(names)
