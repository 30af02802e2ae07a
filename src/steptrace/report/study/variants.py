"""The section with all variants of a study side by side, the gates, and the runs that failed."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Final

from steptrace import format as fmt
from steptrace.documents.base import Column, columns_of, read, shown_columns
from steptrace.documents.comparison import Comparison, GateOutcome, is_measuring
from steptrace.documents.compiled_figures import CompiledFigures
from steptrace.documents.equivalence import Equivalence
from steptrace.documents.note import NO_VERDICT, UNEVEN
from steptrace.documents.run import ProcessError
from steptrace.documents.steps import STEP_FIGURES, measured_figures
from steptrace.documents.variant import VariantResult
from steptrace.report.page.markup import Html, anchor, badge, breakable, inline_code, render
from steptrace.report.page.table import Figure, Unit, figures_table, text_table
from steptrace.stats import IQR_WARNING
from steptrace.words.equivalence import not_comparable_text
from steptrace.words.notes import note_text

#: The most variants on a screen. If there are more, it shows the baselines and those that differ most.
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
    return tuple(
        sorted({variant.samples_per_step for variant in study.measured if variant.samples_per_step is not None})
    )


def variants_shown(study: Comparison) -> list[VariantResult]:
    """The variants on the first screen, in the study's order; variants without any measurement come last.

    If there are many, they are the baselines and the variants with a verdict or with the largest ratios.
    """
    if len(study.variants) <= MOST_ROWS:
        return sorted(study.variants, key=lambda variant: variant.status != "ok" and variant.step_ms is None)

    def interest(variant: VariantResult) -> tuple[bool, bool, float]:
        ratio = variant.judged_ratio
        decided = ratio is not None and ratio.verdict in ("faster", "slower")
        effect = abs(math.log(ratio.value)) if ratio is not None and ratio.value > 0 else 0.0
        return variant.name == study.baseline, decided, effect

    chosen = sorted(study.variants, key=interest, reverse=True)[:MOST_ROWS]
    return [variant for variant in study.variants if variant in chosen]


def variants(study: Comparison) -> Html:
    """All variants side by side, notes to read with care, gates, failed runs, and the meanings of the figures."""
    figures = _figures(study)
    expected = [
        (breakable(variant.name), inline_code(variant.hypothesis)) for variant in study.variants if variant.hypothesis
    ]
    shown = {figure.heading for figure in figures if any(value is not None for value in figure.values.values())}
    terms = ["StepTimes.median", "RatioToBaseline.value", "RatioToBaseline.verdict", "Method.noise_floor"]
    terms += ["SyncCounts.measured_per_step", "Equivalence.status", "VariantResult.profiled_over_unprofiled"]
    terms += [f"StepFigures.{figure.name}" for figure in STEP_FIGURES if figure.heading in shown]
    terms += ["VariantResult.nvml_util_pct"] if _NVML in shown else []
    terms += [f"CompiledFigures.{column.name}" for column in shown_columns(CompiledFigures) if column.heading in shown]
    terms += ["VariantResult.joules_per_step"] if _ENERGY in shown else []
    return render(
        "study/variants",
        table=figures_table(
            "Variant",
            {variant.name: _named(variant) for variant in study.variants},
            figures,
            {variant.name: anchor(variant) for variant in study.variants},
        ),
        care=[*_without_gpu(study), *care(study)],
        expected=text_table(("Variant", "Expected"), expected) if expected else "",
        gates=[_shown_gate(gate) for gate in sorted(study.gates, key=attrgetter("outcome"))],
        gates_broken=sum(gate.outcome == "broken" for gate in study.gates),
        failures=[_failed(variant) for variant in study.variants if endings(variant)],
        terms=terms,
    )


def _without_gpu(study: Comparison) -> list[str]:
    """That the use of the GPU is not known, where no run had one."""
    measured = any(variant.gpu_busy_pct is not None for variant in study.variants)
    return [] if measured else ["Without a GPU, GPU utilisation is not measured."]


@dataclass(frozen=True)
class _ShownGate:
    """A gate: a badge with its outcome, the variant and the key that it looks at, its limits, and what came out."""

    outcome: Html
    variant: str
    key: str
    limits: str
    text: str | None
    look: str


def _shown_gate(gate: GateOutcome) -> _ShownGate:
    is_broken = gate.outcome == "broken"
    return _ShownGate(
        outcome=badge(gate.outcome, "bad" if is_broken else ""),
        variant=gate.variant,
        key=gate.key,
        limits=f"{limits(gate)}." if gate.text else limits(gate),
        text=gate.text,
        look="" if is_broken else "note",
    )


@dataclass(frozen=True)
class _Failed:
    """A variant with a failure: the number of runs that ended well, and how each failure ended."""

    name: str
    summary: str
    endings: Sequence[tuple[str, ProcessError]]


def _failed(variant: VariantResult) -> _Failed:
    how = endings(variant)
    first = how[0][1].error
    summary = f"{variant.runs_ok} of {fmt.plural(len(variant.runs), 'run')} ended well"
    return _Failed(
        name=variant.name,
        summary=f"{summary}: {fmt.clipped(first, _LONGEST_ERROR)}" if first else summary,
        endings=[(f"{who}: {', '.join(filter(None, [error.status, error.ending]))}", error) for who, error in how],
    )


#: Letters of an error in the line that unfolds it.
_LONGEST_ERROR: Final = 120


_NVML, _ENERGY = (
    next(column.heading for column in columns_of(VariantResult) if column.name == name)
    for name in ("nvml_util_pct", "joules_per_step")
)


def _figures(study: Comparison) -> list[Figure]:
    """The columns on speed (from unprofiled steps), on waiting and use of the GPU, and on whether to trust them."""
    compared = [variant for variant in study.variants if not variant.is_baseline]
    ratios = {variant.name: variant.ratio for variant in compared if variant.ratio is not None}
    values = {variant.name: 1.0 for variant in study.measured if variant.is_baseline} if ratios else {}
    values |= {name: ratio.value for name, ratio in ratios.items()}
    ends = {
        name: None if ratio.low is None else fmt.ratio_interval(ratio.low, ratio.high) for name, ratio in ratios.items()
    }
    some_unknown = any(
        variant.predicted_unknown and variant.syncs.measured_per_step is None for variant in study.variants
    )
    times = {variant.name: variant.step_ms for variant in study.variants if variant.step_ms is not None}
    interval = f"{fmt.setting(study.method.confidence)} interval"

    def figure(
        heading: str,
        value_of: Callable[[VariantResult], str | float | None],
        unit: Unit = None,
        absent: str = fmt.NOT_MEASURED,
    ) -> Figure:
        return Figure(heading, {variant.name: value_of(variant) for variant in study.variants}, unit, absent)

    samples_differ = len(samples_per_step(study)) > 1
    several = len({variant.baseline for variant in study.variants}) > 1
    return [
        figure("Baseline", lambda variant: variant.baseline if several else None),
        Figure("Step time", {name: step.value for name, step in times.items()}, "ms"),
        Figure(interval, {name: fmt.step_time(step.value, step.low, step.high)[1] for name, step in times.items()}),
        Figure("p95", {name: step.p95 for name, step in times.items()}, "ms"),
        figure("Samples", lambda variant: variant.samples_per_step if samples_differ else None),
        figure(
            "Samples a second",
            lambda variant: variant.samples_per_s if samples_differ else None,
            lambda rate: fmt.count(round(rate)),
        ),
        Figure("Ratio", values, fmt.ratio),
        Figure(f"{interval} of the ratio", {**dict.fromkeys(values, ""), **ends}),
        figure(
            "Ratio per sample",
            lambda variant: None if variant.ratio_per_sample is None else variant.ratio_per_sample.value,
            fmt.ratio,
            absent="",
        ),
        figure("Verdict", verdict_badge),
        figure("Syncs per step", lambda variant: variant.syncs.measured_per_step),
        figure("Syncs per step, predicted", lambda variant: variant.syncs.predicted_per_step, absent="not predicted"),
        figure("Not covered", lambda variant: len(variant.predicted_unknown) if some_unknown else None),
        *(
            figure(step_figure.heading, attrgetter(step_figure.name), step_figure.unit)
            for step_figure in measured_figures(*study.variants)
        ),
        figure(_NVML, lambda variant: variant.nvml_util_pct, "%"),
        figure(
            _ENERGY,
            lambda variant: (
                None if variant.joules_per_step is None else f"{fmt.significant(variant.joules_per_step)} J"
            ),
        ),
        figure("Equivalence", lambda variant: _equivalence(variant.equivalence)),
        figure("Runs", lambda variant: f"{variant.runs_ok} of {len(variant.runs)}" if variant.runs else "not run"),
        figure("Profiled / unprofiled", lambda variant: variant.profiled_over_unprofiled, fmt.ratio),
        *(
            figure(column.heading, partial(_of_compiled, column), column.unit, absent="")
            for column in shown_columns(CompiledFigures)
        ),
    ]


def _of_compiled(column: Column, variant: VariantResult) -> float | None:
    """A figure of what torch.compile did in a variant's runs."""
    return None if variant.compiled is None else column.value_in(variant.compiled)


