"""Rows as a table and figures as facts: headings, units and explanations are those that their columns declare."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.documents.base import Document
from steptrace.documents.column import Column, keys_of, shown_columns
from steptrace.documents.syncs import Place
from steptrace.report.page.definitions import Definition
from steptrace.report.page.markup import Anchors, Html, breakable, inline_code, place, render, unplaced

#: Letters of a name in a table; a tooltip has all.
_LONGEST: Final = 70


@dataclass(frozen=True)
class Explained:
    """A piece of a page and what the figures on it mean."""

    html: Html
    meanings: Sequence[Definition]


def listing(
    rows: Sequence[Document], names: Sequence[str] = (), *, most: int = 50, by: str = "", anchor: str = ""
) -> Explained:
    """A table of rows of one kind; at least one.

    Args:
        rows: as they stand.
        names: columns to show; without any all that have a heading, but a local key only if rows differ in it.
        most: so many rows are shown, and how many there are is said.
        by: of more rows those with the most in this column are shown.
        anchor: with it each row can be linked to, by this and its place in the program.
    """
    columns = _columns(rows, names)
    chosen = sorted(rows, key=lambda row: -(getattr(row, by) or 0)) if by and len(rows) > most else rows
    anchors = Anchors()
    ids = [anchor and anchor + anchors.of(_place_text(row).removeprefix("…/")) for row in chosen[:most]]
    html = render(
        "page/table",
        columns=columns,
        rows=[(id_, [cell(row, c) for c in columns]) for id_, row in zip(ids, chosen, strict=False)],
        most=most,
        count=len(rows),
    )
    return Explained(html, meanings(type(rows[0]), columns))


def facts(of: Document, names: Sequence[str]) -> Explained:
    """Single figures of a struct by the names of their columns."""
    by_name = {column.name: column for column in shown_columns(type(of))}
    columns = [by_name[name] for name in names]
    html = render("page/facts", facts=[(column.heading, cell(of, column)["text"]) for column in columns])
    return Explained(html, [Definition(column.heading, inline_code(column.meaning)) for column in columns])


def meanings(kind: type[Document], columns: Sequence[Column]) -> list[Definition]:
    """What a row is, and what its figures mean."""
    first = [Definition("A row", inline_code(" ".join((kind.__doc__ or "").split())))]
    return first + [Definition(c.heading, inline_code(c.meaning)) for c in columns if c.is_number and not c.is_key]


def _columns(rows: Sequence[Document], names: Sequence[str]) -> list[Column]:
    shown = shown_columns(type(rows[0]))
    if names:
        by_name = {column.name: column for column in shown}
        return [by_name[name] for name in names]
    differing = [c for c in keys_of(type(rows[0])) if c.local and len({c.of(row) for row in rows}) > 1]
    return [column for column in shown if not column.local or column in differing]


def cell(row: Document, column: Column) -> dict[str, Any]:
    """A cell: its words, what a table sorts it by, and the length of its bar (0 to 1) if it is a share."""
    value = column.of(row)
    share = value if column.unit == "share" else None
    return {"text": _text(row, column, value), "sort": "" if value is None else value, "share": share}


def _text(row: Document, column: Column, value: object) -> str | Markup:
    if column.name == "file" and isinstance(row, Place):
        return Html(render("page/place", site=row, text=_place_text(row)))
    if value is None:
        return Markup('<span class="null">{}</span>').format(fmt.NOT_MEASURED if column.is_number else "none")
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return fmt.with_unit(value, column.unit)
    name = str(value)
    if len(name) <= _LONGEST:
        return breakable(name)
    return Markup('<span title="{}">{}</span>').format(name, breakable(fmt.clipped(name, _LONGEST)))


def _place_text(row: Any) -> str:
    return place(row) or unplaced(row)
