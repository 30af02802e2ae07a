"""Rows by their keys: those of several runs as one, those of two sides joined, and a variant's figure by its name.

A figure's name, which gates hold against limits, is a path: of an object the field, of rows the keys that tell one from
another (`trace.labels.loss`, `trace.queues.7`; of several keys `trace.collectives.by_name.all_reduce, default_pg`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from statistics import mean, median
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import inspect

from steptrace.documents.base import Column, Document, attributes_of, columns_of, keys_of
from steptrace.documents.variant import VariantResult
from steptrace.errors import ConfigError, meant, near
from steptrace.limits import NOISE_FLOOR

_Row = TypeVar("_Row", bound=Document)
#: The values of a row's keys.
Key = tuple[Any, ...]


def by_key(rows: Sequence[_Row]) -> dict[Key, _Row]:
    """Rows by what tells them apart; rows of a kind without keys all have the empty one."""
    return {tuple(column.of(row) for column in keys_of(type(row))): row for row in rows}


def name_of(row: Document) -> str:
    """What tells a row from others of its kind, beyond its trace too: its keys that are not local, nulls left out."""
    return ", ".join(str(value) for key in keys_of(type(row)) if not key.local and (value := key.of(row)) is not None)


def over_runs(runs: Sequence[_Row]) -> _Row:
    """One document for those of several runs, such as a variant's `TraceSummary`: each field as its column says.

    What says nothing is reduced by its type: numbers, also those of a dict, become medians (whole ones stay whole), a
    document is reduced field by field, rows are matched by their keys, and words are the first run's. A number that one
    run lacks is None. A row that a run lacks counts 0 there, and is left out if all its figures are 0 then.
    """
    columns = {column.name: column for column in columns_of(type(runs[0]))}
    reduced = {
        field: _reduced([getattr(run, field) for run in runs], columns.get(name))
        for name, field in attributes_of(type(runs[0])).items()
    }
    return msgspec.structs.replace(runs[0], **reduced)


def _reduced(values: Sequence[Any], column: Column | None) -> Any:
    first, runs = values[0], None if column is None else column.runs
    if runs == "none" or (column is not None and column.is_key):
        return first
    if runs == "same":
        return first if all(value == first for value in values) else None
    if isinstance(first, str):
        return first
    if any(value is None for value in values):
        return None
    if isinstance(first, tuple):
        rows = next((value for value in values if value), ())
        return _rows_over_runs(values) if rows and isinstance(rows[0], Document) else first
    if isinstance(first, Document):
        return over_runs(values)
    centre = mean if runs == "mean" else median
    if isinstance(first, dict):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: _centre([value.get(name, 0) for value in values], centre) for name in names}
    return _centre(values, centre) if _is_number(first) else first


def _rows_over_runs(runs: Sequence[Sequence[Document]]) -> tuple[Document, ...]:
    kind = type(next(rows[0] for rows in runs if rows))
    if not keys_of(kind):  # a curve, or a picture's boxes
        return tuple(runs[0])
    by_run = [by_key(rows) for rows in runs]
    every = {identity: row for rows in reversed(by_run) for identity, row in rows.items()}
    reduced = []
    for identity in dict.fromkeys(identity for rows in by_run for identity in rows):
        row = over_runs([rows.get(identity) or _zero(every[identity]) for rows in by_run])
        if all(identity in rows for rows in by_run) or any(getattr(row, field) for field in _figures(row)):
            reduced.append(row)
    return tuple(reduced)


def _zero(row: Document) -> Document:
    return msgspec.structs.replace(row, **dict.fromkeys(_figures(row), 0))


def _figures(row: Document) -> list[str]:
    """The attributes of a row that hold a number and are no key."""
    attributes = attributes_of(type(row))
    names = [attributes[c.name] for c in columns_of(type(row)) if c.is_number and not c.is_key]
    return [name for name in names if _is_number(getattr(row, name))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _centre(values: Sequence[Any], centre: Callable[[Sequence[Any]], Any]) -> Any:
    middle = centre(values)
    return round(middle) if all(isinstance(value, int) for value in values) else middle


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


#: So many rows are named where one is missing.
_ROWS: Final = 5
#: The variant that stands for all.
EVERY_VARIANT: Final = "*"
#: What a gate holds and no document has under this name: the measured syncs, else the predicted ones.
SYNCS_PER_STEP: Final = "syncs.per_step"


_type_of = cache(inspect.type_info)  # 20 ms a call, and gates have many keys


def check_key(key: str) -> None:
    """Refuse a gate's key that no variant of any study has; `syncs.per_step` is what was measured, else predicted.

    Raises:
        ConfigError: naming those that are near.
    """
    hint = None if key == SYNCS_PER_STEP else _misfit(_type_of(VariantResult), key)
    if hint is not None:
        expected = f"a key of a variant in comparison.json, such as ratio.low or {SYNCS_PER_STEP}"
        next_step = meant(key, [SYNCS_PER_STEP]) or hint
        raise ConfigError(f"a variant has no figure '{key}'", expected=expected, next_step=next_step)


def _misfit(kind: inspect.Type, key: str) -> str | None:
    """What could stand in place of a key, or of its end, in values of a type; None if the key fits."""
    kind = _bare(kind)
    row = _bare(kind.item_type) if isinstance(kind, inspect.VarTupleType) else kind
    if isinstance(kind, inspect.DictType):  # the program gives the names
        return None
    if not isinstance(row, inspect.StructType) or (row is not kind and all(key.local for key in keys_of(row.cls))):
        return f"leave out '.{key}'" if key else None
    fields = {field.encode_name: field.type for field in row.fields}
    if row is not kind:  # the program gives the row's key, which may hold dots
        return None if key.endswith(tuple(f".{name}" for name in fields)) else f"KEY.{' or KEY.'.join(fields)}"
    name, _, rest = key.partition(".")
    return _misfit(fields[name], rest) if name in fields else near(name, fields)


def _bare(kind: inspect.Type) -> inspect.Type:
    """The type without its description and without null."""
    if isinstance(kind, inspect.Metadata):
        return _bare(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _bare(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    return kind


def value_at(node: Any, key: str) -> Any:
    """The value at a dotted key, as JSON has it; None where a group or a table was not measured.

    Raises:
        ConfigError: an object has no such field, a table no such row, or several rows have the same name.
    """
    if isinstance(node, Document):
        names = dict(zip(node.__struct_encode_fields__, msgspec.structs.astuple(node), strict=True))
    elif isinstance(node, tuple):
        names = {name_of(row): row for row in node if isinstance(row, Document)}
    elif isinstance(node, Mapping):
        names = dict(node)
    else:
        return None
    # Names that a program gives may hold dots: of the labels `model` and `model.head` the longer one is meant.
    name = max((name for name in names if f"{key}.".startswith(f"{name}.")), key=len, default=None)
    if name is None and isinstance(node, Document):
        raise ConfigError(f"there is no '{key}' in comparison.json", expected=f"one of {', '.join(names)}")
    if name is None and names:
        rows = f"{', '.join(list(names)[:_ROWS])}{', ...' if len(names) > _ROWS else ''}"
        asked = key if isinstance(node, Mapping) else key.rpartition(".")[0]
        raise ConfigError(f"there is no row '{asked}' here", expected=f"one of {rows}", next_step=meant(asked, names))
    if name is None:
        return None
    alike = [row for row in node if name_of(row) == name] if isinstance(node, tuple) else []
    if len(alike) > 1:
        raise ConfigError(f"'{name}' is the name of {len(alike)} rows", expected="rows of one GPU")
    return msgspec.to_builtins(names[name]) if key == name else value_at(names[name], key.removeprefix(f"{name}."))
