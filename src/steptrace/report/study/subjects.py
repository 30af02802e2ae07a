"""The subjects of the variants' traces on a study's page, in the order of `TraceSummary`.

A subject's table follows from the columns that its document declares: a row for every variant, or of many rows those in
which variants differ most, variant by variant. A column of several figures by name is a table of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import UnsetType

from steptrace import format as fmt
from steptrace.documents.base import Column, Document, Key, by_key, columns_of, shown_columns
from steptrace.documents.comparison import Comparison
from steptrace.documents.overview import part_name
from steptrace.documents.subject import Subject, subjects_of
from steptrace.documents.summary import TraceSummary
from steptrace.report.page.markup import Definition, Html, breakable, render
from steptrace.report.page.parts import (
    IN_ALL_RUNS,
    IN_RUNS,
    Figure,
    cell,
    columns_of_rows,
    definitions_of,
    figures_table,
    in_runs,
    meanings,
    per_step,
)
from steptrace.report.study.subject_view import PLAIN, StudyView, VariantFigures
from steptrace.report.study.variants import variants_shown
from steptrace.report.study.views import VIEWS, has_unlinked_work
from steptrace.report.trace.sections import rows_of

#: So many rows a subject's table has at most, of all variants together: a page of many variants stays small.
_MOST: Final = 40


@dataclass(frozen=True)
class _Row:
    """A row of a variant's trace.

    Attributes:
        variant: its name.
        row: the row.
        steps: over how many steps its sums are; 0: not known.
        runs: of how many runs the trace is.
    """

    variant: str
    row: Document
    steps: int
    runs: int | UnsetType

    @property
    def identity(self) -> Key:
        return next(iter(by_key([self.row])))


def subjects() -> Iterator[Subject]:
    """The subjects that have a section among the further ones of a study's page."""
    return (one for one in subjects_of(TraceSummary) if "not_on_study" not in one.traits)


def subject(study: Comparison, name: str) -> Html | None:
    """The section of a subject; None if no variant has anything to show."""
    one = next(one for one in subjects() if one.name == name)
    view = VIEWS.get(name, PLAIN)
    if view.decides_nothing(study):
        return None
    if one.is_table and not view.figures:
        html = _rows_table(study, one, view)
    else:
        html = _of_variants(study, *(view.figures or (VariantFigures(lambda v: getattr(v.trace, name, None)),)))
    return None if html is None else Html(html + view.below(study))


def _rows_table(study: Comparison, one: Subject, view: StudyView) -> Html | None:
    traces = {v.name: v.trace for v in variants_shown(study) if v.trace is not None}
    of_steps = all(trace.quality.steps for trace in traces.values())
    every = [
        _Row(name, row, trace.quality.steps if of_steps else 0, trace.runs)
        for name, trace in traces.items()
        for row in rows_of(trace, one)
    ]
    # A variant whose trace says nothing of the subject differs in no row.
    rows = _chosen(every, len({of.variant for of in every}))
    columns = [column for column in columns_of_rows([of.row for of in rows])[0] if column.dtype] if rows else []
    unlinked = of_steps and "counts_unlinked" in one.traits and any(map(has_unlinked_work, traces.values()))
    columns = [column for column in columns if not (unlinked and column.total)]
    if not any(column.is_number and not column.is_key for column in columns):
        return None
    figures = [
        Figure(
            per_step(column).heading if of_steps else column.heading,
            {str(number): _value_of(of.row, column, of.steps) for number, of in enumerate(rows)},
            column.unit,
            fmt.NOT_MEASURED if column.is_number else "none",
        )
        for column in columns
    ]
    having = {str(number): in_runs(of.row, of.runs) for number, of in enumerate(rows)}
    figures.append(Figure(IN_RUNS.term, having, absent=IN_ALL_RUNS))
    lead = [text for text in [view.lead(study)] if text]
    if left_out := len({of.identity for of in every}) - len({of.identity for of in rows}):
        lead.append(f"The table has the rows in which variants differ most; {left_out} more are in comparison.json.")
    if unlinked:
        lead.append("No figures per step: some of the GPU work in these traces has no launch, so its step is unknown.")
    table = figures_table("Variant", {str(number): of.variant for number, of in enumerate(rows)}, figures)
    terms = meanings(one.kind, columns, columns[0].heading.lower())
    if any(having.values()):
        terms.append(IN_RUNS)
    return _of_tables([("", table)], terms, " ".join(lead))


