"""Columns that name rows of another table: the table is one of a trace, and every number is one of its rows."""

from dataclasses import replace
from typing import get_args

import pandas as pd
import pytest

from builders import TraceBuilder, training_step
from recorded import NAMES, needs_traces, trace_of
from steptrace.analysis import TABLES as COMPUTED
from steptrace.analysis.common.call_tree import call_tree
from steptrace.analysis.common.registry import ROW_TYPES
from steptrace.analysis.memory import MemoryBlock, memory_blocks
from steptrace.documents.base import Document, TraceTable, columns_of
from steptrace.documents.table import check_references
from steptrace.errors import SchemaError
from steptrace.trace.model import Trace, check, lengths_of_tables
from steptrace.trace.rows import TABLES, KernelRow, OpRow


def _trace() -> Trace:
    builder = TraceBuilder()
    for k in range(2):
        training_step(builder, k, k * 1_000_000)
    return builder.trace()


def _check_all(trace: Trace) -> dict[str, int]:
    """Hold every table to its references, and return how many numbers each named table was named by."""
    lengths = lengths_of_tables(trace) | {"call_tree": len(call_tree(trace))}
    tables: list[tuple[pd.DataFrame, type[Document]]] = [(getattr(trace, name), kind) for name, kind in TABLES.items()]
    tables += [(COMPUTED[name](trace), kind) for name, kind in ROW_TYPES.items()]
    tables.append((memory_blocks(trace), MemoryBlock))
    named: dict[str, int] = {}
    for frame, kind in tables:
        check_references(frame, kind, lengths)
        for column in columns_of(kind):
            if column.table is not None:
                named[column.table] = named.get(column.table, 0) + int(frame[column.name].notna().sum())
    return named


def test_what_a_column_names_is_a_table() -> None:
    assert set(get_args(TraceTable)) == {
        "threads",
        "steps",
        "ops",
        "launches",
        "kernels",
        "frames",
        "labels",
        "call_tree",
    }
    assert set(get_args(TraceTable)) <= {*TABLES, *COMPUTED}
    columns = {column.name: column for column in columns_of(OpRow)}
    assert (columns["parent"].table, columns["frame"].table, columns["dur"].table) == ("ops", "frames", None)


def test_every_table_names_rows_that_exist() -> None:
    named = _check_all(_trace())
    assert min(named.values()) > 0
    assert set(named) == set(get_args(TraceTable))


@needs_traces
@pytest.mark.parametrize("name", NAMES)
def test_so_it_is_in_recorded_traces(name: str) -> None:
    assert _check_all(trace_of(name))["threads"] > 0


@pytest.mark.parametrize("number", [-1, 1_000])
def test_a_row_that_does_not_exist_is_refused(number: int) -> None:
    trace = _trace()
    launch = trace.kernels["launch"].copy()
    launch.iloc[0] = number
    with pytest.raises(SchemaError, match=r"KernelRow\.launch"):
        check(replace(trace, kernels=trace.kernels.assign(launch=launch)))


def test_null_names_no_row() -> None:
    trace = _trace()
    launch = trace.kernels["launch"].copy()
    launch.iloc[0] = pd.NA
    check(replace(trace, kernels=trace.kernels.assign(launch=launch)))
    assert [column.name for column in columns_of(KernelRow) if column.table] == ["launch", "step"]
