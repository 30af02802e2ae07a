"""Step times of a study's variants with intervals, ratios to the baseline, verdicts, and noise.

Every figure comes from unprofiled steps. Milliseconds are floats made of integer nanoseconds, unrounded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

import numpy as np

from steptrace import stats
from steptrace.compare.load import MeasuredRun, Run, StudyRuns, VariantRuns
from steptrace.documents.comparison import Method
from steptrace.documents.note import Note, note
from steptrace.documents.step_times import Noise, RatioToBaseline, Statistic, StepTimes
from steptrace.format import NS_PER_MS
from steptrace.limits import LONG_STEPS, NOISE_FLOOR, NOISE_FLOOR_APART
from steptrace.run_times import Nanoseconds, iqr_over_median
from steptrace.words.method import INTERVAL, correction_in_words
from steptrace.words.notes import note_texts

#: Added to a run's number where it shares no round with the others of its number.
_OTHER_ROUNDS: Final = 1_000_000
#: Share of outlying steps above which they are worth a warning; below it their number stands in the table.
_OUTLIERS_WARNING = 0.05


@dataclass(frozen=True)
class Timing:
    """The figures of a variant's step time in comparison.json: its `step_ms`, ratios and `noise`."""

    step_ms: StepTimes | None
    ratio: RatioToBaseline | None
    ratio_per_sample: RatioToBaseline | None
    noise: Noise


def compare_times(study: StudyRuns) -> tuple[Method, dict[str, Timing]]:
    """The comparison's `method` and the timing of every variant, by name.

    Each variant is held against its own baseline (in a matrix every cell has one). If a variant's step takes another
    number of samples than its baseline's, the verdict is on the time per sample. Variants with the digest of their
    baseline are A/A pairs: they set the noise floor and are no candidates. Holm's correction counts all candidates of
    the study.
    """
    statistic = statistic_of(study)
    batches = _batches_over_baseline(study)
    by_variant = _ratios(study, statistic, batches)
    digests = {variant.name: variant.plan.digest for variant in study.variants}
    identical = {
        variant.name
        for variant in study.variants
        if variant.name != variant.baseline and variant.plan.digest == digests.get(variant.baseline)
    }
    measured_floor = stats.noise_floor([ratio for name, ratio in by_variant.items() if name in identical])
    floor = NOISE_FLOOR if measured_floor is None else measured_floor
    p_values = {name: r.p_value for name, r in by_variant.items() if r.p_value is not None and name not in identical}
    adjusted = stats.holm(p_values)
    method = Method(
        interval=INTERVAL,
        confidence=stats.CONFIDENCE,
        noise_floor=floor,
        noise_floor_source="default" if measured_floor is None else "A/A pair",
        correction=correction_in_words(len(p_values)),
        candidates=len(p_values),
    )
    spreads = {variant.name: _spread(variant) for variant in study.variants}
    by_name = {variant.name: variant for variant in study.variants}
    timings: dict[str, Timing] = {}
    for variant in study.variants:
        name = variant.name
        measured = by_variant.get(variant.name)
        uneven = _uneven(variant, spreads[name])
        apart = _not_interleaved(variant, by_name.get(variant.baseline))
        notes = [*_about_runs(variant), *uneven, *([] if apart is None else [apart])]
        ratio = per_sample = None
        if name == variant.baseline and variant.measured:
            ratio = RatioToBaseline(value=1.0, low=None, high=None, verdict="baseline")
        elif measured is not None:
            own_floor = floor if apart is None else max(floor, NOISE_FLOOR_APART)
            word = stats.verdict(measured, adjusted.get(name), own_floor)
            of_verdict = _about_verdict(measured, word, own_floor, identical=name in identical)
            if word is not None and (refused := _refusal(variant, spreads)) is not None:
                word = None
                of_verdict = [refused]
            ratio = RatioToBaseline(value=measured.value, low=measured.low, high=measured.high, verdict=word)
            if name in batches:
                per_sample = ratio
                ratio = _step_ratio(per_sample, batches[name])
            notes += of_verdict
        elif variant.measured:
            notes.append(note("no_baseline", baseline=variant.baseline))
        noise = Noise(
            iqr_over_median=spreads[name],
            drift=_drift(variant),
            uneven=note_texts(uneven),
            warnings=note_texts(notes),
            notes=tuple(notes),
        )
        timings[name] = Timing(_step_ms(variant, statistic), ratio, per_sample, noise)
    return method, timings


def statistic_of(study: StudyRuns) -> Statistic:
    """The statistic that is a run's step time in a study: the median of its steps, or their mean if long steps recur.

    Long steps recur if some variant's mean is over `LONG_STEPS` times its median in every run. For example, a loader
    that falls behind makes one step in eight wait: most of the time is spent there, and the median does not show it.
    Every run must show it, because another program on the machine disturbs some runs and spares others.
    """
    over = (
        min(run.times.mean_ns / run.times.median_ns for run in variant.measured)
        for variant in study.variants
        if variant.measured
    )
    return "mean" if max(over, default=1.0) > LONG_STEPS else "median"


