"""The rows of two sides joined by their keys: of two traces, as `steptrace diff` compares them, or of two variants."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final, Generic, Literal, TypeVar

from steptrace.documents.base import Column, Document, Key, Kind, columns_of
from steptrace.documents.sync_counts import SyncChange, SyncDiff, SyncedSteps
from steptrace.documents.syncs import Place, SiteRow
from steptrace.limits import NOISE_FLOOR

_Row = TypeVar("_Row", bound=Document)
_Item = TypeVar("_Item")

#: A figure of both sides; None where a side has none.
Figures = tuple[float | None, float | None]
#: The kinds of figures that sides are compared by.
_COMPARED: Final[tuple[Kind, ...]] = ("total", "mean", "min", "max", "rate", "share")
_EXTREMES: Final[Mapping[Kind | None, Callable[[Sequence[float]], float]]] = {"min": min, "max": max}


@dataclass(frozen=True)
class SideRows(Generic[_Row]):
    """The rows of one trace and its number of steps; 0 steps: the whole trace counts as one."""

    rows: Sequence[_Row]
    steps: int


@dataclass(frozen=True)
class RowPair(Generic[_Row]):
    """The rows of both sides that have the same keys.

    Attributes:
        a, b: a row of each side, None if it has none; of rows that differ in a local key alone the first.
        figures: by column name its value in A and in B. Totals are per step, and 0 where the side has no row. Every
            other figure is as the row has it, and None where the side has no row or more rows than one: a mean, a rate
            or a share of several rows does not follow from theirs. A total that some row has null in is left out, and
            so is any other figure that neither side has.
        totals: the names of those that are totals.
    """

    a: _Row | None
    b: _Row | None
    figures: Mapping[str, Figures]
    totals: frozenset[str]

    @property
    def row(self) -> _Row:
        """B's row, or A's where B has none."""
        row = self.b or self.a
        assert row is not None
        return row

    @property
    def differs(self) -> bool:
        """Whether any total does, by more than noise; of rows without totals any figure."""
        pairs = [pair for name, pair in self.figures.items() if name in self.totals or not self.totals]
        return any(a is None or b is None or abs(b - a) > NOISE_FLOOR * max(abs(a), abs(b)) for a, b in pairs)


#: A row of each side, None where one has none.
Matched = tuple[_Item | None, _Item | None]


def pairs(a: Iterable[_Item], b: Iterable[_Item], *levels: Callable[[_Item], object]) -> list[Matched[_Item]]:
    """The rows of both sides, matched one to one: level by level, each for the rows still unmatched; then the rest."""
    left = list(a)
    right = list(b)
    matched = list[Matched[_Item]]()
    for level in levels:
        waiting: dict[object, list[_Item]] = {}
        for row in reversed(right):
            waiting.setdefault(level(row), []).append(row)
        found_pairs = [(row, rows.pop() if (rows := waiting.get(level(row))) else None) for row in left]
        matched += [pair for pair in found_pairs if pair[1] is not None]
        left = [row for row, other in found_pairs if other is None]
        used = {id(other) for _, other in found_pairs}
        right = [row for row in right if id(row) not in used]
    return [*matched, *((row, None) for row in left), *((None, row) for row in right)]


def join(a: SideRows[_Row], b: SideRows[_Row]) -> list[RowPair[_Row]]:
    """All rows of both sides, matched. The rows with the largest change come first.

    The change is that of the first time that the row type declares, or of its first total if it has no time.

    Sums that do not grow with the steps, facts and instants are not compared.
    """
    rows = [*a.rows, *b.rows]
    if not rows:
        return []
    columns = columns_of(type(rows[0]))
    keys = [column for column in columns if column.is_key and not column.local]
    compared = [column for column in columns if column.kind in _COMPARED and column.dtype and not column.is_key]
    totals = [column for column in compared if column.total]
    left, right = (_grouped(side.rows, keys).items() for side in (a, b))
    changes = [_change(pair, (a.steps or 1, b.steps or 1), compared) for pair in pairs(left, right, itemgetter(0))]
    ranked = next((column.name for column in totals if column.unit == "ns"), totals[0].name if totals else "")
    return sorted(changes, key=lambda change: -_difference(change.figures.get(ranked, (0.0, 0.0))))


def _grouped(rows: Sequence[_Row], keys: Sequence[Column]) -> dict[Key, list[_Row]]:
    groups: dict[Key, list[_Row]] = {}
    for row in rows:
        groups.setdefault(tuple(key.value_in(row) for key in keys), []).append(row)
    return groups


def _change(pair: Matched[tuple[Key, list[_Row]]], steps: tuple[int, int], columns: Sequence[Column]) -> RowPair[_Row]:
    sides = rows_a, rows_b = [[] if side is None else side[1] for side in pair]
    figures: dict[str, Figures] = {}
    for column in columns:
        values = [[column.value_in(row) for row in rows] for rows in sides]
        a, b = (_figure(column, side, size) for side, size in zip(values, steps, strict=True))
        if (a is not None and b is not None) if column.total else (a is not None or b is not None):
            figures[column.name] = (a, b)
    totals = frozenset(column.name for column in columns if column.total)
    return RowPair(rows_a[0] if rows_a else None, rows_b[0] if rows_b else None, figures, totals)


def _figure(column: Column, values: Sequence[float | None], steps: int) -> float | None:
    """The figure of a side, from its rows."""
    known = [value for value in values if value is not None]
    if column.total:
        return sum(known) / steps if len(known) == len(values) else None
    if column.kind in _EXTREMES and known:
        return _EXTREMES[column.kind](known)
    return values[0] if len(values) == 1 else None


def _difference(pair: Figures) -> float:
    return abs((pair[1] or 0.0) - (pair[0] or 0.0))


#: The keys by which sites of two sides are matched: first with their lines, then without.
_HERE: Final = ("file", "line", "function", "op", "label", "kind", "phase")
_MOVED: Final = ("op", "label", "kind", "phase")


def sync_diff(
    basis: Literal["measured", "predicted"], baseline: Sequence[SiteRow], variant: Sequence[SiteRow]
) -> SyncDiff:
    """`sync_diff` of comparison.json from the sites of both sides.

    Each site has the baseline's place, or the variant's for a new one, and for both sides the count per step, 0 where a
    side has no such site. What changes in number comes first, the most frequent foremost.
    """
    matched = pairs(baseline, variant, attrgetter(*_HERE), attrgetter(*_MOVED))
    rows = [_sync_change(before, after) for before, after in matched]
    return SyncDiff(basis=basis, sites=tuple(sorted(rows, key=_order)))


def _sync_change(before: SiteRow | None, after: SiteRow | None) -> SyncChange:
    place = before or after
    assert place is not None
    return SyncChange(
        **{name: getattr(place, name) for name in (*Place.__struct_fields__, "kind")},
        baseline_count_per_step=0 if before is None else before.count_per_step,
        variant_count_per_step=0 if after is None else after.count_per_step,
        baseline_steps=_synced_steps(before),
        variant_steps=_synced_steps(after),
    )


def _synced_steps(site: SiteRow | None) -> SyncedSteps | None:
    """The steps of a site that is not in all of them."""
    if site is None or site.in_steps is None or site.of_steps is None or site.in_steps == site.of_steps:
        return None
    return SyncedSteps(in_steps=site.in_steps, of_steps=site.of_steps, every=site.every)


def _order(row: SyncChange) -> tuple[Any, ...]:
    before, after = row.baseline_count_per_step or 0, row.variant_count_per_step or 0
    return before == after, -max(before, after), str(row.file), row.line or 0
