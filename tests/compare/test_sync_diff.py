"""Which syncs came, went and stayed between two variants of a comparison."""

from typing import Any

from documents import fill
from steptrace.compare.against_baseline import basis_of, sync_diff
from steptrace.documents.comparison import SyncCounts, SyncDiff
from steptrace.documents.syncs import PredictedSite, SyncSite


def site(line: int, label: str, count: float = 1, **figures: Any) -> PredictedSite:
    fields = {
        "file": "losses.py",
        "line": line,
        "function": "forward",
        "op": f"aten::{label}",
        "label": label,
        "kind": "d2h_copy",
        "phase": "loss",
        "code": "x",
        "count_per_step": count,
    }
    kind = SyncSite if figures else PredictedSite
    return fill(kind, fields | figures)


def rows(diff: SyncDiff) -> list[tuple[Any, ...]]:
    return [
        (row.label, row.line, row.variant_line, row.baseline_count_per_step, row.variant_count_per_step)
        for row in diff.sites
    ]


def test_sync_sites_that_disappear_stay_move_or_appear_are_told_apart() -> None:
    before = [site(38, "unique"), site(40, "mask", 2), site(50, "copy")]
    after = [site(71, "mask", 2), site(50, "copy", 3), site(90, "sort")]
    diff = sync_diff("predicted", before, after)
    assert diff.basis == "predicted"
    assert rows(diff) == [
        ("unique", 38, None, 1, 0),
        ("copy", 50, None, 1, 3),
        ("sort", 90, None, 0, 1),
        ("mask", 40, 71, 2, 2),
    ]


def test_a_predicted_diff_has_no_times() -> None:
    diff = sync_diff("predicted", [site(38, "unique")], [])
    (row,) = diff.sites
    assert row.baseline_blocked_ns_per_step is None
    assert row.variant_exposed_idle_ns_per_step is None


def test_a_measured_diff_has_the_times_of_both_sides_most_expensive_first() -> None:
    costly = site(60, "item", blocked_ns_per_step=9e6, exposed_idle_ns_per_step=8e6)
    cheap = site(38, "unique", blocked_ns_per_step=1e6, exposed_idle_ns_per_step=0)
    diff = sync_diff("measured", [cheap, costly], [])
    assert [row.line for row in diff.sites] == [60, 38]
    assert diff.sites[0].baseline_exposed_idle_ns_per_step == 8e6
    assert diff.sites[0].variant_blocked_ns_per_step == 0


def test_what_was_measured_is_never_compared_with_a_prediction() -> None:
    measured = fill(SyncCounts, {"measured_per_step": 1})
    predicted = fill(SyncCounts, {"predicted_per_step": 1})
    assert basis_of(measured, predicted) is None
    assert basis_of(measured, measured) == "measured"
    assert basis_of(predicted, fill(SyncCounts, {"measured_per_step": 1, "predicted_per_step": 1})) == "predicted"
