"""A column, declared once: tables, JSON Schema, pages with their explanations, docs, medians over runs and diff follow.

A row is a struct whose fields are `Annotated` with `key` (what tells one row from another), `column` (what a page
shows), or `field` (what stands in files alone). All three make msgspec's own metadata, so that reading, checking and
schema need nothing else; `columns_of` reads the rest. What a table needs beyond this has a template of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean, median
from types import NoneType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from steptrace.documents.base import Document, Runs, unit_of


@dataclass(frozen=True)
class Column:
    """A field of a row as tables, pages and docs take it.

    Attributes:
        name: its key in JSON, and the column's name in tables.
        dtype: `int64`, `float64`, `bool` or `string`; empty for many values.
        nullable: whether it may be null, which stands for what was not measured.
        heading: above it on a page; empty if pages leave it out.
        runs: how the values of several runs become one.
        local: a key that holds within one trace only, such as a line's number: traces are compared without it.
        total: a sum over all steps: of two traces that of a step is compared.
    """

    name: str
    dtype: str
    meaning: str
    unit: str | None = None
    nullable: bool = False
    heading: str = ""
    runs: Runs | None = None
    is_key: bool = False
    local: bool = False
    total: bool = False

    @property
    def is_number(self) -> bool:
        """Whether it holds numbers."""
        return self.dtype in ("int64", "float64")

    def of(self, row: Document) -> Any:
        """A row's value."""
        return getattr(row, _attributes(type(row))[self.name])


def column(
    heading: str, meaning: str, unit: str | None = None, *, runs: Runs | None = None, total: bool = False
) -> msgspec.Meta:
    """Declare a figure, or words, that a page shows; `unit` where the name does not say it."""
    return _meta(meaning, unit, heading=heading, runs=runs, total=total)


def key(heading: str, meaning: str, unit: str | None = None, *, local: bool = False) -> msgspec.Meta:
    """Declare a column that, with the row's other keys, says which row it is."""
    return _meta(meaning, unit, heading=heading, is_key=True, local=local)


def _meta(meaning: str, unit: str | None, **declared: Any) -> msgspec.Meta:
    return msgspec.Meta(description=meaning, extra={"column": {**declared, "unit": unit} if unit else declared})


_DTYPES: Final = {int: "int64", float: "float64", str: "string", bool: "bool"}


@cache
def columns_of(kind: type[Document]) -> tuple[Column, ...]:
    """The columns of a kind of row, in their order: all fields that say what they mean."""
    hints = get_type_hints(kind, include_extras=True)
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    metas = ((name, hints[field], getattr(hints[field], "__metadata__", (None,))[0]) for field, name in names)
    return tuple(_column(name, hint, meta) for name, hint, meta in metas if isinstance(meta, msgspec.Meta))


@cache
def keys_of(kind: type[Document]) -> tuple[Column, ...]:
    """The columns that together say which row of a kind one is."""
    return tuple(column for column in columns_of(kind) if column.is_key)


def shown_columns(kind: type[Document]) -> tuple[Column, ...]:
    """The columns of a kind of row that a page shows."""
    return tuple(column for column in columns_of(kind) if column.heading)


@cache
def _attributes(kind: type[Document]) -> dict[str, str]:
    return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))


def _column(name: str, hint: Any, meta: msgspec.Meta) -> Column:
    plain = hint.__origin__
    kinds = get_args(plain) if get_origin(plain) not in (dict, tuple, Literal) else (plain,)
    values = [kind for kind in (kinds or (plain,)) if kind is not NoneType]
    dtype = "string" if get_origin(values[0]) is Literal else _DTYPES.get(values[0], "") if len(values) == 1 else ""
    declared = {"unit": unit_of(name), **(meta.extra or {}).get("column", {})}
    return Column(name, dtype, meta.description or "", nullable=NoneType in kinds, **declared)


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
        for name, field in _attributes(type(runs[0])).items()
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
    attributes = _attributes(type(row))
    names = [attributes[c.name] for c in columns_of(type(row)) if c.is_number and not c.is_key]
    return [name for name in names if _is_number(getattr(row, name))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _centre(values: Sequence[Any], centre: Callable[[Sequence[Any]], Any]) -> Any:
    middle = centre(values)
    return round(middle) if all(isinstance(value, int) for value in values) else middle


@dataclass(frozen=True)
class Subject:
    """A part of `TraceSummary` as a page takes it.

    Attributes:
        name: its key in summary.json.
        heading: above it on a page.
        absent: why there is nothing to show where it is null or empty; empty: a page leaves it out without a word.
        needs_gpu: whether, in a trace without GPU work, that is the reason in place of `absent`.
        folded: whether a page shows it on demand only.
        kind: the type of its rows, or of its figures.
    """

    name: str
    heading: str
    absent: str
    needs_gpu: bool
    folded: bool
    kind: type[Document]


def subject(
    heading: str, absent: str, *, needs_gpu: bool = False, folded: bool = False, runs: Runs | None = None
) -> msgspec.Meta:
    """Declare a field of `TraceSummary`: its heading on a page, and why it may be null or empty, if a reader asks."""
    declared = {"heading": heading, "absent": absent, "needs_gpu": needs_gpu, "folded": folded}
    return msgspec.Meta(description=f"{heading}.", extra={"column": {"runs": runs}, "subject": declared})


@cache
def subjects_of(kind: type[Document]) -> tuple[Subject, ...]:
    """The declared subjects of a summary, in their order."""
    hints = get_type_hints(kind, include_extras=True)
    fields = ((name, hints[name]) for name in kind.__struct_fields__)
    declared = ((name, hint, meta) for name, hint in fields for meta in getattr(hint, "__metadata__", ()))
    return tuple(
        Subject(name, kind=_struct_in(hint.__origin__), **meta.extra["subject"])
        for name, hint, meta in declared
        if "subject" in (meta.extra or {})
    )


def _struct_in(hint: Any) -> type[Document]:
    """The struct in `tuple[Struct, ...]`, `Struct | None` or a combination of these."""
    if isinstance(hint, type) and issubclass(hint, Document):
        return hint
    return next(_struct_in(kind) for kind in get_args(hint) if kind not in (NoneType, ...))
