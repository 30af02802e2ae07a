"""Makes the comparison of a study: everything in `comparison.json` except the findings.

It also says which syncs a variant removes and adds against its baseline. Two sites are the same if all their fields
agree. Among the remaining sites, those with the same operator, label, phase and kind count as one site that has moved
to another line. Measured sites are compared with measured ones, or predicted sites with predicted ones.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec.structs import asdict, replace

from steptrace.compare.claims import checked_claims
from steptrace.compare.explain import (
    communication,
    equivalence,
    estimates,
    figures,
    input_figures,
    memory_of,
    ranks_of,
    sync_figures,
    trace_of,
)
from steptrace.compare.load import Run, StudyRuns, VariantRuns, first_measured, load_study
from steptrace.compare.timing import Timing, compare_times, samples_per_step, statistic_of, times_of_runs
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Estimate
from steptrace.documents.run import RunResult
from steptrace.documents.sides import sync_diff
from steptrace.documents.sync_counts import SyncCounts
from steptrace.documents.variant import VariantResult
from steptrace.estimate.gpus import Gpu, gpu_named
from steptrace.format import NS_PER_MS
from steptrace.stats import holm, ratios, verdict
from steptrace.words.notes import note_texts


def compare(study_dir: Path, *, estimate_gpus: Sequence[str] = ()) -> Comparison:
    """Compare the variants of a study by the files in `results/<study>/`.

    Runs that failed or are missing are listed, not left out. The same files give the same result. `findings` is
    empty: `steptrace.findings.with_findings` fills it.

    Args:
        study_dir: the study's folder.
        estimate_gpus: names of GPUs to estimate every followed variant for.

    Raises:
        RecordError: the folder has no readable study.json.
    """
    study = load_study(study_dir)
    plan = study.plan
    method, timings = compare_times(study)
    first = first_measured(study.variants)
    gpus = [gpu_named(name) for name in estimate_gpus]
    variants = _variants(study, timings, gpus)
    comparison = Comparison(
        study=plan.name,
        title=plan.title or plan.name,
        question=plan.question,
        text=plan.text,
        baseline=plan.baseline,
        scale=plan.scale,
        environment=None if first is None else first.record.environment,
        environments_differ=_environments_differ(study),
        method=method,
        variants=variants,
        measured_at=_measured_at(study),
        skipped=plan.skipped,
        claims=checked_claims(study, {variant.name: variant for variant in variants}),
    )
    return replace(comparison, alike=alike(study, comparison))


def _measured_at(study: StudyRuns) -> str | None:
    """When the last of the measured runs started."""
    runs = (run for variant in study.variants for run in variant.runs if run.measured is not None)
    return max((run.started_at.isoformat() for run in runs if run.started_at is not None), default=None)


def _environments_differ(study: StudyRuns) -> dict[str, tuple[Any, ...]]:
    """The keys of the environment that are not the same in all measured runs, each with the values that there are."""
    environments = [asdict(run.record.environment) for variant in study.variants for run in variant.measured]
    values = (
        {key: tuple(dict.fromkeys(env[key] for env in environments)) for key in environments[0]} if environments else {}
    )
    return {key: of_key for key, of_key in values.items() if len(of_key) > 1}


def _variants(study: StudyRuns, timings: Mapping[str, Timing], gpus: Sequence[Gpu]) -> tuple[VariantResult, ...]:
    """The results of all variants, each compared with its baseline."""
    of_gpus = estimates(study.variants, gpus)
    entries = {
        variant.name: _variant(variant, timings[variant.name], of_gpus[variant.name]) for variant in study.variants
    }
    return tuple(_against_baseline(entry, entries.get(entry.baseline)) for entry in entries.values())


def _against_baseline(entry: VariantResult, baseline: VariantResult | None) -> VariantResult:
    """The entry of a variant, with its differences from the baseline."""
    if baseline is None or baseline is entry:
        return entry
    basis = basis_of(baseline.syncs, entry.syncs)
    if basis is None:
        return entry
    before, now = (
        side.sync_sites_over_runs if basis == "measured" else side.predicted_sites for side in (baseline, entry)
    )
    return replace(entry, sync_diff=sync_diff(basis, before, now))


Basis = Literal["measured", "predicted"]


def basis_of(baseline: SyncCounts, variant: SyncCounts) -> Basis | None:
    """`measured` if both sides have measured counts, or `predicted` if both have predicted ones; otherwise None."""
    if baseline.measured_per_step is not None and variant.measured_per_step is not None:
        return "measured"
    if baseline.predicted_per_step is not None and variant.predicted_per_step is not None:
        return "predicted"
    return None


def _variant(variant: VariantRuns, timing: Timing, estimated: tuple[Estimate, ...]) -> VariantResult:
    trace = trace_of(variant)
    syncs, sync_notes = sync_figures(variant, trace)
    # A trace of a CPU training has no GPU work that could be missing, so there are no notes on its quality.
    about_trace = trace.quality.cautions if trace is not None and trace.used_gpu else ()
    notes = (*timing.noise.notes, *sync_notes, *about_trace)
    return VariantResult(
        name=variant.name,
        status=variant.status,
        hypothesis=variant.plan.hypothesis or None,
        overrides=variant.plan.overrides,
        entry=variant.plan.entry,
        cell=variant.plan.cell,
        baseline=variant.baseline,
        digest=variant.plan.digest,
        runs=tuple(_run(run) for run in variant.runs),
        step_ms=timing.step_ms,
        samples_per_step=samples_per_step(variant),
        ratio=timing.ratio,
        ratio_per_sample=timing.ratio_per_sample,
        noise=replace(timing.noise, notes=notes, warnings=note_texts(notes)),
        **syncs,
        **figures(variant, trace),
        input=input_figures(variant),
        trace=trace,
        ranks=ranks_of(variant),
        memory=memory_of(variant),
        communication=communication(variant),
        equivalence=equivalence(variant.path),
        estimates=estimated,
    )


def _run(run: Run) -> RunResult:
    times = None if run.measured is None else run.measured.times
    return RunResult(
        repeat=run.repeat,
        status=run.status,
        seed=None if run.measured is None else run.measured.record.seed,
        path=run.path.as_posix(),
        median_ms=None if times is None else times.median_ns / NS_PER_MS,
        mean_ms=None if times is None else times.mean_ns / NS_PER_MS,
        p95_ms=None if times is None else float(np.quantile(times.counted, 0.95)) / NS_PER_MS,
        steps=None if times is None else len(times.counted),
        warmup_left_out=None if times is None else times.warmup_left_out,
        error=run.error,
        started_at=None if run.started_at is None else run.started_at.isoformat(timespec="seconds"),
    )


def alike(study: StudyRuns, comparison: Comparison) -> tuple[str, ...]:
    """The variants that are faster than their baseline and that these runs cannot tell from the fastest, with it.

    The simplest first: the fewest changes to the baseline, then the study's order. Empty without one that can be used.
    """
    best = comparison.fastest()
    if best is None or not best.can_be_used:
        return ()
    rivals = [
        variant
        for variant in comparison.variants
        if variant.verdict == "faster"
        and variant.can_be_used
        and variant.baseline == best.baseline
        and not comparison.has_other_batch(variant)
    ]
    names = {rival.name for rival in rivals}
    statistic = statistic_of(study)
    times = {
        variant.name: times_of_runs(variant.runs, statistic) for variant in study.variants if variant.name in names
    }
    against = ratios(times, best.name)
    adjusted = holm({name: ratio.p_value for name, ratio in against.items() if ratio.p_value is not None})
    floor = comparison.method.noise_floor
    close = {n for n, ratio in against.items() if verdict(ratio, adjusted.get(n), floor) in ("same", "undecided")}
    chosen = [rival for rival in rivals if rival.name in close or rival.name == best.name]
    return tuple(rival.name for rival in sorted(chosen, key=comparison.changed))
