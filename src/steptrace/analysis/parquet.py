"""Tables as Parquet files, a slice of rows at a time: nowhere do all columns of a long table stand a second time."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
        with _writer(folder / f"{name}.parquet", table, texts) as file:
            for begin in range(0, max(len(table), 1), _ROWS):
                file.write_table(_arrow(table.iloc[begin : begin + _ROWS], file.schema))


def _writer(path: Path, table: pd.DataFrame, texts: list[str]) -> pq.ParquetWriter:
    # A few rows tell the types: the first in which each text is given.
    rows = {int(table[name].notna().to_numpy().argmax()) for name in texts if len(table)}
    schema = pa.Schema.from_pandas(_wide(table.iloc[sorted(rows | {*range(len(table))[:1]})]), preserve_index=False)
    schema = schema.with_metadata(with_version(schema.metadata))
    return pq.ParquetWriter(path, schema, use_dictionary=texts)


def _arrow(rows: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    """Rows of a table with the types of a schema."""
    columns = zip(rows.items(), schema, strict=True)
    return pa.Table.from_arrays(
        [pa.array(column, type=field.type, from_pandas=True) for (_, column), field in columns], schema=schema
    )


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    narrow = {
        name: "Int64" if pd.api.types.is_extension_array_dtype(dtype) else np.int64
        for name, dtype in rows.dtypes.items()
        if dtype.kind == "i" and dtype.itemsize < 8
    }
    return rows.astype(narrow) if narrow else rows
