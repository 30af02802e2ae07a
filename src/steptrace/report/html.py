"""The parts of a page: plain data in, an `Html` out that a notebook shows and a page embeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from steptrace.documents.comparison import Comparison, Equivalence, GateOutcome, ProcessError, VariantResult
from steptrace.documents.finding import Finding
from steptrace.report import definitions as defs
from steptrace.report import format as fmt
from steptrace.report import headline
from steptrace.report.build import load_steps
from steptrace.report.build import loss_sections as sections_of_loss
from steptrace.report.draw import steps as draw
from steptrace.report.markup import Html, render
from steptrace.report.model import (
    IndexEntry,
    Part,
    RunSteps,
    ending,
    is_baseline,
    measured,
    runs_ok,
    samples_per_s,
    samples_per_step,
    title,
)
from steptrace.report.provenance import environment_name
from steptrace.report.sites import rank_predicted, rank_sites

#: Above this, the trace figures describe a step that the profiler has changed.
PROFILED_WARNING = 1.10
#: More variants than this are rows of a table, never its columns, and their blocks start folded.
_MANY = 6

_SEVERITIES = ("high", "warning", "info")


def intro(study: Comparison) -> Html:
    """Title, question, the result in one sentence, what and where in a few facts, and the study's text."""
    runs = [runs_ok(variant) for variant in measured(study)]
    steps = [variant.step_ms.steps for variant in measured(study) if variant.step_ms is not None]
    environment = study.environment
    facts = [
        ("Scale", study.scale),
        ("Machine", machine(study)),
        ("Variants", fmt.count(len(study.variants))),
        ("Runs per variant", _span(runs) if runs else fmt.NOT_MEASURED),
        ("Timed steps per variant", _span(steps) or fmt.NOT_MEASURED),
        ("PyTorch", environment.torch if environment is not None else None),
        ("Commit", commit(study)),
    ]
    return render(
        "intro",
        study=study,
        title=title(study),
        paragraphs=paragraphs(study.text),
        headline=headline.summary(study),
        tone=headline.tone(study),
        facts=[(name, value) for name, value in facts if value],
    )


def paragraphs(text: str) -> tuple[str, ...]:
    """A text's paragraphs: blank lines part them, single line breaks do not."""
    blocks = text.replace("\r\n", "\n").split("\n\n")
    return tuple(" ".join(block.split()) for block in blocks if block.strip())


def machine(study: Comparison) -> str | None:
    """The GPU, or the CPU where there is none."""
    environment = study.environment
    if environment is None:
        return None
    if environment.gpu:
        count = environment.gpu_count
        return f"{count} × {environment.gpu}" if count > 1 else environment.gpu
    return f"{environment.cpu}, no GPU"


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


def variants_table(study: Comparison) -> Html:
    """All variants side by side, what to read with care, the runs that failed, and the terms."""
    groups: dict[str, list[VariantResult]] = {}
    for variant in study.variants:
        groups.setdefault(variant.baseline, []).append(variant)
    return render(
        "variants",
        study=study,
        groups=list(groups.items()),
        warnings=warnings(study),
        endings_of=endings,
        ending=ending,
        held=held_against_reference,
        is_baseline=is_baseline,
        limits_of=limits,
        runs_ok=runs_ok,
        samples_per_s=samples_per_s,
        samples_per_step=samples_per_step(study),
        failures=[variant for variant in study.variants if endings(variant)],
        terms=defs.definitions(_table_terms(study)),
    )


def held_against_reference(found: Equivalence) -> list[tuple[str, float | None, float, bool]]:
    """What was held against the reference: its name, relative error, tolerance, and whether it is out of it."""
    if found.tolerance is None:
        return []
    pairs = (
        ("loss", found.loss_rel_err, found.tolerance.loss),
        ("gradient", found.gradient_rel_err, found.tolerance.gradient),
        ("predictions", found.predictions_rel_err, found.tolerance.predictions),
        ("parameters", found.parameters_rel_err, found.tolerance.parameters),
    )
    return [
        (name, error, tolerance, error is None or error > tolerance)
        for name, error, tolerance in pairs
        if tolerance is not None
    ]


def _table_terms(study: Comparison) -> tuple[str, ...]:
    """The terms of the columns that are there."""
    weighted = any(variant.sm_weighted_pct is not None for variant in study.variants)
    return tuple(term for term in defs.TABLE_TERMS if weighted or term != "sm_weighted")


def endings(variant: VariantResult) -> list[tuple[str, ProcessError]]:
    """The errors of a variant's runs and of its equivalence check; runs that ended in the same way stand together."""
    found: dict[ProcessError, list[str]] = {}
    for run in variant.runs:
        error = run.error
        # A run that never started left neither an end nor a message.
        if error is not None and (error.status != "not run" or error.error or error.log_tail):
            found.setdefault(error, []).append(str(run.repeat))
    named = [
        (f"{'Run' if len(repeats) == 1 else 'Runs'} {fmt.enumeration(repeats)}", error)
        for error, repeats in found.items()
    ]
    check = variant.equivalence.failure
    return [*named, *([("Equivalence check", check)] if check is not None else [])]


