"""The one table of all pages, and what makes it of figures by name or of words.

`rows.py` makes it of rows whose columns a document declares.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.report.page.markup import Html, render, with_units

NOT_MEASURED_CELL: Final = Html('<span class="null">{}</span>').format(fmt.NOT_MEASURED)

Value = float | str | None
Unit = str | Callable[[float], str] | None


@dataclass(frozen=True)
class Figure:
    """A column of figures.

    Attributes:
        heading: its head.
        values: the figures by the names of rows.
        unit: a unit of `fmt.with_unit`, or a function that makes words of a number.
        absent: the text of a row without a figure.
        look: a class of its cells.
        label: what stands before each cell on a phone; default: the heading.
        foot: what stands below the column, such as the axis of its pictures.
    """

    heading: str
    values: Mapping[str, Value]
    unit: Unit = None
    absent: str = fmt.NOT_MEASURED
    look: str = ""
    label: str | None = None
    foot: str = ""


class Cell(NamedTuple):
    """A cell: its text, the value that a table sorts it by, and the length of its bar (0 to 1) if it is a share."""

    text: str | Html
    sort: float | str | None = ""
    share: float | None = None


class Head(NamedTuple):
    """The head of a column, and the looks of its cells; see `Figure`."""

    words: str
    number: bool = False
    look: str = ""
    label: str = ""
    foot: str = ""

    @property
    def classes(self) -> str | None:
        """The classes of its cells; None without any."""
        return " ".join(filter(None, ["num" if self.number else "", self.look])) or None

    @property
    def attributes(self) -> dict[str, str | None]:
        """The attributes of the head's element; None is left out."""
        return {"scope": "col", "class": self.classes}


@dataclass(frozen=True)
class _ShownCell:
    """A cell behind a row's name, and the attributes of its element; None is left out."""

    text: str | Html
    attributes: dict[str, str | float | None]


@dataclass(frozen=True)
class _ShownRow:
    """A row: the name in its first cell, its other cells, and the attributes of its element; None is left out."""

    name: str | Html
    cells: Sequence[_ShownCell]
    attributes: dict[str, str | None]


def figures_table(
    head: str,
    rows: Mapping[str, str],
    figures: Sequence[Figure],
    ids: Mapping[str, str] | None = None,
    *,
    look: str = "",
    looks: Mapping[str, str] | None = None,
) -> Html:
    """A table with a row for each name and a column for each figure; columns without any value are left out.

    Args:
        head: of the first column.
        rows: what the page calls each row, by its name.
        figures: the columns.
        ids: the ids of rows that links lead to, by name.
        look: a class of the table.
        looks: classes of rows, by name.
    """
    kept = [figure for figure in figures if any(figure.values.get(name) is not None for name in rows)]
    cells = [
        (ids[name] if ids else "", [Cell(label), *(_figure(f, name) for f in kept)]) for name, label in rows.items()
    ]
    return table([Head(head), *map(_head, kept)], cells, look=look, looks=[(looks or {}).get(name) for name in rows])


def _head(figure: Figure) -> Head:
    words = any(isinstance(value, str) for value in figure.values.values())
    label = figure.heading if figure.label is None else figure.label
    return Head(figure.heading, not words, figure.look, label, figure.foot)


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """A table of cells that are words already."""
    return table(
        [Head(head, label=head) for head in heads],
        [("", [Cell(NOT_MEASURED_CELL if text == fmt.NOT_MEASURED else text) for text in row]) for row in rows],
    )


def table(
    heads: Sequence[Head],
    rows: Sequence[tuple[str, Sequence[Cell]]],
    *,
    notes: Sequence[str] = (),
    look: str = "",
    looks: Sequence[str | None] = (),
) -> Html:
    """The one table of all pages.

    Args:
        heads: of its columns.
        rows: each with the id that a link leads to, empty without one, and a cell for each head.
        notes: sentences below it.
        look, looks: the classes of the table and of each row.
    """
    shown = [
        _ShownRow(
            name=with_units(name.text),
            cells=[_shown(cell, head) for cell, head in zip(cells, heads[1:], strict=True)],
            attributes={"id": id_ or None, "class": row_look or None},
        )
        for (id_, (name, *cells)), row_look in zip(rows, looks or [None] * len(rows), strict=True)
    ]
    return render(
        "page/table",
        heads=heads,
        rows=shown,
        has_feet=any(head.foot for head in heads),
        notes=notes,
        look=" ".join(filter(None, ["compact sortable", look])),
    )


def _shown(cell: Cell, head: Head) -> _ShownCell:
    """The HTML of a cell: a number carries its sort key, and a share is drawn as a bar."""
    if not head.number:
        return _ShownCell(with_units(cell.text), {"class": head.classes, "data-label": head.label})
    classes = head.classes if cell.share is None else f"{head.classes} bar"
    bar = None if cell.share is None else f"--share: {fmt.fraction(cell.share)}"
    attributes = {"class": classes, "data-label": head.label, "data-sort": cell.sort, "style": bar}
    return _ShownCell(cell.text, attributes)


def _figure(figure: Figure, row: str) -> Cell:
    value = figure.values.get(row)
    unit = figure.unit
    if value is None:
        text: str = Markup('<span class="null">{}</span>').format(figure.absent)
    elif isinstance(value, str):
        text = value
    else:
        text = unit(value) if callable(unit) else fmt.with_unit(value, unit)
    return Cell(text, "" if value is None else value)
