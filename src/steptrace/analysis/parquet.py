"""Tables as Parquet files, a slice of rows at a time: nowhere do all columns of a long table stand a second time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from steptrace.schema import with_version

#: Rows of a row group.
_ROWS: Final = 1 << 16


def write_all(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Write tables to `folder/<name>.parquet`, whole numbers as int64, however narrow they are in memory.

    Only texts, which repeat, go through dictionaries: for times these cost as much as all the rest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        texts = [str(column) for column, dtype in table.dtypes.items() if dtype.kind not in "iufb"]
        first = _wide(table if len(table) <= _ROWS else _telling(table, texts))
        whole = pa.Table.from_pandas(first, preserve_index=False)
        schema = whole.schema.with_metadata(with_version(whole.schema.metadata))
        with pq.ParquetWriter(folder / f"{name}.parquet", schema, use_dictionary=texts) as file:
            slices = (table.iloc[begin : begin + _ROWS] for begin in range(0, len(table), _ROWS))
            for part in [whole] if len(table) <= _ROWS else (_arrow(rows, schema) for rows in slices):
                file.write_table(part)


def _telling(table: pd.DataFrame, texts: list[str]) -> pd.DataFrame:
    """A few rows that tell the types: the first, and those in which each text is given first."""
    return table.iloc[sorted({0, *(int(table[name].notna().to_numpy().argmax()) for name in texts)})]


def _arrow(rows: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """Rows of a table with the types of a schema."""
    columns = zip(rows.items(), schema, strict=True)
    return pa.Table.from_arrays(
        [pa.array(column, type=field.type, from_pandas=True) for (_, column), field in columns], schema=schema
    )


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    narrow: list[tuple[str, Any]] = [
        (str(name), np.int64 if isinstance(dtype, np.dtype) else "Int64")
        for name, dtype in rows.dtypes.items()
        if dtype.kind == "i" and dtype.itemsize < 8
    ]
    return rows.assign(**{name: rows[name].astype(dtype) for name, dtype in narrow}) if narrow else rows
