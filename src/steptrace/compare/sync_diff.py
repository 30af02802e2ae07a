"""Which synchronisations a variant does away with, which it keeps, and which are new.

A site is the same if file, line and all else that is known of it agree; of the rest, sites with the same operator,
label, phase and kind are taken for the same site on another line. What a trace measured is compared with what a trace
measured, else a prediction with a prediction, never one with the other.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

from steptrace.documents.comparison import Place, PredictedSite, SyncChange, SyncCounts, SyncDiff

_HERE: Final = ("file", "line", "function", "op", "label", "kind", "phase")
_MOVED: Final = ("op", "label", "kind", "phase")

Basis = Literal["measured", "predicted"]
#: A place on both sides; None where one has no such site.
Pair = tuple[PredictedSite | None, PredictedSite | None]


def basis_of(baseline: SyncCounts, variant: SyncCounts) -> Basis | None:
    """What both sides have: measured counts, else predicted ones, else None."""
    if baseline.measured_per_step is not None and variant.measured_per_step is not None:
        return "measured"
    if baseline.predicted_per_step is not None and variant.predicted_per_step is not None:
        return "predicted"
    return None


def sync_diff(basis: Basis, baseline: Sequence[PredictedSite], variant: Sequence[PredictedSite]) -> SyncDiff:
    """`sync_diff` of comparison.json from the sites of both sides.

    Each site has the baseline's place, or the variant's for a new one, the variant's own place where it differs, and
    for both sides the count per step and, where measured, blocked time and exposed idle per step; 0 where a side has no
    such site. What changes in number comes first, the most expensive foremost.
    """
    rows = [_row(before, after, basis) for before, after in _pairs(baseline, variant)]
    return SyncDiff(basis=basis, sites=tuple(sorted(rows, key=_order)))


def _pairs(before: Sequence[PredictedSite], after: Sequence[PredictedSite]) -> list[Pair]:
    """The sites of both sides, matched."""
    left, right = list(before), list(after)
    pairs: list[Pair] = []
    for names in (_HERE, _MOVED):
        for site in list(left):
            match = next((other for other in right if _known(site, names) == _known(other, names)), None)
            if match is not None:
                pairs.append((site, match))
                left.remove(site)
                right.remove(match)
    return [*pairs, *((site, None) for site in left), *((None, site) for site in right)]


def _known(site: PredictedSite, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(getattr(site, name) for name in names)


def _row(before: PredictedSite | None, after: PredictedSite | None, basis: Basis) -> SyncChange:
    place = before or after
    assert place is not None
    moved = before is not None and after is not None and (before.file, before.line) != (after.file, after.line)
    costs: dict[str, Any] = {
        f"{side}_{figure}": None if basis == "predicted" else getattr(site, figure, 0)
        for side, site in (("baseline", before), ("variant", after))
        for figure in ("blocked_ns_per_step", "exposed_idle_ns_per_step")
    }
    return SyncChange(
        **{name: getattr(place, name) for name in (*Place.__struct_fields__, "kind")},
        variant_file=after.file if moved and after else None,
        variant_line=after.line if moved and after else None,
        baseline_count_per_step=0 if before is None else before.count_per_step,
        variant_count_per_step=0 if after is None else after.count_per_step,
        **costs,
    )


def _order(row: SyncChange) -> tuple[Any, ...]:
    before, after = row.baseline_count_per_step or 0, row.variant_count_per_step or 0
    blocked = max(row.baseline_blocked_ns_per_step or 0, row.variant_blocked_ns_per_step or 0)
    return before == after, -blocked, str(row.file), row.line or 0
