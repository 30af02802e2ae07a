"""The comparison of a study: everything that `comparison.json` says, except its findings.

Findings on the traces of a variant stand in each run's summary.json. One that most of the analysed runs have is the
variant's, with the median of its costs; one that a single run has is that run's chance.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import asdict, replace

from steptrace.compare.against_baseline import basis_of, sync_diff, waterfall
from steptrace.compare.estimates import estimates
from steptrace.compare.explain import equivalence, sync_figures, trace_figures
from steptrace.compare.load import Run, Study, Variant, first_measured, load_study
from steptrace.compare.memory import memory_fits, memory_of
from steptrace.compare.timing import Timing, compare_times, on_simulated_gpu, run_medians
from steptrace.compare.window import communication, input_figures, overview_figures
from steptrace.documents.comparison import Comparison, Equivalence, RunResult, VariantResult
from steptrace.documents.finding import Finding
from steptrace.documents.summary import Summary
from steptrace.estimate import gpu_named
from steptrace.format import NS_PER_MS
from steptrace.stats import Ratio, holm, ratios, verdict


def compare(study_dir: Path, *, estimate_gpus: Sequence[str] = ()) -> Comparison:
    """Compare the variants of a study by what lies in `results/<study>/`.

    Runs that failed or are missing are told of, not left out. The same files give the same result. `findings` is
    empty: `steptrace.findings.with_findings` fills it.

    Args:
        study_dir: the study's folder.
        estimate_gpus: names of GPUs to estimate every followed variant for.

    Raises:
        RecordError: the folder has no readable study.json.
    """
    study = load_study(study_dir)
    method, timings = compare_times(study)
    first = first_measured(study.variants)
    gpus = [gpu_named(name) for name in estimate_gpus]
    variants = [
        replace(entry, estimates=estimates(variant.path, gpus))
        for variant, entry in zip(study.variants, _variants(study, timings), strict=True)
    ]
    comparison = Comparison(
        study=study.name,
        title=study.title,
        question=study.question,
        text=study.text,
        baseline=study.baseline,
        scale=study.scale,
        environment=None if first is None else first.record.environment,
        environments_differ=tuple(_environments_differ(study)),
        method=method,
        variants=tuple(variants),
        memory_fit=tuple(memory_fits(study, {entry.name: entry.memory for entry in variants})),
        measured_at=_measured_at(study),
    )
    return replace(comparison, alike=alike(study, comparison))


def _measured_at(study: Study) -> str | None:
    """When the last of the measured runs started."""
    runs = (run for variant in study.variants for run in variant.runs if run.measured is not None)
    return max((run.started_at.isoformat() for run in runs if run.started_at is not None), default=None)


def _environments_differ(study: Study) -> list[str]:
    """The keys of the environment that are not the same in all measured runs."""
    environments = [asdict(run.record.environment) for variant in study.variants for run in variant.measured]
    return [key for key in environments[0] if len({env[key] for env in environments}) > 1] if environments else []


def _variants(study: Study, timings: Mapping[str, Timing]) -> list[VariantResult]:
    """Every variant by itself, and then against its baseline."""
    by_name = {variant.name: variant for variant in study.variants}
    entries = {name: _variant(variant, timings[name]) for name, variant in by_name.items()}
    if on_simulated_gpu(study):
        entries = {name: replace(entry, equivalence=_NOTHING_COMPUTED) for name, entry in entries.items()}
    return [_against_baseline(by_name, entries, name, timings[name].measured) for name in entries]


_NOTHING_COMPUTED: Final = Equivalence(status="not comparable", reason="the GPU is simulated and computes nothing")


def _against_baseline(
    by_name: Mapping[str, Variant], entries: Mapping[str, VariantResult], name: str, ratio: Ratio | None
) -> VariantResult:
    """The entry of a variant with what it changes against its baseline."""
    entry, baseline = entries[name], by_name.get(by_name[name].baseline)
    if baseline is None:
        return entry
    before = entries[baseline.name]
    basis = None if baseline.name == name else basis_of(before.syncs, entry.syncs)
    diff = None
    if basis == "measured":
        diff = sync_diff(basis, before.sync_sites, entry.sync_sites)
    elif basis == "predicted":
        diff = sync_diff(basis, before.predicted_sites, entry.predicted_sites)
    return replace(
        entry,
        **waterfall(baseline, by_name[name], ratio),
        sync_diff=diff,
    )


def _variant(variant: Variant, timing: Timing) -> VariantResult:
    syncs, warnings = sync_figures(variant)
    return VariantResult(
        name=variant.name,
        status=variant.status,
        hypothesis=variant.hypothesis,
        overrides=variant.overrides,
        baseline=variant.baseline,
        digest=variant.digest,
        runs=tuple(_run(run) for run in variant.runs),
        step_ms=timing.step_ms,
        samples_per_step=_samples_per_step(variant),
        ratio=timing.ratio,
        noise=replace(timing.noise, warnings=(*timing.noise.warnings, *warnings)),
        **syncs,
        **trace_figures(variant),
        input=input_figures(variant),
        **overview_figures(variant),
        memory=memory_of(variant),
        communication=communication(variant),
        trace_findings=tuple(trace_findings(variant)),
        equivalence=equivalence(variant.path),
    )


def _samples_per_step(variant: Variant) -> int | None:
    """Samples that one step of all ranks takes, by the configuration of the runs; None without any."""
    for run in variant.measured:
        config = run.record.config
        batch_size = (config.get("data") or {}).get("batch_size")
        if batch_size is not None:
            return int(batch_size) * int((config.get("step") or {}).get("accumulate", 1)) * run.record.world_size
    return None


def _run(run: Run) -> RunResult:
    times = None if run.measured is None else run.measured.times
    return RunResult(
        repeat=run.repeat,
        status=run.status,
        seed=None if run.measured is None else run.measured.record.seed,
        path=run.path.as_posix(),
        median_ms=None if times is None else times.median_ns / NS_PER_MS,
        p95_ms=None if times is None else float(np.quantile(times.counted, 0.95)) / NS_PER_MS,
        steps=None if times is None else len(times.counted),
        warmup_left_out=None if times is None else times.warmup_left_out,
        error=run.error,
    )


def trace_findings(variant: Variant) -> list[Finding]:
    """The findings on any rank's trace, and on the ranks together, that the majority of analysed runs have.

    One rank is enough: all wait for it. In the words of the run whose cost is the (lower) median; costs are medians,
    None where a run knows none.
    """
    runs = [run.summary for run in variant.measured if run.summary is not None]
    found: dict[tuple[Any, ...], list[Finding]] = {}
    for summary in runs:
        of_run = {_key(item): item for item in _findings(summary)}
        for key, item in of_run.items():
            found.setdefault(key, []).append(item)
    return [_merged(items) for items in found.values() if 2 * len(items) > len(runs)]


def _findings(summary: Summary) -> list[Finding]:
    """The findings of a run: each of its ranks' traces, where several have one the most expensive, and the ranks'."""
    found = [] if summary.ranks is None else list(summary.ranks.findings)
    for place, trace in enumerate(summary.traces):
        rank = place if trace.rank is None else trace.rank
        said = (f"on rank {rank}",) if len(summary.traces) > 1 else ()
        found += [replace(item, evidence=(*item.evidence, *said)) for item in trace.findings]
    return sorted(found, key=lambda item: item.cost_share or 0)


def _key(item: Finding) -> tuple[Any, ...]:
    source = item.source
    return item.rule, source and source.file, source and source.line, source and source.rank


def _merged(items: Sequence[Finding]) -> Finding:
    by_cost = sorted(items, key=lambda item: item.cost_ns_per_step or 0)
    costs = [item.cost_ns_per_step for item in items if item.cost_ns_per_step is not None]
    shares = [item.cost_share for item in items if item.cost_share is not None]
    return replace(
        by_cost[(len(by_cost) - 1) // 2],
        cost_ns_per_step=round(float(np.median(costs))) if len(costs) == len(items) else None,
        cost_share=float(np.median(shares)) if len(shares) == len(items) else None,
    )


def alike(study: Study, comparison: Comparison) -> tuple[str, ...]:
    """The variants that are faster than their baseline and that these runs cannot tell from the fastest, with it.

    The simplest first: the fewest overrides, then the study's order. Empty without a fastest one that can be used.
    """
    best = comparison.fastest()
    if best is None or not best.can_be_used:
        return ()
    rivals = [v for v in comparison.variants if v.verdict == "faster" and v.can_be_used and v.baseline == best.baseline]
    medians = {v.name: run_medians(v.runs) for v in study.variants if v.name in {rival.name for rival in rivals}}
    against = ratios(medians, best.name)
    adjusted = holm({name: ratio.p_value for name, ratio in against.items() if ratio.p_value is not None})
    floor = comparison.method.noise_floor
    close = {n for n, ratio in against.items() if verdict(ratio, adjusted.get(n), floor) in ("same", "undecided")}
    chosen = [rival for rival in rivals if rival.name in close or rival.name == best.name]
    return tuple(rival.name for rival in sorted(chosen, key=lambda rival: len(rival.overrides)))
