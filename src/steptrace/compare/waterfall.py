"""From the baseline's step time to a variant's: what each part of the step adds or takes away.

The parts come from the profiled windows (`step_parts` of summary.json: with a GPU computation, exposed copies and
communication, and idle time by cause; without one the host's sections), each a mean over the runs. They explain a
difference that was measured without the profiler, so the last entry is what they leave over: by how much the profiler,
and a mean in place of a median, changes the one step more than the other. With it all entries add up to the measured
difference, to the nanosecond.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from steptrace.compare.load import Measured, Variant
from steptrace.documents.comparison import Difference, WaterfallPart
from steptrace.documents.summary import StepParts
from steptrace.format import NS_PER_MS
from steptrace.stats import Estimate, difference, typical

RESIDUAL: Final = "residual"

#: Entries of `Parts` that stand for no part of a step.
_ALL = ""

#: ns a step, by part, of each run that has a trace; under `_ALL` the run's unprofiled median.
Parts = Sequence[Mapping[str, float]]


def waterfall(baseline: Variant, variant: Variant) -> dict[str, Any]:
    """The keys `waterfall` and `step_difference` of comparison.json.

    `waterfall` is empty for the baseline itself, and where either side has no trace with steps or their traces are of
    different kinds (one with GPU work, the other without). Intervals carry the variance between runs.
    """
    nothing: dict[str, Any] = {"waterfall": [], "step_difference": None}
    if baseline.name == variant.name or not baseline.measured or not variant.measured:
        return nothing
    before, after = _median_ns(baseline), _median_ns(variant)
    total = difference(
        [run.times.median_ns for run in baseline.measured], [run.times.median_ns for run in variant.measured]
    )
    found = {**nothing, "step_difference": Difference(**_entry(before, after, total))}
    kinds, parts = zip(*(_parts(side) for side in (baseline, variant)), strict=True)
    if kinds[0] is None or kinds[0] != kinds[1]:
        return found
    entries = []
    for name in dict.fromkeys(name for runs in parts for run in runs for name in run if name != _ALL):
        sides = [[run.get(name, 0.0) for run in runs] for runs in parts]
        means = [round(sum(values) / len(values)) for values in sides]
        entries.append(WaterfallPart(category=name, **_entry(means[0], means[1], difference(sides[0], sides[1]))))
    left = [[run[_ALL] - sum(ns for name, ns in run.items() if name != _ALL) for run in runs] for runs in parts]
    before -= sum(entry.baseline_ns for entry in entries)
    after -= sum(entry.variant_ns for entry in entries)
    entries.append(WaterfallPart(category=RESIDUAL, **_entry(before, after, difference(left[0], left[1]))))
    return {**found, "waterfall": entries}


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
    recorded = [(run, found) for run in variant.measured if (found := _recorded(run)) is not None]
    if not recorded:
        return None, ()
    kind = recorded[0][1].kind
    return kind, [
        {_ALL: run.times.median_ns} | {name: ns / found.steps for name, ns in found.parts_ns.items()}
        for run, found in recorded
        if found.kind == kind
    ]


def _recorded(run: Measured) -> StepParts | None:
    """`step_parts` of rank 0's trace, if the run has one with steps."""
    found = None if run.trace is None else run.trace.step_parts
    return found if found and found.steps else None
