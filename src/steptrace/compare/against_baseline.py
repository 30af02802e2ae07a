"""Which syncs a variant removes and adds against its baseline.

A site is the same if file, line and all else that is known of it agree; of the rest, sites with the same operator,
label, phase and kind are taken for the same site on another line. What a trace measured is compared with what a trace
measured, else a prediction with a prediction, never one with the other.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, Literal

from steptrace.documents.rows import pairs
from steptrace.documents.syncs import Place, Site
from steptrace.documents.variant import SyncChange, SyncCounts, SyncDiff

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
