"""The sections of a study's page on the subjects of its variants' traces, in the order of `TraceSummary`.

A section's tables follow from the columns that the subject's document declares. A subject with single figures has a row
for each variant. A subject with many rows shows those in which the variants differ most, variant by variant. A column
that holds several figures by name becomes a table of its own. What is different for one subject stands in `views.py`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec import UnsetType

from steptrace import format as fmt
from steptrace.documents.base import Column, Document, Key, by_key, columns_of, shown_columns
from steptrace.documents.comparison import Comparison
from steptrace.documents.overview import part_name
from steptrace.documents.subject import Subject, subjects_of
from steptrace.documents.summary import TraceSummary
from steptrace.documents.variant import VariantResult
from steptrace.report.page.markup import Definition, Html, breakable, render
from steptrace.report.page.rows import (
    IN_ALL_RUNS,
    IN_RUNS,
    cell,
    columns_of_rows,
    definitions_of,
    in_runs,
    meanings,
    per_step,
)
from steptrace.report.page.table import Figure, Value, figures_table
from steptrace.report.study.subject_view import PLAIN, StudyView, VariantFigures
from steptrace.report.study.variants import variants_shown
from steptrace.report.study.views import VIEWS, has_unlinked_work
from steptrace.report.trace.sections import rows_of

#: The most rows of a subject's table, all variants together: the page of a study with many variants stays small.
_MOST_ROWS = 20


def subjects() -> Iterator[Subject]:
    """The subjects that have a section among the further ones of a study's page."""
    return (subject for subject in subjects_of(TraceSummary) if "not_on_study" not in subject.traits)


def subject_section(study: Comparison, name: str) -> Html | None:
    """The section of a subject; None if there is nothing to compare."""
    subject = next(subject for subject in subjects() if subject.name == name)
    view = VIEWS.get(name, PLAIN)
    if view.decides_nothing(study):
        return None
    if view.figures:
        html = _figures_of_variants(study, view.figures)
    elif subject.is_table:
        html = _rows_of_variants(study, subject, view)
    else:
        html = _figures_of_variants(study, [VariantFigures(lambda variant: _of_trace(variant, name))])
    return None if html is None else Html(html + view.below(study))


def _of_trace(variant: VariantResult, subject: str) -> Document | None:
    document: Document | None = getattr(variant.trace, subject, None)
    return document


@dataclass(frozen=True)
class _VariantRow:
    """A row of a variant's trace.

    Attributes:
        variant: the variant's name.
        row: the row.
        steps: how many steps its sums are over; 0 if that is not known.
        runs: how many runs the trace combines.
    """

    variant: str
    row: Document
    steps: int
    runs: int | UnsetType

    @property
    def identity(self) -> Key:
        """What the same row has in common in all variants."""
        return next(iter(by_key([self.row])))


def _rows_of_variants(study: Comparison, subject: Subject, view: StudyView) -> Html | None:
    """The rows in which the variants differ most; None if no column holds a figure."""
    traces = {variant.name: variant.trace for variant in variants_shown(study) if variant.trace is not None}
    per_steps = all(trace.quality.steps for trace in traces.values())
    rows = [
        _VariantRow(name, row, trace.quality.steps if per_steps else 0, trace.runs)
        for name, trace in traces.items()
        for row in rows_of(trace, subject)
    ]
    shown = _most_different(rows)
    unlinked = per_steps and "counts_unlinked" in subject.traits and any(map(has_unlinked_work, traces.values()))
    columns = _columns(shown, without_totals=unlinked)
    if not any(column.is_number and not column.is_key for column in columns):
        return None
    having = {str(number): in_runs(line.row, line.runs) for number, line in enumerate(shown)}
    figures = [*(_column_of_rows(column, shown, per_steps=per_steps) for column in columns)]
    figures.append(Figure(IN_RUNS.term, having, absent=IN_ALL_RUNS))
    terms = meanings(subject.kind, columns, columns[0].heading.lower())
    if any(having.values()):
        terms.append(IN_RUNS)
    left_out = len({line.identity for line in rows}) - len({line.identity for line in shown})
    lead = [view.lead(study), *_notes_on_rows(left_out, unlinked=unlinked)]
    table = figures_table("Variant", {str(number): line.variant for number, line in enumerate(shown)}, figures)
    return _tables([("", table)], terms, " ".join(filter(None, lead)))


def _columns(rows: Sequence[_VariantRow], *, without_totals: bool) -> list[Column]:
    """The columns to show of these rows."""
    if not rows:
        return []
    columns, _ = columns_of_rows([line.row for line in rows])
    return [column for column in columns if column.dtype and not (without_totals and column.total)]


def _column_of_rows(column: Column, rows: Sequence[_VariantRow], *, per_steps: bool) -> Figure:
    return Figure(
        per_step(column).heading if per_steps else column.heading,
        {str(number): _value(line.row, column, line.steps) for number, line in enumerate(rows)},
        column.unit,
        fmt.NOT_MEASURED if column.is_number else "none",
    )


