"""Tables as frames, structs and Parquet files. A table is declared by the type of its rows (`documents.base`).

Names ending in `_ns` are int64 nanoseconds. What a column may hold follows from its type: `int | None` may be null.
"""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

import msgspec

from steptrace.documents.base import Column, Document, columns_of, keys_of
from steptrace.errors import SchemaError
from steptrace.files import check_version, naming, open_file

if TYPE_CHECKING:  # imported where it is needed: reading a declaration does not take half a second
    import pandas as pd

#: In the metadata of a parquet file.
_VERSION_KEY: Final = b"steptrace.schema_version"
VERSION: Final = 1
#: The pandas dtypes that a column of a declared dtype may have.
_KINDS: dict[str, str] = {"int64": "iu", "float64": "f", "bool": "b", "string": "OSUT"}
#: The dtypes that pandas and a declaration name alike; they hold no nulls.
_COMPLETE: Final = ("int64", "bool")


def names_of(kind: type[Document]) -> list[str]:
    """The names of the columns of a kind of row, in order."""
    return [column.name for column in columns_of(kind)]


def validate(frame: "pd.DataFrame", kind: type[Document]) -> "pd.DataFrame":
    """Return a frame of such rows with its columns in declared order, or raise `SchemaError` naming the first defect.

    No two rows may have the same keys.
    """
    frame = _fitting(frame, kind)
    keys = [column.name for column in keys_of(kind)]
    if keys and len(frame) > 1 and (again := frame.duplicated(keys)).any():
        raise SchemaError(f"two rows have the key {frame[again].iloc[0][keys].to_dict()}", where=kind.__name__)
    return frame


def _fitting(frame: "pd.DataFrame", kind: type[Document]) -> "pd.DataFrame":
    names = names_of(kind)
    if list(frame.columns) != names:
        missing = [name for name in names if name not in frame.columns]
        unknown = [str(name) for name in frame.columns if name not in names]
        if missing or unknown:
            raise SchemaError(
                f"table has missing columns {missing} and unknown columns {unknown}",
                where=kind.__name__,
                expected=", ".join(names),
            )
        frame = frame[names]
    for column, dtype in zip(columns_of(kind), frame.dtypes, strict=True):
        if str(dtype) != column.dtype or column.dtype not in _COMPLETE:
            _validate_column(frame[column.name], column, f"{kind.__name__}.{column.name}")
    return frame


def check_references(frame: "pd.DataFrame", kind: type[Document], lengths: Mapping[str, int]) -> None:
    """Check that every row number in a table is one of the table that its column names.

    Args:
        frame: the table.
        kind: the type of its rows.
        lengths: by name how many rows each table has that columns may name.

    Raises:
        SchemaError: a number is negative, or not below the length of its table.
    """
    for column in columns_of(kind):
        if column.table is None or not len(frame):
            continue
        numbers = frame[column.name].dropna()
        if len(numbers) and (int(numbers.min()) < 0 or int(numbers.max()) >= lengths[column.table]):
            raise SchemaError(
                f"column names rows {int(numbers.min())} to {int(numbers.max())} of table {column.table}",
                where=f"{kind.__name__}.{column.name}",
                expected=f"row numbers below {lengths[column.table]}",
            )


def frame_of(
    kind: type[Document], data: "pd.DataFrame | Mapping[str, Any] | Sequence[Mapping[str, Any]]" = ()
) -> "pd.DataFrame":
    """The frame of a kind of row from a frame, its columns, or its rows; without any it is empty.

    Lists, objects, and whole numbers held as floats get the declared dtype. None is null, for a whole column too.

    Raises:
        SchemaError: a column is missing or unknown; a value is not of the declared type.
    """
    import pandas as pd

    if isinstance(data, Mapping):
        loose = {n for n, v in data.items() if isinstance(v, list) or str(getattr(v, "dtype", "")) == "object"}
        data = pd.DataFrame({n: pd.Series(v, dtype=object) if n in loose else v for n, v in data.items()})
    elif not isinstance(data, pd.DataFrame):
        data = pd.DataFrame(list(data), columns=None if data else names_of(kind), dtype=object)
    cast = {
        column.name: _cast(data[column.name], column, f"{kind.__name__}.{column.name}")
        for column in columns_of(kind)
        if column.name in data
        and column.dtype != "string"
        and data[column.name].dtype.kind in ("Of" if column.dtype == "int64" else "O")
    }
    return _fitting(data.assign(**cast) if cast else data, kind)


