"""How each subject of a trace, and each table, is computed: functions of the trace, attached where they are written.

`build` imports every module of `steptrace.analysis`, so that all of them are attached, and lists none.

Example:
    @table_part("copies")
    @once
    def copies(trace: Trace) -> pd.DataFrame: ...
"""

import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import pandas as pd

from steptrace.analysis.common.activity import why_calls_unknown
from steptrace.documents.base import Document
from steptrace.documents.subject import Absence, Subject, is_empty, subjects_of
from steptrace.documents.summary import TraceSummary
from steptrace.documents.table import frame_of
from steptrace.documents.table import rows as rows_of
from steptrace.trace.model import Trace

TableFunction = Callable[[Trace], pd.DataFrame]
PartFunction = Callable[[Trace], Any]
#: Returns why there is nothing to say of a subject, if that is not what its entry says; None where that is no loss.
AbsenceFunction = Callable[[Trace], Absence | None]

_Table = TypeVar("_Table", bound=TableFunction)
_Part = TypeVar("_Part", bound=PartFunction)

_tables: Final[dict[str, TableFunction]] = {}
_of_call_tree: Final[set[str]] = set()
_row_types: Final[dict[str, type[Document]]] = {}
_before_forgotten: Final[dict[str, list[PartFunction]]] = {}
_parts: Final[dict[str, PartFunction]] = {}
_absences: Final[dict[str, AbsenceFunction]] = {}

#: Every table by name, except the trace's own and the allocators' memory. A trace remembers what it has computed, so
#: they may be asked for in any order. Without GPU work those of the GPU have no rows.
TABLES: Final[Mapping[str, TableFunction]] = MappingProxyType(_tables)
#: The types of their rows, where one is declared.
ROW_TYPES: Final[Mapping[str, type[Document]]] = MappingProxyType(_row_types)


def table(name: str, rows: type[Document] | None = None, *, of_call_tree: bool = False) -> Callable[[_Table], _Table]:
    """Attach the function that makes a table: `tables/NAME.parquet` of `steptrace analyze`.

    Args:
        name: of the table.
        rows: the type of its rows, if one is declared.
        of_call_tree: whether it is made of the call tree, which is the largest table. Those are written first, so that
            the others have its memory.

    Raises:
        ValueError: there is such a table already.
    """

    def attach(compute: _Table) -> _Table:
        if name in _tables:
            raise ValueError(f"two functions make the table {name!r}")
        _tables[name] = compute
        if rows is not None:
            _row_types[name] = rows
        if of_call_tree:
            _of_call_tree.add(name)
        return compute

    return attach


def without_rows_of(name: str, rows: type[Document]) -> Callable[[_Table], _Table]:
    """Declare that a table has no rows if one of the trace's own tables has none; its function is not called then.

    Computing an empty table takes pandas milliseconds, which add up to minutes for many small traces.

    Args:
        name: of the trace's table, such as `kernels`.
        rows: the type of the rows of the table that the function makes.
    """

    def attach(compute: _Table) -> _Table:
        @functools.wraps(compute)
        def table_of(trace: Trace) -> pd.DataFrame:
            return compute(trace) if len(getattr(trace, name)) else _empty(rows)

        return cast("_Table", table_of)

    return attach


@functools.cache
def _empty(rows: type[Document]) -> pd.DataFrame:
    return frame_of(rows)


def reads(name: str) -> Callable[[_Part], _Part]:
    """Declare that a function reads a large table (a row for each event) that nothing needs afterwards.

    `analyze` calls the function as soon as the table is written, and then forgets the table: several such tables at
    once were its peak of memory. The function must remember its result, by `once`.

    Args:
        name: of the table, which may be attached later.
    """

    def attach(compute: _Part) -> _Part:
        _before_forgotten.setdefault(name, []).append(compute)
        return compute

    return attach


def readers() -> Mapping[str, list[PartFunction]]:
    """The functions that read tables which are then forgotten, by the table's name."""
    return _before_forgotten


def part(name: str, *, absent: AbsenceFunction | None = None) -> Callable[[_Part], _Part]:
    """Attach the function that computes a field of `TraceSummary`.

    Args:
        name: of the field.
        absent: says why it is null or empty, where that is not always what the subject's entry says.

    Raises:
        ValueError: there is no such field, or it has a function already.
    """
    if name not in TraceSummary.__struct_fields__:
        raise ValueError(f"TraceSummary has no field {name!r}")
    if name in _parts:
        raise ValueError(f"two functions compute {name!r}")

    def attach(compute: _Part) -> _Part:
        _parts[name] = compute
        if absent is not None:
            _absences[name] = absent
        return compute

    return attach


def table_part(name: str, *, absent: AbsenceFunction | None = None) -> Callable[[_Table], _Table]:
    """Attach the function of a table that is a subject as well: its rows are the field of `TraceSummary`.

    Raises:
        ValueError: there is no such subject, or it has a function already.
    """
    kinds = {subject.name: subject.kind for subject in subjects_of(TraceSummary)}
    if name not in kinds:
        raise ValueError(f"there is no subject {name!r}")

    def attach(compute: _Table) -> _Table:
        part(name, absent=absent)(lambda trace: rows_of(compute(trace), kinds[name]))
        return table(name, kinds[name])(compute)

    return attach


def parts_of(trace: Trace) -> dict[str, Any]:
    """The value of each field of `TraceSummary` that a function was attached to, and `absent`.

    Raises:
        NotImplementedError: no function computes a subject.
    """
    if missing := [subject.name for subject in subjects_of(TraceSummary) if subject.name not in _parts]:
        raise NotImplementedError(f"no module of steptrace.analysis computes {', '.join(missing)}")
    values = {name: compute(trace) for name, compute in _parts.items()}
    absent = {entry.name: _why(trace, entry) for entry in subjects_of(TraceSummary) if is_empty(values[entry.name])}
    return values | {"absent": absent}


#: What a trace may lack only since records of its GPU were lost.
_OF_GPU_WORK: Final[frozenset[Absence]] = frozenset({"no_gpu_work", "no_collective"})


def _why(trace: Trace, subject: Subject) -> Absence | None:
    if trace.device is None and trace.meta.records.lost and (subject.needs_gpu or subject.absent in _OF_GPU_WORK):
        return None if subject.absent is None else "gpu_records_lost"
    if "follows_launches" in subject.traits and trace.device is not None and (why := why_calls_unknown(trace)):
        return why
    if subject.name in _absences and not (subject.needs_gpu and trace.device is None):
        return _absences[subject.name](trace)
    return subject.absent


def tables_of_call_tree() -> Mapping[str, TableFunction]:
    """The tables that are made of the call tree."""
    return {name: compute for name, compute in _tables.items() if name in _of_call_tree}


def other_tables() -> Mapping[str, TableFunction]:
    """The tables that are not made of the call tree."""
    return {name: compute for name, compute in _tables.items() if name not in _of_call_tree}
