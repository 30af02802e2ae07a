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
_ROWS: Final = 1 << 17


def write_all(tables: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Write tables to `folder/<name>.parquet`, whole numbers as int64, however narrow they are in memory.

    Only texts, which repeat, go through dictionaries: for times these cost as much as all the rest.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        texts = [str(column) for column, dtype in table.dtypes.items() if dtype.kind not in "iufb"]
        schema = _schema(table)
        with pq.ParquetWriter(folder / f"{name}.parquet", schema, use_dictionary=texts) as file:
            for begin in range(0, max(len(table), 1), _ROWS):
                file.write_table(_arrow(table.iloc[begin : begin + _ROWS], schema))


def _schema(table: pd.DataFrame) -> pa.Schema:
    """The types of a table's columns: those of texts are found in all of its rows, the others are declared."""
    texts = [name for name, dtype in table.dtypes.items() if dtype.kind not in "iufb"]
    declared = pa.Schema.from_pandas(_wide(table.iloc[:0]), preserve_index=False)
    found = pa.Schema.from_pandas(table[texts], preserve_index=False)
    for name in texts:
        declared = declared.set(declared.get_field_index(name), found.field(name))
    return declared.with_metadata(with_version(declared.metadata))


def _arrow(rows: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pandas(_wide(rows), schema=schema, preserve_index=False)


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    narrow = {
        name: "Int64" if pd.api.types.is_extension_array_dtype(dtype) else np.int64
        for name, dtype in rows.dtypes.items()
        if dtype.kind == "i" and dtype.itemsize < 8
    }
    return rows.astype(narrow)
