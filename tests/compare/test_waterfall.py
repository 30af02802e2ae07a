"""The waterfall adds up to the measured difference whatever the runs hold; intervals carry the runs' variance."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from documents import fill
from steptrace.compare.against_baseline import RESIDUAL, waterfall
from steptrace.compare.load import Measured, Run, Variant
from steptrace.compare.timing import run_medians
from steptrace.documents.study import PlannedVariant
from steptrace.documents.summary import Summary
from steptrace.run_times import run_times
from steptrace.stats import difference, ratios, typical

NAMES = ("compute", "idle_sync", "idle_host")
RUN = st.tuples(
    st.integers(1, 10**9),
    st.lists(st.integers(0, 10**10), min_size=len(NAMES), max_size=len(NAMES)),
    st.integers(1, 7),
)


def variant_of(name: str, runs: list[Any], kind: str = "gpu") -> Variant:
    """A variant from (unprofiled median, parts, steps) of its runs; parts None: the run has no trace."""
    made = []
    for repeat, (median_ns, parts, steps) in enumerate(runs):
        divided = None
        if parts is not None:
            divided = {"kind": kind, "steps": steps, "window_ns": sum(parts)}
            divided["parts_ns"] = dict(zip(NAMES, parts, strict=True))
        summary = fill(Summary, {"traces": [{"overview": divided}]})
        steps_ns = np.full(9, median_ns, dtype=np.int64)
        measured: Any = Measured(None, run_times(steps_ns), steps_ns, steps_ns, None, summary)  # type: ignore[arg-type]
        made.append(Run(repeat, Path("run"), "ok", None, measured))
    plan = fill(PlannedVariant, {"name": name, "baseline": "base"})
    return Variant(plan, Path(name), tuple(made))


def against(baseline: Variant, variant: Variant) -> dict[str, Any]:
    medians = {side.name: run_medians(side.runs) for side in (baseline, variant) if side.measured}
    return waterfall(baseline, variant, ratios(medians, baseline.name).get(variant.name) if len(medians) > 1 else None)


def median_ns(variant: Variant) -> int:
    return round(typical([run.times.median_ns for run in variant.measured]).value)


@settings(max_examples=60, deadline=None)
@given(before=st.lists(RUN, min_size=1, max_size=4), after=st.lists(RUN, min_size=1, max_size=4))
def test_all_entries_add_up_to_the_measured_difference(before: list[Any], after: list[Any]) -> None:
    baseline, variant = variant_of("base", before), variant_of("v", after)
    compared = against(baseline, variant)
    delta = median_ns(variant) - median_ns(baseline)
    assert sum(entry.delta_ns for entry in compared["waterfall"]) == delta
    assert compared["step_difference"].delta_ns == delta
    assert [entry.category for entry in compared["waterfall"]] == [*NAMES, RESIDUAL]
    for entry in compared["waterfall"]:
        assert entry.variant_ns - entry.baseline_ns == entry.delta_ns
        assert (entry.low is None) == (min(len(before), len(after)) == 1)


def test_runs_without_a_trace_count_for_the_difference_alone() -> None:
    baseline = variant_of("base", [(1_000, [600, 0, 300], 1), (1_200, None, 1)])
    variant = variant_of("v", [(800, [600, 0, 100], 1)])
    compared = against(baseline, variant)
    by_name = {entry.category: entry.delta_ns for entry in compared["waterfall"]}
    assert by_name == {"compute": 0, "idle_sync": 0, "idle_host": -200, RESIDUAL: median_ns(variant) - 1_095 + 200}


def test_traces_of_different_kinds_are_not_compared() -> None:
    runs = [(1_000, [1, 2, 3], 1)]
    compared = against(variant_of("base", runs), variant_of("v", runs, kind="host"))
    assert compared["waterfall"] == []
    assert compared["step_difference"].delta_ns == 0


def test_where_rounds_differ_they_are_taken_out_of_the_parts_and_the_whole_has_the_interval_of_the_verdict() -> None:
    # The machine is twice and four times as slow in the second and third round, for both sides alike.
    rounds = (1_000_000, 2_000_000, 4_000_000)
    baseline = variant_of("base", [(10 * ns, [8 * ns, 0, 2 * ns], 1) for ns in rounds])
    runs = [(8 * ns + at, [8 * ns + at, 0, at], 1) for at, ns in enumerate(rounds)]
    variant = variant_of("v", runs)
    compared = against(baseline, variant)
    by_name = {entry.category: entry for entry in compared["waterfall"]}
    assert by_name["compute"].high < 1e-5  # ms: unpaired it would be about 15
    assert by_name["compute"].low > -1e-5
    ratio = ratios({side.name: run_medians(side.runs) for side in (baseline, variant)}, "base")["v"]
    total = compared["step_difference"]
    assert ratio.paired
    assert ratio.excludes_one
    assert total.high < 0
    before = total.baseline_ns / 1e6
    assert (total.low, total.high) == (
        pytest.approx(before / ratio.high - before),
        pytest.approx(before / ratio.low - before),
    )


def test_means_of_other_rounds_are_not_paired() -> None:
    rounds = (10_000_000, 20_000_000, 40_000_000)
    runs: list[Any] = [(ns, [ns, 0, 0], 1) for ns in rounds]
    compared = against(variant_of("base", runs), variant_of("v", [*runs[:2], (rounds[2], None, 1)]))
    compute = compared["waterfall"][0]
    assert compute.delta_ms < -6  # the third round's, which one side alone has
    assert compute.high > 0


def test_the_baseline_and_what_was_not_measured_have_no_waterfall() -> None:
    baseline = variant_of("base", [(1_000, [1, 2, 3], 1)])
    nothing = {"waterfall": [], "step_difference": None}
    assert against(baseline, baseline) == nothing
    assert against(baseline, variant_of("v", [])) == nothing
    assert against(baseline, variant_of("v", [(1_000, None, 1)]))["waterfall"] == []


def test_a_difference_has_welchs_interval() -> None:
    # By hand: means 2 and 5, variances 1 and 4, three runs each; df 2.94, t 3.220 (Welch's formula gives 2.94).
    change = difference([1.0, 2.0, 3.0], [3.0, 5.0, 7.0])
    assert change.value == 3
    assert change.low is not None
    assert change.high is not None
    assert change.high - 3 == pytest.approx(3 - change.low)
    assert change.low < 0 < change.high
    assert difference([1.0], [2.0, 3.0]).low is None
    same = difference([2.0, 2.0], [2.0, 2.0])
    assert (same.low, same.value, same.high) == (0, 0, 0)
