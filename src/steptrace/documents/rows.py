"""Rows of a trace's tables as they stand in summary.json; `table_of` makes of such rows the declaration of a table."""

from steptrace.documents.base import Document
from steptrace.documents.column import columns_of as declared_columns
from steptrace.documents.column import keys_of
from steptrace.schema import Column, Table


def table_of(name: str, kind: type[Document], *key: str) -> Table:
    """The table whose rows are of this kind, which says what a row is.

    `key` names the columns that identify one where the kind declares no keys.
    """
    declared = tuple(column.name for column in keys_of(kind))
    return Table(name, kind.__doc__ or "", *columns_of(kind), key=key or declared)


def columns_of(kind: type[Document]) -> tuple[Column, ...]:
    """The columns of a table whose rows are of this kind."""
    return tuple(Column(c.name, c.dtype or "", c.meaning, c.unit, c.nullable) for c in declared_columns(kind))
