"""One trace's tables, and their rows as the structs of summary.json."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pandas as pd

from steptrace.documents.base import Document
from steptrace.trace.model import Trace

_Row = TypeVar("_Row", bound=Document)


@dataclass(frozen=True)
class Analysis:
    """One trace with every metric's table by name.

    `device` is the analysed GPU: the one with the most activity time, None for a trace without GPU work. Tables that
    the trace has no events for are missing.
    """

    path: Path
    trace: Trace
    device: int | None
    tables: Mapping[str, pd.DataFrame] = field(repr=False)

    def rows(self, name: str, kind: type[_Row], most: int | None = None) -> tuple[_Row, ...]:
        """The first rows of a table, at most `most`; empty if it is missing."""
        return rows(self.tables[name].iloc[:most], kind) if name in self.tables else ()


def rows(table: pd.DataFrame, kind: type[_Row]) -> tuple[_Row, ...]:
    """The rows of a table as structs; drops columns that the struct lacks; missing values are None."""
    return tuple(msgspec.convert(row, kind) for row in records(table, kind.__struct_encode_fields__))


def records(table: pd.DataFrame, names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a table, or of some of its columns, as plain JSON values; missing ones are None."""
    wanted = [*map(str, table.columns)] if names is None else [*names]
    columns = [map(plain, table[name].to_numpy(dtype=object)) for name in wanted]
    return [dict(zip(wanted, row, strict=True)) for row in zip(*columns, strict=True)]


def plain(value: Any) -> Any:
    """A value as plain JSON: numpy's numbers become Python's, null and NaN become None."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value