def limits(gate: GateOutcome) -> str:
    """A gate's limits in words: "at most 0, allow a.py:1 b.py"."""
    texts = {key: " ".join(map(str, value)) if isinstance(value, list) else value for key, value in gate.limits.items()}
    return ", ".join(f"{key.replace('_', ' ')} {text}" for key, text in texts.items())


def warnings(study: Comparison) -> list[str]:
    """What a reader should know before trusting the table: one line a variant, and what concerns them all."""
    found = []
    for variant in study.variants:
        texts = list(variant.noise.warnings)
        times = variant.profiled_over_unprofiled
        if times is not None and times > PROFILED_WARNING and not any("profile" in text for text in texts):
            texts.append(f"a profiled step took {fmt.multiple(times)} the time of an unprofiled one")
        if texts:
            found.append(f"`{variant.name}`: {'; '.join(text.rstrip('.') for text in texts)}.")
    if len(samples := samples_per_step(study)) > 1:
        found.append(
            "The variants' steps take different numbers of samples, "
            f"{fmt.count(samples[0])} to {fmt.count(samples[-1])}: "
            "ratio and verdict compare steps; samples per second stand below each step time."
        )
    if study.environments_differ:
        names = [environment_name(key) for key in study.environments_differ]
        found.append(f"The runs did not all take place in the same environment; they differ in: {', '.join(names)}.")
    return found


def comparison_charts(study: Comparison, comparison: Path | str) -> Html:
    """Step times run by run, of the files beside comparison.json, and the ratios with their intervals."""
    steps = load_steps(study, comparison)
    has_ratio = any(v.ratio is not None and not is_baseline(v) for v in study.variants)
    return render(
        "comparison_charts",
        study=study,
        distribution=draw.step_times(study, steps) if any(run.timed.size for run in steps) else None,
        ratios=draw.ratios(study) if has_ratio else None,
        in_order=draw.steps_in_order(study, steps) if any(run.timed.size for run in steps) else None,
        without_steps=_runs_without_steps(study, steps),
    )


def _runs_without_steps(study: Comparison, steps: Sequence[RunSteps]) -> int:
    return sum(runs_ok(variant) for variant in study.variants) - len(steps)


def loss_sections(study: Comparison) -> Html:
    """The labelled sections inside the loss, variant by variant: host time, and GPU time where there is a GPU."""
    host = _section_table("Host time", {v.name: sections_of_loss(v.sections_ms) for v in study.variants})
    device = _section_table("GPU time", {v.name: sections_of_loss(v.sections_device_ms) for v in study.variants})
    return render("loss_sections", study=study, tables=[table for table in (host, device) if table is not None])


def _section_table(title: str, parts: Mapping[str, Sequence[Part]]) -> dict[str, object] | None:
    """One table of sections by variants, turned round where the variants are many: its head, rows of cells, unit.

    A cell is None where a variant has no such section, and "not measured" where it has no sections at all.
    """
    labels = list(dict.fromkeys(part.label for found in parts.values() for part in found))
    if not labels:
        return None
    longest = max(part.ms for found in parts.values() for part in found)
    cells: dict[tuple[str, str], float | str | None] = {}
    for name, found in parts.items():
        times = {part.label: part.ms for part in found}
        cells.update({(name, label): times.get(label) if times else fmt.NOT_MEASURED for label in labels})
    many = len(parts) > _MANY
    names = list(parts)
    rows = [(n, [cells[n, label] for label in labels]) for n in names]
    if not many:
        rows = [(label, [cells[n, label] for n in names]) for label in labels]
    head = labels if many else names
    return {"title": title, "head": head, "rows": rows, "longest": longest, "unit": fmt.unit_for_ms([longest])}


def sync_sites(study: Comparison) -> Html:
    """Where the host waits for the device: measured sites, or predicted ones, called so."""
    return render(
        "sync_sites",
        study=study,
        rank=rank_sites,
        rank_predicted=rank_predicted,
        many=len(study.variants) > _MANY,
        terms=defs.definitions(_sync_terms(study)),
    )


def _sync_terms(study: Comparison) -> tuple[str, ...]:
    """The terms of the columns that are there: what is only predicted has no times."""
    measured = any(variant.sync_sites for variant in study.variants)
    return tuple(term for term in defs.SYNC_TERMS if measured or term not in ("blocked", "exposed"))


def findings(items: Sequence[Finding]) -> Html:
    """Findings in the order given (gravest first), with evidence; those of one rule and advice stand together."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for item in items:
        groups.setdefault((item.rule, item.advice, item.counter_check), []).append(item)
    return render(
        "findings",
        terms=defs.definitions(defs.FINDING_TERMS),
        groups=[
            {
                "rule": rule,
                "advice": advice,
                "counter_check": counter_check,
                "condition": found[0].condition,
                "basis": found[0].basis,
                "study": found[0].study,
                "severity": min((item.severity for item in found), key=severity_rank),
                "findings": found,
            }
            for (rule, advice, counter_check), found in groups.items()
        ],
    )


def severity_rank(severity: str) -> int:
    """The place of a severity: 0 for the severest."""
    return _SEVERITIES.index(severity)


def method(study: Comparison) -> Html:
    """How the comparison was made."""
    return render("method", study=study, method=study.method)


def index(studies: Sequence[IndexEntry], traces: Sequence[IndexEntry]) -> Html:
    """All studies and imported traces with what each found, and the way to its page."""
    return render("index", studies=studies, traces=traces)
