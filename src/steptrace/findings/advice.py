"""What to do by the verdict of a study: which variant to use or to try, what it changes, and what to measure next.

Names are in backticks; pages show them as code.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import Estimate, LineLaunches
from steptrace.documents.variant import VariantResult
from steptrace.findings.estimated import waits_at_most
from steptrace.findings.why import why

#: Lines that are named, and the share of its launches that a variant must save at one.
_MOST_LINES: Final = 2
_LEAST_SAVED: Final = 0.5


def advice_of(study: Comparison, chosen: VariantResult | None) -> tuple[str, str | None]:
    """What to do, and the variant that it is about. Advice on a baseline never contradicts that to replace it."""
    on_gpu = _on_gpu(study)
    if len(study.variants) < 2 or not study.measured:
        return "", None
    without_gpu = study.environment is not None and study.environment.gpu is None
    fewest = _fewest_syncs(study)
    if chosen is not None and chosen.can_be_used:
        reasons = why(study.variant(chosen.baseline), chosen)
        # Syncs that cost little of what is saved are not what to look at.
        lines = _lines_without_sync(chosen) if reasons is None or reasons.by_syncs else ""
        advice = f"{_use(study, chosen)}{lines}"
        note = f" These are CPU timings: on a GPU another variant may be the fastest. Run it there: {on_gpu}."
        return advice + (note if without_gpu else ""), chosen.name
    if without_gpu and fewest is not None:
        least, counts = fewest
        note = f"These are CPU timings, where a sync costs nothing, so measure it there: {on_gpu}."
        return f"{_try(study, least, counts)} {note}", least.name
    runs = max(v.runs_ok for v in study.measured)
    if apart := unconfirmed(study):
        # The interval of two runs shrinks to a third with a third one; later ones gain less.
        more = max(3, math.ceil(1.5 * runs))
        again = f"{_command(study, f'scale={study.scale} repeats={more}')} adds those that are missing."
        return f"Take {more} runs of each variant: {again}{_if_confirmed(study, apart)}", None
    if any(v.verdict == "undecided" or (v.verdict is None and not v.is_baseline) for v in study.measured):
        words = "on a machine without other work: 4x the runs halves the interval."
        return f"Take more runs (`--config repeats={4 * runs}`) {words}", None
    return f"Keep `{study.baseline}`: no other variant of this study is faster.", study.baseline


def estimated_advice(study: Comparison, best: VariantResult | None, gpus: list[str]) -> tuple[str, str | None]:
    """What to do by the estimates; `best` is the fastest variant on all of these GPUs."""
    if len(study.variants) < 2:
        return "", None
    measure = f"measure on a GPU: {_on_gpu(study)}."
    if best is not None and best.can_be_used:
        what = f"Keep `{best.name}`." if best.is_baseline else _use(study, best)
        lines = "" if best.is_baseline else _lines_of(study, best)
        return f"{what}{lines} This is estimated for {fmt.enumeration(gpus)}; {measure}", best.name
    fewest = _fewest_syncs(study)
    if fewest is not None:
        least, counts = fewest
        tried = f"{_try(study, least, counts)}{_lines_of(study, least)}"
        return f"{tried} The estimates do not decide, so {measure}", least.name
    return f"The estimates do not decide, so {measure}", None


def unconfirmed(study: Comparison) -> list[VariantResult]:
    """Undecided variants that measured apart from their baseline: the interval excludes 1 beyond the noise floor.

    What keeps them from a verdict is the correction for several candidates, or too few runs.
    """
    floor = 1 + study.method.noise_floor
    return [
        v
        for v in study.measured
        if v.verdict == "undecided"
        and v.ratio is not None
        and v.ratio.excludes_one
        and not 1 / floor <= v.ratio.value <= floor
    ]


def times_as_fast(variant: VariantResult) -> float:
    """Its ratio to the baseline; 1 without one."""
    return 1.0 if variant.ratio is None else variant.ratio.value


def _if_confirmed(study: Comparison, apart: Sequence[VariantResult]) -> str:
    """The variant to use if more runs confirm it: the simplest of those that are within the noise floor of the best."""
    faster = [v for v in apart if v.can_be_used and times_as_fast(v) > 1]
    best = max(map(times_as_fast, faster), default=0.0)
    near = [v for v in faster if times_as_fast(v) * (1 + study.method.noise_floor) >= best]
    return f" If they confirm it, u{_use(study, min(near, key=study.changed))[1:]}" if near else ""


def _on_gpu(study: Comparison) -> str:
    return _command(study, "scale=gpu")


def _command(study: Comparison, config: str) -> str:
    return f"`snakemake --cores all --config 'studies=[{study.study}]' {config}`"


def _try(study: Comparison, least: VariantResult, counts: Mapping[str, float]) -> str:
    """Which variant has the fewest syncs, and how to get it."""
    changes = _changes(study, least)
    return (
        f"On a GPU try `{least.name}`: {fmt.plural(counts[least.name], 'sync')} per step instead of "
        f"{fmt.count(counts[least.baseline])}.{f' To get it from `{least.baseline}`, {changes}.' if changes else ''}"
    )


def _fewest_syncs(study: Comparison) -> tuple[VariantResult, Mapping[str, float]] | None:
    """The simplest variant with the fewest syncs, if that is fewer than its baseline has."""
    _, counts = study.sync_counts
    usable = [v for v in study.variants if v.can_be_used and v.name in counts and v.baseline in counts]
    fewer = [v for v in usable if counts[v.name] < counts[v.baseline]]
    if not fewer:
        return None
    least = min(fewer, key=lambda v: (counts[v.name], study.changed(v)))
    return least, counts


def _use(study: Comparison, variant: VariantResult) -> str:
    """Which variant to use, and what it changes, in one sentence: it is what a reader sees first."""
    changes = _changes(study, variant)
    if variant.is_baseline or not changes:
        return f"Use `{variant.name}`."
    return f"Use `{variant.name}` instead of `{variant.baseline}`: {changes}."


def _changes(study: Comparison, variant: VariantResult) -> str:
    """What to change in the baseline to get the variant; how the two were measured is no change."""
    new, old = study.changes(variant)
    words = [f"set {_codes(new)}"] * bool(new) + [f"remove {_codes(old)}"] * bool(old)
    return " and ".join(words)


def _codes(texts: Sequence[str]) -> str:
    return fmt.enumeration([f"`{text}`" for text in texts])


def _lines_of(study: Comparison, variant: VariantResult) -> str:
    """Lines at which the variant syncs or, where launches may limit its baseline, launches less; what that saves."""
    baseline = study.variant(variant.baseline)
    before = None if baseline is None else next(iter(baseline.estimates), None)
    after = next(iter(variant.estimates), None)
    if baseline is None or before is None or after is None:
        return _lines_without_sync(variant)
    if _may_be_limited_by_launches(before) and after.lines:
        return _fewer_launches(before.lines, after.lines)
    without, counts = _lines_without_sync(variant), study.sync_counts[1]
    if counts.get(variant.name, 0) < counts.get(baseline.name, 0) and (cost := waits_at_most(baseline)):
        without += f" All syncs of `{baseline.name}` together cost {cost}."
    return without


def _may_be_limited_by_launches(one: Estimate) -> bool:
    """Whether its step is limited by launches, or is undecided with a host that may well take longer than the GPU."""
    if one.limited_by != "undecided" or one.host_ms is None or one.gpu_ms is None:
        return one.limited_by == "launches"
    return one.host_ms[1] > one.gpu_ms[1]


def _fewer_launches(before: Sequence[LineLaunches], after: Sequence[LineLaunches]) -> str:
    """The lines at which most launches are saved, each with its counts and the host's time."""
    left = {(one.file, one.line): one.launches for one in after}
    lines = [
        (one, now) for one in before if (now := left.get((one.file, one.line), 0.0)) <= _LEAST_SAVED * one.launches
    ]
    lines.sort(key=lambda line: line[1] - line[0].launches)
    words = []
    for one, now in lines[:_MOST_LINES]:
        low, high = ((1 - now / one.launches) * end for end in one.host_ms)
        counts = f"{fmt.count(now)} launches per step instead of {fmt.count(one.launches)}"
        words.append(f"`{fmt.place(one.file, one.line)}` ({counts}, {fmt.band_ms(low, high)} less for the host)")
    lines_are = (
        "line that saves most launches is" if len(words) == 1 else f"{len(words)} lines that save most launches are"
    )
    return f" The {lines_are} {fmt.enumeration(words)}." if words else ""


def _lines_without_sync(variant: VariantResult) -> str:
    """The lines at which the baseline syncs and the variant does not."""
    if variant.sync_diff is None:
        return ""
    before, after = defaultdict[tuple[str, int], float](float), defaultdict[tuple[str, int], float](float)
    for site in variant.sync_diff.sites:
        if site.file is not None and site.line is not None:
            before[site.file, site.line] += site.baseline_count_per_step or 0
            after[site.file, site.line] += site.variant_count_per_step or 0
    gone = fmt.lines_of(sorted(place for place in before if before[place] and not after[place]))
    return f" No sync is left at {fmt.enumeration(gone)}." if gone else ""
