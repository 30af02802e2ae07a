"""Tables and single figures of documents: headings, units and explanations are those that their columns declare."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from markupsafe import Markup
from msgspec import UNSET, UnsetType

from steptrace import format as fmt
from steptrace.documents.base import Column, Document, keys_of, meaning_of, shown_columns
from steptrace.documents.syncs import SiteRow
from steptrace.report.page.markup import Definition, Html, breakable, inline_code, place, short_place, unplaced
from steptrace.report.page.section import Explained
from steptrace.report.page.table import NOT_MEASURED_CELL, Cell, Head, table
from steptrace.words.codes import words_of_column

#: Items of a list in a cell.
_MOST_ITEMS: Final = 8
#: Letters of a name that tells rows apart, of its tooltip, and of other words, such as a sentence.
_LONGEST_KEY: Final = 70
_LONGEST_TOOLTIP: Final = 200
_LONGEST: Final = 300
#: Letters of a place in a program, and of its line's code.
_LONGEST_PLACE: Final = 120


def listing(
    rows: Sequence[Document],
    names: Sequence[str] = (),
    *,
    most: int = 50,
    words: Mapping[str, str] | None = None,
    steps: int = 0,
    runs: int | UnsetType = UNSET,
) -> Explained:
    """A table of rows of one type.

    Args:
        rows: the rows in their order, at least one.
        names: the columns to show; default: see `columns_of_rows`.
        most: how many rows are shown; of more, their number stands below.
        words: replacements for some names in cells.
        steps: the number of steps that sums are over; they are shown per step, or as they are if this is 0.
        runs: the number of runs that the rows are from. A column says how many of them have a row, if some lack it.
    """
    columns, silent = columns_of_rows(rows, names)
    columns = [per_step(column) if steps else column for column in columns]
    heads = [Head(c.heading, c.is_number and not c.is_key, label=c.heading) for c in columns]
    cells = [[cell(row, column, words, steps) for column in columns] for row in rows[:most]]
    terms = meanings(type(rows[0]), columns, columns[0].heading.lower())
    if any(in_runs(row, runs) for row in rows[:most]):
        heads.append(Head(IN_RUNS.term, label=IN_RUNS.term))
        cells = [[*line, Cell(in_runs(row, runs) or IN_ALL_RUNS)] for line, row in zip(cells, rows, strict=False)]
        terms.append(IN_RUNS)
    html = table(
        heads,
        [("", row) for row in cells],
        notes=[f"{most} of {len(rows)}; summary.json lists more."] * (len(rows) > most) + [silent] * bool(silent),
    )
    return Explained(html, terms)


#: The column of rows that some of a variant's runs lack.
IN_RUNS: Final = Definition(
    "In runs",
    "In how many of the variant's runs the row was. Totals are medians over all runs, where a run without the row "
    "counts 0. Every other figure is taken over the runs that have the row.",
)
IN_ALL_RUNS: Final = "all"


def in_runs(row: Document, runs: int | UnsetType) -> str | None:
    """How many of the runs have a row, "1 of 3"; None if all have it, or if the row is of one trace."""
    having: int | UnsetType = getattr(row, "runs", UNSET)
    if having is UNSET or runs is UNSET or having == runs:
        return None
    return f"{having} of {runs}"


def site_table(sites: Sequence[SiteRow], *, steps: int = 0, runs: int | UnsetType = UNSET) -> Explained:
    """A table of syncs by site, the costliest first; of predicted ones, which have no cost, the most frequent first."""
    columns = {column.name for column in shown_columns(type(sites[0]))}
    figures = [name for name in ("count", "blocked_ns", "exposed_idle_ns", "ceiling_ns") if name in columns]
    names: list[str] = [*figures] or ["count_per_step"]
    ranked = sorted(sites, key=lambda site: [-(getattr(site, name) or 0) for name in names[2::-1]])
    return listing(ranked, ("file", "op", "kind", "label", "phase", *names), steps=steps, runs=runs)


def facts(document: Document, *, steps: int = 0) -> Explained:
    """The figures of a document that were measured, without a table; sums over `steps` steps are shown per step."""
    measured = [
        column for column in shown_columns(type(document)) if column.dtype and column.value_in(document) is not None
    ]
    columns = [per_step(column) if steps else column for column in measured]
    html = named_facts([(column.heading, cell(document, column, steps=steps).text) for column in columns])
    return Explained(html, definitions_of(columns))


def named_facts(figures: Sequence[tuple[str, str]]) -> Html:
    """Figures without a table, each below its heading."""
    items = Html("").join(Html("<div><dt>{}</dt><dd>{}</dd></div>\n").format(*figure) for figure in figures)
    return Html('<dl class="facts">\n{}</dl>').format(items)


def meanings(kind: type[Document], columns: Sequence[Column], what: str) -> list[Definition]:
    """The meanings of a row and of its figures, without those that only repeat a heading.

    Args:
        kind: the type of the row.
        columns: the columns that are shown.
        what: what tells rows apart, such as "kernel".
    """
    row = Definition(f"Each row ({what})", inline_code(meaning_of(kind)))
    figures = [column for column in columns if column.is_number and not column.is_key]
    return [row, *definitions_of(figures)]


def definitions_of(columns: Sequence[Column]) -> list[Definition]:
    """The meanings of figures, without those that only repeat a heading."""
    return [Definition(column.heading, inline_code(column.meaning)) for column in columns if not column.plain]


def per_step(column: Column) -> Column:
    """The column with a heading that says "per step" if it is a sum over all steps."""
    return replace(column, heading=f"{column.heading} per step") if column.total else column


def columns_of_rows(rows: Sequence[Document], names: Sequence[str] = ()) -> tuple[list[Column], str]:
    """The columns to show of rows of one type, and a sentence on the figures that were not measured.

    Without `names` they are all columns with a heading; a key that is local to one trace only if rows differ in it. A
    column is left out if no row has a value in it other than 0.
    """
    shown = {column.name: column for column in shown_columns(type(rows[0]))}
    differing = {c.name for c in keys_of(type(rows[0])) if c.local and len({c.value_in(row) for row in rows}) > 1}
    columns = [shown[name] for name in names or (n for n, c in shown.items() if not c.local or n in differing)]
    values = {
        column.name: {column.value_in(row) for row in rows} for column in columns if column.dtype not in ("", "bool")
    }
    no_figures = [c for c in columns if values.get(c.name, {True}) <= {None, "", 0} and not c.is_key]
    no_names = [c for c in columns[1:] if c.is_key and values.get(c.name) == {None}]
    empty = [*no_figures, *no_names]
    not_measured = [c.heading for c in no_figures if c.is_number and None in values[c.name]]
    silent = f"Not measured: {fmt.enumeration(not_measured)}." if not_measured else ""
    return [column for column in columns if column not in empty], silent


def cell(row: Document, column: Column, words: Mapping[str, str] | None = None, steps: int = 0) -> Cell:
    """The cell of a row in a column; a sum over `steps` steps is shown per step."""
    value = column.value_in(row)
    if column.total and steps and value is not None:
        value /= steps
    share = value if column.unit == "share" else None
    if isinstance(value, str):
        value = {**words_of_column(type(row).__name__, column.name), **(words or {})}.get(value, value)
    text = _text(row, column, value)
    if isinstance(row, SiteRow) and steps and column.name in ("count", "count_per_step"):
        text = row.how_often or text  # "once" says more than a rate
    return Cell(text, "" if value is None else value, share)


def _text(row: Document, column: Column, value: object) -> str | Markup:
    if column.is_place:
        return _place_cell(row)
    if value is None:
        return NOT_MEASURED_CELL if column.is_number else Markup('<span class="null">none</span>')
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return fmt.with_unit(value, column.unit)
    if isinstance(value, tuple):
        return breakable(", ".join(map(str, value[:_MOST_ITEMS])) + (", …" if len(value) > _MOST_ITEMS else ""))
    name = str(value)
    if column.is_key and len(name) > _LONGEST_KEY:
        return _with_tooltip("", name, fmt.clipped(name, _LONGEST_KEY))
    return breakable(fmt.clipped(name, _LONGEST))


def _with_tooltip(look: str, tooltip: str, words: str) -> Html:
    """Words with a tooltip and an optional class."""
    attribute = Html(' class="{}"').format(look) if look else ""
    return Html('<span{} title="{}">{}</span>').format(
        attribute, fmt.clipped(tooltip, _LONGEST_TOOLTIP), breakable(words)
    )


def _place_cell(row: Any) -> Html:
    """The place, its function, and where rows of this type have it the text of the line.

    Without a place it is the function's name alone, which may be a label.
    """
    named = row.function if row.function != "<module>" else None
    if row.file:
        html = _with_tooltip("place", row.file, fmt.clipped(_place_text(row), _LONGEST_PLACE)) + "\n"
    elif named and not isinstance(row, SiteRow):
        return _with_tooltip("", named, fmt.clipped(named, _LONGEST_KEY)) + "\n"
    else:
        html = Html('<span class="null">{}</span>\n').format(_place_text(row))
    if named:
        html += Html('<span class="note">in {}</span>\n').format(fmt.clipped(named, _LONGEST_KEY))
    code = fmt.clipped(getattr(row, "code", None) or "", _LONGEST_PLACE)
    return html + Html('<code class="line">{}</code>\n').format(code) if code else html


def _place_text(row: Any) -> str:
    if isinstance(row, SiteRow) and row.program is not None:
        return f"{short_place(*row.program)} (in {place(row)})"
    return place(row) or (unplaced(row) if isinstance(row, SiteRow) else "line unknown")