def _chosen(every: Sequence[_Row], variants: int) -> list[_Row]:
    """The rows in which variants differ most, those of one key together; all where they are few."""
    by_identity: dict[Key, list[_Row]] = {}
    for of in every:
        by_identity.setdefault(of.identity, []).append(of)
    ranked = sorted(by_identity, key=lambda identity: -_difference(by_identity[identity], variants))
    chosen = set(ranked[: max(_MOST // max(variants, 1), 1)])
    return [of for identity, rows in by_identity.items() if identity in chosen for of in rows]


def _difference(rows: Sequence[_Row], variants: int) -> float:
    """How far apart the variants' times of a step are; where one lacks the row, its time is 0."""
    times = [column for column in columns_of(type(rows[0].row)) if column.total and column.unit == "ns"]
    by_column = [
        [*(_value_of(of.row, c, of.steps) or 0.0 for of in rows), *[0.0] * (variants - len(rows))] for c in times
    ]
    return max((max(values) - min(values) for values in by_column), default=0.0)


def _of_variants(study: Comparison, *parts: VariantFigures) -> Html | None:
    """The figures of all parts, a row a variant that has any; None without a figure."""
    steps = {v.name: 0 if v.trace is None else v.trace.quality.steps for v in study.variants}
    figures, tables, meanings = list[Figure](), list[tuple[str, Html]](), list[Definition]()
    for part in parts:
        documents = {v.name: one for v in study.variants if (one := part.document(v)) is not None}
        kind = next(map(type, documents.values()), None)
        shown = [] if kind is None else [c for c in shown_columns(kind) if c.name in (part.names or (c.name,))]
        for column in shown:
            values = {name: _value_of(one, column, steps[name]) for name, one in documents.items()}
            by_name = _by_name({name: value for name, value in values.items() if isinstance(value, dict)}, column)
            if by_name:
                tables.append((column.heading, _figures_table(by_name)))
            elif column.dtype and any(map(_says_something(column), values.values())):
                figures.append(Figure(per_step(column).heading, values, column.unit))
            else:
                continue
            meanings += definitions_of([column])
    tables = ([("", _figures_table(figures))] if figures else []) + tables
    return _of_tables(tables, meanings) if tables else None


def _says_something(column: Column) -> Callable[[Any], bool]:
    """Whether a figure deserves a column: no sum, size or time of 0, but a number of 0, such as a rank's."""
    return lambda value: value is not None and bool(value or not (column.total or column.unit))


def _of_tables(tables: Sequence[tuple[str, Html]], meanings: Sequence[Definition], lead: str = "") -> Html:
    """Tables with their titles, a sentence before them, and what their figures mean."""
    return render("study/tables", lead=lead, tables=tables, meanings=meanings)


def _value_of(row: Document, column: Column, steps: int) -> Any:
    """A figure, of a sum that of one of so many steps; figures by name; or words."""
    value, size = column.of(row), steps if column.total and steps else 1
    if isinstance(value, dict):
        return {name: one / size for name, one in value.items()}
    if value is None or (column.is_number and size == 1):
        return value
    return value / size if column.is_number else cell(row, column).text


def _by_name(values: Mapping[str, Mapping[str, float]], column: Column) -> list[Figure]:
    """A figure for each name that any variant has something of."""
    names = dict.fromkeys(name for of in values.values() for name, value in of.items() if value)
    return [
        Figure(part_name(name).capitalize(), {v: of.get(name) for v, of in values.items()}, column.unit, "none")
        for name in names
    ]


def _figures_table(figures: Sequence[Figure]) -> Html:
    rows = dict.fromkeys(name for figure in figures for name in figure.values)
    return figures_table("Variant", {name: breakable(name) for name in rows}, figures)
