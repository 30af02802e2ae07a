"""What sections of a page are made of: tables, facts, sentences, pictures, bars, folded parts.

Headings, units and explanations of rows and figures are those that their columns declare.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from markupsafe import Markup
from msgspec import UNSET, UnsetType

from steptrace import format as fmt
from steptrace.documents.base import Column, Document, keys_of, meaning_of, shown_columns
from steptrace.documents.syncs import Site
from steptrace.report.draw import Piece, bar_cell
from steptrace.report.page.markup import Definition, Html, breakable, inline_code, place, render, short_place, unplaced
from steptrace.words.codes import words_of_column

NOT_MEASURED_CELL: Final = Html('<span class="null">{}</span>').format(fmt.NOT_MEASURED)
#: A meaning of no more words repeats its heading.
_FEW_WORDS: Final = 3
#: Items of a list in a cell.
_MOST_ITEMS: Final = 8
#: Letters of a name that tells rows apart, and of other words, such as a sentence; a tooltip has all.
_LONGEST_KEY: Final = 70
_LONGEST: Final = 300


@dataclass(frozen=True)
class Explained:
    """A piece of a page and what the figures on it mean."""

    html: Html | str
    meanings: Sequence[Definition] = ()


#: What a section is made of, in its order.
Parts = Sequence[Explained]


def note(text: str) -> Explained:
    """A sentence."""
    return Explained(Html('<p class="note">{}</p>').format(inline_code(text)))


def subheading(text: str) -> Explained:
    """A heading within a section."""
    return Explained(Html("<h3>{}</h3>").format(text))


def folded(title: str, body: Explained) -> Explained:
    """A part of a section behind its title; nothing if the part is empty."""
    html = Html("<details><summary>{}</summary>\n{}\n</details>").format(title, body.html)
    return Explained(html if body.html else "", body.meanings)


def picture(svg: Markup | None, title: str, caption: str = "") -> Explained:
    """A picture with its title and a caption; nothing without it."""
    if svg is None:
        return Explained("")
    below = Html("<figcaption>{}</figcaption>").format(caption) if caption else ""
    html = Html('<div class="charts"><figure><h3>{}</h3>{}{}</figure></div>')
    return Explained(html.format(title, svg, below))


def keyed_bar(pieces: Sequence[Piece]) -> Html:
    """One stacked bar, and below it what each piece is; nothing without pieces."""
    shown = [piece for piece in pieces if piece.size]
    if not shown:
        return Html("")
    key = Html('<span class="key {}">{}</span>')
    keys = Html("").join(key.format(piece.colour, piece.words) for piece in shown)
    return Html('<div class="goes">{}{}</div>').format(bar_cell(shown, sum(piece.size for piece in shown)), keys)


def section(id_: str, heading: str, parts: Parts, *, level: int = 2, folded: bool = False) -> Html:
    """A section of a page: its heading, its parts, and what their figures mean, each once."""
    meanings = {item.term: item for part in parts for item in part.meanings}
    body = Html("").join(part.html for part in parts)
    return render(
        "page/section", id=id_, heading=heading, level=level, folded=folded, meanings=[*meanings.values()], body=body
    )


Value = float | str | None
Unit = str | Callable[[float], str] | None


@dataclass(frozen=True)
class Figure:
    """A column: figures by the names of rows; `unit` is one of `fmt.with_unit`, or makes words of a number.

    `absent` is what a row without a figure says, `look` a class of its cells, `label` what a phone says before each in
    the place of the heading, and `foot` stands below the column, such as the axis of its pictures.
    """

    heading: str
    values: Mapping[str, Value]
    unit: Unit = None
    absent: str = fmt.NOT_MEASURED
    look: str = ""
    label: str | None = None
    foot: str = ""


class Cell(NamedTuple):
    """A cell: what it says, what a table sorts it by, and the length of its bar (0 to 1) if it is a share."""

    text: str | Html
    sort: float | str | None = ""
    share: float | None = None


class Head(NamedTuple):
    """The head of a column, and what all of its cells have."""

    words: str
    number: bool = False
    look: str = ""
    label: str = ""
    foot: str = ""

    @property
    def classes(self) -> str:
        """The classes of its cells."""
        return " ".join(filter(None, ["num" if self.number else "", self.look]))


def figures_table(
    head: str,
    rows: Mapping[str, str],
    figures: Sequence[Figure],
    ids: Mapping[str, str] | None = None,
    *,
    look: str = "",
    looks: Mapping[str, str] | None = None,
) -> Html:
    """Rows by name, each with what the page calls it, and these figures of each; a column without any is left out.

    `ids` are those of rows that a link leads to, `look` and `looks` the classes of the table and of rows.
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
    """Rows of cells that are words already."""
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
    return render("page/table", heads=heads, rows=rows, notes=notes, look=look, looks=looks or [None] * len(rows))


