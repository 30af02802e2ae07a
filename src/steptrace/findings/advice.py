"""The advice of a study's answer, as facts: which variant to use or to try, and what to measure next."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from msgspec.structs import replace

from steptrace.documents.answer import Advice, ChangedSettings, Line, LineOfLaunches, ToDo
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Estimate, LineLaunches
from steptrace.documents.variant import VariantResult
from steptrace.findings.estimated import most_waiting
from steptrace.findings.why import why

#: Fewer runs have no interval, so there is nothing that more runs would make narrower.
_RUNS_OF_INTERVAL: Final = 2
#: The runs that are advised then, those that a study has by default.
_RUNS: Final = 3
#: The most lines with fewer launches that are named.
_MOST_LINES: Final = 2
#: At such a line a variant keeps at most this share of the launches.
_MOST_KEPT: Final = 0.5


def advice_of(study: Comparison, chosen: VariantResult | None) -> tuple[Advice, str | None]:
    """What to do by the step times, and the variant that the advice is about.

    Advice on a baseline never contradicts that to replace it.
    """
    if len(study.variants) < 2 or not study.measured:
        return _advice(study, "no_advice"), None
    without_gpu = study.environment is not None and study.environment.gpu is None
    if chosen is not None and chosen.can_be_used:
        reasons = why(study.variant(chosen.baseline), chosen)
        # Syncs that cost a small part of what is saved are not worth a look.
        lines = _lines_without_sync(chosen) if reasons is None or reasons.by_syncs else ()
        advice = _advice(study, "use", chosen)
        return replace(advice, lines_without_sync=lines, cpu_timings=without_gpu), chosen.name
    if without_gpu and (least := _fewest_syncs(study)) is not None:
        return replace(_to_try(study, "try_on_gpu", least), cpu_timings=True), least.name
    runs = max(variant.runs_ok for variant in study.measured)
    if apart := unconfirmed(study):
        # A third run shrinks the interval of two runs to a third; further runs gain less.
        more = max(3, math.ceil(1.5 * runs))
        best = _best_if_confirmed(study, apart)
        advice = replace(_advice(study, "confirm"), runs=more)
        return replace(advice, if_confirmed=None if best is None else _changes(study, best)), None
    candidates = [variant for variant in study.measured if not study.has_other_batch(variant)]
    if len(candidates) < len(study.measured) and all(variant.is_baseline for variant in candidates):
        # Rates of other batches are a trade against memory, so nothing is to be advised.
        return _advice(study, "no_advice"), None
    if any(
        variant.verdict == "undecided" or (variant.verdict is None and not variant.is_baseline)
        for variant in candidates
    ):
        if runs < _RUNS_OF_INTERVAL:
            return replace(_advice(study, "confirm"), runs=_RUNS), None
        return replace(_advice(study, "take_more_runs"), runs=4 * runs), None
    keep = ChangedSettings(name=study.baseline, baseline=None, set=(), remove=())
    return replace(_advice(study, "keep"), variant=keep), study.baseline


def estimated_advice(
    study: Comparison, best: VariantResult | None, gpus: Sequence[str], *, pays: bool = True
) -> tuple[Advice, str | None]:
    """What to do by the estimates, and the variant that the advice is about.

    Args:
        study: the comparison.
        best: the variant that is the fastest on all GPUs; None if there is none.
        gpus: the GPUs.
        pays: whether, on any of them, that variant may be faster than its baseline by the noise floor or more.
    """
    if len(study.variants) < 2:
        return _advice(study, "no_advice"), None
    if not pays:
        return _advice(study, "measure"), None
    if best is not None and best.can_be_used:
        advice = replace(_advice(study, "use_estimated", best), gpus=tuple(gpus))
        if best.is_baseline:
            return advice, best.name
        return replace(advice, **_lines_of(study, best)), best.name
    if (least := _fewest_syncs(study)) is not None:
        return replace(_to_try(study, "try_estimated", least), **_lines_of(study, least)), least.name
    return _advice(study, "measure"), None


def unconfirmed(study: Comparison) -> list[VariantResult]:
    """Undecided variants whose interval excludes 1 and whose effect is above the noise floor.

    They have no verdict because of the correction for several candidates, or because there are too few runs.
    """
    floor = 1 + study.method.noise_floor
    return [
        variant
        for variant in study.measured
        if variant.verdict == "undecided"
        and not study.has_other_batch(variant)
        and variant.ratio is not None
        and variant.ratio.excludes_one
        and not 1 / floor <= variant.ratio.value <= floor
    ]


def times_as_fast(variant: VariantResult) -> float:
    """Its ratio to the baseline; 1 without one."""
    return 1.0 if variant.ratio is None else variant.ratio.value


def _advice(study: Comparison, to_do: ToDo, variant: VariantResult | None = None) -> Advice:
    return Advice(
        to_do=to_do,
        study=study.study,
        scale=study.scale,
        variant=None if variant is None else _changes(study, variant),
    )


def _to_try(study: Comparison, to_do: ToDo, least: VariantResult) -> Advice:
    """The advice to try the variant with the fewest syncs."""
    _, counts = study.sync_counts
    advice = _advice(study, to_do, least)
    return replace(advice, syncs_now=counts[least.name], syncs_before=counts[least.baseline])


def _best_if_confirmed(study: Comparison, apart: Sequence[VariantResult]) -> VariantResult | None:
    """The variant to use if more runs confirm it: the simplest of those that are within the noise floor of the best."""
    faster = [variant for variant in apart if variant.can_be_used and times_as_fast(variant) > 1]
    best = max(map(times_as_fast, faster), default=0.0)
    near = [variant for variant in faster if times_as_fast(variant) * (1 + study.method.noise_floor) >= best]
    return min(near, key=study.changed) if near else None


def _fewest_syncs(study: Comparison) -> VariantResult | None:
    """The simplest variant with the fewest syncs, if that is fewer than its baseline has."""
    _, counts = study.sync_counts
    usable = [
        variant
        for variant in study.variants
        if variant.can_be_used and variant.name in counts and variant.baseline in counts
    ]
    fewer = [variant for variant in usable if counts[variant.name] < counts[variant.baseline]]
    return min(fewer, key=lambda variant: (counts[variant.name], study.changed(variant))) if fewer else None


def _changes(study: Comparison, variant: VariantResult) -> ChangedSettings:
    """What to change in the baseline to get the variant, without settings of the measurement."""
    new, old = study.changes(variant)
    baseline = None if variant.is_baseline else variant.baseline
    return ChangedSettings(name=variant.name, baseline=baseline, set=tuple(new), remove=tuple(old))


def _lines_of(study: Comparison, variant: VariantResult) -> dict[str, Any]:
    """The lines at which the variant syncs less, or launches less if launches may be the limit; and the saving."""
    baseline = study.variant(variant.baseline)
    before = None if baseline is None else next(iter(baseline.estimates), None)
    after = next(iter(variant.estimates), None)
    if baseline is None or before is None or after is None:
        return {"lines_without_sync": _lines_without_sync(variant)}
    if _may_be_limited_by_launches(before) and after.lines:
        return {"lines_of_launches": _fewer_launches(before.lines, after.lines)}
    lines: dict[str, Any] = {"lines_without_sync": _lines_without_sync(variant)}
    counts = study.sync_counts[1]
    most = most_waiting(baseline)
    if most is not None and counts.get(variant.name, 0) < counts.get(baseline.name, 0):
        lines |= {"waits_ms": most.ms, "waits_gpu": most.gpu}
    return lines


def _may_be_limited_by_launches(estimate: Estimate) -> bool:
    """Whether its step is limited by launches, or is undecided with a host that may well take longer than the GPU."""
    if estimate.limited_by != "undecided" or estimate.host_ms is None or estimate.gpu_ms is None:
        return estimate.limited_by == "launches"
    return estimate.host_ms[1] > estimate.gpu_ms[1]


def _fewer_launches(before: Sequence[LineLaunches], after: Sequence[LineLaunches]) -> tuple[LineOfLaunches, ...]:
    """The lines at which most launches are saved, each with its counts and the host's time."""
    left = {(line.file, line.line): line.launches for line in after}
    lines = [
        LineOfLaunches(
            file=line.file,
            line=line.line,
            before=line.launches,
            now=now,
            saved_ms=(
                (1 - now / line.launches) * line.host_ms[0],
                (1 - now / line.launches) * line.host_ms[1],
            ),
        )
        for line in before
        if (now := left.get((line.file, line.line), 0.0)) <= _MOST_KEPT * line.launches
    ]
    lines.sort(key=lambda line: line.now - line.before)
    return tuple(lines[:_MOST_LINES])


def _lines_without_sync(variant: VariantResult) -> tuple[Line, ...]:
    """The lines at which the baseline syncs and the variant does not."""
    if variant.sync_diff is None:
        return ()
    before, after = defaultdict[tuple[str, int], float](float), defaultdict[tuple[str, int], float](float)
    for site in variant.sync_diff.sites:
        if site.file is not None and site.line is not None:
            before[site.file, site.line] += site.baseline_count_per_step or 0
            after[site.file, site.line] += site.variant_count_per_step or 0
    gone = sorted(place for place in before if before[place] and not after[place])
    return tuple(Line(file=file, line=line) for file, line in gone)
