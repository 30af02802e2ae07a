"""What a variant changes against its baseline: syncs and parts of the step.

Syncs: a site is the same if file, line and all else that is known of it agree; of the rest, sites with the same
operator, label, phase and kind are taken for the same site on another line. What a trace measured is compared with what
a trace measured, else a prediction with a prediction, never one with the other.

Waterfall: the parts come from the profiled windows (`overview` of summary.json: with a GPU computation, exposed
copies and communication, and idle time by cause; without one the host's sections), each a mean over the runs. They
explain a difference that was measured without the profiler, so the last entry is what they leave over: by how much the
profiler, and a mean in place of a median, changes the one step more than the other. With it all entries add up to the
measured difference, to the nanosecond.
"""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, Literal

from steptrace.compare.load import Measured, Variant
from steptrace.documents.comparison import (
    Difference,
    SyncCounts,
    SyncDiff,
    WaterfallPart,
)
from steptrace.documents.comparison.syncs import SyncChange
from steptrace.documents.join import pairs
from steptrace.documents.overview import Overview
from steptrace.documents.syncs import Place, Site
from steptrace.format import NS_PER_MS
from steptrace.stats import Estimate, Ratio, difference, typical

_HERE: Final = ("file", "line", "function", "op", "label", "kind", "phase")
_MOVED: Final = ("op", "label", "kind", "phase")

Basis = Literal["measured", "predicted"]


def basis_of(baseline: SyncCounts, variant: SyncCounts) -> Basis | None:
    """What both sides have: measured counts, else predicted ones, else None."""
    if baseline.measured_per_step is not None and variant.measured_per_step is not None:
        return "measured"
    if baseline.predicted_per_step is not None and variant.predicted_per_step is not None:
        return "predicted"
    return None


def sync_diff(basis: Basis, baseline: Sequence[Site], variant: Sequence[Site]) -> SyncDiff:
    """`sync_diff` of comparison.json from the sites of both sides.

    Each site has the baseline's place, or the variant's for a new one, and for both sides the count per step, 0 where a
    side has no such site. What changes in number comes first, the most frequent foremost.
    """
    matched = pairs(baseline, variant, attrgetter(*_HERE), attrgetter(*_MOVED))
    rows = [_row(before, after) for before, after in matched]
    return SyncDiff(basis=basis, sites=tuple(sorted(rows, key=_order)))


def _row(before: Site | None, after: Site | None) -> SyncChange:
    place = before or after
    assert place is not None
    return SyncChange(
        **{name: getattr(place, name) for name in (*Place.__struct_fields__, "kind")},
        baseline_count_per_step=0 if before is None else before.count_per_step,
        variant_count_per_step=0 if after is None else after.count_per_step,
    )


def _order(row: SyncChange) -> tuple[Any, ...]:
    before, after = row.baseline_count_per_step or 0, row.variant_count_per_step or 0
    return before == after, -max(before, after), str(row.file), row.line or 0


RESIDUAL: Final = "residual"

#: The entry of `Parts` that stands for no part of a step.
_ALL = ""

#: ns a step, by part, of each run that has a trace, by its repeat; under `_ALL` the run's unprofiled median.
Parts = Mapping[int, Mapping[str, float]]


def waterfall(baseline: Variant, variant: Variant, ratio: Ratio | None) -> dict[str, Any]:
    """The keys `waterfall` and `step_difference` of comparison.json.

    `waterfall` is empty for the baseline itself, and where either side has no trace with steps or their traces are of
    different kinds (one with GPU work, the other without). The whole difference has the interval of `ratio`, from which
    the verdict comes; a part's carries the variance between runs, without that of the rounds where `ratio` is paired
    and both sides have traces of the same ones.
    """
    nothing: dict[str, Any] = {"waterfall": [], "step_difference": None}
    if ratio is None or not baseline.measured or not variant.measured:
        return nothing
    before, after = _median_ns(baseline), _median_ns(variant)
    low, high = (None if end is None else before / end for end in (ratio.high, ratio.low))
    whole = Estimate(before / ratio.value, low, high)
    result = {**nothing, "step_difference": Difference(**_entry(before, after, whole))}
    kinds, parts = zip(*(_parts(side) for side in (baseline, variant)), strict=True)
    if kinds[0] is None or kinds[0] != kinds[1]:
        return result
    paired = ratio.paired and parts[0].keys() == parts[1].keys()  # else the means are not of the same rounds

    def spread(sides: Sequence[Mapping[int, float]]) -> Estimate:
        return difference(*([*side.values()] for side in sides), paired=paired)

    entries = []
    for name in dict.fromkeys(name for runs in parts for run in runs.values() for name in run if name != _ALL):
        sides = [{k: run.get(name, 0.0) for k, run in runs.items()} for runs in parts]
        means = [round(sum(values.values()) / len(values)) for values in sides]
        entries.append(WaterfallPart(category=name, **_entry(means[0], means[1], spread(sides))))
    left = [
        {k: run[_ALL] - sum(ns for name, ns in run.items() if name != _ALL) for k, run in runs.items()}
        for runs in parts
    ]
    before -= sum(entry.baseline_ns for entry in entries)
    after -= sum(entry.variant_ns for entry in entries)
    entries.append(WaterfallPart(category=RESIDUAL, **_entry(before, after, spread(left))))
    return {**result, "waterfall": entries}


def _median_ns(variant: Variant) -> int:
    """The variant's step time as comparison.json gives it, in whole nanoseconds."""
    return round(typical([run.times.median_ns for run in variant.measured]).value)


def _entry(before: int, after: int, estimate: Estimate) -> dict[str, Any]:
    """A difference in whole ns, and in ms with the interval of `estimate` laid around it."""
    delta = after - before
    ends = [
        None if end is None else (delta + (end - estimate.value)) / NS_PER_MS for end in (estimate.low, estimate.high)
    ]
    return {
        "delta_ns": delta,
        "delta_ms": delta / NS_PER_MS,
        "low": ends[0],
        "high": ends[1],
        "baseline_ns": before,
        "variant_ns": after,
    }


def _parts(variant: Variant) -> tuple[str | None, Parts]:
    """The kind of the variant's parts, and those of every run that has any of that kind."""
    recorded = [
        (run.repeat, run.measured, parts)
        for run in variant.runs
        if run.measured is not None and (parts := _recorded(run.measured)) is not None
    ]
    if not recorded:
        return None, {}
    kind = recorded[0][2].kind
    return kind, {
        repeat: {_ALL: run.times.median_ns} | {name: ns / parts.steps for name, ns in parts.parts_ns.items()}
        for repeat, run, parts in recorded
        if parts.kind == kind
    }


def _recorded(run: Measured) -> Overview | None:
    """`overview` of rank 0's trace, if the run has one with steps."""
    parts = None if run.trace is None else run.trace.overview
    return parts if parts and parts.steps else None
