"""Rows of tables as the structs of summary.json."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec
import numpy as np
import pandas as pd

from steptrace.documents.base import Document

_Row = TypeVar("_Row", bound=Document)


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