def _figure(figure: Figure, row: str) -> Cell:
    value, unit = figure.values.get(row), figure.unit
    if value is None:
        text: str = Markup('<span class="null">{}</span>').format(figure.absent)
    elif isinstance(value, str):
        text = value
    else:
        text = unit(value) if callable(unit) else fmt.with_unit(value, unit)
    return Cell(text, "" if value is None else value)


def listing(
    rows: Sequence[Document],
    names: Sequence[str] = (),
    *,
    most: int = 50,
    words: Mapping[str, str] | None = None,
    steps: int = 0,
    runs: int | UnsetType = UNSET,
) -> Explained:
    """A table of rows of one kind; at least one.

    Args:
        rows: in their order.
        names: columns to show; without any all that have a heading, but a local key only if rows differ in it.
        most: so many rows are shown, and their number stands below.
        words: what a page says in the place of some names.
        steps: so many steps sums are over: a page shows them per step; 0: as they are.
        runs: so many runs the rows are of: where some lack a row, a column says how many have it.
    """
    columns, silent = columns_of_rows(rows, names)
    columns = [per_step(column) if steps else column for column in columns]
    heads = [Head(c.heading, c.is_number and not c.is_key, label=c.heading) for c in columns]
    cells = [[cell(row, column, words, steps) for column in columns] for row in rows[:most]]
    terms = meanings(type(rows[0]), columns, columns[0].heading.lower())
    if any(in_runs(row, runs) for row in rows[:most]):
        heads.append(Head(IN_RUNS.term, label=IN_RUNS.term))
        cells = [[*row, Cell(in_runs(of, runs) or IN_ALL_RUNS)] for row, of in zip(cells, rows, strict=False)]
        terms.append(IN_RUNS)
    html = table(
        heads,
        [("", row) for row in cells],
        notes=[f"{most} of {len(rows)}; summary.json lists more."] * (len(rows) > most) + [silent] * bool(silent),
    )
    return Explained(html, terms)


#: What a table says of rows that some of a variant's runs lack.
IN_RUNS: Final = Definition(
    "In runs",
    "In how many of the variant's runs the row was. Totals are medians over all runs, where a run without the row "
    "counts 0. Every other figure is taken over the runs that have the row.",
)
IN_ALL_RUNS: Final = "all"


def in_runs(row: Document, runs: int | UnsetType) -> str | None:
    """In how many of so many runs a row was, "1 of 3"; None where all have it, and for rows of one trace."""
    having: int | UnsetType = getattr(row, "runs", UNSET)
    if having is UNSET or runs is UNSET or having == runs:
        return None
    return f"{having} of {runs}"


def site_table(sites: Sequence[Site], *, steps: int = 0, runs: int | UnsetType = UNSET) -> Explained:
    """The syncs by site, the costliest first; of predicted ones, whose cost nobody knows, the most frequent."""
    columns = {column.name for column in shown_columns(type(sites[0]))}
    figures = [name for name in ("count", "blocked_ns", "exposed_idle_ns", "ceiling_ns") if name in columns]
    names: list[str] = [*figures] or ["count_per_step"]
    ranked = sorted(sites, key=lambda site: [-(getattr(site, name) or 0) for name in names[2::-1]])
    return listing(ranked, ("file", "op", "kind", "label", "phase", *names), steps=steps, runs=runs)