#: By declared dtype the pandas dtype that refuses what a cast would change.
_SAFE: Final[dict[str, Any]] = {"int64": "Int64", "bool": "boolean", "float64": "float64"}


def _cast(values: "pd.Series[Any]", column: Column, where: str) -> "pd.Series[Any]":
    try:
        safe: pd.Series[Any] = values.astype(_SAFE[column.dtype])
    except (TypeError, ValueError) as error:
        what = f"column holds values of another type ({error})"
        raise SchemaError(what, where=where, expected=column.dtype) from error
    _validate_column(safe, column, where)
    return safe if column.nullable else safe.astype({"int64": int, "bool": bool}.get(column.dtype, float))


def _validate_column(values: "pd.Series[Any]", column: Column, where: str) -> None:
    if not column.nullable and bool(values.isna().any()):
        raise SchemaError("column holds nulls", where=where, expected="a value in every row")
    kind = values.dtype.kind
    # A nullable column without any value has no type.
    if kind not in _KINDS[column.dtype] and not bool(values.isna().all()):
        raise SchemaError(f"column has dtype {values.dtype}", where=where, expected=column.dtype)


def write_table(frame: "pd.DataFrame", path: Path) -> None:
    """Write a frame as parquet, without its index, with the version of tables in the metadata.

    Only texts are dictionary-encoded: for times this would double the cost of writing.
    """
    columns = tuple((str(name), str(dtype)) for name, dtype in frame.dtypes.items())
    # A small trace has some thirty tables without rows, and to convert each again was a fifth of its time.
    if len(frame) == 0 and "category" not in dict(columns).values():
        if columns not in _without_rows:
            file = io.BytesIO()
            _write_parquet(frame, file)
            _without_rows[columns] = file.getvalue()
        with naming(path), path.open("wb") as opened:
            opened.write(_without_rows[columns])
        return
    with naming(path), path.open("wb") as opened:  # Arrow takes only names that are UTF-8
        _write_parquet(frame, opened)


#: The Parquet file of a table without rows, by the names and dtypes of its columns.
_without_rows: Final[dict[tuple[tuple[str, str], ...], bytes]] = {}


def _write_parquet(frame: "pd.DataFrame", file: BinaryIO) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.Table.from_pandas(frame, preserve_index=False)
    texts = [str(name) for name, dtype in frame.dtypes.items() if dtype.kind not in "iufb"]
    metadata = {**(table.schema.metadata or {}), _VERSION_KEY: b"%d" % VERSION}
    parquet.write_table(table.replace_schema_metadata(metadata), file, use_dictionary=texts)


def read_table(path: Path) -> "pd.DataFrame":
    """A parquet file as a frame.

    Raises:
        RecordError: its version of tables differs.
        OSError, ValueError: it is missing or cannot be read.
    """
    from pyarrow.parquet import ParquetFile

    with open_file(path) as opened, ParquetFile(opened) as file:
        check_table_version(file.schema_arrow.metadata or {}, path)
        frame: pd.DataFrame = file.read().to_pandas()
        return frame


def check_table_version(metadata: Mapping[bytes, bytes], path: Path) -> None:
    """Raise `RecordError` if the metadata of a parquet file have another version of tables."""
    version = metadata.get(_VERSION_KEY, b"%d" % VERSION).decode(errors="replace")
    check_version(int(version) if version.isdecimal() else version, path, VERSION)


_Row = TypeVar("_Row", bound=Document)


def rows(table: "pd.DataFrame", kind: type[_Row]) -> tuple[_Row, ...]:
    """The rows of a table as structs; drops columns that the struct lacks; missing values are None."""
    return tuple(msgspec.convert(row, kind) for row in records(table, names_of(kind)))


def records(table: "pd.DataFrame", names: Iterable[str] | None = None) -> list[dict[str, Any]]:
    """The rows of a table, or of some of its columns, as plain JSON values; missing ones are None."""
    wanted = [*map(str, table.columns)] if names is None else [*names]
    columns = [map(plain, table[name].to_numpy(dtype=object)) for name in wanted]
    return [dict(zip(wanted, row, strict=True)) for row in zip(*columns, strict=True)]


def plain(value: Any) -> Any:
    """A value as plain JSON: numpy's numbers become Python's, null and NaN become None."""
    import numpy as np
    import pandas as pd

    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    return value.item() if isinstance(value, np.generic) else value
