"""Which syncs came, went and stayed between two variants of a comparison."""

from typing import Any

from documents import fill
from steptrace.compare.study import basis_of, sync_diff
from steptrace.documents.syncs import PredictedSite
from steptrace.documents.variant import SyncCounts, SyncDiff


def site(line: int, label: str, count: float = 1) -> PredictedSite:
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
    return fill(PredictedSite, fields)


def rows(diff: SyncDiff) -> list[tuple[Any, ...]]:
    return [(row.label, row.line, row.baseline_count_per_step, row.variant_count_per_step) for row in diff.sites]


def test_sync_sites_disappear_stay_move_or_appear() -> None:
    before = [site(38, "unique"), site(40, "mask", 2), site(50, "copy")]
    after = [site(71, "mask", 2), site(50, "copy", 3), site(90, "sort")]
    diff = sync_diff("predicted", before, after)
    assert diff.basis == "predicted"
    assert rows(diff) == [
        ("copy", 50, 1, 3),
        ("unique", 38, 1, 0),
        ("sort", 90, 0, 1),
        ("mask", 40, 2, 2),
    ]


def test_what_was_measured_is_never_compared_with_a_prediction() -> None:
    measured = fill(SyncCounts, {"measured_per_step": 1})
    predicted = fill(SyncCounts, {"predicted_per_step": 1})
    assert basis_of(measured, predicted) is None
    assert basis_of(measured, measured) == "measured"
    assert basis_of(predicted, fill(SyncCounts, {"measured_per_step": 1, "predicted_per_step": 1})) == "predicted"