def _notes_on_rows(left_out: int, *, unlinked: bool) -> Iterator[str]:
    """What to know of a table of rows, a sentence each."""
    if left_out:
        yield f"The table has the rows in which variants differ most; {left_out} more are in comparison.json."
    if unlinked:
        yield "No figures per step: some of the GPU work in these traces has no launch, so its step is unknown."


def _most_different(rows: Sequence[_VariantRow]) -> list[_VariantRow]:
    """The rows in which the variants differ most, with the same row of all variants side by side."""
    by_identity: dict[Key, list[_VariantRow]] = {}
    for line in rows:
        by_identity.setdefault(line.identity, []).append(line)
    # A variant whose trace says nothing of the subject differs in no row.
    variants = len({line.variant for line in rows})
    ranked = sorted(by_identity, key=lambda identity: -_difference(by_identity[identity], variants))
    chosen = set(ranked[: max(_MOST_ROWS // max(variants, 1), 1)])
    return [line for identity, lines in by_identity.items() if identity in chosen for line in lines]


def _difference(rows: Sequence[_VariantRow], variants: int) -> float:
    """The largest difference of a time per step between the variants; a variant without the row counts as 0."""
    missing = [0.0] * (variants - len(rows))
    largest = 0.0
    for column in columns_of(type(rows[0].row)):
        if column.total and column.unit == "ns":
            values = [*(_number(line.row, column, line.steps) or 0.0 for line in rows), *missing]
            largest = max(largest, max(values) - min(values))
    return largest


def _figures_of_variants(study: Comparison, parts: Sequence[VariantFigures]) -> Html | None:
    """The figures of all parts, with a row for each variant that has any; None without a figure."""
    steps = {variant.name: 0 if variant.trace is None else variant.trace.quality.steps for variant in study.variants}
    figures = list[Figure]()
    tables = list[tuple[str, Html]]()
    terms = list[Definition]()
    for part in parts:
        documents = {
            variant.name: document for variant in study.variants if (document := part.document(variant)) is not None
        }
        for column in _columns_of_part(part, documents):
            by_name = _figures_by_name(documents, column, steps)
            if by_name:
                tables.append((column.heading, _variants_table(by_name)))
                terms += definitions_of([column])
            elif column.dtype and any(
                _says_something(column, column.value_in(document)) for document in documents.values()
            ):
                values = {name: _value(document, column, steps[name]) for name, document in documents.items()}
                figures.append(Figure(per_step(column).heading, values, column.unit))
                terms += definitions_of([column])
    if figures:
        tables.insert(0, ("", _variants_table(figures)))
    return _tables(tables, terms) if tables else None


def _columns_of_part(part: VariantFigures, documents: Mapping[str, Document]) -> list[Column]:
    """The columns to show of the variants' documents, which are all of one type."""
    if not documents:
        return []
    columns = shown_columns(type(next(iter(documents.values()))))
    return [column for column in columns if not part.names or column.name in part.names]


def _figures_by_name(documents: Mapping[str, Document], column: Column, steps: Mapping[str, int]) -> list[Figure]:
    """A figure for each name in a column of figures by name; none for other columns."""
    values: dict[str, dict[str, float]] = {}
    for variant, document in documents.items():
        named = column.value_in(document)
        if isinstance(named, dict):
            size = _divisor(column, steps[variant])
            values[variant] = {name: value / size for name, value in named.items()}
    names = dict.fromkeys(name for named in values.values() for name, value in named.items() if value)
    return [
        Figure(
            part_name(name).capitalize(),
            {variant: named.get(name) for variant, named in values.items()},
            column.unit,
            "none",
        )
        for name in names
    ]


def _says_something(column: Column, value: object) -> bool:
    """Whether a value deserves a column: a sum, size or time of 0 does not; any other 0, such as a rank, does."""
    if value is None:
        return False
    return bool(value or not (column.total or column.unit))


def _value(row: Document, column: Column, steps: int) -> Value:
    """The value of a column: a number (a sum is divided by `steps`), or words."""
    return _number(row, column, steps) if column.is_number or column.value_in(row) is None else cell(row, column).text


def _number(row: Document, column: Column, steps: int) -> float | None:
    value: float | None = column.value_in(row)
    size = _divisor(column, steps)
    return value if value is None or size == 1 else value / size


def _divisor(column: Column, steps: int) -> int:
    """What a value is divided by: the number of steps, if it is a sum over them."""
    return steps if column.total and steps else 1


def _tables(tables: Sequence[tuple[str, Html]], meanings: Sequence[Definition], lead: str = "") -> Html:
    """Tables with their titles, sentences before them, and the meanings of their figures."""
    return render("study/tables", lead=lead, tables=tables, meanings=meanings)


def _variants_table(figures: Sequence[Figure]) -> Html:
    names = dict.fromkeys(name for figure in figures for name in figure.values)
    return figures_table("Variant", {name: breakable(name) for name in names}, figures)
