"""Rows of two traces, or of two variants, side by side: an outer join by their keys, figures per step."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, TypeVar

from steptrace.documents.base import Document
from steptrace.documents.column import Column, Key, columns_of
from steptrace.limits import NOISE_FLOOR

_Row = TypeVar("_Row", bound=Document)
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Side(Generic[_Row]):
    """The rows of one trace and its number of steps; 0 steps: the whole trace counts as one."""

    rows: Sequence[_Row]
    steps: int


@dataclass(frozen=True)
class Change(Generic[_Row]):
    """The rows of both sides that have the same keys.

    Attributes:
        a, b: a row of each side, None if it has none; of rows that differ in a local key alone the first.
        figures: by column name its value per step in A and in B, 0 where the side has no row. A column that some row
            has null in is left out.
    """

    a: _Row | None
    b: _Row | None
    figures: Mapping[str, tuple[float, float]]

    @property
    def row(self) -> _Row:
        """B's row, or A's where B has none."""
        row = self.b or self.a
        assert row is not None
        return row

    @property
    def differs(self) -> bool:
        """Whether any figure does, by more than noise."""
        return any(abs(b - a) > NOISE_FLOOR * max(abs(a), abs(b)) for a, b in self.figures.values())


#: A row of each side, None where one has none.
Pair = tuple[_Item | None, _Item | None]


def pairs(a: Iterable[_Item], b: Iterable[_Item], *levels: Callable[[_Item], object]) -> list[Pair[_Item]]:
    """The rows of both sides, matched one to one by the first level's value; of the rest by the next; then the rest."""
    left, right, matched = list(a), list(b), list[Pair[_Item]]()
    for level in levels:
        waiting: dict[object, list[_Item]] = {}
        for row in reversed(right):
            waiting.setdefault(level(row), []).append(row)
        each = [(row, rows.pop() if (rows := waiting.get(level(row))) else None) for row in left]
        matched += [pair for pair in each if pair[1] is not None]
        left = [row for row, other in each if other is None]
        used = {id(other) for _, other in each}
        right = [row for row in right if id(row) not in used]
    return [*matched, *((row, None) for row in left), *((None, row) for row in right)]


def join(a: Side[_Row], b: Side[_Row]) -> list[Change[_Row]]:
    """All rows of both sides, matched: those that change most first, by the first time declared, else the first total.

    Only columns declared as `total` are compared.
    """
    rows = [*a.rows, *b.rows]
    if not rows:
        return []
    columns = columns_of(type(rows[0]))
    keys = [column for column in columns if column.is_key and not column.local]
    totals = [column for column in columns if column.total]
    left, right = (_grouped(side.rows, keys).items() for side in (a, b))
    changes = [_change(pair, (a.steps or 1, b.steps or 1), totals) for pair in pairs(left, right, itemgetter(0))]
    ranked = next((column.name for column in totals if column.unit == "ns"), totals[0].name if totals else "")
    return sorted(changes, key=lambda change: -_difference(change.figures.get(ranked, (0, 0))))


def _grouped(rows: Sequence[_Row], keys: Sequence[Column]) -> dict[Key, list[_Row]]:
    groups: dict[Key, list[_Row]] = {}
    for row in rows:
        groups.setdefault(tuple(key.of(row) for key in keys), []).append(row)
    return groups


def _change(pair: Pair[tuple[Key, list[_Row]]], steps: tuple[int, int], totals: Sequence[Column]) -> Change[_Row]:
    sides = rows_a, rows_b = [[] if side is None else side[1] for side in pair]
    figures: dict[str, tuple[float, float]] = {}
    for column in totals:
        values = [[column.of(row) for row in rows] for rows in sides]
        if not any(value is None for side in values for value in side):
            figures[column.name] = (sum(values[0]) / steps[0], sum(values[1]) / steps[1])
    return Change(rows_a[0] if rows_a else None, rows_b[0] if rows_b else None, figures)


def _difference(pair: tuple[float, float]) -> float:
    return abs(pair[1] - pair[0])