def _named(variant: VariantResult) -> Html:
    """The variant's name, and how its runs failed, if they did."""
    html = Html('<span class="variant">{}</span>').format(breakable(variant.name))
    return html if variant.status == "ok" else html + Html(" ") + status_badge(variant)


def status_badge(variant: VariantResult) -> Html:
    """A badge that says how a variant's runs ended."""
    return badge(variant.status, "not-run" if variant.status == "not run" else "bad")


def verdict_badge(variant: VariantResult) -> Html | None:
    """A badge with the verdict, and one if the variant's answer differs; None if nothing was measured."""
    if variant.step_ms is None and not variant.is_baseline:
        return None
    ratio = variant.judged_ratio
    verdict = (None if ratio is None else ratio.verdict) or "no verdict"
    html = badge("baseline" if variant.is_baseline else verdict)
    return html + Html(" ") + badge("differs", "bad") if variant.equivalence.status == "differs" else html


def _equivalence(check: Equivalence) -> Html | None:
    """Whether the variant computes the same, and how much it differs; None if that was not checked."""
    if check.status == "not measured":
        return None
    word = "check failed" if check.status == "failed" else check.status
    html = badge(word, {"differs": "bad", "failed": "bad", "same": "same-answer"}.get(check.status, "undecided"))
    if check.status == "same":
        return html + _NOTE.format(f"within {fmt.relative_error(check.max_rel_err)}")
    if check.not_comparable is not None:
        return html + _NOTE.format(not_comparable_text(check.not_comparable))
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
    """The quantities compared with the reference: name, relative error, tolerance, and whether the error exceeds it."""
    return [(name, error, most, error is None or error > most) for name, error, most in check.held if most is not None]


def endings(variant: VariantResult) -> list[tuple[str, ProcessError]]:
    """The errors of a variant's runs and of its equivalence check, with the name of each; equal errors are one."""
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
    """Notes that a reader should know before comparing the rows; a sentence each."""
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
        for note in noise.notes:
            if note.code not in in_finding and note.code not in _ON_FIRST_SCREEN:
                names.setdefault(note_text(note).rstrip("."), []).append(variant.name)
    return [f"{fmt.capitalised(text)}: {_who(variants, study)}." for text, variants in names.items()]


def _measured_differently(study: Comparison) -> list[str]:
    """The variants that were profiled or timed in another way than the others; a sentence for each way."""
    ways: dict[tuple[str, ...], list[VariantResult]] = {}
    for variant in study.variants:
        settings = tuple(text for text in variant.overrides if is_measuring(text))
        ways.setdefault(settings, []).append(variant)
    if len(ways) < 2:
        return []
    return [
        f"Measured differently from the others: {_who([variant.name for variant in measured], study)}, by "
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
