"""Combines the documents of several runs into one, such as a variant's trace in comparison.json.

The kind that a column declares (`documents.base.Kind`) says how the numbers of the runs are combined, and how a run
without the row counts. A row says in how many runs it was.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import floor
from operator import attrgetter
from statistics import mean, median
from typing import Any, Final, TypeVar, get_type_hints

import msgspec

from steptrace.documents.base import Column, Document, InRuns, attributes_of, by_key, columns_of, keys_of

_Document = TypeVar("_Document", bound=Document)

_Centre = Callable[[Sequence[Any]], Any]
_EXTREMES: Final[dict[str, _Centre]] = {"min": min, "max": max}


def over_runs(runs: Sequence[_Document]) -> _Document:
    """Combine the documents of several runs, such as a variant's `TraceSummary`: each field as its column says.

    Numbers, also those of a dict, become what their kind says: the least or the greatest for an extreme, the common
    value for a fact, the first run's for what makes sense in one run alone, else the median (or the mean, where parts
    add up to a whole). Whole numbers stay whole. Words are the first run's. A document within a document is null if one
    run lacks it, else reduced field by field. Of a kind of document that names one of its figures as `RUN_OF_GREATEST`,
    since its figures belong together, the document of the run with the greatest such figure stands for all.

    Rows of the runs are matched by their keys. Where a run lacks a row, only totals and sums count 0 there; every other
    figure is taken over the runs that have it. `runs` of a row says how many these are.

    A number that a run could not measure (null) is no 0: a total or a sum is null then, and every other figure is taken
    over the runs that measured it.

    Raises:
        TypeError: a column of numbers does not declare their kind.
    """
    return _over(runs, lacking=0)


def _over(runs: Sequence[_Document], lacking: int) -> _Document:
    """Combine the documents of the runs that have one; `lacking` is the number of runs without it."""
    kind = type(runs[0])
    leading: str | None = getattr(kind, "RUN_OF_GREATEST", None)
    if leading is not None:
        return msgspec.structs.replace(max(runs, key=attrgetter(leading)), runs=len(runs))
    columns = {column.name: column for column in columns_of(kind)}
    reduced: dict[str, Any] = {}
    for name, attribute in attributes_of(kind).items():
        values = [getattr(run, attribute) for run in runs]
        reduced[attribute] = _reduced(values, columns.get(name), lacking, f"{kind.__name__}.{name}")
    if counts_runs(kind):
        reduced["runs"] = len(runs)
    return msgspec.structs.replace(runs[0], **reduced)


@cache
def counts_runs(kind: type[Document]) -> bool:
    """Whether documents of a kind say how many runs they are of."""
    return get_type_hints(kind, include_extras=True).get("runs") == InRuns


def _reduced(values: Sequence[Any], column: Column | None, lacking: int, where: str) -> Any:
    """A field's values of the runs that have the row, as one."""
    first = values[0]
    kind = None if column is None else column.kind
    if kind == "first" or (column is not None and column.is_key):
        return first
    if kind == "fact":
        return first if all(value == first for value in values) else None
    known = [value for value in values if value is not None]
    if any(map(_is_number, known)):
        return _number(values, column, lacking, where)
    if len(known) < len(values):
        return None
    if isinstance(first, dict):
        return _by_name(values, column, lacking, where)
    if isinstance(first, Document):
        return _over(values, lacking)
    if isinstance(first, tuple):
        return _rows(values, lacking)
    return first


def _number(values: Sequence[Any], column: Column | None, lacking: int, where: str) -> Any:
    if column is None or column.kind is None:
        raise TypeError(f"{where} holds numbers and does not declare their kind")
    known = [value for value in values if value is not None]
    if column.counts_missing_rows:
        if len(known) < len(values):
            return None
        known += [0] * lacking
    if column.kind in _EXTREMES:
        return _EXTREMES[column.kind](known)
    middle = mean(known) if column.centre == "mean" else median(known)
    return floor(middle + 0.5) if all(isinstance(value, int) for value in known) else middle


def _by_name(values: Sequence[dict[str, Any]], column: Column | None, lacking: int, where: str) -> dict[str, Any]:
    """Numbers by name: a name that a run lacks is as a row that it lacks."""
    names = dict.fromkeys(name for value in values for name in value)
    having = {name: [value[name] for value in values if name in value] for name in names}
    return {
        name: _number(numbers, column, lacking + len(values) - len(numbers), where) for name, numbers in having.items()
    }


def _rows(runs: Sequence[Sequence[Document]], lacking: int) -> tuple[Any, ...]:
    kind: Any = next((type(row) for rows in runs for row in rows), None)
    if kind is None or not issubclass(kind, Document) or not keys_of(kind):  # words, a curve, or a picture's boxes
        return tuple(runs[0])
    by_run = [by_key(rows) for rows in runs]
    reduced = []
    for identity in dict.fromkeys(identity for rows in by_run for identity in rows):
        having = [rows[identity] for rows in by_run if identity in rows]
        reduced.append(_over(having, lacking + len(by_run) - len(having)))
    return tuple(reduced)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