def facts(of: Document, *, steps: int = 0) -> Explained:
    """The single figures of a struct that were measured; sums over so many steps are shown per step."""
    measured = [column for column in shown_columns(type(of)) if column.dtype and column.of(of) is not None]
    columns = [per_step(column) if steps else column for column in measured]
    html = named_facts([(column.heading, cell(of, column, steps=steps).text) for column in columns])
    return Explained(html, definitions_of(columns))


def named_facts(figures: Sequence[tuple[str, str]]) -> Html:
    """Single figures, each below its heading."""
    each = Html("").join(Html("<div><dt>{}</dt><dd>{}</dd></div>\n").format(*figure) for figure in figures)
    return Html('<dl class="facts">\n{}</dl>').format(each)


def meanings(kind: type[Document], columns: Sequence[Column], what: str) -> list[Definition]:
    """What a row is, and what its figures mean, but for words that only repeat a heading."""
    row = Definition(f"Each row ({what})", inline_code(meaning_of(kind)))
    figures = [column for column in columns if column.is_number and not column.is_key]
    return [row, *definitions_of(figures)]


def definitions_of(columns: Sequence[Column]) -> list[Definition]:
    """What figures mean, but for words that only repeat a heading."""
    telling = [column for column in columns if len(column.meaning.split()) > _FEW_WORDS]
    return [Definition(column.heading, inline_code(column.meaning)) for column in telling]


def per_step(column: Column) -> Column:
    """The column of a sum over all steps as that of a step."""
    return replace(column, heading=f"{column.heading} per step") if column.total else column


def columns_of_rows(rows: Sequence[Document], names: Sequence[str] = ()) -> tuple[list[Column], str]:
    """The columns to show of rows of one kind, and a sentence on the figures that were not measured.

    They are those of these names, else all that have a heading, but a local key only if rows differ in it; one without
    a value other than 0 is left out.
    """
    shown = {column.name: column for column in shown_columns(type(rows[0]))}
    differing = {c.name for c in keys_of(type(rows[0])) if c.local and len({c.of(row) for row in rows}) > 1}
    columns = [shown[name] for name in names or (n for n, c in shown.items() if not c.local or n in differing)]
    values = {column.name: {column.of(row) for row in rows} for column in columns if column.dtype not in ("", "bool")}
    empty = [column for column in columns if values.get(column.name, {True}) <= {None, "", 0} and not column.is_key]
    empty += [column for column in columns[1:] if column.is_key and values.get(column.name) == {None}]
    not_measured = [c.heading for c in empty if c.is_number and not c.is_key and None in values[c.name]]
    silent = f"Not measured: {fmt.enumeration(not_measured)}." if not_measured else ""
    return [column for column in columns if column not in empty], silent


def cell(row: Document, column: Column, words: Mapping[str, str] | None = None, steps: int = 0) -> Cell:
    """The cell of a row in a column; a sum over so many `steps` is shown per step."""
    value = column.of(row)
    if column.total and steps and value is not None:
        value /= steps
    share = value if column.unit == "share" else None
    if isinstance(value, str):
        value = {**words_of_column(type(row).__name__, column.name), **(words or {})}.get(value, value)
    text = _text(row, column, value)
    if isinstance(row, Site) and steps and column.name in ("count", "count_per_step"):
        text = row.how_often or text  # what happens once is no rate
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
    name, most = str(value), _LONGEST_KEY if column.is_key else _LONGEST
    if len(name) <= most:
        return breakable(name)
    return Markup('<span title="{}">{}</span>').format(name, breakable(fmt.clipped(name, most)))


def _place_cell(row: Any) -> Html:
    """The place, the function it lies in, and the line's code."""
    if row.file:
        html = Html('<span class="place" title="{}">{}</span>\n').format(row.file, breakable(_place_text(row)))
    else:
        html = Html('<span class="null">{}</span>\n').format(_place_text(row))
    if row.function and row.function != "<module>":
        html += Html('<span class="note">in {}</span>\n').format(row.function)
    return html + Html('<code class="line">{}</code>\n').format(row.code) if row.code else html


def _place_text(row: Any) -> str:
    if isinstance(row, Site) and row.program is not None:
        return f"{short_place(*row.program)} (in {place(row)})"
    return place(row) or (unplaced(row) if isinstance(row, Site) else "line unknown")