def samples_per_step(variant: VariantRuns) -> int | None:
    """Samples in one step of all ranks, by the first run that says it; None without one."""
    samples = (run.record.samples_per_step for run in variant.measured)
    return next((count for count in samples if count is not None), None)


def _batches_over_baseline(study: StudyRuns) -> dict[str, float]:
    """Samples of a variant's step over those of its baseline's step, of the variants where they differ, by name."""
    samples = {variant.name: samples_per_step(variant) for variant in study.variants}
    batches: dict[str, float] = {}
    for variant in study.variants:
        its_samples, baseline_samples = samples[variant.name], samples.get(variant.baseline)
        if its_samples and baseline_samples and its_samples != baseline_samples:
            batches[variant.name] = its_samples / baseline_samples
    return batches


def _step_ratio(per_sample: RatioToBaseline, batch: float) -> RatioToBaseline:
    """The ratio of step times, without a verdict, from that of times per sample.

    Args:
        per_sample: the baseline's time per sample over the variant's.
        batch: samples of the variant's step over those of the baseline's.
    """
    low, high = (None if end is None else end / batch for end in (per_sample.low, per_sample.high))
    return RatioToBaseline(value=per_sample.value / batch, low=low, high=high, verdict=None)


def _ratios(study: StudyRuns, statistic: Statistic, batches: Mapping[str, float]) -> dict[str, stats.Ratio]:
    """The ratios of all variants whose baseline was measured too, by name.

    Those of `batches` are ratios of times per sample. A fixed factor moves a ratio and leaves its width as it is.
    """
    by_variant: dict[str, stats.Ratio] = {}
    ordered = sorted(study.variants, key=lambda variant: variant.baseline)
    for baseline, group in groupby(ordered, key=lambda variant: variant.baseline):
        of_group = list(group)
        late = _out_of_turn(of_group)
        times = {variant.name: times_of_runs(variant.runs, statistic) for variant in of_group}
        times = {
            name: {repeat + _OTHER_ROUNDS * ((name, repeat) in late): ns for repeat, ns in runs.items()}
            for name, runs in times.items()
        }
        measured = {
            name: {repeat: ns / batches.get(name, 1.0) for repeat, ns in runs.items()}
            for name, runs in times.items()
            if runs
        }
        if baseline in measured:
            by_variant |= stats.ratios(measured, baseline)
    return by_variant


def _out_of_turn(variants: Sequence[VariantRuns]) -> set[tuple[str, int]]:
    """The runs (variant, repeat) that began after a later round of another variant had: repeated after a failure.

    They do not share their round's conditions, so they are not compared within it.
    """
    began = [
        (variant.name, r.repeat, r.started_at) for variant in variants for r in variant.runs if r.started_at is not None
    ]
    return {
        (name, repeat)
        for name, repeat, start in began
        if any(other != name and later > repeat and earlier < start for other, later, earlier in began)
    }


def times_of_runs(runs: Sequence[Run], statistic: Statistic) -> dict[int, float]:
    """The step time of each measured run, in ns, by repeat."""
    return {run.repeat: _typical_ns(run.measured, statistic) for run in runs if run.measured is not None}


def _typical_ns(run: MeasuredRun, statistic: Statistic) -> float:
    return run.times.mean_ns if statistic == "mean" else run.times.median_ns


def _step_ms(variant: VariantRuns, statistic: Statistic) -> StepTimes | None:
    if not variant.measured:
        return None
    by_statistic: dict[Statistic, stats.ValueWithInterval] = {
        name: stats.typical([_typical_ns(run, name) for run in variant.measured]) for name in ("median", "mean")
    }
    centre = by_statistic[statistic]
    steps = np.concatenate([run.times.counted for run in variant.measured])
    return StepTimes(
        median=by_statistic["median"].value / NS_PER_MS,
        mean=by_statistic["mean"].value / NS_PER_MS,
        statistic=statistic,
        p95=float(np.quantile(steps, 0.95)) / NS_PER_MS,
        low=None if centre.low is None else centre.low / NS_PER_MS,
        high=None if centre.high is None else centre.high / NS_PER_MS,
        runs=len(variant.measured),
        steps=len(steps),
    )


def _about_verdict(ratio: stats.Ratio, word: str | None, floor: float, *, identical: bool) -> list[Note]:
    """Notes on a ratio and its verdict; `identical` says that the variant is the baseline's twin."""
    notes = []
    if identical and ratio.excludes_one:
        notes.append(note("twin_differs"))
    if word is None:
        notes.append(note("too_few_runs"))
    elif word == "undecided" and ratio.within(floor):
        notes.append(note("noise_floor_too_high", floor=floor, most=stats.LARGEST_SAME))
    elif word == "undecided" and ratio.excludes_one:
        notes.append(note("lost_by_correction" if ratio.exceeds(floor) else "within_noise_floor"))
    return notes


