"""Tables of a study's page with a row for every variant: their figures follow from the columns that documents declare.

A column of several figures by name, such as the parts of a step, is a table of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steptrace.documents.base import Column, Document, shown_columns
from steptrace.documents.comparison import Comparison
from steptrace.documents.overview import part_name
from steptrace.documents.variant import VariantResult
from steptrace.report.page.definitions import Definition
from steptrace.report.page.markup import Html, breakable, render
from steptrace.report.page.table import (
    Figure,
    cell,
    definitions_of,
    facts,
    figures_table,
    per_step,
)


@dataclass(frozen=True)
class Part:
    """A document of each variant, and the columns to show of it; without names all that have a heading."""

    of: Callable[[VariantResult], Document | None]
    names: Sequence[str] = ()


def of_variants(study: Comparison, *parts: Part) -> Html | None:
    """The figures of all parts, a row a variant that has any; None without a figure."""
    steps = {v.name: 0 if v.trace is None else v.trace.quality.steps for v in study.variants}
    figures, tables, meanings = list[Figure](), list[tuple[str, Html]](), list[Definition]()
    for part in parts:
        documents = {v.name: one for v in study.variants if (one := part.of(v)) is not None}
        kind = next(map(type, documents.values()), None)
        shown = [] if kind is None else [c for c in shown_columns(kind) if c.name in (part.names or (c.name,))]
        for column in shown:
            values = {name: value_of(one, column, steps[name]) for name, one in documents.items()}
            by_name = _by_name({name: value for name, value in values.items() if isinstance(value, dict)}, column)
            if by_name:
                tables.append((column.heading, _table(by_name)))
            elif column.dtype and any(map(_says_something(column), values.values())):
                figures.append(Figure(per_step(column).heading, values, column.unit))
            else:
                continue
            meanings += definitions_of([column])
    tables = ([("", _table(figures))] if figures else []) + tables
    return of_tables(tables, meanings) if tables else None


def _says_something(column: Column) -> Callable[[Any], bool]:
    """Whether a figure deserves a column: no sum, size or time of 0, but a number of 0, such as a rank's."""
    return lambda value: value is not None and bool(value or not (column.total or column.unit))


def of_tables(tables: Sequence[tuple[str, Html]], meanings: Sequence[Definition], lead: str = "") -> Html:
    """Tables with their titles, a sentence before them, and what their figures mean."""
    return render("study/tables", lead=lead, tables=tables, meanings=meanings)


def value_of(row: Document, column: Column, steps: int) -> Any:
    """A figure, of a sum that of one of so many steps; figures by name; or words."""
    value, size = column.of(row), steps if column.total and steps else 1
    if isinstance(value, dict):
        return {name: one / size for name, one in value.items()}
    if value is None or (column.is_number and size == 1):
        return value
    return value / size if column.is_number else cell(row, column)["text"]


def _by_name(values: Mapping[str, Mapping[str, float]], column: Column) -> list[Figure]:
    """A figure for each name that any variant has something of."""
    names = dict.fromkeys(name for of in values.values() for name, value in of.items() if value)
    return [
        Figure(part_name(name).capitalize(), {v: of.get(name) for v, of in values.items()}, column.unit, "none")
        for name in names
    ]


def _table(figures: Sequence[Figure]) -> Html:
    rows = dict.fromkeys(name for figure in figures for name in figure.values)
    return figures_table("Variant", {name: breakable(name) for name in rows}, figures)


def method(study: Comparison) -> Html:
    """How the comparison was made."""
    of = facts(study.method)
    return Html(of.html + of_tables([], of.meanings))
