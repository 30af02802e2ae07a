"""Sorted columns, and small functions for linking tables."""

from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from steptrace import intervals
from steptrace.compiled import compiled
from steptrace.intervals import Ints
from steptrace.trace.decode import MISSING
from steptrace.trace.names import step_index

Mask = NDArray[np.bool_]
#: Row numbers: no table has more rows than fit in int32.
Rows = NDArray[np.int32] | NDArray[np.int64]
Columns = dict[str, NDArray[Any]]


def references(rows: Rows) -> Any:
    """A nullable int32 column of row numbers from an array with -1 for null."""
    return pd.arrays.IntegerArray(np.maximum(rows, 0).astype(np.int32), rows < 0)


def counted(values: Ints) -> Any:
    """A nullable int64 column from an array with -1 for null."""
    return pd.arrays.IntegerArray(np.maximum(values, 0), values < 0)


def optional(values: Ints) -> Any:
    """A nullable integer column from an array with `MISSING` for null."""
    missing = values == MISSING
    return pd.arrays.IntegerArray(np.where(missing, 0, values), missing)


def unmeasured(count: int) -> Any:
    """A nullable int64 column of nulls."""
    return counted(np.full(count, -1, dtype=np.int64))


def row_numbers(column: "pd.Series[Any]") -> Ints:
    """The inverse of `references`: an array with -1 for null."""
    return column.to_numpy(dtype=np.int64, na_value=-1)


def take(column: Rows, rows: Rows) -> Ints:
    """`column[rows]`, and -1 where a row is -1: follows a reference. Has the column's dtype."""
    if len(column) == 0:
        return np.full(len(rows), -1, dtype=np.int64)
    return np.where(rows >= 0, column[np.maximum(rows, 0)], -1)


def row_with(ids: Ints, wanted: Ints) -> Ints:
    """The first row with each of the wanted ids, -1 without one; ids of 0 or less are ignored."""
    rows = np.flatnonzero(ids > 0)
    rows = rows[np.argsort(ids[rows], kind="stable")]
    keys = np.append(ids[rows], np.iinfo(np.int64).max)
    place = np.searchsorted(keys, wanted)
    return np.where(keys[place] == wanted, np.append(rows, -1)[place], -1)


def texts(names: "pd.Series[Any]", rows: Ints) -> "pd.Series[Any]":
    """The name in each of the rows of a table, None where the row is -1."""
    codes = take(names.cat.codes.to_numpy().astype(np.int64), rows)
    return pick(np.array([str(name) for name in names.cat.categories], dtype=object), codes)


def pick(values: NDArray[Any], places: Ints) -> "pd.Series[Any]":
    """The object at each place of an array of objects, None where the place is -1."""
    padded = np.full(len(values) + 1, None, dtype=object)
    padded[:-1] = values
    return pd.Series(padded[places], dtype=object)


def text(codes: NDArray[Any], names: pd.Index) -> Any:
    """A string column that stores each distinct string once."""
    return pd.Categorical.from_codes(codes.astype(np.int32), categories=names)


def by_name(codes: NDArray[Any], names: pd.Index, judge: Any, dtype: Any = bool) -> NDArray[Any]:
    """`judge(name)` for each row, evaluated once per distinct name that occurs."""
    verdicts = np.zeros(len(names), dtype=dtype)
    occurs = np.zeros(len(names), dtype=bool)
    occurs[codes] = True
    for code in np.flatnonzero(occurs).tolist():
        verdicts[code] = judge(names[code])
    result: NDArray[Any] = verdicts[codes]
    return result


def map_names(names: "pd.Series[Any]", judge: Any, dtype: Any = bool) -> NDArray[Any]:
    """`by_name` of a column of a table, without nulls."""
    return by_name(names.cat.codes.to_numpy(), names.cat.categories, judge, dtype)


def start_end(rows: pd.DataFrame) -> tuple[Ints, Ints]:
    """Start and end of each event of a table."""
    start = rows["ts"].to_numpy()
    return start, start + rows["dur"].to_numpy()


def spans_of(rows: pd.DataFrame) -> intervals.Spans:
    """The events of a table as spans, in their order."""
    return intervals.spans(*start_end(rows))


#: How many events are processed at a time.
_AT_ONCE: Final = 1 << 16


def union_of(rows: pd.DataFrame, wanted: Mask) -> intervals.Spans:
    """The normal form of the union of a table's wanted events.

    In portions: their spans and the arrays that sort them would be several times the size of the table's two columns.
    """
    start = rows["ts"].to_numpy()
    length = rows["dur"].to_numpy()
    places = np.flatnonzero(wanted)
    parts = []
    for portion in np.array_split(places, len(places) // _AT_ONCE + 1):
        begin = start[portion]
        parts.append(intervals.union(intervals.spans(begin, begin + length[portion])))
    return intervals.union(*parts)


def ended_before(rows: pd.DataFrame, by: list[str]) -> Ints:
    """The latest end of the rows before each row in its group (equal values of the columns `by`).

    Rows are in order of start within their group. -1 for the first of a group.
    """
    groups = [rows[name] for name in by]
    reach = (rows["ts"] + rows["dur"]).groupby(groups, observed=True).cummax()
    return reach.groupby(groups, observed=True).shift(fill_value=-1).to_numpy(dtype=np.int64)


def innermost(table: pd.DataFrame, events: pd.DataFrame) -> Ints:
    """Row of the innermost event of `table` around the start of each of `events`, on its thread; -1 for none."""
    thread = events["thread"].to_numpy()
    time = events["ts"].to_numpy()
    return intervals.enclosing(table["thread"].to_numpy(), *start_end(table), thread, time)


def marks_steps(rows: pd.DataFrame) -> Mask:
    """A mask of the labels that mark the profiler's steps."""
    return map_names(rows["name"], lambda name: step_index(name) is not None)


def sort_nesting(columns: Columns, tie_break: str) -> Columns:
    """Sort rows by thread, then start, then the longer first: each parent comes before its children.

    Events that start and end together are sorted by `tie_break`, the profiler's own numbering, and by name, so that
    the order of events in the file does not matter. Empties `columns`.
    """
    columns["end"] = columns["ts"] + columns["dur"]
    order = np.lexsort((columns["name"], columns[tie_break], -columns["end"], columns["ts"], columns["thread"]))
    return in_order(columns, order)


def in_order(columns: Columns, order: Ints) -> Columns:
    """The columns with their rows in another order. Removes them from `columns`, to save memory."""
    return {name: columns.pop(name)[order] for name in list(columns)}


def parents(nested: Columns) -> Ints:
    """Row of the innermost event around each event of the same table, -1 for none."""
    return intervals.nesting_parents(nested["thread"], nested["ts"], nested["end"])


def around(nested: Columns, inner: Columns) -> Ints:
    """Row of the innermost event of `nested` that holds the start of each event of `inner`, -1 for none."""
    return intervals.enclosing(nested["thread"], nested["ts"], nested["end"], inner["thread"], inner["ts"])


def nearest(parent: Rows, wanted: Mask) -> Rows:
    """For each row of a forest, itself or its nearest wanted ancestor, -1 without one; int32.

    Parents may stand before or after their children.
    """
    row = np.empty(len(parent), dtype=np.int32)
    compiled.nearest(np.ascontiguousarray(parent, dtype=np.int32), np.ascontiguousarray(wanted), row)
    return row


def has_ancestor(parent: Ints, wanted: Mask) -> Mask:
    """Whether any proper ancestor of each row of a nesting is wanted."""
    return take(nearest(parent, wanted), parent) >= 0