def _not_interleaved(variant: VariantRuns, baseline: VariantRuns | None) -> Note | None:
    """A note if all of the variant's runs were taken after, or before, all runs of its baseline; otherwise None.

    Repeats of one call take turns, and on a cluster they run at the same time. A variant that was added, changed or
    repeated later is trained alone, be it only a minute later, on a machine that may have other work by then. The same
    program has measured 0.77 times as fast as itself that way.
    """
    if baseline is None or baseline is variant:
        return None
    its_runs, baseline_runs = _spans(variant), _spans(baseline)
    if min(len(its_runs), len(baseline_runs)) < 2:
        return None
    gap, order = max((_gap(baseline_runs, its_runs), "after"), (_gap(its_runs, baseline_runs), "before"))
    if gap < timedelta(0):
        return None
    return note(
        "taken_apart",
        apart_s=gap.total_seconds(),
        order=order,
        least_effect=NOISE_FLOOR_APART,
        folders=[variant.path.as_posix(), baseline.path.as_posix()],
    )


def _spans(variant: VariantRuns) -> list[tuple[datetime, datetime]]:
    """When the variant's measured runs began and ended."""
    return [(r.started_at, r.ended_at) for r in variant.runs if r.started_at is not None and r.ended_at is not None]


def _gap(first: Sequence[tuple[datetime, datetime]], then: Sequence[tuple[datetime, datetime]]) -> timedelta:
    """The time from the last end in `first` to the first beginning in `then`; negative if they overlap."""
    return min(began for began, _ in then) - max(ended for _, ended in first)


def _spread(variant: VariantRuns) -> float | None:
    """IQR/median of the counted steps within the variant's runs; None without a measured run.

    The part that waits for data explain does not count: the page shows these waits apart.
    """
    if not variant.measured:
        return None
    return iqr_over_median([_without_waits(run.times.counted, run.loader_wait_ns) for run in variant.measured])


def _without_waits(steps: Nanoseconds, waits: Nanoseconds | None) -> Nanoseconds:
    """The steps as they might be if each waited for data as little as the one that waits least.

    A GPU's work may hide a part of the extra wait. So the step would be as long as it is, or shorter by up to the extra
    wait. The result is the one of these lengths that is closest to the median of the half of the steps that wait least.
    """
    if waits is None:
        return steps
    extra = waits - waits.min()
    typical = np.median(steps[extra <= np.median(extra)])
    even: Nanoseconds = np.clip(typical, steps - extra, steps).astype(np.int64)
    return even


def _refusal(variant: VariantRuns, spreads: Mapping[str, float | None]) -> Note | None:
    """A note if the variant has no verdict because steps are too uneven, its own or its baseline's; otherwise None."""
    for name in (variant.name, variant.baseline):
        value = spreads.get(name)
        if value is not None and value > stats.IQR_REFUSED:
            is_baseline = name != variant.name
            return note("too_uneven", is_baseline=is_baseline, iqr_over_median=value, most=stats.IQR_REFUSED)
    return None


def _drift(variant: VariantRuns) -> float | None:
    """The median of the runs' drifts. All runs share it; a drift of a single run does not count."""
    return float(np.median([run.times.drift for run in variant.measured])) if variant.measured else None


def _about_runs(variant: VariantRuns) -> list[Note]:
    """The runs' own notes, each once, and how many runs are missing."""
    notes = list[Note]()
    for run in variant.runs:
        notes += [noted for noted in run.notes if noted not in notes]
    if variant.measured and len(variant.measured) < len(variant.runs):
        notes.append(note("runs_missing", measured=len(variant.measured), runs=len(variant.runs)))
    return notes


def _uneven(variant: VariantRuns, spread: float | None) -> list[Note]:
    """The notes on how the variant's steps and runs are uneven."""
    if not variant.measured:
        return []
    notes = []
    if spread is not None and spread > stats.IQR_WARNING:
        notes.append(note("uneven_steps", iqr_over_median=spread, most=stats.IQR_WARNING))
    medians = list(times_of_runs(variant.runs, "median").values())
    between = float(np.std(np.log(medians), ddof=1)) if len(medians) > 1 else 0.0
    if between > stats.IQR_WARNING:
        notes.append(note("runs_differ", deviation=between))
    drift = _drift(variant)
    if drift is not None and abs(drift) > stats.DRIFT_WARNING:
        notes.append(note("drift", drift=drift))
    outliers = sum(run.times.outliers for run in variant.measured)
    steps = sum(len(run.times.counted) for run in variant.measured)
    if outliers > _OUTLIERS_WARNING * steps:
        notes.append(note("outliers", outliers=outliers, steps=steps))
    return notes
